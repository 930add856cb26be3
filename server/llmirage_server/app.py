"""Everything wired together: configuration -> deployment -> cluster -> driver -> endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.types import ASGIApp

from llmirage_server.api import stream
from llmirage_server.api.exchange import NotFound
from llmirage_server.api.generation import Service
from llmirage_server.api.models import ServedModels
from llmirage_server.api.routes import routes
from llmirage_server.api.text import TextLoader, TextTools
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.fixed import FixedInstance
from llmirage_server.cluster.instance import Instance
from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.router import make_router
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.driver import Driver, FreeDriver, PacedDriver
from llmirage_server.perf.catalogue import list_models
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.errors import DeploymentError


class LlmirageApp(Starlette):
    """The ASGI application. `config`, `deployment`, `limits`, `model_names`, `driver`, `service` are its parts."""

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError when the configuration cannot work; the message shows the arithmetic."""
        self.config = config
        self.deployment = _deployment(config)
        self.limits = _limits(config, self.deployment)
        self.max_model_len = _max_model_len(config, self.deployment, self.limits)
        cluster = Cluster(_instances(config, self.deployment, self.limits), make_router(config.router, config.seed))
        self.driver: Driver = FreeDriver(cluster) if config.speed == math.inf else PacedDriver(cluster, config.speed)
        self.model_names = config.served_model_name or (self.deployment.model.name,)
        models = ServedModels(
            self.model_names,
            config.accept_models,
            [name for model in list_models() for name in (model.name, *model.aliases)],
            int(time.time()),
            self.max_model_len,
        )
        text = TextLoader(lambda: load_text_tools(config))
        fingerprint = "fp_" + hashlib.sha256(repr(config).encode()).hexdigest()[:10]
        self.service = Service(self.driver, text, models, fingerprint)
        super().__init__(routes=routes(self.service), lifespan=_lifespan)
        self.router.redirect_slashes = False
        self.router.default = NotFound()

    def build_middleware_stack(self) -> ASGIApp:
        """Only the user's middleware: Starlette's own two would each wrap `send`, and the endpoints handle errors."""
        app: ASGIApp = self.router
        for cls, args, kwargs in reversed(self.user_middleware):
            app = cls(app, *args, **kwargs)
        return app


@contextlib.asynccontextmanager
async def _lifespan(app: LlmirageApp) -> AsyncIterator[None]:
    app.service.text.start()
    warming = asyncio.ensure_future(stream.warm_up())  # after the server listens, before anybody is likely to stream
    yield
    await warming
    app.service.close()


def create_app(config: ClusterConfig | None = None) -> LlmirageApp:
    """Return the application for a configuration, by default the default cluster. Raises ConfigError."""
    return LlmirageApp(config or ClusterConfig())


def load_text_tools(config: ClusterConfig) -> TextTools:
    """Load the tokenizer and what depends on it. Raises ConfigError when it cannot be loaded or used."""
    from llmirage_server.replies.choose import make_reply_source
    from llmirage_server.replies.lengths import ReplyLengths
    from llmirage_shared.chat_template import ChatTemplateError
    from llmirage_shared.prompt_encoder import PromptEncoder
    from llmirage_shared.tokens import load

    try:
        tokenizer, template = load(config.tokenizer)
        replies = make_reply_source(
            config.replies,
            tokenizer,
            config.seed,
            natural_stop=config.natural_stop,
            lengths=ReplyLengths(config.reply_tokens),
        )
        tools = TextTools(PromptEncoder(tokenizer, template), replies)
        tools.warm_up()
    except ChatTemplateError as error:  # one that does not even take "Hello"
        raise ConfigError([f"tokenizer {config.tokenizer}: {error}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return tools


def _deployment(config: ClusterConfig) -> Deployment:
    try:
        return Deployment.create(
            config.model,
            config.gpu,
            tp=config.tensor_parallel_size,
            ep=config.expert_parallel_size,
            weights=config.weights,
            kv_cache_dtype=config.kv_cache_dtype,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
    except DeploymentError as error:
        raise ConfigError(error.problems) from None


def _limits(config: ClusterConfig, deployment: Deployment) -> EngineLimits:
    try:
        return EngineLimits(
            kv_tokens=deployment.memory.kv_tokens,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            page_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _max_model_len(config: ClusterConfig, deployment: Deployment, limits: EngineLimits) -> int:
    architecture, memory = deployment.max_model_len, limits.max_request_tokens
    wanted = config.max_model_len
    if wanted is None:
        return min(architecture, memory)
    if wanted > architecture:
        raise ConfigError(
            [f"max_model_len {wanted} is more than the context of {deployment.model.name}: {architecture} tokens"]
        )
    if wanted > memory:
        budget = deployment.memory.describe()
        raise ConfigError([f"max_model_len {wanted} is more than the {memory} tokens an instance has room for:\n{budget}"])
    return wanted


def _instances(config: ClusterConfig, deployment: Deployment, limits: EngineLimits) -> list[InstanceBase]:
    if config.fixed_times:
        ttft_s, itl_s = (config.ttft_ms or 0.0) / 1000, (config.itl_ms or 0.0) / 1000
        return [FixedInstance(index, ttft_s, itl_s, limits) for index in range(config.instances)]
    step_model = deployment.step_model()
    return [Instance(index, step_model, limits) for index in range(config.instances)]
