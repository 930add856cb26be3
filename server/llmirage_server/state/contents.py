"""Files: a record and bytes each, which come in parts. Unlike other objects they stay until they are deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

RECORD_BYTES = 1024  # what a file takes beside its bytes and its record's
PART_BYTES = 64  # what a part takes beside its bytes
PARTS_AT_ONCE = 64  # deleted in one step, some milliseconds

Record = dict[str, Any]


class Contents(Protocol):
    """Files by id. Each method may raise ApiError (503). What there is room for is the caller's business."""

    def records(self) -> dict[str, Record]:
        """All records by id, in the order in which they were first put."""
        ...

    def put(self, key: str, record: Record) -> None:
        """Make a file without bytes, or replace the record of one."""
        ...

    def append(self, key: str, data: bytes) -> None:
        """Add a part to a file."""
        ...

    def next_part(self, key: str, place: int) -> tuple[int, bytes] | None:
        """Return the part behind a place, and its own place, which is above 0; None behind the last part."""
        ...

    def delete(self, key: str) -> bool:
        """Delete some parts of a file; with the last of them its record. Return whether there are more."""
        ...

    def bytes_kept(self) -> int:
        """Return the bytes that all files take."""
        ...


def size_of(record: Mapping[str, Any]) -> int:
    """Return the bytes that an empty file takes."""
    return len(json.dumps(record)) + RECORD_BYTES


class _File(NamedTuple):
    record: Record
    parts: list[bytes]


class MemoryContents:
    """Files in memory."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._bytes = 0

    def records(self) -> dict[str, Record]:
        return {key: dict(file.record) for key, file in self._files.items()}

    def put(self, key: str, record: Record) -> None:
        before = self._files.get(key)
        self._files[key] = _File(dict(record), [] if before is None else before.parts)
        self._bytes += size_of(record) - (0 if before is None else size_of(before.record))

    def append(self, key: str, data: bytes) -> None:
        self._files[key].parts.append(data)
        self._bytes += len(data) + PART_BYTES

    def next_part(self, key: str, place: int) -> tuple[int, bytes] | None:
        file = self._files.get(key)
        return (place + 1, file.parts[place]) if file is not None and place < len(file.parts) else None

    def delete(self, key: str) -> bool:
        file = self._files.pop(key, None)
        if file is not None:
            self._bytes -= size_of(file.record) + sum([len(part) + PART_BYTES for part in file.parts])
        return False

    def bytes_kept(self) -> int:
        return self._bytes
