"""Stores of objects: their interface, the one in memory, and the time that files expire by."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from llmirage_server.http import json_pieces
from llmirage_server.http.turns import turn
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import VirtualTimeLoop
from llmirage_shared.wire.errors import ApiError

if TYPE_CHECKING:
    from llmirage_server.state.contents import Contents

# part: older items of a conversation. running: a background response in progress; events: those of one that has ended.
Kind = Literal["response", "conversation", "part", "completion", "thread", "item", "running", "events", "batch", "container"]

ReadKept = Callable[[bytes | None], Awaitable[dict[str, Any] | None]]
"""Decodes a kept object for a request, with which its bytes count: `HttpExchange.kept`."""

_to_json = at_call("pydantic_core:to_json")  # takes 25 ms to import
_temporary_contents = at_call("llmirage_server.state.contents:temporary_contents")


class State(Protocol):
    """JSON objects by kind and id, bounded in bytes and in age. Each method may raise ApiError (503)."""

    @property
    def contents(self) -> Contents:
        """Files, which are not among the objects and have a room of their own."""
        ...

    def read(self, kind: Kind, key: str) -> bytes | None:
        """Return an object as JSON, None if there is none."""
        ...

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        """Return a copy of an object that is known to be small, None if there is none."""
        ...

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        """Keep an object, in place of the one with this id. The oldest go where there is no more room."""
        ...

    def delete(self, kind: Kind, key: str) -> bool:
        """Return whether there was an object."""
        ...

    def keys(self, kind: Kind) -> list[str]:
        """Return the ids of all objects of a kind, in the order in which they were first put."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Keep all that is put and deleted in this context, or nothing of it if an exception ends it."""
        ...

    def bytes_kept(self) -> int:
        """Return the bytes of the objects and of their index."""
        ...

    def close(self) -> None: ...


def written(value: dict[str, Any]) -> bytes:
    """Write an object as JSON.

    On a loop it is done at once, where much text takes a third of the time of Python's encoder; in a thread others run
    meanwhile.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        whole = io.BytesIO()
        whole.writelines(json_pieces.pieces(value))
        return whole.getvalue()
    try:
        data: bytes = _to_json(value, fallback=list)
    except ValueError:  # half a pair of surrogates
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=list).encode("utf-8", "surrogatepass")
    return data


async def stored(state: State, kind: Kind, key: str, kept: ReadKept) -> dict[str, Any]:
    """Return an object. Raises ApiError (404) if there is none."""
    value = await kept(state.read(kind, key))
    if value is None:
        raise not_stored(kind, key)
    return value


def not_stored(kind: Kind, key: str) -> ApiError:
    """Return 404."""
    return ApiError(f"{kind.capitalize()} with id '{key}' not found.", status=404, param=f"{kind}_id")


class EpochClock:
    """Seconds since 1970. On a loop in virtual time they pass as its time does."""

    def __init__(self) -> None:
        self._began_s = time.time()

    def __call__(self) -> float:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return time.time()
        return self._began_s + loop.time() if isinstance(loop, VirtualTimeLoop) else time.time()


class Breaks:
    """Lets others have the event loop every two milliseconds of long work."""

    SLICE_S = 0.002

    def __init__(self) -> None:
        self._clock = time.perf_counter
        self._until_s = self._clock() + self.SLICE_S

    async def maybe(self) -> None:
        if self._clock() > self._until_s:
            await turn()
            self._until_s = self._clock() + self.SLICE_S


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
        self._numbers = itertools.count()
        self._bytes = 0
        self._most_bytes = most_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = Lock()  # large objects are put in another thread

    @cached_property
    def contents(self) -> Contents:
        """Files, which stay."""
        found: Contents = _temporary_contents()
        return found

    def read(self, kind: Kind, key: str) -> bytes | None:
        with self._lock:
            kept = self._values.get((kind, key))
            if kept is None or self._is_old(kept):
                return None
            self._values.move_to_end((kind, key))
        return kept.data

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        return None if (data := self.read(kind, key)) is None else json.loads(data)

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

    def keys(self, kind: Kind) -> list[str]:
        with self._lock:
            found = [(kept.number, key) for (of_kind, key), kept in self._values.items() if of_kind == kind]
        return [key for _, key in sorted(found)]

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing here fails

    def bytes_kept(self) -> int:
        return self._bytes

    def close(self) -> None:
        """Nothing to do."""

    def _is_old(self, kept: _Kept) -> bool:
        return self._clock() - kept.stored_s > self._ttl_s
