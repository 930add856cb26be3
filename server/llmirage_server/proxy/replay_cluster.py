"""A recording at the pace of the simulated cluster: events leave when the cluster has made the tokens that they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from llmirage_server.anthropic.translate import chat_messages, chat_tools
from llmirage_server.http.exchange import Header, HttpExchange
from llmirage_server.openai.responses import context
from llmirage_server.replies.recordings.matching import endpoint_of
from llmirage_server.replies.recordings.recording import Recording
from llmirage_server.replies.recordings.sse import event_value, said
from llmirage_server.replies.reply import Reply
from llmirage_server.service.generation import Choice, Generation, TokenStream
from llmirage_server.service.service import Service
from llmirage_server.service.unstreamed import finish, prefill
from llmirage_server.state.memory import MemoryState
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire import schema
from llmirage_shared.wire.chat import parse_chat
from llmirage_shared.wire.completions import parse_completion
from llmirage_shared.wire.errors import ApiError

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
    served = service.models.meant(model)
    if len(reply.ids) >= served.max_model_len:  # another model's context: what is beyond this one's leaves at the end
        kept = served.max_model_len - 1
        reply = Reply(reply.ids[:kept], reply.pieces[:kept], "stop")
    prompt = prompt[: max(1, served.max_model_len - len(reply.ids))]
    request = service.new_request(prompt, reply.ids, served.model, max_tokens=len(reply.ids))
    exchange.entry.served = served.model
    generation = Generation(service.responses, [Choice(reply, request, "")], 1, exchange.arrived_s, exchange.entry)
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
            return await service.encode_chat(exchange, chat_messages(request, strict=False), chat_tools(request))
        if endpoint == "responses":
            return await _responses_prompt(service, exchange, body)
        if endpoint == "completions":
            prompt = parse_completion(body, False).prompts[0]
            return await service.encode_text(prompt) if isinstance(prompt, str) else prompt
        return await service.encode_text(_text_of(body.get("input")))
    except ApiError:
        return await service.encode_text(json.dumps(body, ensure_ascii=False))


async def _responses_prompt(service: Service, exchange: HttpExchange, body: Mapping[str, Any]) -> npt.NDArray[np.int32]:
    """Return the prompt of the items that the request brings: those before it are not stored here."""
    own = {name: value for name, value in body.items() if name not in ("previous_response_id", "conversation")}
    request = schema.responses.ResponseRequest.check(own, False)
    items = (await context.read_context(exchange, MemoryState(), request)).items
    return await service.encode_chat(exchange, context.chat_form(request, items), context.chat_tools(request))


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
