"""The traces of a server: which files its settings ask for, in which formats, and the stamps of what was sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from llmirage_server.config.cluster import ClusterConfig, TraceFormat, url_problem
from llmirage_server.telemetry.traces.block_traces import DynamoWriter, MooncakeWriter, WekaWriter
from llmirage_server.telemetry.traces.served import ServedRecorder, TracedRequest
from llmirage_server.telemetry.traces.spans import OtelWriter, OtlpSender, PerfettoWriter
from llmirage_server.telemetry.traces.trace_file import SETTING, TraceThread, TraceWriter, json_line, opened
from llmirage_server.telemetry.traces.workload import WorkloadWriter
from llmirage_shared.settings import ConfigError
from llmirage_shared.virtual_time import precise_clock

_BY_ENDING: tuple[tuple[str, TraceFormat], ...] = (
    (".mooncake.jsonl", "agentic_mooncake"),
    (".otlp.jsonl", "otel"),
    (".otel.jsonl", "otel"),
    (".jsonl", "dynamo.request.trace.v1"),
    (".json", "perfetto"),
)
_LEAST_BLOCK = 16  # tokens: blocks of one or a few would make more hashes than text


class Tracing:
    """The recorder of served requests, and the thread that writes them; the stamps of what was sent.

    recorder, stamps: None where nothing is written of that kind.
    """

    def __init__(self, config: ClusterConfig, page_tokens: int, now: Callable[[], float]) -> None:
        """page_tokens: of a block of the KV cache. now: the cluster's time in seconds. Raises ConfigError."""
        writers: list[TraceWriter[TracedRequest]] = []
        if config.trace_out is not None:
            block_tokens = config.trace_block_size or page_tokens * -(-_LEAST_BLOCK // page_tokens)
            writers.append(_writer(config.trace_out, config.trace_format, block_tokens))
        if config.record_workload is not None:
            writers.append(WorkloadWriter(Path(config.record_workload)))
        self.stamps = None if config.sent_stamps is None else SentStamps(config.sent_stamps)
        self._thread = TraceThread(writers)
        self.recorder = ServedRecorder(self._thread.take, now, config.speed) if writers else None

    def bytes_kept(self) -> int:
        """Return what waits to be written, in bytes of memory."""
        return self._thread.bytes_kept() + (0 if self.stamps is None else self.stamps.thread.bytes_kept())

    def close(self) -> None:
        """Write what is waiting, and end. Another call does nothing."""
        self._thread.close()
        if self.stamps is not None:
            self.stamps.thread.close()


def _writer(out: str, form: TraceFormat | None, block_tokens: int) -> TraceWriter[TracedRequest]:
    """Return the writer of a file, a folder or a collector. Raises ConfigError."""
    if out.startswith(("http://", "https://")):
        if form not in (None, "otel"):
            raise ConfigError([f"{SETTING}: {out}: a collector takes spans, trace_format otel, not {form}"])
        if problem := url_problem(out):
            raise ConfigError([f"{SETTING}: {problem}"])
        return OtlpSender(out)
    path = Path(out)
    folder = path.is_dir() or out.endswith(("/", "\\"))
    if form is None:
        form = "weka" if folder else next((form for ending, form in _BY_ENDING if path.name.endswith(ending)), None)
    if form is None:
        endings = ", ".join(ending for ending, _ in _BY_ENDING)
        raise ConfigError([f"{SETTING}: {out}: give trace_format, or a name that ends with one of {endings}, or with / "])
    if form == "weka" and path.is_file():
        raise ConfigError([f"{SETTING}: {out}: is a file, but weka is a folder with a file for each tree of sessions"])
    if folder and form != "weka":
        raise ConfigError([f"{SETTING}: {out}: is a folder, but {form} is one file"])
    match form:
        case "weka":
            return WekaWriter(path, block_tokens)
        case "agentic_mooncake":
            return MooncakeWriter(path, block_tokens)
        case "otel":
            return OtelWriter(path)
        case "perfetto":
            return PerfettoWriter(path)
        case _:
            return DynamoWriter(path, block_tokens)


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
        self._file = opened(Path(path), "sent_stamps")
        self.thread = TraceThread([self])

    def begun(self, request_id: bytes, arrived_s: float) -> StreamStamps:
        return StreamStamps(self, request_id.decode("latin-1"), arrived_s)

    def write(self, streams: Iterable[StreamStamps]) -> None:
        for stream in streams:
            self._file.add(stream.line())
