"""The wiring: configuration -> pools -> cluster -> driver -> endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, plan
from llmirage_server.drivers.live import Driver, FreeDriver, PacedDriver
from llmirage_server.http.absent import in_callers_form
from llmirage_server.http.access import ApiKeys, RateLimits
from llmirage_server.http.application import LazyRoutes
from llmirage_server.http.dialect import DIALECTS, Dialect
from llmirage_server.http.exchange import EndpointApp
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.perf.catalogue.lookup import model_names
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.routes import UNKNOWN, routes
from llmirage_server.service.models import ServedModel, ServedModels
from llmirage_server.service.service import Service, new_scripts
from llmirage_server.service.text import TextLoader, TextTools, warm_up
from llmirage_server.state.files import FILE_FILES_MIB, MEMORY_FILES_MIB
from llmirage_server.state.memory import MemoryState
from llmirage_server.state.state import State
from llmirage_server.telemetry.metrics import PrometheusMetrics
from llmirage_server.telemetry.scrape import CacheSettings
from llmirage_shared import tokenizer_loader
from llmirage_shared.chat_template import ChatTemplateError
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.settings import at_call
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import reported

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule

# What few servers have takes 60 ms to import.
fail_interrupted = at_call("llmirage_server.openai.responses.background:fail_interrupted")
make_live = at_call("llmirage_server.admin.live:LiveHandler")
make_live_cluster = at_call("llmirage_server.telemetry.page.state:LiveCluster")
make_replay = at_call("llmirage_server.proxy.replay:make_replay")
make_state_file: Callable[..., State] = at_call("llmirage_server.state.sqlite:SqliteState")
make_upstream = at_call("llmirage_server.proxy.upstream:HttpUpstream")
read_faults_file: Callable[[str], Iterable[FaultRule]] = at_call("llmirage_server.faults.rule:read_faults_file")

_TTL_S = 30 * 86400.0  # OpenAI keeps responses for 30 days


class LlmirageApp(LazyRoutes):
    """The ASGI application. `config`, `pools`, `model_names`, `driver` and `service` are its parts."""

    def __init__(self, config: ClusterConfig, *, page: bool = False, script: Mapping[str, Any] | None = None) -> None:
        """page: whether there is a live page at `/`. script: scripted replies, as a script's file has them.

        Raises ConfigError for a configuration that cannot work; the message shows the arithmetic.
        """
        self.config = config
        self.pools = plan(config)
        self.kv_link = kv_link(config, self.pools)
        cluster = build(config, self.pools, self.kv_link)
        self.driver: Driver = FreeDriver(cluster) if config.speed == math.inf else PacedDriver(cluster, config.speed)
        served = served_models(self.pools)
        self.model_names = tuple(served)
        models = ServedModels(served, config.accept_models, model_names, int(time.time()))
        text = TextLoader(lambda: load_text_tools(config))
        fingerprint = "fp_" + hashlib.sha256(repr(config).encode()).hexdigest()[:10]
        self.service = Service(self.driver, text, models, fingerprint, _state(config))
        files_mib = MEMORY_FILES_MIB if config.state is None else FILE_FILES_MIB
        self.service.files.most_bytes = (config.files_mib or files_mib) << 20
        self.service.dialect = models.dialect = dialect = _dialect(config, self.pools)
        self.service.shown_usage = partial(reported, reasoning=dialect.reasoning_in_usage, cached=config.enable_cache_report)
        self.service.documented_only = (config.unknown_fields or ("refuse" if dialect.strict else "ignore")) == "refuse"
        caches = {pool.config.name: _cache_settings(pool) for pool in self.pools}
        self.service.metrics = PrometheusMetrics(lambda: models.served, dialect.name, caches)
        self.service.engine_version = None if dialect.name == "openai" else find_engine(dialect.name).version
        if (config.rate_limit, config.token_limit) != (None, None):
            self.service.limits = RateLimits(config.rate_limit, config.token_limit)
        self.service.faults = InjectedFaults(self.service, config.seed, config.allow_fault_header)
        if config.faults is not None:
            self.service.faults.add(read_faults_file(config.faults))
        self.service.most_body_bytes = config.max_body_mib << 20
        self.service.unread.most = config.unread_mib << 20
        self.service.websocket_limit_s = config.websocket_limit_s
        self.service.open_admin = config.open_admin
        keys = (*config.api_key, *_keys_of(config.api_key_file))
        guard = ApiKeys(keys) if keys else None
        self.page = page
        live = make_live(self.service, make_live_cluster(config, self.pools, self.service)) if page else None
        if config.upstream is not None:
            self.service.upstream = make_upstream(config.upstream, config.upstream_key)
        if config.script or script is not None:
            self.service.scripts = new_scripts(self.service, config.script, script)
        self.replay = None if config.replay is None else make_replay(self.service, config)
        before = () if self.replay is None else (self.replay.before,)
        unknown = EndpointApp(UNKNOWN, guard, journal=self.service.journal, faults=self.service.faults, dialect=dialect)
        super().__init__(
            lambda: routes(self.service, guard, live, *before),
            unknown,
            lambda: _life(self),
            self.service.unread,
            origins=config.cors,
            has_key=guard is not None or config.open_admin,
        )

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
            assert self.service.batches is not None
            self.service.batches.resume()


@contextlib.asynccontextmanager
async def _life(app: LlmirageApp) -> AsyncIterator[None]:
    warm_up(app.service.text)
    app.resume()
    asyncio.get_running_loop().call_soon(app.make_routes)
    yield
    app.service.close()
    if app.replay is not None:
        app.replay.close()
    if app.service.upstream is not None:
        await app.service.upstream.close()


def create_app(
    config: ClusterConfig | None = None, *, page: bool = False, script: Mapping[str, Any] | None = None
) -> LlmirageApp:
    """Return the application for a configuration, by default the default cluster; with a live page, if asked for.

    script: scripted replies, as a script's file has them; they come before those of `config.script`.

    Raises ConfigError.
    """
    return LlmirageApp(config or ClusterConfig(), page=page, script=script)


def _dialect(config: ClusterConfig, pools: Sequence[ServedPool]) -> Dialect:
    """The one that is asked for; else that of the engine which the first pool names."""
    first = pools[0]
    named: Any = first.deployment.engine.base if first.config.engine else "openai"
    dialect = DIALECTS[config.dialect or named]
    return replace(
        dialect,
        strict=dialect.strict and not config.lenient,
        vendor_caching=dialect.vendor_caching and not config.lenient,
        error=in_callers_form(dialect.error),
    )


def _cache_settings(pool: ServedPool) -> CacheSettings:
    deployment, limits = pool.deployment, pool.limits
    share = deployment.gpu_memory_utilization
    return CacheSettings(limits.page_size, deployment.kv_dtype, share, limits.enable_prefix_caching)


def _keys_of(path: str | None) -> list[str]:
    """The keys in a file, one a line. Raises ConfigError."""
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


def served_models(pools: Sequence[ServedPool]) -> dict[str, ServedModel]:
    """The model for each name. A request must fit in every pool of its model, since it may come to any."""
    served: dict[str, ServedModel] = {}
    for pool in pools:
        together = [other for other in pools if other.model == pool.model]
        limit_tokens = min(other.max_model_len for other in together)
        joined = any(other.config.num_speculative_tokens or other.limits.stream for other in together)
        priorities = all(other.limits.schedule_policy == "priority" for other in together)
        seats = min(other.limits.max_num_seqs * other.config.instances for other in together)
        hears = pool.deployment.model.hears
        page_tokens = max(other.limits.page_size for other in together)
        served |= {
            name: ServedModel(pool.model, limit_tokens, joined, priorities, seats, hears, page_tokens) for name in pool.names
        }
    return served


def load_text_tools(config: ClusterConfig) -> TextTools:
    """Load the tokenizer and what depends on it. Raises ConfigError if it cannot be loaded or used."""
    # Here, in the loader's thread: their expressions take 40 ms to compile, which the start of the server does not wait for.
    from llmirage_server.replies.choose import make_reply_source
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
        tools = TextTools(encoder, replies)
        tools.warm_up()
    except ChatTemplateError as error:  # a template that refuses "Hello"
        raise ConfigError([f"tokenizer {config.tokenizer}: {error}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return tools
