"""Sent stamps: when each token of a stream was handed to its connection, against which a client's figures can be checked."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from llmirage_server.telemetry.traces.block_traces import json_line
from llmirage_server.telemetry.traces.trace_file import TraceThread, opened
from llmirage_shared.virtual_time import precise_clock

SETTING = "sent_stamps"
_STAMP_BYTES = 100


class StreamStamps:
    """The stamps of one stream. request_id: X-Request-ID, else the one in the response. arrived_s: on precise_clock.

    instance: the one that served it.
    """

    __slots__ = ("_arrived_s", "_clock", "_keep", "_sent", "_shows", "instance", "request_id")

    def __init__(self, keep: SentStamps, request_id: str, arrived_s: float) -> None:
        self._keep = keep
        self._clock = precise_clock()
        self.request_id = request_id
        self.instance = -1
        self._arrived_s = arrived_s
        self._shows = 0
        self._sent: list[tuple[float, int]] = []

    @property
    def size_bytes(self) -> int:
        return _STAMP_BYTES * (1 + len(self._sent))

    def sent(self, tokens: int, shows: int) -> None:
        """Note that `tokens` of the reply have been handed over. shows: the place of the first that shows."""
        self._shows = shows
        self._sent.append((self._clock(), tokens))

    def ended(self, complete: bool, instance: int) -> None:
        """Have the stamps of a complete stream written."""
        self.instance = instance
        if complete and self._sent:
            self._keep.thread.take(self)

    def line(self) -> bytes:
        """Return a line of the file: milliseconds since the whole request had come, and tokens sent by then."""
        visible = [(at_s, tokens) for at_s, tokens in self._sent if tokens > self._shows]
        sent = [[round((at_s - self._arrived_s) * 1000, 4), tokens] for at_s, tokens in visible]
        arrived_unix_s = round(time.time() - (self._clock() - self._arrived_s), 6)
        known = {"request_id": self.request_id, "instance": self.instance, "arrived_unix_s": arrived_unix_s}
        return json_line(known | {"sent": sent})


class SentStamps:
    """The file of a server's stamps."""

    def __init__(self, path: str) -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        self._file = opened(Path(path), SETTING)
        self.thread = TraceThread([self])

    def begun(self, request_id: bytes, arrived_s: float) -> StreamStamps:
        return StreamStamps(self, request_id.decode("latin-1"), arrived_s)

    def write(self, streams: Iterable[StreamStamps]) -> None:
        for stream in streams:
            self._file.add(stream.line())

    def close(self) -> None:
        """Do nothing: the file is complete."""
