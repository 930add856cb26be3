"""Routing policies: one class each, and one entry in `ROUTERS`."""

from __future__ import annotations

from collections.abc import Callable

from llmirage_server.cluster.routers.base import Router, RouterError
from llmirage_server.cluster.routers.builtin import (
    KVAware,
    LeastLoaded,
    PowerOfTwo,
    Prefix,
    Random,
    RoundRobin,
    SessionAffinity,
)
from llmirage_shared.extensions import is_extension
from llmirage_shared.settings import did_you_mean

__all__ = ["ROUTERS", "Router", "RouterError", "make_router"]

ROUTERS: dict[str, Callable[[int], Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "session": SessionAffinity,
    "prefix": Prefix,
    "kv_aware": KVAware,
}


def make_router(name: str, seed: int = 0) -> Router:
    """Return a router by its name, or an extension (see `routers/custom.py`). Raises ValueError."""
    if name in ROUTERS:
        return ROUTERS[name](seed)
    if is_extension("router", name):
        from llmirage_server.cluster.routers.custom import custom_router

        return custom_router(name, seed)
    hint = did_you_mean(name, ROUTERS)
    raise ValueError(f"unknown router {name!r}{hint}: choose one of {', '.join(ROUTERS)}, or module:name of your own")
