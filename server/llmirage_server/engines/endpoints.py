"""Endpoints that vLLM, SGLang and TensorRT-LLM have beside OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llmirage_server.engines.engine_info import EngineHandler
from llmirage_server.engines.lora import LoraHandler
from llmirage_server.engines.pooling import PoolingHandler
from llmirage_server.engines.rerank import RerankHandler
from llmirage_server.engines.sglang import SglangHandler
from llmirage_server.engines.tokenization import TokenizationHandler
from llmirage_server.http.endpoints import Access, HttpEndpoint, Methods, get, post
from llmirage_server.service.adapters import LoraAdapters
from llmirage_server.service.service import Service


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
    tokens, rerank, pooling = TokenizationHandler(service), RerankHandler(service), PoolingHandler(service)
    api: Mapping[str, Methods] = {
        "/tokenize": post(tokens.tokenize),
        "/detokenize": post(tokens.detokenize),
        "/rerank": post(rerank.rerank),
        "/v1/rerank": post(rerank.rerank),
        "/v2/rerank": post(rerank.rerank),
        "/v1/ranking": post(rerank.ranking),
        "/pooling": post(pooling.pooling),
        "/classify": post(pooling.classify),
        "/score": post(rerank.score),
        "/v1/score": post(rerank.score),
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
