"""POST /v1/completions: the older endpoint, which load generators use because it takes token ids."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Choice, Generation, Prompt, Service
from llmirage_server.api.logprobs import ReplyLogprobs, told_of_prompt
from llmirage_server.api.shape import completion_shape
from llmirage_server.api.stream import TokenStream
from llmirage_server.api.writers import ChoiceWriter, PlainWriter, TextWriter
from llmirage_server.replies.reply import Reply
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.chunks import DONE, text_frame, text_stream, usage_event
from llmirage_shared.wire.completions import CompletionRequest, parse_completion
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.responses import ChoiceText, Head, new_id, text_completion


class CompletionsEndpoint:
    """Answers as the OpenAI API and vLLM do, streamed or in one piece."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, exchange: Exchange) -> Response:
        request = parse_completion(parse_object(await exchange.body()))
        service, sampling = self._service, request.sampling
        service.check_fields(request.body, "completions")
        served = service.models.find(request.model)
        prompts = await self._prompts(request)
        n, best_of = sampling.n, request.body.best_of or sampling.n
        shape = completion_shape(request)
        generation = await service.generate(prompts, replace(sampling, n=best_of), served, exchange, "prompt", shape)
        tokenizer = (await service.text.get()).encoder.tokenizer
        head = Head(new_id("cmpl-"), int(time.time()), request.model, service.system_fingerprint)
        if sampling.stream:
            return self._stream(request, generation, exchange, head, tokenizer)
        await generation.finish(exchange)
        kept = [choice for index, choice in enumerate(generation.choices) if index % best_of < n]
        choices = [_finished(choice, request, tokenizer) for choice in kept]
        for choice, text in zip(kept, choices, strict=True) if sampling.tells_of_prompt else ():
            text.more = await told_of_prompt(choice, sampling, tokenizer)
        return exchange.json(text_completion(head, choices, _usage(request, generation)))

    def _stream(
        self, request: CompletionRequest, generation: Generation, exchange: Exchange, head: Head, tokenizer: Tokenizer
    ) -> TokenStream:
        sampling = request.sampling
        template = text_stream(head, sampling.include_usage)
        plain = sampling.logprobs is None and not sampling.usage_in_every_chunk and not request.silent
        plain = plain and not sampling.return_token_ids
        writers: list[ChoiceWriter] = []
        for index, choice in enumerate(generation.choices):
            if plain:
                writers.append(PlainWriter(choice, template.choice(index)))
                continue
            logprobs = (
                None
                if sampling.logprobs is None
                else ReplyLogprobs(choice.reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids)
            )
            writers.append(
                TextWriter(
                    choice,
                    text_frame(head, index, sampling.include_usage),
                    logprobs,
                    silent=request.silent,
                    usage=generation.usage if sampling.usage_in_every_chunk else None,
                    prompt_pieces=_prompt_pieces(choice, tokenizer),
                    token_ids=sampling.return_token_ids,
                )
            )

        def closing() -> bytes:
            usage = usage_event(head, "text_completion", _usage(request, generation)) if sampling.include_usage else b""
            return usage + DONE

        return TokenStream(generation, exchange, writers, closing)

    async def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        text = self._service.text
        prompts = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                prompts.append(Prompt(await text.encode_text(prompt), prompt, prompt if request.echo else ""))
            else:
                # Ids may be of any vocabulary; their text is only made where something shows it.
                shown = (await text.get()).encoder.tokenizer.decode(prompt) if request.echo else ""
                prompts.append(Prompt(prompt, shown, shown))
        if request.body.suffix:
            suffix = await text.encode_text(request.body.suffix)  # the model sees both sides of what it is to fill in
            prompts = [replace(prompt, ids=np.concatenate([prompt.ids, suffix])) for prompt in prompts]
        return prompts


def _usage(request: CompletionRequest, generation: Generation) -> dict[str, Any]:
    usage = generation.usage()
    if request.silent:
        usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
    return usage


def _prompt_pieces(choice: Choice, tokenizer: Tokenizer) -> list[str] | None:
    """The texts of an echoed prompt's tokens."""
    return tokenizer.pieces(choice.request.prompt) if choice.echo else None


def _finished(choice: Choice, request: CompletionRequest, tokenizer: Tokenizer) -> ChoiceText:
    reply, sampling = choice.reply, request.sampling
    logprobs = None
    if sampling.logprobs is not None:
        logprobs = ReplyLogprobs(reply, tokenizer, sampling.logprobs, sampling.tokens_as_ids).text(
            _prompt_pieces(choice, tokenizer)
        )
        if request.silent:
            logprobs = {name: values[: len(logprobs["tokens"]) - _shown(reply)] for name, values in logprobs.items()}
    text = choice.echo + ("" if request.silent else reply.text)
    token_ids = reply.ids.tolist() if sampling.return_token_ids else None
    return ChoiceText(text, reply.finish_reason, reply.stop_reason, None, logprobs, token_ids)


def _shown(reply: Reply) -> int:
    return sum(1 for piece in reply.pieces if piece)
