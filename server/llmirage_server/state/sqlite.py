"""Objects in a SQLite file, which survive a restart and a kill."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llmirage_server.state.contents import TABLES, Contents
from llmirage_server.state.state import Kind, written
from llmirage_shared.wire import errors

logger = logging.getLogger("llmirage")

FILE_MIB = 1024
_OURS = 0x6C6C6D69  # application_id of our files: "llmi"
_OPEN_S = 2.0  # how long another process may hold the file when it is opened, such as a server that is ending,
_OPEN_EVERY_S = 0.05
_BUSY_S = 0.05  # and at each access: the event loop waits
_EVERY = 64  # puts between two looks at the size
_MERGE_S = 0.2  # between two merges of what was written into the file, which wait for the disk
_MOST_UNMERGED = 65_536  # pages, 256 MiB: behind so many, who writes merges himself
_OLDEST = "SELECT rowid FROM objects WHERE NOT (kind = ? AND key = ?) ORDER BY stored_s LIMIT 64"


class SqliteState:
    """Objects in a file. Where there is no more room those that were put longest ago go. contents: files, which stay."""

    def __init__(
        self,
        path: str | Path,
        most_bytes: int = FILE_MIB << 20,
        ttl_s: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file.

        Raises OSError for one that is no database, damaged, of another program or server, or on a full disk.
        """
        self._path = path
        self._most_bytes = most_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._puts = 0
        self._used = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.RLock()  # large objects are put in another thread
        self._there = True
        db: sqlite3.Connection | None = None
        try:
            self._db = db = sqlite3.connect(path, timeout=_OPEN_S, isolation_level=None, check_same_thread=False)
            self._open()
            self._identity = self._identify()
            self._db.execute("DELETE FROM objects WHERE stored_s < ?", (self._oldest_s(),))
            self.contents = Contents(self._run)
            merging = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            if db is not None:
                db.close()
            raise OSError(f"{path}: cannot be used as a state file: {error}") from None
        self._merger = threading.Thread(target=self._merge, args=(merging,), name="llmirage-state", daemon=True)
        self._merger.start()

    def _open(self) -> None:
        """Make the tables of a new file. Raises sqlite3.Error, for a file of another program, too."""
        [ours] = self._db.execute("PRAGMA application_id").fetchone()
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if ours != _OURS and tables - {"objects"}:
            raise sqlite3.DatabaseError("it is a database of another program")
        self._be_alone()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {_MOST_UNMERGED}")
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("CREATE TABLE IF NOT EXISTS objects (kind TEXT, key TEXT, value TEXT, UNIQUE (kind, key))")
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(objects)")}
        if "stored_s" not in columns:  # a new file, or one of before there were limits
            self._db.execute(f"ALTER TABLE objects ADD COLUMN stored_s REAL DEFAULT {self._clock()!r}")
        self._db.execute("CREATE INDEX IF NOT EXISTS age ON objects (stored_s)")
        for statement in TABLES:
            self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id = {_OURS}")
        self._db.execute("COMMIT")
        self._db.execute(f"PRAGMA busy_timeout = {int(_BUSY_S * 1000)}")

    def _be_alone(self) -> None:
        """Wait for another server to close the file: while it has the log open, others may not end that.

        Raises sqlite3.Error.
        """
        until_s = time.monotonic() + _OPEN_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=DELETE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > until_s:
                    raise sqlite3.OperationalError("another process uses it") from None
            time.sleep(_OPEN_EVERY_S)

    def _identify(self) -> tuple[int, int] | None:
        """Return what tells the file from another one at its path; None where there is none."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def read(self, kind: Kind, key: str) -> bytes | None:
        rows = self._run(
            "SELECT value FROM objects WHERE kind = ? AND key = ? AND stored_s >= ?", kind, key, self._oldest_s()
        )
        if not rows:
            return None
        data: bytes | str = rows[0][0]  # a text in older files
        return data.encode() if isinstance(data, str) else data

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        return None if (data := self.read(kind, key)) is None else json.loads(data)

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        data = written(value)
        self._run(
            "INSERT INTO objects (kind, key, value, stored_s) VALUES (?, ?, ?, ?) ON CONFLICT (kind, key) "
            "DO UPDATE SET value = excluded.value, stored_s = excluded.stored_s",
            kind, key, data, self._clock(),
        )  # fmt: skip
        self._puts += 1
        if self._puts % _EVERY == 0 or len(data) > self._most_bytes // _EVERY:
            self._make_room(kind, key)

    def delete(self, kind: Kind, key: str) -> bool:
        return bool(self._run("DELETE FROM objects WHERE kind = ? AND key = ? RETURNING 1", kind, key))

    def keys(self, kind: Kind) -> list[str]:
        return [row[0] for row in self._run("SELECT key FROM objects WHERE kind = ? ORDER BY rowid", kind)]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._lock:
            if self._db.in_transaction:  # part of a larger one
                yield
                return
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors end the transaction themselves
                    self._db.execute("ROLLBACK")
                raise

    def bytes_kept(self) -> int:
        [[pages]], [[free]], [[size]] = map(self._run, ("PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA page_size"))
        return int(max(0, (pages - free) * size - self.contents.bytes_kept()))

    def close(self) -> None:
        self._closed.set()
        self._used.set()
        self._merger.join()
        self._db.close()

    def _merge(self, connection: sqlite3.Connection) -> None:
        """Move what was written from the log into the file, in a thread: the event loop does not wait for the disk."""
        with contextlib.closing(connection):
            while self._used.wait() and not self._closed.wait(_MERGE_S):
                self._used.clear()
                if self._closed.is_set():  # and perhaps its `used` was cleared
                    return
                with contextlib.suppress(sqlite3.Error):  # who writes next is told
                    connection.execute("PRAGMA wal_checkpoint")

    def _oldest_s(self) -> float:
        return self._clock() - self._ttl_s

    def _make_room(self, kind: Kind, key: str) -> None:
        """Delete what is too old, and the oldest objects until the rest fits; never the one just put."""
        self._run("DELETE FROM objects WHERE stored_s < ?", self._oldest_s())
        while self.bytes_kept() > self._most_bytes and self._run(
            f"DELETE FROM objects WHERE rowid IN ({_OLDEST}) RETURNING 1", kind, key
        ):
            pass

    def _run(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement. Raises ApiError (503) if the file cannot be used now."""
        self._used.set()
        self._check_there()
        try:
            with self._lock:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise errors.state_unavailable(str(error)) from None

    def _check_there(self) -> None:
        """Raise ApiError (503) if the file is no longer at its path: what is written now, no restart would find."""
        was_there, self._there = self._there, self._identify() == self._identity
        if self._there:
            return
        if was_there:
            logger.error(
                "The state file %s was removed or replaced: requests that need it are refused until it is back, or this "
                "server is started again.",
                self._path,
            )
        raise errors.state_unavailable("it was removed or replaced while the server used it")
