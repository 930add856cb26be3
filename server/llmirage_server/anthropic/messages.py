"""POST /v1/messages and /v1/messages/count_tokens: the handler, and the reply as a message or as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response

from llmirage_server.anthropic.caching import (
    KeptPrefix,
    KeptPrompt,
    WrittenPrompts,
    cache_breakpoints,
    fewest_tokens,
    messages_usage,
)
from llmirage_server.anthropic.refusals import BETA, ContextEdits, Request, refuse_messages, signed
from llmirage_server.anthropic.server_blocks import ServerCall, ServerTools, named_container, new_container, runs_code
from llmirage_server.anthropic.tools import betas_of
from llmirage_server.anthropic.translate import (
    answer_schema,
    chat_length,
    chat_messages,
    chat_tools,
    continued,
    messages_constraints,
    named_files,
    remember,
)
from llmirage_server.http.exchange import Header, HttpExchange
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.service.generation import Choice, Generation, TokenStream, said_together
from llmirage_server.service.models import ServedModel
from llmirage_server.service.prompts import MOST_COUNTED, ContextWindow, CountedTokens, EncodedPrompt
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.service.unstreamed import finish
from llmirage_server.state.state import State
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError, ContextOverflowError
from llmirage_shared.wire.output import escape, named_event, new_id
from llmirage_shared.wire.sampling import Sampling

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
                429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"}  # fmt: skip
_WRITTEN = "written_prompts"
_DETAILED = ("file_not_downloadable",)  # codes that errors show


class MessagesExchange(HttpExchange):
    """An exchange whose errors have Anthropic's form."""

    __slots__ = ()

    def api_headers(self) -> Sequence[Header]:
        return ((b"request-id", self.request_id),)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return {**messages_error(error, self.dialect.strict), "request_id": self.request_id.decode()}


def messages_error(error: ApiError, strict: bool = True) -> dict[str, Any]:
    """Return an error as the Messages API writes it.

    strict: in the API's words, else in those of engines that have this API.
    """
    if strict and isinstance(error, ContextOverflowError):
        error = _overflow(error)
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message if error.param is None or error.param in error.message else f"{error.param}: {error.message}"
    details = {"details": {"error_code": error.code}} if error.code in _DETAILED else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def _overflow(error: ContextOverflowError) -> ApiError:
    """Return the error of a prompt, alone or with its reply, beyond the context window, in the API's words."""
    prompt, most, limit = error.prompt_tokens, error.max_tokens, error.limit_tokens
    if most is None or prompt > limit:
        return ApiError(f"prompt is too long: {prompt} tokens > {limit} maximum")
    return ApiError(
        f"input length and `max_tokens` exceed context limit: {prompt} + {most} > {limit}, decrease input length or "
        "`max_tokens` and try again"
    )


@dataclass(slots=True, frozen=True)
class _Seen:
    """The prompt of a request. edits: those of `context_management` that were applied, None without the field."""

    request: Any
    chat: Sequence[Mapping[str, Any]]
    ids: TokenIds
    edits: list[dict[str, Any]] | None
    original_tokens: int


class MessagesHandler(ServiceHandler):
    """Answers as the Anthropic API does, streamed or in one piece."""

    def __init__(self, service: Service, state: State) -> None:
        """Keep what answers. state: has containers and the messages that are continued."""
        super().__init__(service)
        self._state = state
        service.answers[_WRITTEN] = WrittenPrompts().read_and_write

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        body = await continued(self._state, await exchange.json_object(), partial(exchange.kept, in_prompt=True))
        checked = await self._checked(exchange, schema.messages.MessagesRequest, body)
        if (checked.min_tokens or 0) > checked.max_tokens:
            raise errors.invalid_value("min_tokens", f"expected a value <= max_tokens ({checked.max_tokens}).")
        served = service.models.asked(checked.model, exchange)
        counted_to = MOST_COUNTED if service.dialect.strict else 0
        window = ContextWindow(served.max_model_len, "messages", counted_to)
        seen = await self._seen(exchange, checked, window)
        request, chat = seen.request, seen.chat
        constraints = await exchange.planned(
            lambda: messages_constraints(request, chat), "tools", service.text.plan_in_thread
        )
        user = (request.metadata or {}).get("user_id")
        sampling = Sampling(
            max_tokens=request.max_tokens,
            stop=tuple(sequence for sequence in request.stop_sequences or () if sequence),
            stream=bool(request.stream),
            session_key=user if isinstance(user, str) else None,
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
        )
        prompts = [EncodedPrompt(seen.ids, constraints.history.last_user_text)]
        generation = await service.generate(prompts, sampling, served, exchange, "messages", constraints)
        [choice] = generation.choices
        kept = await self._kept(exchange, request, body, chat, seen.ids, served)
        if "cached_tokens" in (generation.usage_instead or {}):
            kept = replace(kept, written=None)
        server = await exchange.apart(lambda: ServerTools.of(request, chat))
        more: dict[str, Any] = {} if seen.edits is None else {"context_management": {"applied_edits": seen.edits}}
        if request.container is not None or runs_code(choice.reply):
            more["container"] = container = new_container(request)
            self._state.put("container", container["id"], container)
        shows_thoughts = request.thinking is None or request.thinking.display != "omitted"
        usage = partial(messages_usage, kept=kept)
        message = MessageWriter(request.model, choice, generation, usage, server, more, shows_thoughts)

        def remembered() -> dict[str, Any]:
            whole = message.whole()
            remember(self._state, body, whole)
            return whole

        def closing() -> bytes:
            remembered()
            return message.closing()

        def failed(error: ApiError) -> bytes:
            return message_event(messages_error(error, service.dialect.strict))

        if request.stream:
            return TokenStream(generation, exchange, [message], closing, failed).start()
        await finish(generation, exchange)
        return exchange.json(remembered())

    async def _checked(self, exchange: HttpExchange, kind: type[Request], body: Mapping[str, Any]) -> Request:
        """Return the checked body. Raises ApiError."""
        service = self._service
        request = await exchange.apart(lambda: kind.check(body, service.documented_only))
        if service.dialect.strict:
            betas = betas_of(exchange.header(b"anthropic-beta") or "")
            if request.context_management is not None and BETA not in betas:
                raise ApiError("context_management: Extra inputs are not permitted")
            await exchange.apart(lambda: refuse_messages(request, betas))
            container = named_container(request)
            if container is not None and self._state.get("container", container) is None:
                raise ApiError(f"container: Container '{errors.shorten(container)}' was not found.", status=404)
            for file_id in await exchange.apart(lambda: named_files(request)):
                try:
                    service.files.object(file_id)
                except ApiError as error:
                    raise ApiError(f"File not found: {errors.shorten(file_id)}", status=error.status) from None
        return request

    async def _seen(self, exchange: HttpExchange, request: Any, window: ContextWindow) -> _Seen:
        """Return the prompt of a request, after the edits that it asks for. Raises ApiError."""

        async def encoded(request: schema.messages.CountRequest) -> TokenIds:
            chat = await exchange.apart(lambda: chat_messages(request, self._service.dialect.strict))
            tools = await exchange.apart(lambda: chat_tools(request))
            form = answer_schema(request)
            return await self._service.encode_chat(exchange, chat, tools, answer_schema=form, window=window)

        async def count(request: schema.messages.CountRequest) -> int:
            return len(await encoded(request))

        edits = None
        original_tokens = 0
        if request.context_management is not None:
            wanted = ContextEdits(request)
            original_tokens = await count(request)
            request, edits = await wanted.apply(request, count)
        chat = await exchange.apart(lambda: chat_messages(request, self._service.dialect.strict))
        return _Seen(request, chat, await encoded(request), edits, original_tokens)

    async def _kept(
        self,
        exchange: HttpExchange,
        request: schema.messages.CountRequest,
        body: Mapping[str, Any],
        chat: Sequence[Mapping[str, Any]],
        ids: TokenIds,
        served: ServedModel,
    ) -> KeptPrompt:
        """Return what of its prompt the request asks to keep. Raises ApiError for too many breakpoints."""
        service, vendor = self._service, exchange.dialect.vendor_caching
        prefixes: list[KeptPrefix] = []
        for found in await exchange.apart(lambda: cache_breakpoints(body) if vendor else cache_breakpoints(body, None)):
            tokens = len(ids)
            if found.messages < len(request.messages):
                covered = chat[: chat_length(request, found.messages)] or [{"role": "system", "content": ""}]
                part = await service.encode_chat(exchange, covered, chat_tools(request), add_generation_prompt=False)
                tokens = min(tokens, len(part))
            if not vendor or tokens >= fewest_tokens(request.model):
                prefixes.append(KeptPrefix(tokens, found.blocks, found.ttl))
        if not vendor:
            return KeptPrompt(prefixes)
        written: list[int] = []
        if prefixes:
            kept_ids = ids[: prefixes[-1].tokens]
            written = await service.ask(_WRITTEN, served.model, kept_ids, prefixes, service.driver.now_s)
        return KeptPrompt(prefixes, written, served.page_tokens)

    async def count_tokens(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await self._checked(exchange, schema.messages.CountRequest, await exchange.json_object())
        window = CountedTokens.of(service.models.find(request.model).max_model_len, "messages")
        seen = await self._seen(exchange, request, window)
        counted: dict[str, Any] = {"input_tokens": len(seen.ids)}
        if seen.edits is not None:
            counted["context_management"] = {"original_input_tokens": seen.original_tokens}
        return exchange.json(counted)


_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {
    "text": ("text_delta", "text"), "refusal": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
}  # fmt: skip
_CALL_DELTA = ("input_json_delta", "partial_json")


class MessageWriter:
    """A reply as a message, whole or as the writer of its events.

    A part of the reply is a block; of a call that the API itself makes, two.
    """

    def __init__(
        self,
        model: str,
        choice: Choice,
        generation: Generation,
        usage: Callable[[Mapping[str, Any]], dict[str, Any]],
        server: ServerTools,
        more: Mapping[str, Any],
        shows_thoughts: bool = True,
    ) -> None:
        """usage: that of the API, of chat's. more: fields of the message's end. shows_thoughts: else they are left out."""
        self._model = model
        self._usage_of = usage
        self._server = server
        self._shows_thoughts = shows_thoughts
        self._reply: Reply = choice.reply
        self._joined = choice.joined
        self._generation = generation
        self._id = new_id("msg_")
        self._parts = self._reply.all_parts
        cut = self._reply.finish_reason == "length"
        self._ids = {part.start: new_id("toolu_") for part in self._parts if part.kind == "function_call"}
        self._calls: dict[int, ServerCall] = {}  # by the start of their part
        self._citations: dict[int, list[dict[str, Any]]] = {}
        cited: list[dict[str, Any]] = []
        for part in self._parts:
            if part.kind == "hosted_call":
                call = server.call(part, self._reply.said(part), cut and part is self._parts[-1])
                self._calls[part.start] = call
                if (citation := call.citation()) is not None:
                    cited.append(citation)
            elif part.kind == "text" and cited and part.end > part.start:
                self._citations[part.start], cited = cited, []
        self._more = more
        self._next = 0  # index of the next token's part, or of the part after it
        self._open = -1  # index of the open part
        self._index = -1  # of the open block
        self._delta = (b"", b"")

    def whole(self) -> dict[str, Any]:
        content = []
        for part in self._parts:
            text = self._reply.said(part)
            content.append(self._block(part, text, signed(text) if part.kind == "reasoning" else ""))
            if (result := self._result(part)) is not None:
                content.append(result)
        return {**self._head(), "content": content, **self._stop(), **self._more, "usage": self._usage()}

    def tokens(self, start: int, end: int) -> bytes:
        written = []
        if start == 0:
            usage = {**self._usage(), "output_tokens": 1}
            usage.pop("server_tool_use", None)
            message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
            written.append(message_event({"type": "message_start", "message": message}))
            written.append(message_event({"type": "ping"}))
        for places in said_together(self._parts, start, end, self._joined):
            while self._next < len(self._parts) and places.start >= self._parts[self._next].end:
                written.append(self._end_block())
            if self._next == len(self._parts) or places.start < self._parts[self._next].start:
                continue
            if self._open < self._next:
                written.append(self._begin_block())
            if self._delta[0] and (piece := "".join(self._reply.pieces[places.start : places.stop])):
                written.append(self._delta[0] + escape(piece) + self._delta[1])
        return b"".join(written)

    def ending(self) -> bytes:
        written = []
        while self._next < len(self._parts):
            written.append(self._end_block())
        return b"".join(written)

    def closing(self) -> bytes:
        more = dict(self._more)
        management = {"context_management": more.pop("context_management")} if "context_management" in more else {}
        delta = {"type": "message_delta", "delta": {**self._stop(), **more}, "usage": self._usage(), **management}
        return message_event(delta) + message_event({"type": "message_stop"})

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
        return {**self._usage_of(self._generation.usage(int)), **self._server.usage}

    def _block(self, part: Part, text: str, signature: str = "") -> dict[str, Any]:
        """Return the block with this much of its text."""
        if part.kind in ("text", "refusal"):
            cited = {"citations": self._citations[part.start] if text else []} if part.start in self._citations else {}
            return {"type": "text", "text": text, **cited}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text if self._shows_thoughts else "", "signature": signature}
        try:
            written = json.loads(text) if text else {}
        except ValueError:  # cut by max_tokens
            written = {}
        if (call := self._calls.get(part.start)) is not None:
            return call.use(written)
        return {"type": "tool_use", "id": self._ids.get(part.start, ""), "name": part.name, "input": written}

    def _result(self, part: Part) -> dict[str, Any] | None:
        call = self._calls.get(part.start)
        return None if call is None else call.result()

    def _begin_block(self) -> bytes:
        self._open = self._next
        self._index += 1
        part = self._parts[self._open]
        kind, name = _DELTAS.get(part.kind, _CALL_DELTA)
        place = f'{{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{kind}","{name}":'
        self._delta = (b"event: content_block_delta\ndata: " + place.encode(), b"}}\n\n")
        if part.kind == "reasoning" and not self._shows_thoughts:
            self._delta = (b"", b"")
        return self._started(self._block(part, ""))

    def _started(self, block: dict[str, Any]) -> bytes:
        return message_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _end_block(self) -> bytes:
        written = [self._begin_block()] if self._open < self._next else []
        part = self._parts[self._next]
        deltas = [{"type": "citations_delta", "citation": citation} for citation in self._citations.get(part.start, ())]
        if part.kind == "reasoning":
            deltas.append({"type": "signature_delta", "signature": signed(self._reply.said(part))})
        written += [self._event("content_block_delta", delta=delta) for delta in deltas]
        written.append(self._event("content_block_stop"))
        if (result := self._result(part)) is not None:
            self._index += 1
            written += [self._started(result), self._event("content_block_stop")]
        self._next += 1
        return b"".join(written)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return message_event({"type": kind, "index": self._index, **fields})


def message_event(value: dict[str, Any]) -> bytes:
    """Return an event of a stream, named by its type."""
    return named_event(value["type"], value)
