"""A cluster of one deployment, as the harness needs it: the whole engine, no HTTP."""

from __future__ import annotations

from typing import Any

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import make_router
from llmirage_server.config.assembly import front_end_of
from llmirage_server.perf.deployment import Deployment


def cluster_of(deployment: Deployment, *, prefix_caching: bool, fast_forward: bool = False, **scheduling: Any) -> Cluster:
    """Return a cluster with one instance of the deployment, with its engine's scheduler and limits.

    fast_forward: see Instance. scheduling: further limits, by their names in EngineLimits.
    """
    engine = deployment.engine
    if engine.scheduler == "sglang":
        scheduling = {"max_prefill_tokens": max(16384, deployment.max_num_batched_tokens)} | scheduling
    limits = EngineLimits(
        kv_tokens=deployment.memory.kv_tokens,
        max_num_seqs=min(deployment.most_running, deployment.memory.sequences),
        max_num_batched_tokens=max(deployment.max_num_batched_tokens, deployment.max_num_seqs),
        page_size=deployment.block_size,
        enable_prefix_caching=prefix_caching,
        scheduler=engine.scheduler,
        recurrent_states=deployment.aligned_chunks,
        **{"async_scheduling": engine.async_scheduling, **scheduling},
    )
    front_end = front_end_of(engine, limits)
    instance = Instance(0, deployment.step_model(), limits, front_end=front_end, fast_forward=fast_forward)
    if engine.scheduler == "trtllm":  # nothing is ever computed again: without chunks only a prompt must fit a step
        instance.max_request_tokens = limits.kv_capacity_tokens + 1
    return Cluster([instance], make_router("round_robin", 0))
