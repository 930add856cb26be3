"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Prompt, Service
from llmirage_server.api.stream import TokenStream
from llmirage_shared.wire.chat import parse_chat
from llmirage_shared.wire.chunks import chat_stream
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.responses import Head, chat_completion, new_id


class ChatEndpoint:
    """Answers as the OpenAI API does, streamed or in one piece."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, exchange: Exchange) -> Response:
        request = parse_chat(parse_object(await exchange.body()))
        service, sampling = self._service, request.sampling
        served = service.models.find(request.model)
        ids = await service.text.encode_chat(request.messages, request.tools)
        generation = await service.generate([Prompt(ids, request.last_user_text)], sampling, served, exchange, "messages")
        head = Head(new_id("chatcmpl-"), int(time.time()), request.model, service.system_fingerprint)
        if sampling.stream:
            usage_kind = "chat.completion.chunk" if sampling.include_usage else None
            return TokenStream(generation, exchange, head, chat_stream(head, sampling.include_usage), usage_kind)
        await generation.finish(exchange)
        return exchange.json(chat_completion(head, generation.texts(), generation.usage()))
