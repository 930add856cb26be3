"""The wiring: configuration -> pools -> cluster -> driver -> endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import reads_slo
from llmirage_server.config import ClusterConfig, ConfigError, KvTransferConfig
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, plan
from llmirage_server.drivers.live import Driver, FreeDriver, PacedDriver
from llmirage_server.http.absent import absent_at, in_callers_form
from llmirage_server.http.access import ApiKeys, RateLimits
from llmirage_server.http.application import LazyRoutes
from llmirage_server.http.byte_budget import ByteBudget
from llmirage_server.http.dialect import DIALECTS, Dialect
from llmirage_server.http.endpoints import HttpEndpoint, HttpFace, Methods, unknown_url
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.http.relay import Upstream
from llmirage_server.perf.catalogue.layers import Attention, Gqa, Mla, Moe
from llmirage_server.perf.catalogue.lookup import model_names
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.service.generation import ResponsesInProgress
from llmirage_server.service.handoffs import HandoffEngine, KVHandoffs
from llmirage_server.service.models import LoraAdapters, ServedModel, ServedModels
from llmirage_server.service.service import Service
from llmirage_server.service.text import TextLoader, TextTools, warm_up
from llmirage_server.state.files import FILE_FILES_MIB, TEMPORARY_FILES_MIB, FileStore
from llmirage_server.state.state import MemoryState, State
from llmirage_server.telemetry.journal import Journal
from llmirage_server.telemetry.metrics import PrometheusMetrics, gateway_exposition, pacing_exposition, scaling_exposition
from llmirage_server.telemetry.pace import LoopWatch
from llmirage_server.telemetry.scrape import CacheSettings, StepWork
from llmirage_shared import tokenizer_loader
from llmirage_shared.prompt_encoder import ChatTemplateError, PromptEncoder
from llmirage_shared.settings import at_call
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import reported

if TYPE_CHECKING:
    from llmirage_server.batches.runner import BatchRunner
    from llmirage_server.faults.rule import FaultRule
    from llmirage_server.service.scripts import LoadedScripts
    from llmirage_server.telemetry.traces.tracing import Tracing

# What few servers have takes 60 ms to import.
fail_interrupted = at_call("llmirage_server.openai.responses.background:fail_interrupted")
make_live = at_call("llmirage_server.admin.live:LiveHandler")
make_live_cluster = at_call("llmirage_server.telemetry.live_page:LiveCluster")
make_replay = at_call("llmirage_server.proxy.replay:make_replay")
make_state_file: Callable[..., State] = at_call("llmirage_server.state.sqlite:SqliteState")
make_scripts: Callable[..., LoadedScripts] = at_call("llmirage_server.service.scripts:LoadedScripts")
make_tracing: Callable[..., Tracing] = at_call("llmirage_server.telemetry.traces.tracing:Tracing")
make_upstream = at_call("llmirage_server.proxy.upstream:HttpUpstream")
read_faults_file: Callable[[str], Iterable[FaultRule]] = at_call("llmirage_server.faults.rule:read_faults_file")

Family = Literal["openai", "stored", "anthropic", "engines", "admin"]
FAMILIES: Collection[Family] = get_args(Family)
WEBSOCKETS = (b"/v1/responses",)  # paths of WebSocket connections
_TTL_S = 30 * 86400.0  # OpenAI keeps responses for 30 days


class LlmirageApp(LazyRoutes):
    """The ASGI application of a server, and the parts that it is made of."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        page: bool = False,
        script: Mapping[str, Any] | None = None,
        driver: Driver | None = None,
        make_driver: Callable[[Cluster], Driver] | None = None,
        text: TextLoader | None = None,
    ) -> None:
        """Build the parts.

        Args:
            config: The configuration of the cluster and the server.
            page: There is a live page at `/`.
            script: Scripted replies, as a script's file has them.
            driver: The driver of a cluster; None: one is made for a cluster that is built.
            make_driver: Makes it; None: one of wall clock time.
            text: The tokenizer and the source of replies; None: those of the configuration.

        Raises:
            ConfigError: The configuration cannot work; the message shows the arithmetic.
        """
        self.config = config
        self.pools = plan(config)
        self.kv_link = kv_link(config, self.pools)
        make_driver = make_driver or partial(_driver, config)
        self.driver = driver or make_driver(build(config, self.pools, self.kv_link))
        self.dialect = dialect = _dialect(config, self.pools)
        served = served_models(self.pools, config.class_priorities)
        self.model_names = tuple(served)
        models = ServedModels(served, config.accept_models, model_names, int(time.time()), dialect)
        models.of_instance = [pool.names for pool in self.pools for _ in range(pool.config.instances)]
        self.adapters = LoraAdapters(models, self.driver, self.pools)
        text = text or TextLoader(lambda: load_text_tools(config))
        self.store = _state(config)
        files_mib = TEMPORARY_FILES_MIB if config.state is None else FILE_FILES_MIB
        self.files = FileStore(self.store, (config.files_mib or files_mib) << 20)
        caches = {pool.config.name: _cache_settings(pool) for pool in self.pools}
        work = {pool.config.name: _step_work(pool.deployment) for pool in self.pools if pool.config.ttft_ms is None}
        responses = ResponsesInProgress(
            self.driver,
            PrometheusMetrics(lambda: models.served, dialect.name, caches, work),
            partial(reported, reasoning=dialect.reasoning_in_usage, cached=config.enable_cache_report),
        )
        documented_only = (config.unknown_fields or ("refuse" if dialect.strict else "ignore")) == "refuse"
        self.service = Service(self.driver, text, models, self.files, responses, documented_only)
        self.tracing: Tracing | None = None
        if (config.trace_out, config.record_workload, config.sent_stamps) != (None, None, None):
            self.tracing = make_tracing(config, self.limits.page_size, lambda: self.driver.now_s)
            self.service.recorder, responses.stamps = self.tracing.recorder, self.tracing.stamps
        if reads_slo(config.router) or config.gateway_ordering == "slo-deadline":
            self.service.unread_objectives.discard("TTFT")
        self.service.handoffs = _handoffs(config, self.pools, self.driver, self.kv_link)
        self.journal = Journal()
        if self.service.recorder is not None:
            self.journal.observers.append(self.service.recorder.refused)
        self.loop_watch = LoopWatch(lambda: text.tools is not None)  # started by a server with a port
        self.faults = InjectedFaults(self.driver, config.seed, config.allow_fault_header)
        if config.faults is not None:
            self.faults.add(read_faults_file(config.faults))
        self.upstream: Upstream | None = None  # answers in this server's place, where that is wanted
        if config.upstream is not None:
            self.upstream = make_upstream(config.upstream, config.upstream_key)
        if config.script or script is not None:
            self.service.scripts = self.new_scripts(config.script, script)
        self.replay = None if config.replay is None else make_replay(self.service, config, self.upstream)
        self.page = page
        self._live = (
            make_live(self.service, make_live_cluster(config, self.pools, self.journal, self.faults, responses))
            if page
            else None
        )
        keys = (*config.api_key, *_keys_of(config.api_key_file))
        limited = (config.rate_limit, config.token_limit) != (None, None)
        self.face = HttpFace(
            dialect=dialect,
            guard=ApiKeys(keys) if keys else None,
            limits=RateLimits(config.rate_limit, config.token_limit) if limited else None,
            journal=self.journal,
            faults=self.faults,
            on_error=responses.metrics.count_error,
            most_bytes=config.max_body_mib << 20,
            open_admin=config.open_admin,
            in_thread=text.in_thread,
            before=(lambda handler: handler) if self.replay is None else self.replay.before,
        )
        self.held = responses.held
        if self.tracing is not None:
            self.held["traces"] = self.tracing.bytes_kept
        self.batches: BatchRunner | None = None  # made with the endpoints, which answer their lines
        self.unread = ByteBudget(config.unread_mib << 20)
        super().__init__(
            self.family_routes,
            self.face.app(HttpEndpoint("", _UNKNOWN)),
            lambda: _life(self),
            self.unread,
            origins=config.cors,
            has_key=bool(keys) or config.open_admin,
        )

    def new_scripts(self, paths: Sequence[str] = (), inline: Mapping[str, Any] | None = None) -> LoadedScripts:
        """Return scripts for `service.scripts`. Raises ConfigError with all problems of the files and the inline script."""
        text, under_way = self.service.text, self.service.responses.open
        return make_scripts(self.driver, text.plan_in_thread, self.faults, self.upstream, under_way, paths, inline)

    def family_routes(self, families: Collection[Family] = FAMILIES) -> list[BaseRoute]:
        """Return the routes of these families of endpoints, the busiest first."""
        from llmirage_server.batches.runner import BatchRunner

        service, state, face, config = self.service, self.store, self.face, self.config
        lines: dict[str, ASGIApp] = {}
        self.batches = runner = BatchRunner(service, state, lines, self.unread)
        found: list[HttpEndpoint | BaseRoute] = []
        if "openai" in families:
            from llmirage_server.openai.endpoints import endpoints as openai

            fingerprint = "fp_" + hashlib.sha256(repr(config).encode()).hexdigest()[:10]
            found += openai(service, state, face, fingerprint=fingerprint, websocket_limit_s=config.websocket_limit_s)
        if "stored" in families:
            from llmirage_server.stored.endpoints import endpoints as stored

            found += stored(service, state, runner)
        if "anthropic" in families:
            from llmirage_server.anthropic.endpoints import endpoints as anthropic

            found += anthropic(service, state, face, runner, _UNKNOWN)
        if "engines" in families:
            from llmirage_server.engines.endpoints import endpoints as engines

            version = None if self.dialect.name == "openai" else find_engine(self.dialect.name).version
            found += engines(service, self.adapters, version, self.exposition)
        if "admin" in families:
            from llmirage_server.admin.endpoints import endpoints as admin

            found += admin(service, self.journal, self.faults, self.new_scripts, self._live)
        lines |= face.lines(found)
        return face.routes(found)

    def exposition(self, only: int = -1, rank: int = -1) -> str:
        """Return the metrics in Prometheus's text format. only, rank: of this instance, and of this rank of it."""
        driver, responses = self.driver, self.service.responses
        held, now_s = self.held_bytes(), driver.now_s
        text = responses.metrics.exposition(driver.rank_snapshots(only, rank), responses.requests(), held, now_s)
        if only < 0:
            cluster, gpus = driver.cluster, {pool.config.name: pool.deployment.gpu.key for pool in self.pools}
            text += gateway_exposition(cluster.gateway, cluster.reached_s, self.model_names[0])
            text += scaling_exposition(cluster.scaling, gpus)
        text += pacing_exposition(driver.pacing) + self.loop_watch.exposition()
        return text if self.batches is None else text + self.batches.exposition()

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes of memory, or of files, that are held beyond the bodies of requests in progress, by holder."""
        tools = self.service.text.tools
        return {
            "state": self.store.bytes_kept(),
            "tokenized": 0 if tools is None else tools.encoder.cache.bytes_kept(),
            "files": self.files.bytes_kept(),
            "unread": self.unread.taken,
            "journal": self.journal.bytes_kept(),
            "rate_limits": 0 if self.face.limits is None else self.face.limits.bytes_kept(),
            "routers": self.driver.cluster.routers_bytes(),
            "streams": self.service.responses.bytes_kept(),
            "replies": self.service.responses.planned_bytes(),
        } | {holder: kept() for holder, kept in self.held.items()}

    def close(self) -> None:
        """End every response in progress with an error that the client understands, and refuse new ones."""
        self.service.responses.close()
        if self.batches is not None:
            self.batches.close()
        self.service.text.close()
        self.loop_watch.stop()
        self.store.close()

    async def closed(self) -> None:
        """Close what has nothing to do any more once the responses have ended."""
        if self.replay is not None:
            self.replay.close()
        self.close_files()
        if self.upstream is not None:
            await self.upstream.close()

    def close_files(self) -> None:
        """End what is written of served requests. Another call does nothing."""
        if self.tracing is not None:
            self.tracing.close()

    def instances_there(self) -> list[bool]:
        """Return whether each instance has a process that answers: one that sleeps does, too."""
        level = self.service.responses.metrics.sleep_level
        return [
            phase in ("up", "draining") or level(*self.driver.snapshot(index)) is not None
            for index, phase in enumerate(self.driver.phases())
        ]

    def pool_of(self, instance: int) -> ServedPool:
        """Return the pool of an instance, by its number."""
        return [pool for pool in self.pools for _ in range(pool.config.instances)][instance]

    @property
    def deployment(self) -> Deployment:
        """The deployment of the first pool's instances."""
        return self.pools[0].deployment

    @property
    def limits(self) -> EngineLimits:
        """The engine limits of the first pool's instances."""
        return self.pools[0].limits

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request for the first served model."""
        return self.service.models.find(self.model_names[0]).max_model_len

    def resume(self) -> None:
        """Batches go on that the server before this one left in its file."""
        if self.config.state is not None:
            self.make_routes()
            assert self.batches is not None
            self.batches.resume()


@contextlib.asynccontextmanager
async def _life(app: LlmirageApp) -> AsyncIterator[None]:
    warm_up(app.service.text)
    app.resume()
    asyncio.get_running_loop().call_soon(app.make_routes)
    yield
    app.close()
    await app.closed()


def create_app(config: ClusterConfig | None = None, **parts: Any) -> LlmirageApp:
    """Return the application for a configuration, by default the default cluster. parts: see LlmirageApp.

    Raises ConfigError.
    """
    return LlmirageApp(config or ClusterConfig(), **parts)


async def _unknown_url(exchange: HttpExchange) -> Response:
    """Answer on every path that is not an endpoint."""
    error, absent = unknown_url(exchange), absent_at(exchange.scope["path"])
    body = exchange.error_body(error)
    if absent is not None and absent.api in ("Anthropic", "OpenAI") and exchange.header(b"anthropic-version") is not None:
        from llmirage_server.anthropic.messages import messages_error

        body = {**messages_error(error), "request_id": exchange.request_id.decode()}
    return exchange.refusal(error, body)


_UNKNOWN: Methods = dict.fromkeys(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"), _unknown_url)


def _driver(config: ClusterConfig, cluster: Cluster) -> Driver:
    return FreeDriver(cluster) if config.speed == math.inf else PacedDriver(cluster, config.speed)


def _dialect(config: ClusterConfig, pools: Sequence[ServedPool]) -> Dialect:
    """Return the configured dialect; else that of the engine which the first pool names."""
    first = pools[0]
    named: Any = first.deployment.engine.base if first.config.engine else "openai"
    dialect = DIALECTS[config.dialect or named]
    return replace(
        dialect,
        strict=dialect.strict and not config.lenient,
        vendor_caching=dialect.vendor_caching and not config.lenient,
        error=in_callers_form(dialect.error),
    )


def _handoffs(config: ClusterConfig, pools: Sequence[ServedPool], driver: Driver, link: KVLink) -> KVHandoffs:
    given = config.kv_transfer or KvTransferConfig()
    engines = [
        HandoffEngine(pool.config.role, pool.deployment.parallel.tp, pool.limits.page_size)
        for pool in pools
        for _ in range(pool.config.instances)
    ]
    first = pools[0].deployment
    return KVHandoffs(
        driver,
        engines,
        lambda tokens: link.latency_s + tokens * first.kv_bytes_per_token / link.bytes_per_s,
        timeout_s=first.engine.kv_timeout_s if given.timeout_s is None else given.timeout_s,
        recompute=given.load_failure == "recompute",
        mode=given.mode,
    )


def _cache_settings(pool: ServedPool) -> CacheSettings:
    deployment, limits = pool.deployment, pool.limits
    share = deployment.gpu_memory_utilization
    return CacheSettings(limits.page_size, deployment.kv_dtype, share, limits.enable_prefix_caching)


def _step_work(deployment: Deployment) -> StepWork:
    """Return the work of one GPU for its rank's tokens. Attention over windows and recurrent states have no share in it."""
    model, memory, parallel = deployment.model, deployment.memory, deployment.parallel
    gpus = parallel.tp * parallel.pp  # of a rank
    layers = [group for group in model.groups for _ in range(group.count)]
    experts = sum(
        group.mlp.experts * group.mlp.expert_weights(model.hidden) for group in layers if isinstance(group.mlp, Moe)
    )
    expert_bytes = memory.weights_bytes * experts / model.parameters
    pairs = sum(_context_flops(group.attention) for group in layers)
    tables = model.embedding_weights * (1 if model.tied_embeddings else 2)
    return StepWork(
        flops_per_token=2 * (model.active_parameters - tables) / gpus,
        flops_per_context_token=pairs / gpus,
        flops_per_output_token=2 * model.embedding_weights / gpus,
        weight_bytes=memory.weights_bytes - expert_bytes,
        expert_bytes=expert_bytes,
        experts_per_token=parallel.dp * model.moe.per_token / model.moe.experts if model.moe else 0.0,
        kv_bytes=memory.kv_bytes_per_token,
        activation_bytes=2 * 2 * model.hidden * len(layers) / parallel.pp,  # bf16
    )


def _context_flops(attention: Attention | None) -> int:
    """Return the operations of one token's attention to one token of context in one layer: Q with K, and with V."""
    if isinstance(attention, Mla):
        return 2 * attention.heads * (2 * attention.kv_rank + attention.rope_dim)
    if isinstance(attention, Gqa) and not attention.window:
        return 2 * attention.heads * (attention.head_dim + (attention.v_head_dim or attention.head_dim))
    return 0


def _keys_of(path: str | None) -> list[str]:
    """Return the keys in a file, one a line. Raises ConfigError."""
    if path is None:
        return []
    try:
        keys = [line.strip() for line in Path(path).read_text("ascii").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"api_key_file: {path}: {getattr(error, 'strerror', None) or 'it is not ASCII'}"]) from None
    if not keys:
        raise ConfigError([f"api_key_file: {path}: it has no key"])
    return keys


def _state(config: ClusterConfig) -> State:
    ttl_s = _TTL_S if config.response_ttl_s is None else config.response_ttl_s
    size: dict[str, Any] = {} if config.state_mib is None else {"most_bytes": config.state_mib << 20}
    try:
        if config.state is None:
            return MemoryState(**size, ttl_s=ttl_s)
        state = make_state_file(config.state, **size, ttl_s=ttl_s)
        fail_interrupted(state)
        return state
    except ApiError as error:
        raise ConfigError([f"state: {config.state}: {error.message}"]) from None
    except OSError as error:
        raise ConfigError([f"state: {error}"]) from None


def served_models(pools: Sequence[ServedPool], class_priorities: Sequence[tuple[str, int]] = ()) -> dict[str, ServedModel]:
    """Return the model for each name. A request must fit in every pool of its model, since it may come to any."""
    served: dict[str, ServedModel] = {}
    for pool in pools:
        together = [other for other in pools if other.model == pool.model]
        priorities = all(other.limits.schedule_policy == "priority" for other in together)
        model = ServedModel(
            pool.model,
            min(other.max_model_len for other in together),
            joined=any(other.config.num_speculative_tokens or other.limits.stream for other in together),
            priorities=priorities,
            seats=min(other.limits.max_num_seqs * other.config.instances for other in together),
            hears=pool.deployment.model.hears,
            page_tokens=max(other.limits.page_size for other in together),
            ranks=min(other.deployment.parallel.dp for other in together),
            class_priorities=dict(class_priorities) if priorities else {},
        )
        served |= dict.fromkeys(pool.names, model)
    return served


def load_text_tools(config: ClusterConfig) -> TextTools:
    """Load the tokenizer and what depends on it. Raises ConfigError if it cannot be loaded or used."""
    # Here, in the loader's thread: their expressions take 40 ms to compile, which the start of the server does not wait for.
    from llmirage_server.replies.compose import OwnReplies, make_reply_source
    from llmirage_server.replies.lengths import ReplyLengths

    try:
        tokenizer, template = tokenizer_loader.load(config.tokenizer)
        encoder = PromptEncoder(tokenizer, template)
        replies = make_reply_source(
            config.replies,
            tokenizer,
            config.seed,
            exact_length=config.exact_length,
            lengths=ReplyLengths(config.reply_tokens),
            remember=encoder.remember,
        )
        # A function of the user's sees requests of clients only.
        TextTools(encoder, replies.prose if isinstance(replies, OwnReplies) else replies).warm_up()
    except ChatTemplateError as error:  # a template that refuses "Hello"
        raise ConfigError([f"tokenizer {config.tokenizer}: {error}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return TextTools(encoder, replies)
