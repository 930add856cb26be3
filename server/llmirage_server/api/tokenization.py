"""vLLM's POST /tokenize and /detokenize: the tokens that prompts are counted in."""

from __future__ import annotations

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Service
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import joined, prompt_ending
from llmirage_shared.wire.completions import read_ids
from llmirage_shared.wire.json_body import parse_object


class TokenizationEndpoint:
    """Answers as vLLM does. No special token is added to a text, as none is added to a prompt of /v1/completions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.tokenization import TokenizeRequest
        from llmirage_shared.wire.schema.validation import check

        body = parse_object(await exchange.body())
        request = check(TokenizeRequest, body)
        service = self._service
        served = service.models.find(service.models.served[0] if request.model is None else request.model)
        if request.messages is not None:
            ending = prompt_ending(request.add_generation_prompt, request.continue_final_message)
            ids = await service.text.encode_chat(
                [joined(message) for message in body["messages"]], body.get("tools"), ending
            )
        elif request.prompt is not None:
            ids = await service.text.encode_text(request.prompt)
        else:
            raise errors.missing("prompt")
        tokenizer = (await service.text.get()).encoder.tokenizer
        return exchange.json(
            {
                "count": len(ids),
                "max_model_len": served.max_model_len,
                "tokens": ids.tolist(),
                "token_strs": tokenizer.spelled(ids) if request.return_token_strs else None,
            }
        )

    async def detokenize(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.tokenization import DetokenizeRequest
        from llmirage_shared.wire.schema.validation import check

        request = check(DetokenizeRequest, parse_object(await exchange.body()))
        if request.model is not None:
            self._service.models.find(request.model)
        if not isinstance(request.tokens, list):
            raise errors.wrong_type("tokens", "an array of token ids", request.tokens)
        tokenizer = (await self._service.text.get()).encoder.tokenizer
        text = tokenizer.decode(read_ids(request.tokens, "tokens")) if request.tokens else ""
        return exchange.json({"prompt": text})
