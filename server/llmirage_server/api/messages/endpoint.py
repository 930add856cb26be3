"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from llmirage_server.api.chunks import said_together
from llmirage_server.api.exchange import Header, HttpExchange
from llmirage_server.api.generation import Choice, Generation, TokenStream
from llmirage_server.api.messages.caching import NOTHING_KEPT, KeptPrompt, cache_breakpoint, messages_usage
from llmirage_server.api.messages.translate import (
    answer_schema,
    chat_length,
    chat_messages,
    chat_tools,
    continued,
    messages_constraints,
    remember,
)
from llmirage_server.api.prompts import ContextWindow, CountedTokens, EncodedPrompt
from llmirage_server.api.responses.items import sealed
from llmirage_server.api.service import ServiceHandler
from llmirage_server.api.whole import finish
from llmirage_server.replies.reply import Part, Reply
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import escape, named_event, new_id
from llmirage_shared.wire.sampling import Sampling

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
                429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"}  # fmt: skip


class MessagesExchange(HttpExchange):
    """An exchange whose errors have Anthropic's form."""

    __slots__ = ()

    def api_headers(self) -> Sequence[Header]:
        return ((b"request-id", self.request_id),)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return {**messages_error(error), "request_id": self.request_id.decode()}


def messages_error(error: ApiError) -> dict[str, Any]:
    """An error as the Messages API writes it."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message if error.param is None or error.param in error.message else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessagesHandler(ServiceHandler):
    """Answers as the Anthropic API does, streamed or in one piece."""

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        body = continued(service.state, await exchange.json_object())
        request = await exchange.apart(lambda: schema.messages.MessagesRequest.check(body, service.documented_only))
        if (request.min_tokens or 0) > request.max_tokens:
            raise errors.invalid_value("min_tokens", f"expected a value <= max_tokens ({request.max_tokens}).")
        served = service.models.asked(request.model, exchange)
        chat = await exchange.apart(lambda: chat_messages(request, service.dialect.strict))
        constraints = await exchange.planned(
            lambda: messages_constraints(request, chat), "tools", service.text.plan_in_thread
        )
        user = (request.metadata or {}).get("user_id")
        sampling = Sampling(
            max_tokens=request.max_tokens,
            stop=tuple(sequence for sequence in request.stop_sequences or () if sequence),
            stream=bool(request.stream),
            session_key=user if isinstance(user, str) else None,
            natural_stop=True,
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
        )
        window = ContextWindow(served.max_model_len, "messages")
        tools = chat_tools(request)
        ids = await service.encode_chat(exchange, chat, tools, answer_schema=answer_schema(request), window=window)
        prompts = [EncodedPrompt(ids, constraints.history.last_user_text)]
        generation = await service.generate(prompts, sampling, served, exchange, "messages", constraints)
        [choice] = generation.choices
        kept = await self._kept(exchange, request, body, chat, len(ids))
        message = _Message(request.model, choice, generation, kept)

        def remembered() -> dict[str, Any]:
            whole = message.whole()
            remember(service.state, body, whole)
            return whole

        def closing() -> bytes:
            remembered()
            return message.closing()

        if request.stream:
            return TokenStream(generation, exchange, [message], closing, lambda error: _event(messages_error(error))).start()
        await finish(generation, exchange)
        return exchange.json(remembered())

    async def _kept(
        self,
        exchange: HttpExchange,
        request: schema.messages.CountRequest,
        body: Mapping[str, Any],
        chat: Sequence[Mapping[str, Any]],
        tokens: int,
    ) -> KeptPrompt:
        """What of a prompt of so many tokens the request asks to keep."""
        found = await exchange.apart(lambda: cache_breakpoint(body))
        if found is None or found.messages == len(request.messages):
            return KeptPrompt(tokens, found.ttl) if found else NOTHING_KEPT
        length = await exchange.apart(lambda: chat_length(request, found.messages))
        covered = chat[:length] or [{"role": "system", "content": ""}]
        ids = await self._service.encode_chat(exchange, covered, chat_tools(request), add_generation_prompt=False)
        return KeptPrompt(len(ids), found.ttl)

    async def count_tokens(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(schema.messages.CountRequest.check, service.documented_only)
        window = CountedTokens.of(service.models.find(request.model).max_model_len, "messages")
        chat = await exchange.apart(lambda: chat_messages(request, service.dialect.strict))
        form = answer_schema(request)
        ids = await service.encode_chat(exchange, chat, chat_tools(request), answer_schema=form, window=window)
        return exchange.json({"input_tokens": len(ids)})


class _Message:
    """A reply as a message, whole or as the writer of its events."""

    def __init__(self, model: str, choice: Choice, generation: Generation, kept: KeptPrompt) -> None:
        self._model = model
        self._kept = kept
        self._reply: Reply = choice.reply
        self._joined = choice.joined
        self._generation = generation
        self._id = new_id("msg_")
        self._parts = self._reply.all_parts
        self._call_ids = {part.start: new_id("toolu_") for part in self._parts}
        self._next = 0  # index of the next token's part, or of the part after it
        self._open = -1  # index of the open part
        self._delta = (b"", b"")

    def whole(self) -> dict[str, Any]:
        content = [self._block(part, self._reply.said(part)) for part in self._parts]
        return {**self._head(), "content": content, **self._stop(), "usage": self._usage()}

    def tokens(self, start: int, end: int) -> bytes:
        written = []
        if start == 0:
            usage = {**self._usage(), "output_tokens": 1}
            message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
            written.append(_event({"type": "message_start", "message": message}))
            written.append(_event({"type": "ping"}))
        for places in said_together(self._parts, start, end, self._joined):
            while self._next < len(self._parts) and places.start >= self._parts[self._next].end:
                written.append(self._end_block())
            if self._next == len(self._parts) or places.start < self._parts[self._next].start:
                continue
            if self._open < self._next:
                written.append(self._begin_block())
            if piece := "".join(self._reply.pieces[places.start : places.stop]):
                written.append(self._delta[0] + escape(piece) + self._delta[1])
        return b"".join(written)

    def ending(self) -> bytes:
        written = []
        while self._next < len(self._parts):
            written.append(self._end_block())
        return b"".join(written)

    def closing(self) -> bytes:
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        return _event(delta) + _event({"type": "message_stop"})

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stop(self) -> dict[str, Any]:
        reply = self._reply
        reason = _STOP_REASONS.get(reply.finish_reason, "end_turn")
        if any(part.kind == "refusal" for part in reply.parts):
            reason = "refusal"
        if reply.stop_reason is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": reply.stop_reason}

    def _usage(self) -> dict[str, Any]:
        return messages_usage(self._generation.usage(), self._kept)

    def _block(self, part: Part, text: str) -> dict[str, Any]:
        if part.kind in ("text", "refusal"):
            return {"type": "text", "text": text}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": sealed(text[:32]) if text else ""}
        try:
            written = json.loads(text) if text else {}
        except ValueError:  # cut by max_tokens
            written = {}
        return {"type": "tool_use", "id": self._call_ids[part.start], "name": part.name, "input": written}

    def _begin_block(self) -> bytes:
        self._open = index = self._next
        part = self._parts[index]
        kind, field = {
            "text": ("text_delta", "text"),
            "refusal": ("text_delta", "text"),
            "reasoning": ("thinking_delta", "thinking"),
        }.get(part.kind, ("input_json_delta", "partial_json"))
        head = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}",'
        self._delta = (head.encode() + f'"{field}":'.encode(), b"}}\n\n")
        return _event({"type": "content_block_start", "index": index, "content_block": self._block(part, "")})

    def _end_block(self) -> bytes:
        written = [self._begin_block()] if self._open < self._next else []
        part, index = self._parts[self._next], self._next
        if part.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": sealed(self._reply.said(part)[:32])}
            written.append(_event({"type": "content_block_delta", "index": index, "delta": delta}))
        written.append(_event({"type": "content_block_stop", "index": index}))
        self._next += 1
        return b"".join(written)


def _event(value: dict[str, Any]) -> bytes:
    return named_event(value["type"], value)
