"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Choice, Generation, Prompt, Service
from llmirage_server.api.logprobs import ReplyLogprobs, told_of_prompt
from llmirage_server.api.shape import Shape, chat_shape, check_names, check_schemas
from llmirage_server.api.stored_chat import store_completion
from llmirage_server.api.stream import TokenStream
from llmirage_server.api.writers import ChatWriter, ChoiceWriter, PlainWriter
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.chat import ChatRequest, parse_chat, prompt_ending
from llmirage_shared.wire.chunks import DONE, chat_frame, chat_stream, usage_event
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.responses import ChoiceText, Head, chat_completion, new_call_id, new_id


class ChatEndpoint:
    """Answers as the OpenAI API does, streamed or in one piece."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, exchange: Exchange) -> Response:
        request = parse_chat(parse_object(await exchange.body()))
        service, sampling = self._service, request.sampling
        service.check_fields(request.body, "chat")
        served = service.models.find(request.model)
        check_schemas(request)
        shape = chat_shape(request)
        check_names(shape)
        ending = prompt_ending(request.body.add_generation_prompt, request.body.continue_final_message)
        ids = await service.text.encode_chat(request.messages, request.tools, ending, schema=request.schema)
        prompts = [Prompt(ids, request.last_user_text)]
        generation = await service.generate(prompts, sampling, served, exchange, "messages", shape)
        tokenizer = (await service.text.get()).encoder.tokenizer
        head = Head(new_id("chatcmpl-"), int(time.time()), request.model, service.system_fingerprint, _tier(request))
        if sampling.stream:
            return self._stream(request, shape, generation, exchange, head, tokenizer)
        await generation.finish(exchange)
        completion = self._complete(request, shape, generation, head, tokenizer)
        if sampling.tells_of_prompt:
            completion |= await told_of_prompt(generation.choices[0], sampling, tokenizer)
        return exchange.json(completion)

    def _complete(
        self, request: ChatRequest, shape: Shape, generation: Generation, head: Head, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The whole completion; stored, where that was asked for."""
        choices = [_finished(choice, request, shape, tokenizer) for choice in generation.choices]
        completion = chat_completion(head, choices, generation.usage())
        store_completion(self._service.state, request, completion)
        return completion

    def _stream(
        self,
        request: ChatRequest,
        shape: Shape,
        generation: Generation,
        exchange: Exchange,
        head: Head,
        tokenizer: Tokenizer,
    ) -> TokenStream:
        sampling = request.sampling
        with_usage = sampling.include_usage
        template = chat_stream(head, with_usage)
        writers: list[ChoiceWriter] = []
        for index, choice in enumerate(generation.choices):
            if (
                not choice.reply.parts
                and sampling.logprobs is None
                and not (sampling.usage_in_every_chunk or sampling.return_token_ids)
            ):
                writers.append(PlainWriter(choice, template.choice(index)))
                continue
            writers.append(
                ChatWriter(
                    choice,
                    chat_frame(head, index, with_usage),
                    finish_reason=finish_reason(choice, shape),
                    legacy_functions=shape.legacy_functions,
                    show_reasoning=shape.show_reasoning,
                    logprobs=None
                    if sampling.logprobs is None
                    else ReplyLogprobs(choice.reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids).entry,
                    usage=generation.usage if sampling.usage_in_every_chunk else None,
                    token_ids=sampling.return_token_ids,
                )
            )

        def closing() -> bytes:
            if request.body.store:
                self._complete(request, shape, generation, head, tokenizer)
            return (usage_event(head, "chat.completion.chunk", generation.usage()) if with_usage else b"") + DONE

        return TokenStream(generation, exchange, writers, closing)


def _tier(request: ChatRequest) -> str:
    """The service tier that served the request: the one it asked for."""
    tier = request.body.service_tier
    return "default" if tier is None or tier == "auto" else tier


def finish_reason(choice: Choice, shape: Shape) -> str:
    """Why a choice ended, in chat's words."""
    reason = choice.reply.finish_reason
    if reason != "tool_calls":
        return reason
    if shape.legacy_functions:
        return "stop" if shape.forced else "function_call"
    return "stop" if shape.forced else "tool_calls"


def _finished(choice: Choice, request: ChatRequest, shape: Shape, tokenizer: Tokenizer) -> ChoiceText:
    reply = choice.reply
    message: dict[str, Any] = {}
    calls = [part for part in reply.parts if part.kind.endswith("_call")]
    if calls:
        message["content"] = reply.text or None
        if shape.legacy_functions:
            message["function_call"] = {"name": calls[0].name, "arguments": reply.said(calls[0])}
        else:
            message["tool_calls"] = [_call(part.kind, part.name, reply.said(part)) for part in calls]
    refusals = [reply.said(part) for part in reply.parts if part.kind == "refusal"]
    if refusals:
        message |= {"content": None, "refusal": refusals[0]}
    thoughts = "".join([reply.said(part) for part in reply.parts if part.kind == "reasoning"])
    if thoughts and shape.show_reasoning:
        message["reasoning_content"] = message["reasoning"] = thoughts
    sampling = request.sampling
    logprobs = None
    if sampling.logprobs is not None:
        entries = ReplyLogprobs(reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids)
        logprobs = {"content": entries.content() or None, "refusal": entries.content("refusal") or None}
        if calls and not any(logprobs.values()):
            logprobs = None  # of calls there are none
    token_ids = reply.ids.tolist() if sampling.return_token_ids else None
    return ChoiceText(reply.text, finish_reason(choice, shape), reply.stop_reason, message, logprobs, token_ids)


def _call(kind: str, name: str, written: str) -> dict[str, Any]:
    if kind == "custom_call":
        return {"id": new_call_id(), "type": "custom", "custom": {"name": name, "input": written}}
    return {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": written}}
