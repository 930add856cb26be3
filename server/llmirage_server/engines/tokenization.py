"""vLLM's POST /tokenize and /detokenize, with the tokenizer that counts prompts."""

from __future__ import annotations

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.prompts import MOST_COUNTED, CountedTokens
from llmirage_server.service.service import ServiceHandler
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import joined
from llmirage_shared.wire.completions import read_ids

_MANY_TOKENS = 10_000


class TokenizationHandler(ServiceHandler):
    """Answers as vLLM does. No special token is added to a text: /v1/completions adds none to a prompt."""

    async def tokenize(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.TokenizeRequest.check)
        service = self._service
        served = service.models.find(service.models.served[0] if request.model is None else request.model)
        window = CountedTokens.of(served.max_model_len, "prompt" if request.messages is None else "messages")
        if request.messages is not None:
            ids = await service.encode_chat(
                exchange,
                [joined(message) for message in exchange.body["messages"]],
                exchange.body.get("tools"),
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                window=window,
            )
        elif request.prompt is not None:
            ids = await service.encode_text(exchange, request.prompt, window)
        else:
            raise errors.missing("prompt")
        tokenizer = await service.tokenizer()
        exchange.is_large |= len(ids) > _MANY_TOKENS
        spelled = await exchange.apart(lambda: tokenizer.spelled(ids)) if request.return_token_strs else None
        head = {"count": len(ids), "max_model_len": served.max_model_len}
        return await exchange.large_json({**head, "tokens": ids.tolist(), "token_strs": spelled})

    async def info(self, exchange: HttpExchange) -> Response:
        """Answer with the settings of the tokenizer, as a tokenizer_config.json has them."""
        tokenizer, served = await self._service.tokenizer(), self._service.models.served[0]
        limit = self._service.models.find(served).max_model_len
        known = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit, "vocab_size": tokenizer.vocab_size}
        return exchange.json(known | {"clean_up_tokenization_spaces": False})

    async def detokenize(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.DetokenizeRequest.check)
        if request.model is not None:
            self._service.models.find(request.model)
        if not isinstance(request.tokens, list):
            raise errors.wrong_type("tokens", "an array of token ids", request.tokens)
        if len(request.tokens) > MOST_COUNTED:
            raise errors.too_long("tokens", "an array", MOST_COUNTED, len(request.tokens))
        tokens, tokenizer = request.tokens, await self._service.tokenizer()
        text = await exchange.apart(lambda: tokenizer.decode(read_ids(tokens, "tokens"))) if tokens else ""
        return exchange.json({"prompt": text})
