"""Objects that outlive a request: responses, conversations, stored completions. In memory, or in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal, Protocol

from llmirage_shared.wire.errors import ApiError

Kind = Literal["response", "conversation", "completion", "thread", "item"]
MEMORY_BYTES = 256 * 1024 * 1024  # of JSON; beyond that the least recently used objects are dropped


class State(Protocol):
    """JSON objects by kind and id. `get` returns a copy."""

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None: ...
    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None: ...
    def delete(self, kind: Kind, key: str) -> bool:
        """Return whether there was an object."""
        ...

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        """All objects of a kind, in the order in which they were first put."""
        ...

    def close(self) -> None: ...


class MemoryState:
    """Objects in memory, bounded in size."""

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._values: OrderedDict[tuple[Kind, str], str] = OrderedDict()  # least recently used first
        self._order: dict[tuple[Kind, str], None] = {}  # in the order in which they were first put
        self._bytes = 0
        self._most_bytes = most_bytes

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        text = self._values.get((kind, key))
        if text is None:
            return None
        self._values.move_to_end((kind, key))
        value: dict[str, Any] = json.loads(text)
        return value

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._bytes += len(text) - len(self._values.pop((kind, key), ""))
        self._values[kind, key] = text
        self._order.setdefault((kind, key))
        while self._bytes > self._most_bytes and len(self._values) > 1:
            oldest, text = self._values.popitem(last=False)
            del self._order[oldest]
            self._bytes -= len(text)

    def delete(self, kind: Kind, key: str) -> bool:
        text = self._values.pop((kind, key), None)
        if text is None:
            return False
        del self._order[kind, key]
        self._bytes -= len(text)
        return True

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        return [json.loads(self._values[entry]) for entry in self._order if entry[0] == kind]

    def close(self) -> None:
        """Nothing to do."""


class SqliteState:
    """Objects in a file that survives a restart. Raises OSError if the file cannot be used."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS objects (kind TEXT, key TEXT, value TEXT, UNIQUE (kind, key))")
        except sqlite3.Error as error:
            raise OSError(f"{path}: cannot be used as a state file: {error}") from None

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        row = self._db.execute("SELECT value FROM objects WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        if row is None:
            return None
        value: dict[str, Any] = json.loads(row[0])
        return value

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._db.execute(
            "INSERT INTO objects VALUES (?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value",
            (kind, key, text),
        )

    def delete(self, kind: Kind, key: str) -> bool:
        return self._db.execute("DELETE FROM objects WHERE kind = ? AND key = ?", (kind, key)).rowcount > 0

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        rows = self._db.execute("SELECT value FROM objects WHERE kind = ? ORDER BY rowid", (kind,))
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        self._db.close()


def stored(state: State, kind: Kind, key: str) -> dict[str, Any]:
    """An object. Raises ApiError (404) if there is none."""
    value = state.get(kind, key)
    if value is None:
        raise ApiError(f"{kind.capitalize()} with id '{key}' not found.", status=404, param=f"{kind}_id")
    return value
