"""Routing policies: one class each, and one entry in `ROUTERS`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

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
    """Return a router by its name, or a user's own by `module:name` (see `routers/custom.py`). Raises ValueError."""
    if ":" in name:
        from llmirage_server.cluster.routers.custom import custom_router

        return custom_router(name, seed)
    if name not in ROUTERS:
        near = get_close_matches(name, ROUTERS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"unknown router {name!r}{hint}: choose one of {', '.join(ROUTERS)}, or module:name of your own")
    return ROUTERS[name](seed)
