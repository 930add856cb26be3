"""The server's simulator, as far as studies need it: the one place where they meet the server.

A configuration (`ClusterConfig`), what follows from it (`plan_of`), a cluster built of it (`new_cluster`), and what gives
it virtual time (`ClusterRun`).
"""

from __future__ import annotations

from functools import lru_cache

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.lifecycle.lifecycle import ScalingDecision
from llmirage_server.cluster.request import Adapter, QueueWait, Request, RequestTooLongError
from llmirage_server.cluster.routers import ROUTERS, RouterError
from llmirage_server.cluster.snapshots import Reading, StepSpan
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, described, plan
from llmirage_server.drivers.virtual import ClusterRun, InFlightRequest, Observer
from llmirage_server.perf.steps.operations import StepShares
from llmirage_shared.yaml_lines import Entry, YamlNode, read_mapping

__all__ = [
    "ROUTERS", "Adapter", "Cluster", "ClusterConfig", "ClusterRun", "ConfigError", "Entry", "InFlightRequest", "Observer",
    "QueueWait", "Reading", "Request", "RequestTooLongError", "RouterError", "ScalingDecision", "ServedPool", "StepShares",
    "StepSpan", "YamlNode", "described", "kv_link", "new_cluster", "plan_of", "read_mapping",
]  # fmt: skip


@lru_cache(maxsize=64)
def plan_of(config: ClusterConfig) -> tuple[ServedPool, ...]:
    """Return the pools of a configuration. Raises ConfigError."""
    return tuple(plan(config))


def new_cluster(config: ClusterConfig, fast_forward: bool = True) -> Cluster:
    """Return a cluster. Raises ConfigError.

    fast_forward: it tells of finished requests, not of single tokens, where its rules allow it.
    """
    pools = plan_of(config)
    return build(config, pools, kv_link(config, pools), fast_forward=fast_forward)
