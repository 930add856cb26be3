"""Files in the SQLite file of the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from llmirage_server.state.contents import PART_BYTES, PARTS_AT_ONCE, RECORD_BYTES, Record

TABLES = (
    "CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, key TEXT UNIQUE, record TEXT)",
    "CREATE TABLE IF NOT EXISTS parts (place INTEGER PRIMARY KEY, file INTEGER, data BLOB)",
    "CREATE INDEX IF NOT EXISTS parts_of ON parts (file)",
)
_NUMBER = "(SELECT number FROM files WHERE key = ?)"


class SqliteContents:
    """Two tables: records, and the parts of all files in the order in which they were added."""

    def __init__(self, run: Callable[..., Sequence[Sequence[Any]]]) -> None:
        """run: the rows of a statement with its values; raises ApiError (503)."""
        self._run = run
        [[records, count]] = run("SELECT ifnull(sum(length(record)), 0), count(*) FROM files")
        [[data, parts]] = run("SELECT ifnull(sum(length(data)), 0), count(*) FROM parts")
        self._bytes: int = records + count * RECORD_BYTES + data + parts * PART_BYTES

    def records(self) -> dict[str, Record]:
        return {key: json.loads(record) for key, record in self._run("SELECT key, record FROM files ORDER BY number")}

    def put(self, key: str, record: Record) -> None:
        text = json.dumps(record)
        before = self._run("SELECT length(record) FROM files WHERE key = ?", key)
        self._run(
            "INSERT INTO files (key, record) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET record = excluded.record",
            key,
            text,
        )
        self._bytes += len(text) - before[0][0] if before else len(text) + RECORD_BYTES

    def append(self, key: str, data: bytes) -> None:
        self._run(f"INSERT INTO parts (file, data) VALUES ({_NUMBER}, ?)", key, data)
        self._bytes += len(data) + PART_BYTES

    def next_part(self, key: str, place: int) -> tuple[int, bytes] | None:
        rows = self._run(
            f"SELECT place, data FROM parts WHERE file = {_NUMBER} AND place > ? ORDER BY place LIMIT 1", key, place
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def delete(self, key: str) -> bool:
        some = f"SELECT place FROM parts WHERE file = {_NUMBER} LIMIT {PARTS_AT_ONCE}"
        gone = self._run(f"DELETE FROM parts WHERE place IN ({some}) RETURNING length(data)", key)
        self._bytes -= sum([size + PART_BYTES for (size,) in gone])
        if len(gone) == PARTS_AT_ONCE:
            return True
        for (size,) in self._run("DELETE FROM files WHERE key = ? RETURNING length(record)", key):
            self._bytes -= size + RECORD_BYTES
        return False

    def bytes_kept(self) -> int:
        return self._bytes
