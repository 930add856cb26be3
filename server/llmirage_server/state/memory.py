"""Objects in memory."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, NamedTuple

from llmirage_server.state.state import Kind, MemoryContents, written

MEMORY_MIB = 16
OBJECT_BYTES = 512  # what an object takes beside its JSON: its key, its id and its places in the table


class _Kept(NamedTuple):
    number: int  # in the order in which the objects were first put
    stored_s: float
    data: bytes  # UTF-8: a str takes four bytes a character if one of them is an emoji

    @property
    def size(self) -> int:
        return len(self.data) + OBJECT_BYTES


class MemoryState:
    """Objects in memory. Where there is no more room the least recently used go."""

    def __init__(
        self, most_bytes: int = MEMORY_MIB << 20, ttl_s: float = math.inf, clock: Callable[[], float] = time.time
    ) -> None:
        """ttl_s: an object is forgotten so long after it was put."""
        self._values: OrderedDict[tuple[Kind, str], _Kept] = OrderedDict()  # least recently used first
        self.contents = MemoryContents()  # files, which stay
        self._numbers = itertools.count()
        self._bytes = 0
        self._most_bytes = most_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = Lock()  # large objects are put in another thread

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        with self._lock:
            kept = self._values.get((kind, key))
            if kept is None or self._is_old(kept):
                return None
            self._values.move_to_end((kind, key))
        value: dict[str, Any] = json.loads(kept.data)
        return value

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        data = written(value)
        with self._lock:
            before = self._values.pop((kind, key), None)
            number = next(self._numbers) if before is None else before.number
            self._values[kind, key] = kept = _Kept(number, self._clock(), data)
            self._bytes += kept.size - (0 if before is None else before.size)
            while len(self._values) > 1:
                oldest = next(iter(self._values))
                if self._bytes <= self._most_bytes and not self._is_old(self._values[oldest]):
                    return
                self._bytes -= self._values.pop(oldest).size

    def delete(self, kind: Kind, key: str) -> bool:
        with self._lock:
            kept = self._values.pop((kind, key), None)
            if kept is None:
                return False
            self._bytes -= kept.size
        return not self._is_old(kept)

    def each(self, kind: Kind) -> Iterator[dict[str, Any]]:
        with self._lock:
            found = [kept for (of_kind, _), kept in self._values.items() if of_kind == kind and not self._is_old(kept)]
        for kept in sorted(found, key=lambda kept: kept.number):
            yield json.loads(kept.data)

    def keys(self, kind: Kind) -> list[str]:
        with self._lock:
            return [key for (of_kind, key), kept in self._values.items() if of_kind == kind and not self._is_old(kept)]

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing here fails

    def bytes_kept(self) -> int:
        return self._bytes

    def close(self) -> None:
        """Nothing to do."""

    def _is_old(self, kept: _Kept) -> bool:
        return self._clock() - kept.stored_s > self._ttl_s
