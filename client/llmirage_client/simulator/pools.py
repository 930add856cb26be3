"""The pools of a cluster before anything runs on it, and one forward pass of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmirage_client.simulator.deployments import assumed
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_server.commands.step import StepSettings
from llmirage_server.commands.step_report import as_table, explain, explained_step
from llmirage_server.config.file import make_config
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.steps.step_model import StepBatch
from llmirage_shared.settings import ConfigError

__all__ = [
    "ClusterConfig", "Deployment", "StepSettings", "as_table", "cluster_facts", "explained_step", "planned", "step_of",
]  # fmt: skip


def planned(cluster_file: str | None, settings: Mapping[str, Any]) -> ClusterConfig:
    """Return a valid cluster. Raises ConfigError."""
    config = make_config(cluster_file, settings)
    plan_of(config)
    return config


def cluster_facts(config: ClusterConfig) -> dict[str, Any]:
    """Return the pools by names of settings, with what fits; GPUs, and USD per hour, low and high; what was assumed."""
    pools = plan_of(config)
    each = [pool.config.instances * pool.deployment.gpus for pool in pools]
    prices = [pool.deployment.gpu.price_usd_per_h for pool in pools]
    usd = [sum(count * price[end] for count, price in zip(each, prices, strict=True) if price) for end in (0, 1)]
    return {
        "gpus": sum(each),
        "instances": sum(pool.config.instances for pool in pools),
        "usd_per_h": usd if all(prices) else None,
        "pools": [
            {
                "name": pool.config.name,
                **pool.described,
                "gpus": count,
                "max_model_len": pool.max_model_len,
                "kv_tokens": pool.deployment.memory.kv_tokens,
                "weights_gb": pool.deployment.memory.weights_bytes / 1e9,
                "kv_gb": pool.deployment.memory.kv_bytes / 1e9,
            }
            for pool, count in zip(pools, each, strict=True)
        ],
        "assumed": assumed(config),
    }


def step_of(
    config: ClusterConfig, decode: Iterable[tuple[int, int]], prefill: Iterable[tuple[int, int]]
) -> tuple[Deployment, dict[str, Any]]:
    """Return the report of `llmirage step` for an instance of the first pool. Raises ConfigError."""
    deployment = plan_of(config)[0].deployment
    batch = StepBatch(tuple(prefill), [context for sequences, context in decode for _ in range(sequences)])
    if not batch.prefill and not batch.decode_contexts:
        raise ConfigError(["give at least one of decode=[(N, CONTEXT)] and prefill=[(TOKENS, CONTEXT)]"])
    return deployment, explain(deployment, batch) | {"assumed": assumed(config)}
