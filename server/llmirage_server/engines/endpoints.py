"""Endpoints that vLLM, SGLang and TensorRT-LLM have beside OpenAI's; those of the tokenizer stand here."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.config.lora import LoraModule
from llmirage_server.config.planning import described
from llmirage_server.engines.pooling import PoolingHandler
from llmirage_server.engines.sglang import SglangHandler
from llmirage_server.http.endpoints import Access, HttpEndpoint, Methods, get, post
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.models import LoraAdapters
from llmirage_server.service.prompts import MOST_COUNTED, CountedTokens
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import joined, read_ids
from llmirage_shared.wire.errors import ApiError

_SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")  # of /v1/loads
_NOT_FLUSHED = "There are running or waiting requests: nothing was flushed.\n"


class EngineHandler(ServiceHandler):
    """Asleep (vLLM's /sleep), the server has ended all responses, emptied all caches, and refuses new requests.

    An instance of a fleet that sleeps has lost its KV and its requests, and takes none; the others serve.
    """

    def __init__(self, service: Service, version: str | None, metrics: Callable[[int, int], str]) -> None:
        """version: of the imitated engine. metrics: those of an instance and rank (-1: all) as Prometheus reads them."""
        super().__init__(service)
        self._engine_version = version
        self._metrics = metrics

    async def health(self, exchange: HttpExchange) -> Response:
        """Return an empty object, or the queues of a saturated cluster.

        The status is 503 if every instance is down and none will start.
        """
        gone = ("down",) if exchange.instance < 0 else ("down", "starting")  # nothing answers for one that is not there
        if self._sleep_level(exchange) is None and all(
            state.state in gone for state in self._service.driver.snapshot(exchange.instance)
        ):
            return exchange.error(errors.no_instance())
        if exchange.dialect.bare_health:
            return exchange.text()
        queues = self._service.driver.saturated()
        return exchange.json({"saturated": [dataclasses.asdict(queue) for queue in queues]} if queues else {})

    async def livez(self, exchange: HttpExchange) -> Response:
        """Return an empty object: the process answers, whatever its cluster does."""
        return exchange.json({})

    # --- vLLM ---

    async def metrics(self, exchange: HttpExchange) -> Response:
        return exchange.content(self._metrics(*exchange.engine).encode(), b"text/plain; version=0.0.4; charset=utf-8")

    async def ping(self, exchange: HttpExchange) -> Response:
        return exchange.text()

    async def version(self, exchange: HttpExchange) -> Response:
        return exchange.json({"version": self._version()})

    async def load(self, exchange: HttpExchange) -> Response:
        """Answer with the number of requests in the cluster."""
        return exchange.json(
            {"server_load": sum(_in_flight(rank) for rank in self._service.driver.rank_snapshots(*exchange.engine))}
        )

    async def server_info(self, exchange: HttpExchange) -> Response:
        """deployment: what runs, pool by pool."""
        if exchange.dialect.name == "sglang":
            return await self.get_server_info(exchange)
        app = exchange.scope["app"]
        pools = described(app.config, app.pools)
        known = {"vllm_config": _config(exchange), "version": self._version(), "deployment": pools}
        return exchange.json(known | {"instances": self._instances(exchange)})

    async def reset_prefix_cache(self, exchange: HttpExchange) -> Response:
        """All instances forget the KV that no request uses."""
        self._service.driver.clear_cache(exchange.instance)
        return exchange.text()

    async def sleep(self, exchange: HttpExchange) -> Response:
        level = exchange.query("level") or "1"
        if level not in ("0", "1", "2"):
            raise errors.not_a_choice("level", level, ("0", "1", "2"))
        service, instance = self._service, exchange.instance
        if instance >= 0:
            service.driver.act("crash", instance)
            service.responses.metrics.sleep(int(level), *service.driver.snapshot(instance))
        else:
            service.responses.metrics.sleep(int(level))
            service.responses.pause(errors.asleep)
            service.driver.clear_cache()
        return exchange.text()

    async def wake_up(self, exchange: HttpExchange) -> Response:
        if self._sleep_level(exchange) is not None:
            self._service.responses.metrics.wake(exchange.instance)
            if exchange.instance >= 0:
                self._service.driver.act("start", exchange.instance)
            else:
                self._service.responses.resume()
        return exchange.text()

    async def is_sleeping(self, exchange: HttpExchange) -> Response:
        return exchange.json({"is_sleeping": self._sleep_level(exchange) is not None})

    def _sleep_level(self, exchange: HttpExchange) -> int | None:
        """Return the level at which the instance of the request's port sleeps, or the server; None: it is awake."""
        instances = self._service.driver.snapshot(exchange.instance) if exchange.instance >= 0 else ()
        return self._service.responses.metrics.sleep_level(*instances)

    async def kv_bootstrap(self, exchange: HttpExchange) -> Response:
        """Answer as MooncakeConnector's bootstrap server, which routers ask for the engine ids of the ranks."""
        handoffs, app = self._service.handoffs, exchange.scope["app"]
        if handoffs is None:
            raise errors.unknown_url("GET", "/query")
        address = "{}:{}".format(*(exchange.scope.get("server") or ("localhost", 0)))
        ranks = range(app.pool_of(max(0, exchange.instance)).deployment.parallel.dp)
        engine = {"engine_id": handoffs.engine_id(exchange.instance), "worker_addr": {"0": {"0": address}}}
        return exchange.json({str(rank): engine for rank in ranks})

    # --- SGLang ---

    async def model_info(self, exchange: HttpExchange) -> Response:
        name = self._service.models.names(exchange)[0]
        return exchange.json(
            {
                "model_path": name,
                "tokenizer_path": _config(exchange)["tokenizer"] or name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
            }
        )

    async def get_server_info(self, exchange: HttpExchange) -> Response:
        config, app = _config(exchange), exchange.scope["app"]
        names = self._service.models.names(exchange)
        pool = app.pools[0] if exchange.instance < 0 else app.pool_of(exchange.instance)
        parallel, role = pool.deployment.parallel, pool.config.role
        return exchange.json(
            {
                **config,
                "model_path": names[0],
                "tokenizer_path": config["tokenizer"] or names[0],
                "served_model_name": names[0],
                "tp_size": parallel.tp,
                "dp_size": parallel.dp,
                "pp_size": parallel.pp,
                "disaggregation_mode": "null" if role == "both" else role,
                "internal_states": self._instances(exchange),
                "version": self._version(),
            }
        )

    async def get_load(self, exchange: HttpExchange) -> Response:
        """One entry for each rank; at the routed port those of all instances, in order."""
        ranks = self._service.driver.rank_snapshots(*exchange.engine)
        return exchange.json(
            [
                {
                    "dp_rank": number,
                    "num_reqs": _in_flight(rank),
                    "num_waiting_reqs": rank.waiting,
                    "num_tokens": rank.kv_used_tokens,
                }
                for number, rank in enumerate(ranks)
            ]
        )

    async def loads(self, exchange: HttpExchange) -> Response:
        """Answer with the core section of SGLang's loads, of the ranks as in `get_load`."""
        if exchange.dialect.name != "sglang":
            raise errors.unknown_url("GET", "/v1/loads")
        service, app = self._service, exchange.scope["app"]
        for section in (exchange.query("include") or "all").split(","):
            if section.strip() not in _SECTIONS:
                raise errors.not_a_choice("include", section, _SECTIONS)
        ranks = list(enumerate(service.driver.rank_snapshots(*exchange.engine)))
        if (wanted := exchange.query("dp_rank")) is not None:
            ranks = [(number, rank) for number, rank in ranks if str(number) == wanted]
        queued: Counter[tuple[int, int]] = Counter()  # prompt tokens
        for request in service.responses.requests():
            if math.isnan(request.admitted_s) and not request.failed:
                queued[request.instance, request.at_rank] += request.prompt_tokens
        loads = [
            {
                "dp_rank": number,
                "num_running_reqs": rank.running,
                "num_waiting_reqs": rank.waiting,
                "num_used_tokens": rank.kv_used_tokens,
                "num_total_tokens": rank.kv_used_tokens + queued[rank.index, rank.rank],
                "max_total_num_tokens": rank.kv_total_tokens,
                "token_usage": rank.kv_used_tokens / rank.kv_total_tokens,
                "cache_hit_rate": rank.prefix_hit_tokens / max(rank.prefix_query_tokens, 1),
                "max_running_requests": app.pool_of(rank.index).limits.max_num_seqs,
            }
            for number, rank in ranks
        ]
        now = datetime.now(UTC).isoformat()
        return exchange.json({"timestamp": now, "version": self._version(), "dp_rank_count": len(loads), "loads": loads})

    async def flush_cache(self, exchange: HttpExchange) -> Response:
        """Like /reset_prefix_cache, but only while no request is in the cluster."""
        if any(_in_flight(instance) for instance in self._service.driver.snapshot(exchange.instance)):
            return exchange.text(_NOT_FLUSHED, 400)
        self._service.driver.clear_cache(exchange.instance)
        return exchange.text("Cache flushed.\n")

    def _version(self) -> str:
        """Return the version of the engine whose API this server speaks, else its own."""
        from importlib.metadata import version  # not at the start of the server: it loads much

        return self._engine_version or version("llmirage")

    # --- both: load clients profile the engine while they measure; there is nothing to profile here ---

    async def start_profile(self, exchange: HttpExchange) -> Response:
        return exchange.text("Start profiling.\n" if exchange.dialect.name == "sglang" else "")

    async def stop_profile(self, exchange: HttpExchange) -> Response:
        text = "Stop profiling. This will take some time.\n"
        return exchange.text(text if exchange.dialect.name == "sglang" else "")

    def _instances(self, exchange: HttpExchange) -> list[dict[str, Any]]:
        found = []
        for instance in self._service.driver.snapshot(exchange.instance):
            known = dataclasses.asdict(dataclasses.replace(instance, steps=None))
            del known["steps"], known["changes"], known["rank"]
            if instance.steps is not None and instance.steps.drafts:
                known["avg_spec_accept_length"] = instance.steps.acceptance_length
            found.append(known)
        return found


def _in_flight(instance: InstanceSnapshot) -> int:
    return instance.running + instance.waiting


def _config(exchange: HttpExchange) -> dict[str, Any]:
    """Return the server's settings without its keys."""
    settings = dataclasses.asdict(exchange.scope["app"].config)
    for name in ("api_key", "upstream_key"):
        settings.pop(name, None)
    return {name: "max" if value == math.inf else value for name, value in settings.items()}


_DISABLED = "LoRA is not enabled: start the server with --set enable_lora=true or lora_modules."


class LoraHandler:
    """vLLM's texts and statuses are those of vllm/entrypoints/openai/models/serving.py, but for 400 where it has 500."""

    def __init__(self, adapters: LoraAdapters) -> None:
        self._adapters = adapters

    async def load(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.LoadLoraAdapter.check)
        name, path = request.lora_name, request.lora_path
        if not name or not path:
            return _refused(exchange, "Both 'lora_name' and 'lora_path' must be provided.")
        if not request.load_inplace and name in self._adapters.loaded(exchange.instance):
            return _refused(
                exchange,
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
            )
        if problem := await self._load(exchange, name, path):
            return _refused(exchange, problem, "BadRequestError")
        return exchange.text(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.UnloadLoraAdapter.check)
        name = request.lora_name
        if not name:
            return _refused(exchange, "'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._adapters.loaded(exchange.instance):
            return _refused(exchange, f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404)
        self._adapters.unload(name, exchange.instance)
        return exchange.text(f"Success: LoRA adapter '{name}' removed successfully.")

    async def load_sglang(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.LoadLoraAdapter.check)
        loaded = self._adapters.loaded(exchange.instance)
        if request.lora_name in loaded:
            return self._outcome(exchange, f"LoRA with name {request.lora_name} already exists. Loaded LoRAs: {[*loaded]}")
        return self._outcome(exchange, await self._load(exchange, request.lora_name, request.lora_path))

    async def unload_sglang(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.UnloadLoraAdapter.check)
        loaded = self._adapters.loaded(exchange.instance)
        if request.lora_name not in loaded:
            return self._outcome(exchange, f"LoRA with name {request.lora_name} does not exist. Loaded LoRAs: {[*loaded]}")
        self._adapters.unload(request.lora_name, exchange.instance)
        return self._outcome(exchange)

    async def _load(self, exchange: HttpExchange, name: str, path: str) -> str | None:
        """Load an adapter. Return the reason where that cannot be."""
        if not self._adapters.enabled(exchange.instance):
            return _DISABLED
        if name in exchange.scope["app"].model_names:
            return f"A model has the name '{name}'."
        try:
            await self._adapters.load(LoraModule(name, path), exchange.instance)
        except ValueError as error:
            return str(error)
        return None

    def _outcome(self, exchange: HttpExchange, error: str | None = None) -> Response:
        body = {
            "success": error is None,
            "error_message": error,
            "loaded_adapters": self._adapters.loaded(exchange.instance),
        }
        return exchange.json(body, 200 if error is None else 400)


def _refused(exchange: HttpExchange, message: str, kind: str = "InvalidUserInput", status: int = 400) -> Response:
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return exchange.refusal(ApiError(message, status=status), body)


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
        "/v1/loads": get(engine.loads),
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
