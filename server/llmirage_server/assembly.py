"""From a configuration to a cluster: what each pool's instances are, what joins them, and what will happen to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.fixed import FixedInstance
from llmirage_server.cluster.instance import Instance
from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.kv_transfer import KVLink
from llmirage_server.cluster.lifecycle import LifecycleEvent
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.pools import Pool
from llmirage_server.cluster.router import Router, make_router
from llmirage_server.config import ClusterConfig, ConfigError, EventConfig, KvTransferConfig, PoolConfig
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.step_model import StepModel


@dataclass(frozen=True, slots=True)
class ServedPool:
    """A pool with everything that follows from its configuration."""

    config: PoolConfig
    deployment: Deployment
    limits: EngineLimits
    step_model: StepModel
    max_model_len: int  # tokens of the longest request

    @property
    def model(self) -> str:
        return self.deployment.model.name

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call it."""
        return self.config.served_model_name or (self.model,)


def plan(config: ClusterConfig) -> list[ServedPool]:
    """Work out every pool. Raises ConfigError with the problems of all of them."""
    problems: list[str] = []
    pools: list[ServedPool] = []
    known: dict[tuple[Any, ...], tuple[Deployment, StepModel]] = {}  # equal pools share one
    for pool in config.all_pools:
        try:
            pools.append(_plan(pool, known))
        except ConfigError as error:
            before = f"pool {pool.name}: " if config.pools else ""
            problems += [before + problem for problem in error.problems]
    if not problems:
        problems += _name_problems(pools)
    if problems:
        raise ConfigError(problems)
    return pools


def build(config: ClusterConfig, pools: Iterable[ServedPool]) -> Cluster:
    """The cluster of the planned pools. Raises ConfigError."""
    pools = list(pools)
    built = []
    number = 0
    # Pools that do the same part of the same work are one choice for one router.
    routers: dict[tuple[str, str], Router] = {}
    try:
        for pool in pools:
            router = routers.setdefault((pool.model, pool.config.role), make_router(config.router, config.seed))
            instances = [_instance(pool, number + i) for i in range(pool.config.instances)]
            number += len(instances)
            built.append(
                Pool(
                    pool.config.name,
                    instances,
                    router,
                    pool.config.role,
                    pool.model,
                    kv_bytes_per_token=pool.deployment.memory.kv_bytes_per_token * pool.deployment.gpus,
                )
            )
        link = kv_link(config.kv_transfer or KvTransferConfig(), pools)
        return Cluster(pools=built, kv_link=link, events=list(_events(config)), on_crash=config.on_crash)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _plan(config: PoolConfig, known: dict[tuple[Any, ...], tuple[Deployment, StepModel]]) -> ServedPool:
    wanted = _deployment_settings(config)
    key = tuple(wanted.items())
    try:
        if key not in known:
            deployment = Deployment.create(**wanted)
            known[key] = deployment, deployment.step_model()
        deployment, step_model = known[key]
        limits = _limits(config, deployment)
    except DeploymentError as error:
        raise ConfigError(error.problems) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return ServedPool(config, deployment, limits, step_model, _max_model_len(config, deployment, limits))


def _deployment_settings(config: PoolConfig) -> dict[str, Any]:
    settings = {
        "model": config.model,
        "gpu": config.gpu,
        "tp": config.tensor_parallel_size,
        "ep": config.expert_parallel_size,
        "weights": config.weights,
        "kv_cache_dtype": config.kv_cache_dtype,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
    }
    return {name: value for name, value in settings.items() if value not in (None, "auto")}


def _limits(config: PoolConfig, deployment: Deployment) -> EngineLimits:
    return EngineLimits(
        kv_tokens=deployment.memory.kv_tokens,
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        page_size=config.kv_block_size or 1,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
    )


def _max_model_len(config: PoolConfig, deployment: Deployment, limits: EngineLimits) -> int:
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


def _name_problems(pools: list[ServedPool]) -> Iterator[str]:
    models: dict[str, ServedPool] = {}
    for pool in pools:
        for name in pool.names:
            other = models.setdefault(name, pool)
            if other.model != pool.model:
                yield (
                    f"pools {other.config.name} and {pool.config.name} serve different models "
                    f"({other.model}, {pool.model}) under one name, {name!r}: give them served_model_names of their own"
                )


def _instance(pool: ServedPool, index: int) -> InstanceBase:
    config = pool.config
    if config.fixed_times:
        return FixedInstance(index, (config.ttft_ms or 0.0) / 1000, (config.itl_ms or 0.0) / 1000, pool.limits)
    return Instance(index, pool.step_model, pool.limits, config.role)


def kv_link(config: KvTransferConfig, pools: Iterable[ServedPool]) -> KVLink | None:
    """The link from prefill to decode pools; None where there are none.

    Its rate is what the GPUs of an instance reach together, of the smaller of two instances; with several kinds of pools
    the slowest pair counts for all.
    """
    ends = [pool for pool in pools if pool.config.role != "both"]
    if not ends:
        return None
    network = config.link == "network"
    rates, latencies = [], []
    for pool in ends:
        gpu = pool.deployment.gpu
        rates.append(pool.deployment.gpus * (gpu.node_link_bytes_per_s if network else gpu.link_bytes_per_s))
        latencies.append(gpu.node_link_latency_s if network else 0.0)
    given = config.bandwidth_gb_per_s
    return KVLink(
        min(rates) if given is None else given * 1e9,
        max(latencies) if config.latency_us is None else config.latency_us * 1e-6,
        layers=min(pool.deployment.model.layers for pool in ends) if config.overlap else 1,
    )


def _events(config: ClusterConfig) -> Iterator[LifecycleEvent]:
    """The events, one for each instance they happen to, numbered over the whole cluster."""
    for event in config.events:
        for instance in _targets(config, event):
            yield LifecycleEvent(event.at_s, instance, event.action, event.restart_after_s)


def _targets(config: ClusterConfig, event: EventConfig) -> Iterable[int]:
    first = 0
    for pool in config.all_pools:
        if event.pool == pool.name:
            if event.instance is not None:
                return (first + event.instance,)
            return range(first, first + pool.instances)
        first += pool.instances
    assert event.instance is not None  # ClusterConfig refuses events without a target
    return (event.instance,)
