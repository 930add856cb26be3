"""Files that grow while the server runs and are complete at every moment, and the thread that writes them."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from llmirage_shared.settings import ConfigError

logger = logging.getLogger("llmirage")

SETTING = "trace_out"
MOST_WAITING_BYTES = 128 << 20  # of requests that are not written yet; what comes beyond is left out
_CLOSING_S = 10.0


class _Sized(Protocol):
    """What waits to be written. size_bytes: of memory, about."""

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)
T_contra = TypeVar("T_contra", bound=_Sized, contravariant=True)


class TraceWriter(Protocol[T_contra]):
    """Writes served requests in one format."""

    def write(self, requests: Iterable[T_contra]) -> None:
        """Write them. Raises OSError; what was written before is whole, and the next call goes on."""
        ...


class GrowingFile:
    """A file of a beginning, parts that are added, and an ending that the next part overwrites.

    Each change is one write at a place, so that a process that is killed leaves a complete file behind; only of a large
    part the system may have written half by then.
    """

    def __init__(self, path: Path, beginning: bytes = b"", ending: bytes = b"") -> None:
        """Create the file. Raises OSError, FileExistsError for one that has something in it."""
        self.path = path
        self._size = 0
        self._ending = b""
        if path.exists() and path.stat().st_size:
            raise FileExistsError(path)
        path.open("wb").close()
        self.add(beginning, ending)

    def add(self, part: bytes, ending: bytes | None = None) -> None:
        """Add a part. ending: a new one. Raises OSError, after which the file is as it was."""
        ending = self._ending if ending is None else ending
        try:
            self._put(part + ending)
        except OSError:
            self._put(self._ending)
            raise
        self._size += len(part)
        self._ending = ending

    def _put(self, data: bytes) -> None:
        with self.path.open("r+b", buffering=0) as file:
            written = 0
            try:
                file.seek(self._size)
                while written < len(data):
                    written += file.write(data[written:])
            finally:
                file.truncate(self._size + written)


class TraceThread(Generic[T]):
    """Gives served requests to writers in a thread of its own."""

    def __init__(self, writers: Iterable[TraceWriter[T]]) -> None:
        self._writers = list(writers)
        self._waiting: deque[T] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Condition()
        self._closed = False
        self._left_out = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def take(self, served: T) -> None:
        """Have it written. Never waits: without room it is left out, and the log says so once."""
        with self._lock:
            if self._closed:
                return
            size = served.size_bytes
            if self._waiting and self._waiting_bytes + size > MOST_WAITING_BYTES:
                self._left_out += 1
                if self._left_out == 1:
                    logger.warning("Requests come faster than their trace is written: some are left out of it.")
                return
            self._waiting_bytes += size
            self._waiting.append(served)
            self._lock.notify()

    def bytes_kept(self) -> int:
        """Return what waits to be written, in bytes of memory."""
        return self._waiting_bytes

    def close(self) -> None:
        """Write what is waiting, and end. Another call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify()
        self._thread.join(_CLOSING_S)
        if self._left_out:
            logger.warning("%d requests were left out of the trace.", self._left_out)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closed:
                    self._lock.wait()
                some, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
                closed = self._closed
            for writer in self._writers if some else ():
                self._write(writer, some)
            if closed:
                return

    def _write(self, writer: TraceWriter[T], some: Iterable[T]) -> None:
        """Write. What goes wrong is one line of the log, and no request's business."""
        try:
            writer.write(some)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("The trace cannot be written: %s: what cannot be written is left out", error)
            self._failing = True
        except Exception:
            if not self._failing:
                logger.exception("The trace cannot be written; please report this")
            self._failing = True


def opened(path: Path, setting: str, beginning: bytes = b"", ending: bytes = b"") -> GrowingFile:
    """Return a new file. Raises ConfigError that names the setting."""
    try:
        return GrowingFile(path, beginning, ending)
    except FileExistsError:
        raise ConfigError([f"{setting}: {path} is there already: name another file, or remove it"]) from None
    except OSError as error:
        raise ConfigError([f"{setting}: {path}: {error.strerror or error}"]) from None


def json_line(value: Any) -> bytes:
    """Return a line of compact JSON. Half of a surrogate pair becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def milliseconds(seconds: float) -> float:
    """Return milliseconds to the microsecond."""
    return round(seconds * 1000, 3)
