"""Endpoints that vLLM, SGLang and TensorRT-LLM have beside OpenAI's; those of the tokenizer stand here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.responses import Response

from llmirage_server.engines.engine_info import EngineHandler, LoraHandler
from llmirage_server.engines.pooling import PoolingHandler
from llmirage_server.engines.sglang import SglangHandler
from llmirage_server.http.endpoints import Access, HttpEndpoint, Methods, get, post
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.models import LoraAdapters
from llmirage_server.service.prompts import MOST_COUNTED, CountedTokens
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import joined, read_ids

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


def endpoints(
    service: Service, adapters: LoraAdapters, version: str | None, metrics: Callable[[int, int], str]
) -> Sequence[HttpEndpoint]:
    """Return the endpoints.

    Args:
        service: Answers their requests.
        adapters: LoRA adapters.
        version: The version of the imitated engine, None for llmirage's own.
        metrics: Returns the metrics in Prometheus's text format, of one instance or (-1) of the server.
    """
    engine, sglang = EngineHandler(service, version, metrics), SglangHandler(service)
    lora = LoraHandler(adapters)
    tokens, pooling = TokenizationHandler(service), PoolingHandler(service)
    api: Mapping[str, Methods] = {
        "/tokenize": post(tokens.tokenize),
        "/detokenize": post(tokens.detokenize),
        "/rerank": post(pooling.rerank),
        "/v1/rerank": post(pooling.rerank),
        "/v2/rerank": post(pooling.rerank),
        "/v1/ranking": post(pooling.ranking),
        "/pooling": post(pooling.pooling),
        "/classify": post(pooling.classify),
        "/score": post(pooling.score),
        "/v1/score": post(pooling.score),
        "/generate": {"POST": sglang.generate, "PUT": sglang.generate},
        "/abort_request": post(sglang.abort_request),
    }
    probes: Mapping[str, Methods] = {  # they ask for the state of the server
        "/health": get(engine.health),
        "/livez": get(engine.livez),
        "/ping": {**get(engine.ping), **post(engine.ping)},
        "/metrics": get(engine.metrics),
        "/prometheus/metrics": get(engine.metrics),
        "/version": get(engine.version),
        "/load": get(engine.load),
        "/tokenizer_info": get(tokens.info),
        "/server_info": get(engine.server_info),
        "/health_generate": get(sglang.health_generate),
        "/get_model_info": get(engine.model_info),
        "/model_info": get(engine.model_info),
        "/get_server_info": get(engine.get_server_info),
        "/get_load": get(engine.get_load),
        "/query": get(engine.kv_bootstrap),
    }
    controls: Mapping[str, Methods] = {  # they change the state of the engine
        "/v1/load_lora_adapter": post(lora.load),
        "/v1/unload_lora_adapter": post(lora.unload),
        "/load_lora_adapter": post(lora.load_sglang),
        "/unload_lora_adapter": post(lora.unload_sglang),
        "/reset_prefix_cache": post(engine.reset_prefix_cache),
        "/sleep": post(engine.sleep),
        "/wake_up": post(engine.wake_up),
        "/is_sleeping": get(engine.is_sleeping),
        "/flush_cache": {**get(engine.flush_cache), **post(engine.flush_cache)},
        "/start_profile": {**get(engine.start_profile), **post(engine.start_profile)},
        "/stop_profile": {**get(engine.stop_profile), **post(engine.stop_profile)},
    }
    tables: Mapping[Access, Mapping[str, Methods]] = {"api": api, "probe": probes, "own": controls}
    return [HttpEndpoint(path, found, access) for access, table in tables.items() for path, found in table.items()]
