"""Routing policies: one class each, and one entry in `ROUTERS`."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmirage_server.cluster.routers.builtin import (
    KVAware,
    LeastLoaded,
    PowerOfTwo,
    Prefix,
    Random,
    RoundRobin,
    Router,
    RouterError,
    SessionAffinity,
)
from llmirage_server.cluster.routers.production import (
    LLM_D,
    DynamoKV,
    LlmD,
    LlmDPredictedLatency,
    ProductionStackPrefix,
    SGLangCacheAware,
    llm_d_weights,
)
from llmirage_shared.extensions import is_extension
from llmirage_shared.settings import did_you_mean

__all__ = ["ROUTERS", "Router", "RouterError", "make_router", "reads_slo", "router_problem"]

ROUTERS: dict[str, Callable[[int], Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "session": SessionAffinity,
    "prefix": Prefix,
    "kv_aware": KVAware,
    "llm-d:default": LlmD,
    "llm-d:predicted-latency": LlmDPredictedLatency,
    "dynamo:kv": DynamoKV,
    "sglang:cache_aware": SGLangCacheAware,
    "production-stack:prefixaware": ProductionStackPrefix,
}


def router_problem(name: str) -> str | None:
    """Say what is wrong with the name of a router; None: nothing."""
    try:
        if name.startswith(LLM_D) and name not in ROUTERS:
            llm_d_weights(name)
            return None
    except ValueError as error:
        return str(error)
    if name in ROUTERS or is_extension("router", name):
        return None
    return f"must be one of {', '.join(ROUTERS)}, or module:function; not {name!r}{did_you_mean(name, ROUTERS)}"


def reads_slo(name: str) -> bool:
    """Return whether a router reads the TTFT objectives of requests."""
    scorers = [scorer for scorer, _ in llm_d_weights(name)] if name.startswith(LLM_D) and name not in ROUTERS else []
    return name == "llm-d:predicted-latency" or "latency" in scorers


def make_router(name: str, seed: int = 0, session_ttl_s: float = math.inf) -> Router:
    """Return a router by its name, or an extension (see `routers/custom.py`). Raises ValueError.

    session_ttl_s: since its last request, after which a session's instance is forgotten.
    """
    if name in ROUTERS or name.startswith(LLM_D):
        router = ROUTERS[name](seed) if name in ROUTERS else LlmD(seed, llm_d_weights(name))
        if isinstance(router, SessionAffinity | LlmD):
            router.sessions.ttl_s = session_ttl_s
        return router
    if is_extension("router", name):
        from llmirage_server.cluster.routers.custom import custom_router

        return custom_router(name, seed)
    hint = did_you_mean(name, ROUTERS)
    raise ValueError(f"unknown router {name!r}{hint}: choose one of {', '.join(ROUTERS)}, or module:name of your own")
