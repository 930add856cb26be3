"""Continuous batching by the rules of three engines: `make_scheduler` builds the one named by the limits."""

from __future__ import annotations

from typing import Any

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.schedulers.base import Scheduler
from llmirage_server.cluster.schedulers.batch import Step
from llmirage_server.cluster.schedulers.sglang import SglangScheduler
from llmirage_server.cluster.schedulers.trtllm import TrtllmScheduler
from llmirage_server.cluster.schedulers.vllm import VllmScheduler

__all__ = ["Scheduler", "Step", "make_scheduler"]

_CLASSES: dict[str, type[Scheduler]] = {"vllm": VllmScheduler, "sglang": SglangScheduler, "trtllm": TrtllmScheduler}


def make_scheduler(limits: EngineLimits, kv: KVCache, role: Role = "both", **more: Any) -> Scheduler:
    """Return an empty scheduler with the rules of `limits.scheduler`; the arguments are those of Scheduler."""
    return _CLASSES[limits.scheduler](limits, kv, role, **more)
