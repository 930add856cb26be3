"""Contents of files in SQLite: in the file of objects, or in a temporary one."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from llmirage_shared.wire import errors

PART_BYTES = 64  # what a part takes beside its bytes
PARTS_AT_ONCE = 64  # deleted in one step, some milliseconds

Record = dict[str, Any]

TABLES = (
    "CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, key TEXT UNIQUE, record TEXT)",
    "CREATE TABLE IF NOT EXISTS parts (place INTEGER PRIMARY KEY, file INTEGER, data BLOB)",
    "CREATE INDEX IF NOT EXISTS parts_of ON parts (file)",
)
_NUMBER = "(SELECT number FROM files WHERE key = ?)"


class Contents:
    """Files by id, in two tables: records, and the parts of all files in the order in which they were added.

    Each method may raise ApiError (503). What there is room for is the caller's business.
    """

    record_bytes = 1024  # what a file takes beside its bytes and its record's

    def __init__(self, run: Callable[..., Sequence[Sequence[Any]]]) -> None:
        """run: the rows of a statement with its values; raises ApiError (503)."""
        self._run = run
        [[records, count]] = run("SELECT ifnull(sum(length(record)), 0), count(*) FROM files")
        [[data, parts]] = run("SELECT ifnull(sum(length(data)), 0), count(*) FROM parts")
        self._bytes: int = records + count * self.record_bytes + data + parts * PART_BYTES

    def records(self) -> dict[str, Record]:
        """All records by id, in the order in which they were first put."""
        return {key: json.loads(record) for key, record in self._run("SELECT key, record FROM files ORDER BY number")}

    def put(self, key: str, record: Record) -> None:
        """Make a file without bytes, or replace the record of one."""
        text = json.dumps(record)
        before = self._run("SELECT length(record) FROM files WHERE key = ?", key)
        self._run(
            "INSERT INTO files (key, record) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET record = excluded.record",
            key,
            text,
        )
        self._bytes += len(text) - before[0][0] if before else len(text) + self.record_bytes

    def append(self, key: str, data: bytes) -> None:
        """Add a part to a file."""
        self._run(f"INSERT INTO parts (file, data) VALUES ({_NUMBER}, ?)", key, data)
        self._bytes += len(data) + PART_BYTES

    def next_part(self, key: str, place: int) -> tuple[int, bytes] | None:
        """Return the part behind a place, and its own place, which is above 0; None behind the last part."""
        rows = self._run(
            f"SELECT place, data FROM parts WHERE file = {_NUMBER} AND place > ? ORDER BY place LIMIT 1", key, place
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def delete(self, key: str) -> bool:
        """Delete some parts of a file; with the last of them its record. Return whether there are more."""
        some = f"SELECT place FROM parts WHERE file = {_NUMBER} LIMIT {PARTS_AT_ONCE}"
        gone = self._run(f"DELETE FROM parts WHERE place IN ({some}) RETURNING length(data)", key)
        self._bytes -= sum([size + PART_BYTES for (size,) in gone])
        if len(gone) == PARTS_AT_ONCE:
            return True
        for (size,) in self._run("DELETE FROM files WHERE key = ? RETURNING length(record)", key):
            self._bytes -= size + self.record_bytes
        return False

    def bytes_kept(self) -> int:
        """Return the bytes that all files take."""
        return self._bytes


def temporary_contents() -> Contents:
    """Return files in a temporary file, of which SQLite has some two megabytes in memory. It is gone with the process."""
    db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA page_size = 65536")
    for statement in TABLES:
        db.execute(statement)

    def run(statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        try:
            return db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise errors.state_unavailable(str(error)) from None

    contents = Contents(run)
    weakref.finalize(contents, db.close)
    return contents
