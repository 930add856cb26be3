"""Continuous batching by the rules of three engines: `make_scheduler` builds the one that the limits name."""

from __future__ import annotations

from llmirage_server.cluster.instances.base import Role
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.schedulers.base import Scheduler, Step
from llmirage_server.cluster.schedulers.sglang import SglangScheduler
from llmirage_server.cluster.schedulers.trtllm import TrtllmScheduler
from llmirage_server.cluster.schedulers.vllm import VllmScheduler

__all__ = ["Scheduler", "Step", "make_scheduler", "scheduler_class"]

_CLASSES: dict[str, type[Scheduler]] = {"vllm": VllmScheduler, "sglang": SglangScheduler, "trtllm": TrtllmScheduler}


def make_scheduler(limits: EngineLimits, kv: KVCache, role: Role = "both", *, pipelined: bool = False) -> Scheduler:
    """Return an empty scheduler with the rules of `limits.scheduler`.

    pipelined: `schedule` may be called again before the step that it returned last is completed.
    """
    return scheduler_class(limits)(limits, kv, role, pipelined=pipelined)


def scheduler_class(limits: EngineLimits) -> type[Scheduler]:
    """The class that knows the rules of `limits.scheduler`."""
    return _CLASSES[limits.scheduler]
