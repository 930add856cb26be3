"""POST /v1/chat/completions, and the completions stored with `store: true`: list, update, delete."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from llmirage_server.http import bodies
from llmirage_server.http.dialect import Dialect
from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.openai.generate import rendered
from llmirage_server.openai.vendors import cached_details, filtered, filtered_frame, filtered_opening
from llmirage_server.openai.writers import ChatWriter
from llmirage_server.replies.moderation import moderated
from llmirage_server.service.constraints import ReplyConstraints, chat_constraints, plain
from llmirage_server.service.generation import Choice, ChoiceWriter, Generation, TokenStream
from llmirage_server.service.logprobs import prompt_fields, reply_logprobs
from llmirage_server.service.prompts import ContextWindow, EncodedPrompt
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.service.unstreamed import finish
from llmirage_server.state.state import Breaks, State, stored
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire import schema
from llmirage_shared.wire.chat import ChatRequest, chat_completion, parse_chat
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import (
    CHAT_FORM,
    FinishedChoice,
    PlainWriter,
    ResponseHead,
    chunk_frame,
    new_call_id,
    new_id,
    stream_end,
)
from llmirage_shared.wire.paging import page


class ChatHandler(ServiceHandler):
    """Answers as the OpenAI API does, streamed or in one piece."""

    def __init__(self, service: Service, state: State, fingerprint: str) -> None:
        """Keep what answers. state: has the completions that are stored. fingerprint: stands in each answer."""
        super().__init__(service)
        self._state = state
        self._fingerprint = fingerprint

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(parse_chat, service.documented_only, service.dialect.strict)
        body, sampling = request.body, request.sampling
        served = service.models.asked(body.model, exchange)
        if request.sound is not None and not (served.hears or "audio" in body.model.lower()):
            _refuse_sound(request.sound, served.model, service.dialect)
        constraints = await exchange.planned(lambda: chat_constraints(request), "tools", service.text.plan_in_thread)
        ids = await self._encoded(exchange, request, served.max_model_len)
        prompts = [EncodedPrompt(ids, request.history.last_user_text)]
        generation = await service.generate(prompts, sampling, served, exchange, "messages", constraints)
        tokenizer = await service.tokenizer()
        if body.store and sampling.logprobs is not None:
            tokens = sum(len(choice.reply.ids) for choice in generation.choices)
            exchange.expect_logprobs(tokens * (1 + sampling.logprobs), at_once=True)
        tier = "default" if body.service_tier in (None, "auto") else body.service_tier
        head = ResponseHead(new_id("chatcmpl-"), int(time.time()), body.model, self._fingerprint, tier)
        answer = _ChatAnswer(request, constraints, generation, head, tokenizer, self._state, exchange.dialect)
        if sampling.stream:
            return answer.stream(exchange)
        await finish(generation, exchange)
        completion = await exchange.apart(answer.completion) | cached_details(generation, exchange) | generation.handed_over
        if sampling.about_prompt:
            completion |= prompt_fields(generation.choices[0], sampling, tokenizer)
        return await exchange.large_json(completion)

    async def render(self, exchange: HttpExchange) -> Response:
        """Answer with the prompt's tokens, and generate nothing."""
        request = await exchange.checked(parse_chat, self._service.documented_only, self._service.dialect.strict)
        window = self._service.models.asked(request.body.model, exchange).max_model_len
        ids = await self._encoded(exchange, request, window)
        return await exchange.large_json(rendered(new_id("chatcmpl-"), ids, request, exchange.body, window))

    async def _encoded(self, exchange: HttpExchange, request: ChatRequest, max_model_len: int) -> npt.NDArray[np.int32]:
        body = request.body
        return await self._service.encode_chat(
            exchange,
            request.messages,
            request.tools,
            answer_schema=request.answer_schema,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            window=None if request.sampling.truncate_prompt_tokens else ContextWindow(max_model_len, "messages"),
        )


def _refuse_sound(index: int, model: str, dialect: Dialect) -> None:
    """Raise ApiError for a sound in a message to a model of text, as OpenAI and vLLM (multimodal/registry.py) do."""
    if dialect.strict:
        where = f"messages[{index}]"
        problem = f"Invalid '{where}'. Content blocks are expected to be either text or image_url type."
        raise ApiError(problem, param=where, code="invalid_value")
    if dialect.name == "vllm":
        raise ApiError(f"{model} is not a multimodal model")


@dataclass(slots=True)
class _ChatAnswer:
    """A chat completion in the forms that it can be sent in."""

    request: ChatRequest
    constraints: ReplyConstraints
    generation: Generation
    head: ResponseHead
    tokenizer: Tokenizer
    state: State
    dialect: Dialect

    def completion(self) -> dict[str, Any]:
        """Return the whole completion; stored, if the request asks for it."""
        choices = [self._finished(choice) for choice in self.generation.choices]
        completion = chat_completion(self.head, choices, self.generation.shown_usage()) | self._moderation()
        if self.dialect.vendor.content_filters:
            completion = filtered(completion)
        if self.request.body.store:
            store_completion(self.state, self.request, completion)
        return completion

    def stream(self, exchange: HttpExchange) -> TokenStream:
        writers = [self._writer(index, choice) for index, choice in enumerate(self.generation.choices)]
        usage = self.generation.shown_usage if self.request.sampling.include_usage else None
        cached = partial(cached_details, self.generation, exchange) if self.dialect.sglext else dict
        more = cached if self.request.body.moderation is None else lambda: cached() | self._moderation()
        end = partial(stream_end, self.head, "chat.completion.chunk", usage, more, self._obfuscated)

        def stored_end() -> bytes:
            self.completion()
            return end()

        opening = filtered_opening() if self.dialect.vendor.content_filters else b""
        closing = stored_end if self.request.body.store else end
        return TokenStream(self.generation, exchange, writers, closing, opening=opening).start()

    def _moderation(self) -> dict[str, Any]:
        """Return the judgement of input and output, if the request asks for it."""
        if (asked := self.request.body.moderation) is None:
            return {}
        texts = [self.request.history.last_user_text, *(choice.reply.text for choice in self.generation.choices)]
        said, *replied = moderated(texts, asked.model)
        sides = {"input": [said], "output": replied}
        return {
            "moderation": {
                side: {"type": "moderation_results", "model": asked.model, "results": results}
                for side, results in sides.items()
            }
        }

    @property
    def _obfuscated(self) -> bool:
        options = self.request.body.stream_options
        return self.dialect.obfuscation and (options is None or options.include_obfuscation is not False)

    def _writer(self, index: int, choice: Choice) -> ChoiceWriter:
        sampling, reply = self.request.sampling, choice.reply
        frame = chunk_frame(self.head, "chat.completion.chunk", index, sampling.include_usage, self._obfuscated)
        if self.dialect.vendor.content_filters:
            frame = filtered_frame(frame)
        if not (reply.parts or sampling.usage_in_every_chunk or sampling.return_token_ids) and sampling.logprobs is None:
            return PlainWriter(
                frame,
                CHAT_FORM,
                reply.pieces,
                reply.finish_reason,
                reply.stop_reason,
                joined=choice.joined,
                ends_with_token=self.dialect.chat_ends_with_token,
            )
        return ChatWriter(
            choice,
            frame,
            finish_reason=self._finish_reason(choice),
            legacy_functions=self.constraints.legacy_functions,
            show_reasoning=self.constraints.show_reasoning,
            logprobs=reply_logprobs(choice, sampling, self.tokenizer),
            usage=partial(self.generation.usage_at, choice) if sampling.usage_in_every_chunk else None,
            token_ids=sampling.return_token_ids,
            ends_with_token=self.dialect.chat_ends_with_token,
        )

    def _finish_reason(self, choice: Choice) -> str:
        reason = choice.reply.finish_reason
        if reason != "tool_calls":
            return reason
        if self.constraints.forced:
            return self.dialect.named_tool_finish
        return "function_call" if self.constraints.legacy_functions else "tool_calls"

    def _finished(self, choice: Choice) -> FinishedChoice:
        reply = choice.reply
        message: dict[str, Any] = {}
        calls = [part for part in reply.parts if part.kind.endswith("_call")]
        if calls:
            message["content"] = reply.text or None
            if self.constraints.legacy_functions:
                message["function_call"] = {"name": calls[0].name, "arguments": reply.said(calls[0])}
            else:
                message["tool_calls"] = [_call(part.kind, part.name, reply.said(part)) for part in calls]
        refusals = [reply.said(part) for part in reply.parts if part.kind == "refusal"]
        if refusals:
            message |= {"content": None, "refusal": refusals[0]}
        thoughts = "".join([reply.said(part) for part in reply.parts if part.kind == "reasoning"])
        if thoughts and self.constraints.show_reasoning:
            message["reasoning_content"] = message["reasoning"] = thoughts
        logprobs = None
        if (entries := reply_logprobs(choice, self.request.sampling, self.tokenizer)) is not None:
            logprobs = {"content": entries.content() or None, "refusal": entries.content("refusal") or None}
            if calls and not any(logprobs.values()):
                logprobs = None  # calls have none
        token_ids = reply.ids.tolist() if self.request.sampling.return_token_ids else None
        return FinishedChoice(reply.text, self._finish_reason(choice), reply.stop_reason, message, logprobs, token_ids)


def _call(kind: str, name: str, written: str) -> dict[str, Any]:
    if kind == "custom_call":
        return {"id": new_call_id(), "type": "custom", "custom": {"name": name, "input": written}}
    return {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": written}}


def store_completion(state: State, request: ChatRequest, completion: dict[str, Any]) -> None:
    """Keep a finished completion with the messages that it answers."""
    body = request.body
    kept = {
        **completion,
        "metadata": body.metadata or {},
        "request_id": completion["id"],
        "tool_choice": plain(body.tool_choice),
        "seed": body.seed,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "input_user": body.user,
        "tools": request.tools,
        "response_format": plain(body.response_format),
    }
    messages = [
        {"id": f"{completion['id']}-{place}", "content": None, "refusal": None, **message}
        for place, message in enumerate(request.messages)
    ]
    state.put("completion", completion["id"], {"completion": kept, "messages": messages})


class StoredChatHandler:
    """GET, POST and DELETE under /v1/chat/completions."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def list(self, exchange: HttpExchange) -> Response:
        model = exchange.query("model")
        wanted = {name[9:-1]: exchange.query(name) for name in exchange.request.query_params if name.startswith("metadata[")}
        breaks = Breaks()
        fitting: list[dict[str, Any]] = []  # ids alone: there may be very many
        for key in self._state.keys("completion"):
            data = self._state.read("completion", key) or b"{}"
            exchange.is_large = len(data) > LARGE_BYTES
            completion = (await exchange.apart(partial(bodies.kept_object, data))).get("completion")
            if completion is None:
                continue
            if (model is None or completion["model"] == model) and wanted.items() <= completion["metadata"].items():
                fitting.append({"id": completion["id"]})
            await breaks.maybe()
        shown = page(fitting, exchange.query, "asc")
        records = [await exchange.kept(self._state.read("completion", entry["id"])) for entry in shown["data"]]
        exchange.is_large = True
        return await exchange.large_json({**shown, "data": [record["completion"] for record in records if record]})

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return await exchange.large_json((await self._found(exchange))["completion"])

    async def update(self, exchange: HttpExchange) -> Response:
        record = await self._found(exchange)
        update = await exchange.checked(schema.responses.ConversationUpdate.check)
        record["completion"]["metadata"] = update.metadata
        self._state.put("completion", record["completion"]["id"], record)
        return await exchange.large_json(record["completion"])

    async def delete(self, exchange: HttpExchange) -> Response:
        key = (await self._found(exchange))["completion"]["id"]
        self._state.delete("completion", key)
        return exchange.json({"object": "chat.completion.deleted", "id": key, "deleted": True})

    async def messages(self, exchange: HttpExchange) -> Response:
        return await exchange.large_json(page((await self._found(exchange))["messages"], exchange.query, "asc"))

    async def _found(self, exchange: HttpExchange) -> dict[str, Any]:
        return await stored(self._state, "completion", exchange.path_id(), exchange.kept)
