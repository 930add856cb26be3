"""POST /v1/completions: the older endpoint, which load generators use because it takes token ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response

from llmirage_server.http.dialect import Dialect
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.openai.generate import rendered
from llmirage_server.openai.vendors import cached_details, filtered, filtered_frame, filtered_opening
from llmirage_server.openai.writers import TextWriter
from llmirage_server.service.constraints import completion_constraints
from llmirage_server.service.generation import Choice, ChoiceWriter, Generation, TokenStream
from llmirage_server.service.logprobs import prompt_fields, reply_logprobs
from llmirage_server.service.prompts import MOST_CHOICES, ContextWindow, EncodedPrompt
from llmirage_server.service.service import Service, ServiceHandler, check_choices
from llmirage_server.service.unstreamed import finish
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.chat import TextRequest, parse_completion, text_completion
from llmirage_shared.wire.output import TEXT_FORM, FinishedChoice, PlainWriter, ResponseHead, chunk_frame, new_id, stream_end

_MANY_ECHOED = 8_000  # characters or token ids


class CompletionsHandler(ServiceHandler):
    """Answers as the OpenAI API and vLLM do, streamed or in one piece."""

    def __init__(self, service: Service, fingerprint: str) -> None:
        """Keep what answers. fingerprint: stands in each answer."""
        super().__init__(service)
        self._fingerprint = fingerprint

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await exchange.checked(parse_completion, service.documented_only, MOST_CHOICES)
        body, sampling = request.body, request.sampling
        served = service.models.asked(body.model, exchange)
        tokenizer = await service.tokenizer()
        n, best_of = sampling.n, body.best_of or sampling.n
        check_choices(len(request.prompts), best_of, "prompt")
        window = None if sampling.truncate_prompt_tokens else ContextWindow(served.max_model_len, "prompt")
        prompts = await self._prompts(request, tokenizer, window, exchange)
        constraints = completion_constraints(body)
        generation = await service.generate(prompts, replace(sampling, n=best_of), served, exchange, "prompt", constraints)
        head = ResponseHead(new_id("cmpl-"), int(time.time()), body.model, self._fingerprint)
        answer = _TextAnswer(request, generation, head, tokenizer, exchange.dialect)
        if sampling.stream:
            writers = await exchange.apart(lambda: list(map(answer.writer, range(len(answer.generation.choices)))))
            return answer.stream(exchange, writers)
        await finish(generation, exchange)
        kept = [choice for index, choice in enumerate(generation.choices) if index % best_of < n]
        choices = await exchange.apart(lambda: list(map(answer.finished, kept)))
        for choice, finished in zip(kept, choices, strict=True) if sampling.about_prompt else ():
            finished.more = prompt_fields(choice, sampling, tokenizer)
        completion = (
            text_completion(head, choices, answer.usage()) | cached_details(generation, exchange) | generation.handed_over
        )
        if exchange.dialect.vendor.content_filters:
            completion = filtered(completion, len(prompts))
        return await exchange.large_json(completion)

    async def render(self, exchange: HttpExchange) -> Response:
        """Answer with the tokens of each prompt, and generate nothing."""
        request = await exchange.checked(parse_completion, self._service.documented_only, MOST_CHOICES)
        length = self._service.models.asked(request.body.model, exchange).max_model_len
        window = None if request.sampling.truncate_prompt_tokens else ContextWindow(length, "prompt")
        prompts = await self._prompts(request, await self._service.tokenizer(), window, exchange)
        exchange.is_large |= sum([len(prompt.ids) for prompt in prompts]) > _MANY_ECHOED
        return await exchange.large_json(
            [rendered(new_id("cmpl-"), prompt.ids, request, exchange.body, length) for prompt in prompts]
        )

    async def _prompts(
        self, request: TextRequest, tokenizer: Tokenizer, window: ContextWindow | None, exchange: HttpExchange
    ) -> list[EncodedPrompt]:
        service, body = self._service, request.body
        exchange.is_large |= bool(body.echo) and sum(map(len, request.prompts)) > _MANY_ECHOED
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        encoded = iter(await service.encode_texts(exchange, texts, window) if texts else ())
        # Ids may be of any vocabulary: their text is only made if something shows it.
        ids = [prompt for prompt in request.prompts if not isinstance(prompt, str)] if body.echo else []
        shown = iter(await exchange.apart(lambda: list(map(tokenizer.decode, ids))))
        prompts = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                prompts.append(EncodedPrompt(next(encoded), prompt, prompt if body.echo else ""))
            else:
                text = next(shown, "")
                prompts.append(EncodedPrompt(prompt, text, text))
        if body.suffix:
            suffix = await service.encode_text(exchange, body.suffix)  # the model sees both sides of the gap that it fills
            prompts = [replace(prompt, ids=np.concatenate([prompt.ids, suffix])) for prompt in prompts]
        return prompts


@dataclass(slots=True, frozen=True)
class _TextAnswer:
    """A text completion in the forms that it can be sent in."""

    request: TextRequest
    generation: Generation
    head: ResponseHead
    tokenizer: Tokenizer
    dialect: Dialect

    def usage(self) -> dict[str, Any]:
        usage = self.generation.shown_usage()
        if self.request.silent:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def finished(self, choice: Choice) -> FinishedChoice:
        reply, silent = choice.reply, self.request.silent
        logprobs = None
        if (entries := reply_logprobs(choice, self.request.sampling, self.tokenizer)) is not None:
            logprobs = entries.text(self._prompt_pieces(choice))
            if silent:
                shown = sum(1 for piece in reply.pieces if piece)
                logprobs = {name: values[: len(logprobs["tokens"]) - shown] for name, values in logprobs.items()}
        text = choice.echo + ("" if silent else reply.text)
        token_ids = reply.ids.tolist() if self.request.sampling.return_token_ids else None
        return FinishedChoice(text, reply.finish_reason, reply.stop_reason, None, logprobs, token_ids)

    def stream(self, exchange: HttpExchange, writers: Sequence[ChoiceWriter]) -> TokenStream:
        usage = self.usage if self.request.sampling.include_usage else None
        more = partial(cached_details, self.generation, exchange) if self.dialect.sglext else dict
        end = partial(stream_end, self.head, "text_completion", usage, more)
        opening = filtered_opening(len(self.request.prompts)) if self.dialect.vendor.content_filters else b""
        return TokenStream(self.generation, exchange, writers, end, opening=opening).start()

    def writer(self, index: int) -> ChoiceWriter:
        choice = self.generation.choices[index]
        sampling, reply, silent = self.request.sampling, choice.reply, self.request.silent
        frame = chunk_frame(self.head, "text_completion", index, sampling.include_usage)
        if self.dialect.vendor.content_filters:
            frame = filtered_frame(frame)
        if not (silent or sampling.usage_in_every_chunk or sampling.return_token_ids) and sampling.logprobs is None:
            return PlainWriter(
                frame,
                TEXT_FORM,
                reply.pieces,
                reply.finish_reason,
                reply.stop_reason,
                echo=choice.echo,
                joined=choice.joined,
                ends_with_token=True,
            )
        return TextWriter(
            choice,
            frame,
            reply_logprobs(choice, sampling, self.tokenizer),
            silent=silent,
            usage=partial(self.generation.usage_at, choice) if sampling.usage_in_every_chunk else None,
            prompt_pieces=self._prompt_pieces(choice),
            token_ids=sampling.return_token_ids,
        )

    def _prompt_pieces(self, choice: Choice) -> list[str] | None:
        """Return the texts of an echoed prompt's tokens."""
        return self.tokenizer.pieces(choice.request.prompt) if choice.echo else None
