"""`serve --replay`: requests that were recorded are answered with their recordings, before any handler sees them.

At the pace of the simulated cluster events leave when it has made the tokens that they say.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from llmirage_server.anthropic.translate import answer_schema, chat_messages, chat_tools
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.cluster import OnMiss, ReplayTiming
from llmirage_server.http.exchange import Handler, Header, HttpExchange
from llmirage_server.http.relay import BrokenOffError, ForwardedRequest, RelayedResponse, Upstream
from llmirage_server.openai.responses import context
from llmirage_server.proxy.recorder import ExchangeRecorder, redactor_of
from llmirage_server.replies.recordings.recording import Chunk, Recording, event_value, said
from llmirage_server.replies.recordings.store import (
    CONTENT_FIELDS,
    Matcher,
    RecordingLibrary,
    RecordingWriter,
    endpoint_of,
    last_text,
    read_folder,
)
from llmirage_server.replies.reply import Reply
from llmirage_server.service.generation import Choice, Generation, TokenStream
from llmirage_server.service.service import Service
from llmirage_server.service.unstreamed import finish, prefill
from llmirage_server.state.state import MemoryState
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import parse_chat, parse_completion
from llmirage_shared.wire.errors import ApiError


@dataclass(slots=True)
class Replay:
    """Answers requests from a library of recordings.

    timing: when events leave: at their recorded offsets divided by `speed`, as the cluster would produce their tokens, or at
    once. on_miss: what answers a request without a recording: an error, the handler's own reply, or the upstream, recorded.
    upstream, recorder: for on_miss "record".
    """

    _service: Service
    _library: RecordingLibrary
    _timing: ReplayTiming
    _on_miss: OnMiss
    _speed: float
    _upstream: Upstream | None
    _recorder: ExchangeRecorder | None

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
        written = await exchange.kept_body()
        value = await exchange.read(written)
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


_SAID_FIELDS = ("content", "text", "arguments", "input", "thinking", "reasoning_content", "refusal")  # of a whole response
_OPENING = ("message_start", "ping", "response.created", "response.in_progress", "response.queued")


async def cluster_timed(
    service: Service, exchange: HttpExchange, recording: Recording, body: Mapping[str, Any], headers: Sequence[Header]
) -> Response:
    """Answer with the recording at the time at which the cluster would have finished it, or event by event.

    All choices of a stream count as one sequence. Raises ApiError, and ClientDisconnect if the client leaves first.
    """
    endpoint = endpoint_of(recording.path)
    prompt = await _prompt(service, exchange, endpoint, body)
    model = str(body.get("model", ""))
    if endpoint == "embeddings":
        await prefill(service, model, [prompt], exchange)
        return _whole(recording, headers)
    tokenizer = await service.tokenizer()
    events = [chunk.data for chunk in recording.chunks]
    texts = [said(event_value(event)) for event in events] if recording.stream else [_whole_text(recording.data)]
    reply, ends = _reply(texts, tokenizer)
    served = service.models.meant(model, exchange)
    if len(reply.ids) >= served.max_model_len:  # another model's context: what is beyond this one's leaves at the end
        kept = served.max_model_len - 1
        reply = Reply(reply.ids[:kept], reply.pieces[:kept], "stop")
    prompt = prompt[: max(1, served.max_model_len - len(reply.ids))]
    request = service.new_request(
        prompt,
        reply.ids,
        served.model,
        max_tokens=len(reply.ids),
        priority=exchange.priority,
        only_instance=exchange.instance,
    )
    exchange.entry.served = served.model
    generation = Generation(service.responses, [Choice(reply, request, "")], 1, exchange.submitted_s, exchange.entry)
    if not recording.stream:
        await finish(generation, exchange)
        return _whole(recording, headers)
    opening = 0
    while opening < len(events) and event_value(events[opening]).get("type") in _OPENING:
        opening += 1
    writer = _EventWriter(events[opening:], ends[opening:])
    before = b"".join(events[:opening])
    stream = TokenStream(generation, exchange, [writer], lambda: b"", opening=before, pings=False).start()
    stream.raw_headers = list(headers)  # and it has the pings of its server
    return stream


class _EventWriter:
    """Sends each event with the last of the tokens that it stands for."""

    def __init__(self, events: Sequence[bytes], ends: Sequence[int]) -> None:
        """Begin.

        ends: the number of the reply's tokens up to each event; events before any text leave with the first token.
        """
        self._events = events
        self._ends = ends
        self._sent = 0

    def tokens(self, start: int, end: int) -> bytes:
        first = self._sent
        while self._sent < len(self._events) and max(1, self._ends[self._sent]) <= end:
            self._sent += 1
        return b"".join(self._events[first : self._sent])

    def ending(self) -> bytes:
        first, self._sent = self._sent, len(self._events)
        return b"".join(self._events[first:])


def _reply(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Reply, list[int]]:
    """Return the plan of a reply that says these texts, and the number of its tokens up to the end of each."""
    ids: list[TokenIds] = [tokenizer.encode_ordinary(text) for text in texts]
    ends = np.cumsum([len(part) for part in ids]).tolist() if ids else []
    if not ends or not ends[-1]:
        return Reply(np.zeros(1, dtype=np.int32), [""], "stop"), ends
    joined = np.concatenate(ids).astype(np.int32)
    return Reply(joined, tokenizer.pieces(joined), "stop"), ends


def _whole(recording: Recording, headers: Sequence[Header]) -> Response:
    response = Response(recording.data, recording.status)
    response.raw_headers.extend(headers)
    return response


def _whole_text(data: bytes) -> str:
    """Return the texts of a whole response's output."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")
    texts: list[str] = []

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, key)
        elif isinstance(value, list):
            for item in value:
                walk(item, name)
        elif isinstance(value, str) and name in _SAID_FIELDS:
            texts.append(value)

    if isinstance(value, Mapping):
        walk([value.get(name) for name in ("choices", "output", "content")], "content")
    return "".join(texts)


async def _prompt(
    service: Service, exchange: HttpExchange, endpoint: str | None, body: Mapping[str, Any]
) -> npt.NDArray[np.int32]:
    """Return the prompt's token ids, int32, shape (prompt_tokens,). A body that no handler would take is read as a text."""
    try:
        if endpoint == "chat":
            chat = parse_chat(dict(body), False)
            return await service.encode_chat(exchange, chat.messages, chat.tools, answer_schema=chat.answer_schema)
        if endpoint == "messages":
            request = schema.messages.MessagesRequest.check(dict(body), False)
            form = answer_schema(request)
            chat_of = chat_messages(request, strict=False)
            return await service.encode_chat(exchange, chat_of, chat_tools(request), answer_schema=form)
        if endpoint == "responses":
            return await _responses_prompt(service, exchange, body)
        if endpoint == "completions":
            prompt = parse_completion(body, False).prompts[0]
            return await service.encode_text(exchange, prompt) if isinstance(prompt, str) else prompt
        return await service.encode_text(exchange, _text_of(body.get("input")))
    except ApiError:
        return await service.encode_text(exchange, json.dumps(body, ensure_ascii=False))


async def _responses_prompt(service: Service, exchange: HttpExchange, body: Mapping[str, Any]) -> npt.NDArray[np.int32]:
    """Return the prompt of the items that the request brings: those before it are not stored here."""
    own = {name: value for name, value in body.items() if name not in ("previous_response_id", "conversation")}
    request = schema.responses.ResponseRequest.check(own, False)
    items = (await context.read_context(exchange, MemoryState(), request)).items
    messages, form = context.chat_form(request, items), context.answer_schema(request)
    return await service.encode_chat(exchange, messages, context.chat_tools(request), answer_schema=form)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
