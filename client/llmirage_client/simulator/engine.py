"""The server's simulator, as far as studies need it: the one place where they meet the server.

A configuration (`ClusterConfig`), what follows from it (`plan_of`), a cluster built of it (`new_cluster`), and what gives
it virtual time (`ClusterRun`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import QueueWait, Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.cluster.snapshots import Reading, StepSpan
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, described, plan
from llmirage_server.drivers.virtual import ClusterRun, InFlightRequest, Observer
from llmirage_server.perf.steps.operations import StepShares
from llmirage_shared.yaml_lines import Entry, YamlNode, read_mapping

if TYPE_CHECKING:
    from llmirage_server.app import LlmirageApp
    from llmirage_server.drivers.live import Driver

__all__ = [
    "Cluster",
    "ClusterConfig",
    "ClusterRun",
    "ConfigError",
    "Entry",
    "InFlightRequest",
    "Observer",
    "QueueWait",
    "Reading",
    "Request",
    "RouterError",
    "ServedPool",
    "StepShares",
    "StepSpan",
    "YamlNode",
    "described",
    "new_app",
    "new_cluster",
    "plan_of",
    "read_mapping",
]  # fmt: skip

_TEXT: dict[tuple[Any, ...], Any] = {}  # tokenizers and what speaks with them, by the settings that choose them


@lru_cache(maxsize=64)
def plan_of(config: ClusterConfig) -> tuple[ServedPool, ...]:
    """The pools of a configuration. Raises ConfigError."""
    return tuple(plan(config))


def new_cluster(config: ClusterConfig) -> Cluster:
    """A cluster that tells of finished requests, not of single tokens, where its rules allow it. Raises ConfigError."""
    pools = plan_of(config)
    return build(config, pools, kv_link(config, pools), fast_forward=True)


def new_app(config: ClusterConfig, driver: Driver | None = None) -> LlmirageApp:
    """The server's app; with a driver its requests go there. Raises ConfigError."""
    from llmirage_server.app import create_app, load_text_tools
    from llmirage_server.drivers.in_process import RecordedReplies
    from llmirage_server.service.text import TextLoader, TextTools

    key = config.tokenizer, config.replies, config.seed, config.exact_length, config.reply_tokens
    if key not in _TEXT:
        tools = load_text_tools(config)
        _TEXT[key] = TextTools(tools.encoder, RecordedReplies(tools.replies))
    app = create_app(replace(config, lenient=True))  # the load is the caller's own, for whatever server
    app.service.text = TextLoader(lambda: _TEXT[key])
    if driver is not None:
        app.driver = app.service.driver = driver
    return app
