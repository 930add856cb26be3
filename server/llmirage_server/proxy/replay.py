"""`serve --replay`: requests that were recorded are answered with their recordings, before any handler sees them."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.types import Message

from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.cluster import OnMiss, ReplayTiming
from llmirage_server.http.exchange import Handler, Header, HttpExchange
from llmirage_server.http.relay import BrokenOffError, ForwardedRequest, RelayedResponse, Upstream
from llmirage_server.proxy.recorder import ExchangeRecorder, redactor_of
from llmirage_server.proxy.replay_cluster import cluster_timed
from llmirage_server.replies.recordings.matching import CONTENT_FIELDS, Matcher, last_text
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingLibrary, RecordingWriter, read_folder
from llmirage_server.service.service import Service
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors


class Replay:
    """Answers requests from a library of recordings.

    timing: when events leave: at their recorded offsets divided by `speed`, as the cluster would produce their tokens, or at
    once. on_miss: what answers a request without a recording: an error, the handler's own reply, or the upstream, recorded.
    """

    def __init__(
        self,
        service: Service,
        library: RecordingLibrary,
        timing: ReplayTiming,
        on_miss: OnMiss,
        speed: float = 1.0,
        upstream: Upstream | None = None,
        recorder: ExchangeRecorder | None = None,
    ) -> None:
        """upstream, recorder: for on_miss "record"."""
        self._service = service
        self._library = library
        self._timing = timing
        self._on_miss = on_miss
        self._speed = speed
        self._upstream = upstream
        self._recorder = recorder

    def close(self) -> None:
        """Wait until what was recorded is written."""
        if self._recorder is not None:
            self._recorder.close()

    def before(self, handler: Handler) -> Handler:
        """Return a handler that replays, and leaves to `handler` what it has no recording of, if that is wanted."""

        async def replayed(exchange: HttpExchange) -> Response:
            return await self._answer(exchange, handler)

        return replayed

    async def _answer(self, exchange: HttpExchange, handler: Handler) -> Response:
        self._service.responses.check_open()
        written, value = await _kept_json(exchange)
        request = ForwardedRequest.of(exchange, written)
        try:
            body = redactor_of(request, self._secrets()).value(value)  # as the recording's was
            self._library.matcher.content(body)
        except RecursionError:
            raise errors.bad_json("it is nested too deeply") from None
        exchange.entry.model = errors.shorten(str(body.get("model") or ""), 200)
        exchange.entry.asked("", last_text(body), "", (), (), body.get("stream") is True)
        recording = self._library.find(request.target, body)
        if recording is not None:
            exchange.entry.rule = f"{recording.name}.yaml"
            return await self._replay(exchange, recording, body)
        if self._on_miss == "generated":
            return await handler(exchange)
        if self._on_miss == "record":
            assert self._upstream is not None
            assert self._recorder is not None
            return await self._upstream.answer(request, self._recorder.tap(request), self._service.responses.open)
        raise errors.no_recording(self._hint(request.target, body))

    def _secrets(self) -> Sequence[str]:
        key = self._upstream.key if self._upstream is not None else None
        return () if key is None else (key,)

    def _hint(self, target: str, body: Any) -> str:
        nearest = self._library.nearest(target, body)
        if nearest is None:
            return "There is none for this API. (--set on_miss=generated answers all the same.)"
        recording, place = nearest
        return f"The nearest, {recording.name}.yaml, differs at {place}. (--set on_miss=generated answers all the same.)"

    async def _replay(self, exchange: HttpExchange, recording: Recording, body: Any) -> Response:
        headers = replay_headers(exchange, recording)
        if self._timing == "cluster" and recording.status == 200 and recording.ended is None:
            return await cluster_timed(self._service, exchange, recording, body, headers)
        speed = self._speed if self._timing == "recorded" else math.inf
        return _Replayed(recording, headers, exchange.arrived_s, speed, self._service.responses.open)


class _Replayed(RelayedResponse):
    """Sends each chunk at its recorded offset from the request's arrival: an absolute time, however late the one before."""

    def __init__(
        self, recording: Recording, headers: Sequence[Header], start_s: float, speed: float, under_way: set[Any]
    ) -> None:
        super().__init__(recording.status, headers, under_way)
        self._recording = recording
        self._start_s = start_s
        self._speed = speed

    async def pieces(self) -> AsyncIterator[bytes]:
        clock = precise_clock()
        for at_ms, data in _together(self._recording.chunks, at_once=self._speed == math.inf):
            wait_s = self._start_s + at_ms / 1000 / self._speed - clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            yield data
        if self._recording.ended is not None:
            raise BrokenOffError


def _together(chunks: Sequence[Chunk], *, at_once: bool) -> Iterator[tuple[float, bytes]]:
    """Yield the chunks that leave at the same time, joined."""
    for at_ms, group in itertools.groupby(chunks, lambda chunk: 0.0 if at_once else chunk.at_ms):
        yield at_ms, b"".join([chunk.data for chunk in group])


def replay_headers(exchange: HttpExchange, recording: Recording) -> list[Header]:
    """Return this server's own headers, with those that were recorded."""
    kind = recording.headers.get("content-type", "application/json").encode("latin-1", "replace")
    more = [(name.encode(), value.encode("latin-1", "replace")) for name, value in recording.headers.items()]
    return [*exchange.response_headers(kind), *[header for header in more if header[0] != b"content-type"]]


def make_replay(service: Service, settings: ClusterConfig, upstream: Upstream | None) -> Replay:
    """Return what replays, with the recordings of the folder. Raises ConfigError for a folder that cannot be used."""
    assert settings.replay is not None
    folder = Path(settings.replay)
    recordings: list[Recording] = []
    if folder.is_dir():
        recordings, problems = read_folder(folder)
        if problems:
            raise ConfigError(problems)
    elif settings.on_miss != "record":
        raise ConfigError([f"replay: there is no folder {settings.replay}"])
    matcher = Matcher(settings.replay_match or CONTENT_FIELDS, settings.replay_ignore)
    try:
        library = RecordingLibrary(recordings, matcher)
    except RecursionError:
        raise ConfigError([f"replay: {settings.replay}: a recording's request is nested too deep"]) from None
    recorder = None
    if settings.on_miss == "record":
        try:
            writer = RecordingWriter(folder, matcher)
        except OSError as error:
            raise ConfigError([f"replay: {settings.replay}: {error.strerror or error}"]) from None
        secrets = () if upstream is None or upstream.key is None else (upstream.key,)
        recorder = ExchangeRecorder(writer, secrets, library.add)
    return Replay(service, library, settings.replay_timing, settings.on_miss, settings.speed, upstream, recorder)


async def _kept_json(exchange: HttpExchange) -> tuple[bytes, dict[str, Any]]:
    """Return the body, decompressed, and the JSON object in it; the handler can read it once more.

    Raises as `json_object`.
    """
    body = await exchange.full_body()
    exchange.headers.pop(b"content-encoding", None)
    later = exchange.receive
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def again() -> Message:
        return messages.pop() if messages else await later()

    exchange.receive = again
    return body, await exchange.read(body)
