"""POST /v1/completions: the older endpoint, which load generators use because it takes token ids."""

from __future__ import annotations

import time

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Prompt, Service
from llmirage_server.api.stream import TokenStream
from llmirage_shared.wire.chunks import text_stream
from llmirage_shared.wire.completions import CompletionRequest, parse_completion
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.responses import Head, new_id, text_completion


class CompletionsEndpoint:
    """Answers as the OpenAI API and vLLM do, streamed or in one piece."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, exchange: Exchange) -> Response:
        request = parse_completion(parse_object(await exchange.body()))
        service, sampling = self._service, request.sampling
        served = service.models.find(request.model)
        prompts = await self._prompts(request)
        generation = await service.generate(prompts, sampling, served, exchange, "prompt")
        head = Head(new_id("cmpl-"), int(time.time()), request.model, service.system_fingerprint)
        if sampling.stream:
            usage_kind = "text_completion" if sampling.include_usage else None
            return TokenStream(generation, exchange, head, text_stream(head, sampling.include_usage), usage_kind)
        await generation.finish(exchange)
        return exchange.json(text_completion(head, generation.texts(), generation.usage()))

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
        return prompts
