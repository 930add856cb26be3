"""Stored files: uploads, and what batches write. They stay until they are deleted or expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from llmirage_server.state.state import Breaks, EpochClock, State
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id

if TYPE_CHECKING:
    from llmirage_server.state.contents import Contents, Record

TEMPORARY_FILES_MIB = 256
FILE_FILES_MIB = 1024
MOST_FILES = 10_000
_PIECE_BYTES = 256 * 1024
_HIDDEN = "hidden"  # in a record: a file that is being written, or that was deleted while it was read


class StoredFile(NamedTuple):
    """A file as others read it. purpose: as it was uploaded for."""

    filename: str
    purpose: str
    data: bytes


# The files that simulated searches find, by id. They can be looked up and read, are not listed and are never gone.
SIMULATED = {
    f"file-simulated{number}": StoredFile(f"simulated-{number}.txt", "assistants", f"Simulated passage {number}\n".encode())
    for number in (1, 2)
}
SIMULATED_OUTPUT = "file_simulated"  # what simulated programs leave, of the Messages API
_UNLISTED = {
    **SIMULATED,
    SIMULATED_OUTPUT: StoredFile("simulated.txt", "tool_output", b"(simulated) The output of a program.\n"),
}


class FileStore:
    """Files by id, bounded in number and together in bytes: what is too much is refused, nothing is forgotten for it."""

    def __init__(
        self, state: State, most_bytes: int = TEMPORARY_FILES_MIB << 20, clock: Callable[[], float] | None = None
    ) -> None:
        """state: has the contents, which are opened when they are first asked for."""
        self.most_bytes = most_bytes
        self.now_s = clock or EpochClock()
        self._state = state
        self._holders: Counter[str] = Counter()

    @cached_property
    def _contents(self) -> Contents:
        return self._state.contents

    @cached_property
    def _records(self) -> dict[str, Record]:
        records = self._contents.records()
        self._unfinished = [key for key, record in records.items() if _HIDDEN in record]  # by servers before this one
        return records

    def all(self) -> list[Record]:
        """Return the file objects, oldest first."""
        return [_object(key, record) for key, record in self._records.items() if self._is_there(record)]

    def count(self) -> int:
        return len(self._records)

    def bytes_kept(self) -> int:
        return self._contents.bytes_kept()

    def object(self, file_id: str) -> Record:
        """Return the file object. Raises ApiError (404)."""
        if (found := _UNLISTED.get(file_id)) is not None:
            about = {"filename": found.filename, "purpose": found.purpose, "bytes": len(found.data)}
            return _object(file_id, {**about, "created_at": 0, "expires_at": None})
        record = self._records.get(file_id)
        if record is None or not self._is_there(record):
            raise ApiError(f"No such File object: {file_id[:100]}", status=404, param="id")
        return _object(file_id, record)

    def read(self, file_id: str) -> StoredFile:
        """Read a whole file at once. Raises ApiError (404)."""
        found = self.object(file_id)
        return StoredFile(found["filename"], found["purpose"], b"".join(self.parts(file_id)))

    def parts(self, file_id: str) -> Iterator[bytes]:
        """Yield the parts of a file, visible or not; none of one that is gone."""
        if file_id in _UNLISTED:
            yield _UNLISTED[file_id].data
            return
        place = 0
        while (part := self._contents.next_part(file_id, place)) is not None:
            place = part[0]
            yield part[1]

    async def streamed(self, file_id: str) -> AsyncIterator[bytes]:
        """As `parts`, with turns of the loop for others. Until its end the bytes stay, even if the file is deleted."""
        breaks = Breaks()
        self.hold(file_id)
        try:
            for part in self.parts(file_id):
                yield part
                await breaks.maybe()
        finally:
            self.release(file_id)

    async def add(
        self,
        filename: str,
        purpose: str,
        data: memoryview,
        lifetime_s: float | None,
        *,
        prefix: str = "file-",
        mime_type: str | None = None,
    ) -> Record:
        """Keep an upload; return its file object. prefix: of its id. Raises ApiError if there is no room."""
        await self.forget_expired()
        self._check_room(len(data) + self._contents.record_bytes)
        file_id = self.create(filename, purpose, prefix, mime_type)
        breaks = Breaks()
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                self.append(file_id, bytes(data[start : start + _PIECE_BYTES]))
                await breaks.maybe()
            return self.publish(file_id, lifetime_s)
        except ApiError:
            self._records[file_id]["deleted"] = True  # later, where a full disk does not even take a deletion
            with suppress(ApiError):
                await self._drop(file_id)
            raise

    def create(self, filename: str, purpose: str, prefix: str = "file-", mime_type: str | None = None) -> str:
        """Begin a file that is not visible yet; return its id. Raises ApiError if there are too many."""
        if len(self._records) >= MOST_FILES:
            raise _no_room(f"{MOST_FILES} files are kept")
        file_id = new_id(prefix)
        known = {} if mime_type is None else {"mime_type": mime_type}
        self._put(file_id, {"filename": filename, "purpose": purpose, "bytes": 0, **known, _HIDDEN: True})
        return file_id

    def append(self, file_id: str, data: bytes) -> None:
        """Add to such a file. Raises ApiError if there is no room."""
        self._check_room(len(data))
        self._contents.append(file_id, data)
        self._records[file_id]["bytes"] += len(data)

    def found_size(self, file_id: str, size: int) -> None:
        """Set the number of bytes that a server before this one had added to such a file."""
        self._records[file_id]["bytes"] = size

    def publish(self, file_id: str, lifetime_s: float | None) -> Record:
        """End such a file: everyone may see it now. lifetime_s: None for ever."""
        created_s = int(self.now_s())
        expires_s = None if lifetime_s is None else created_s + int(lifetime_s)
        record = self._records[file_id] | {"created_at": created_s, "expires_at": expires_s}
        record.pop(_HIDDEN, None)
        self._put(file_id, record)
        return _object(file_id, record)

    async def delete(self, file_id: str) -> None:
        """Delete a file; what reads it now reads it to its end. Raises ApiError (404)."""
        self.object(file_id)
        await self._drop(file_id)

    def hold(self, file_id: str) -> None:
        """Keep the bytes of a file until `release`, even if it is deleted."""
        self._holders[file_id] += 1

    def release(self, file_id: str) -> None:
        self._holders -= Counter({file_id: 1})

    async def forget_expired(self) -> None:
        """Delete what has expired, and what was deleted while it was held."""
        gone = [key for key, record in self._records.items() if self._is_old(record) or record.get("deleted")]
        for key in gone:
            await self._drop(key)

    async def forget_unfinished(self, used: set[str]) -> None:
        """Delete files that a server before this one did not end, and that are not used."""
        there = self._records  # what is begun now is not among the unfinished
        for key in set(self._unfinished) & there.keys() - used:
            await self._drop(key)

    async def drop(self, file_id: str) -> None:
        """Delete a file, whether anyone sees it or not; nothing happens if it is gone."""
        if file_id in self._records:
            await self._drop(file_id)

    async def _drop(self, file_id: str) -> None:
        record = self._records.get(file_id)
        if record is None:
            return
        if self._holders[file_id] > 0 or _HIDDEN not in record:
            self._put(file_id, record | {_HIDDEN: True, "deleted": True})
        if self._holders[file_id] > 0:
            return
        breaks = Breaks()
        while self._contents.delete(file_id):
            await breaks.maybe()
        self._records.pop(file_id, None)

    def _put(self, file_id: str, record: Record) -> None:
        self._contents.put(file_id, record)
        self._records[file_id] = record

    def _check_room(self, more_bytes: int) -> None:
        if self._contents.bytes_kept() + more_bytes > self.most_bytes:
            raise _no_room(f"files take {self._contents.bytes_kept()} of {self.most_bytes} bytes (--set files_mib=...)")

    def _is_there(self, record: Record) -> bool:
        return _HIDDEN not in record and not self._is_old(record)

    def _is_old(self, record: Record) -> bool:
        expires_s: float | None = record.get("expires_at")
        return expires_s is not None and expires_s <= self.now_s()


def _object(file_id: str, record: Record) -> dict[str, Any]:
    known = {name: record[name] for name in ("bytes", "created_at", "expires_at", "filename", "purpose")}
    kind = {"mime_type": record["mime_type"]} if "mime_type" in record else {}
    return {"id": file_id, "object": "file", **known, **kind, "status": "processed", "status_details": None}


def _no_room(problem: str) -> ApiError:
    return ApiError(
        f"There is no room for another file: {problem}. Delete some.", param="file", code="storage_limit_exceeded"
    )
