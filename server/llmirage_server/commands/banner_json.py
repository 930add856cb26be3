"""What `llmirage serve --json` prints: what is served, and at the end how well the server kept time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmirage_server.app import LlmirageApp
from llmirage_server.config.planning import ServedPool
from llmirage_server.drivers.pacing import PacingSummary


def served(app: LlmirageApp, url: str, fleet: Sequence[str] = ()) -> dict[str, Any]:
    """Return the start-up facts of `llmirage serve --json`."""
    config = app.config
    return {
        "url": url,
        "api": f"{url}/v1",
        "fleet": list(fleet),
        "models": list(app.model_names),
        "router": config.router,
        "speed": "max" if config.speed == float("inf") else config.speed,
        "pools": [_pool(pool) for pool in app.pools],
    }


def _pool(pool: ServedPool) -> dict[str, Any]:
    deployment, config = pool.deployment, pool.config
    return {
        "name": config.name,
        "role": config.role,
        "models": list(pool.names),
        "gpu": deployment.gpu.name,
        "gpus": config.instances * deployment.gpus,
        "instances": config.instances,
        "deployment": deployment.describe(),
        "engine": deployment.engine.title,
        "kv_capacity_tokens": pool.limits.kv_capacity_tokens,
        "max_model_len": pool.max_model_len,
        "assumed": list(pool.assumptions.values()),
    }


def pacing_json(summary: PacingSummary) -> dict[str, Any] | None:
    """None where no token was sent."""
    return asdict(summary) if summary.tokens else None
