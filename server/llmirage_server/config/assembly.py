"""From planned pools to a cluster: the instances, what joins them, and what will happen to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.arrivals import FrontEnd
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.lifecycle.autoscaler import ScalingRule
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import Router, make_router
from llmirage_server.cluster.routers.gateway_queue import FlowControl
from llmirage_server.config import ClusterConfig, ConfigError, EventConfig, KvTransferConfig, PoolConfig
from llmirage_server.config.planning import ServedPool
from llmirage_server.perf.catalogue.gpus import GIB
from llmirage_server.perf.engines.engine import Engine


def build(config: ClusterConfig, pools: Iterable[ServedPool], link: KVLink | None, *, fast_forward: bool = False) -> Cluster:
    """Return the cluster of the planned pools. Raises ConfigError.

    fast_forward: for simulations, which need not be told of single tokens (see cluster/instances/instance.py).
    """
    built = []
    number = 0
    pools = list(pools)
    # Pools that do the same part of the same work are one choice for one router.
    routers: dict[tuple[str, str], Router] = {}
    try:
        store = _kv_store(config, pools)
        for pool in pools:
            router = routers.setdefault(
                (pool.model, pool.config.role), make_router(config.router, config.seed, config.session_ttl_s or math.inf)
            )
            instances = [_instance(pool, number + i, store, fast_forward) for i in range(pool.config.instances)]
            number += len(instances)
            built.append(
                InstancePool(
                    pool.config.name,
                    instances,
                    router,
                    pool.config.role,
                    pool.model,
                    kv_bytes_per_token=pool.deployment.kv_bytes_per_token,
                    kv_bytes_per_sequence=pool.deployment.kv_bytes_per_sequence,
                    scaling=_scaling(pool.config),
                    gpus=pool.deployment.gpus,
                )
            )
        budget = math.inf if config.max_gpu_budget is None else config.max_gpu_budget
        first = sum([each.gpus * max(1, len(each.instances) - len(each.absent)) for each in built])
        if first > budget:
            raise ConfigError([f"max_gpu_budget {budget} is less than the GPUs of the first instances, {first}"])
        return Cluster(
            pools=built,
            kv_link=link,
            events=list(_events(config)),
            on_crash=config.on_crash,
            flow_control=_flow_control(config),
            max_gpu_budget=budget,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _flow_control(config: ClusterConfig) -> FlowControl | None:
    if not config.gateway_queue:
        return None
    return FlowControl(
        dict(config.objective_priorities),
        config.gateway_queue_depth,
        config.gateway_kv_utilization,
        config.gateway_request_ttl_s or math.inf,
        config.gateway_max_requests,
        config.gateway_max_bytes,
        config.gateway_sheddable_max_requests,
        config.gateway_ordering,
    )


def _scaling(config: PoolConfig) -> ScalingRule | None:
    if not config.scales:
        return None
    return ScalingRule(
        config.instances,
        config.min_instances,
        config.instances if config.initial_instances is None and config.scale_advisory else config.initial_instances,
        queue=config.scale_on_queue,
        concurrency=config.scale_on_concurrency,
        kv=config.scale_on_kv,
        rate=config.scale_on_rate,
        ttft_ms=config.scale_on_ttft_ms,
        itl_ms=config.scale_on_itl_ms,
        percentile=config.scale_percentile,
        advisory=config.scale_advisory,
        interval_s=config.scale_interval_s,
        start_up_s=config.start_up_s,
        up_after_s=config.scale_up_after_s,
        down_after_s=config.scale_down_after_s,
    )


def _kv_store(config: ClusterConfig, pools: Sequence[ServedPool]) -> Tier | None:
    """Return the store that the instances share; None: there is none. Raises ValueError where it cannot be."""
    pools = [pool for pool in pools if not pool.config.fixed_times]
    if not config.kv_store_gib or not pools:
        return None
    forms = {
        f"{pool.model}, {pool.deployment.kv_dtype}, blocks of {pool.limits.page_size}": (pool.deployment, pool.limits)
        for pool in pools
    }
    if len(forms) > 1:
        raise ConfigError([f"kv_store_gib: all instances need KV of one form to share it, not {'; '.join(forms)}"])
    [(deployment, limits)] = forms.values()
    if not all(pool.limits.enable_prefix_caching for pool in pools):
        raise ConfigError(["kv_store_gib needs enable_prefix_caching: the store remembers prefixes"])
    gpu, given = deployment.gpu, config.kv_store_gb_per_s
    rate = gpu.node_link_bytes_per_s if given is None else given * 1e9
    spec = TierSpec("store", config.kv_store_gib * GIB, rate, rate, gpu.node_link_latency_s)
    return Tier(spec, deployment.kv_bytes_per_token, limits.page_size, shared=True)


def _instance(pool: ServedPool, index: int, store: Tier | None, fast_forward: bool) -> InstanceBase:
    config = pool.config
    if config.fixed_times:
        return FixedInstance(index, (config.ttft_ms or 0.0) / 1000, (config.itl_ms or 0.0) / 1000, pool.limits)
    return Instance(
        index,
        pool.step_model,
        pool.limits,
        config.role,
        tiers=pool.tiers if store is None else [*pool.tiers, store],
        kv_bytes_per_token=pool.deployment.kv_bytes_per_token,
        front_end=front_end_of(pool.deployment.engine, pool.limits),
        fast_forward=fast_forward,
        adapter_costs=pool.deployment.lora if pool.limits.max_loras else None,
        adapters=pool.adapters,
    )


def front_end_of(engine: Engine, limits: EngineLimits) -> FrontEnd:
    """Return the front end before an engine's scheduler. Tokens that are sent together cost it as much as one."""
    output_us = engine.output_token_us / (1 if limits.stream is None else limits.stream.tokens)
    alone_s = min(engine.tokenize_ms * 1e-3, engine.front_end_ttft_s)  # while other requests wait
    return FrontEnd(engine.front_end_ttft_s - alone_s, alone_s, 0.0, output_us * 1e-6)


def kv_link(config: ClusterConfig, pools: Sequence[ServedPool]) -> KVLink:
    """Return the link from prefill to decode pools; without roles, that between instances. Raises ConfigError.

    A transfer takes the network's latency and, before the decode instance can admit the request, the engine's hand-off. The
    rate is what the GPUs of an instance reach together, of the smaller of two instances; with several kinds of pools the
    slowest pair counts for all.
    """
    roles = ("prefill", "decode") if any(pool.config.role != "both" for pool in pools) else ("both", "both")
    ends = [pool for pool in pools if pool.config.role in roles]
    transfer = config.kv_transfer or KvTransferConfig()
    network = transfer.link == "network"
    if roles[0] != roles[1]:
        _check_one_form(ends)
    if not network:
        _check_one_domain(ends, roles)
    rates, latencies = [], []
    for pool in ends:
        gpu = pool.deployment.gpu
        rates.append(pool.deployment.gpus * (gpu.node_link_bytes_per_s if network else gpu.link_bytes_per_s))
        latencies.append(gpu.node_link_latency_s if network else 0.0)
    given = transfer.bandwidth_gb_per_s
    prefill, decode = (next(pool for pool in ends if pool.config.role == role) for role in roles)
    latency_s = max(latencies) if transfer.latency_us is None else transfer.latency_us / 1e6
    handoff_ms = decode.deployment.engine.handoff_ms if transfer.handoff_ms is None else transfer.handoff_ms
    overlap = transfer.overlap or prefill.deployment.engine.kv_overlap
    return KVLink(
        min(rates) if given is None else given * 1e9,
        latency_s + handoff_ms * 1e-3,
        layers=min(pool.deployment.model.layers for pool in ends) if overlap == "layers" else 1,
        chunk_tokens=prefill.limits.max_num_batched_tokens if overlap == "chunks" else 0,
        handoff_s=handoff_ms * 1e-3,
    )


def _check_one_form(ends: Sequence[ServedPool]) -> None:
    """Refuse pools that cannot read each other's KV."""
    for model in dict.fromkeys(pool.model for pool in ends):
        deployments = [(pool.config.name, pool.deployment) for pool in ends if pool.model == model]
        forms = {(one.engine.base, one.kv_dtype): f"{name}: {one.engine.title}, {one.kv_dtype}" for name, one in deployments}
        if len(forms) > 1:
            raise ConfigError(
                [f"pools of role prefill and decode need one engine and kv_cache_dtype, not {'; '.join(forms.values())}"]
            )


def _check_one_domain(ends: Sequence[ServedPool], roles: Sequence[str]) -> None:
    """Refuse a link between GPUs that no such link joins."""
    gpus = {pool.deployment.gpu.key: pool.deployment.gpu for pool in ends}
    if len(gpus) > 1:
        names = " and ".join(gpu.name for gpu in gpus.values())
        raise ConfigError([f"kv_transfer: a gpu_link joins equal GPUs of one node, not {names}; use link network"])
    [gpu] = gpus.values()
    together = sum(max(pool.deployment.gpus for pool in ends if pool.config.role == role) for role in roles)
    if together > gpu.link_gpus:
        raise ConfigError(
            [
                f"kv_transfer: the gpu_link of {gpu.name} joins {gpu.link_gpus} GPUs, a prefill and a decode instance have "
                f"{together} together; use link network"
            ]
        )


def _events(config: ClusterConfig) -> Iterator[LifecycleEvent]:
    """Return the events, one for each instance they happen to, numbered over the whole cluster."""
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
