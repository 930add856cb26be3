"""How far the performance model was off on measured servers that are like a configuration: figures of docs/accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from llmirage_client.simulator.engine import ClusterConfig, ServedPool, plan_of
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.confidence import FITTED
from llmirage_server.perf.errors import DeploymentError

METRICS = ("latency", "tpot", "ttft")
_ENOUGH_RUNS = 5  # of a deployment, for errors of its own


@dataclass(frozen=True, slots=True)
class RelativeError:
    """Of the absolute relative error over comparable runs: median and 90th percentile, shares of the measured value."""

    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """of: which runs were compared, and how many. errors: by METRICS. caution: why they may say too little; "" if they do
    not."""

    of: str
    runs: int
    errors: Mapping[str, RelativeError]
    caution: str = ""


def band_of(config: ClusterConfig) -> ErrorBand | None:
    """The errors of the very deployment where enough runs of it were compared; else the larger ones of its model on other
    GPUs and of other models on its GPU. None where its GPU was not among the measured, or times are the user's own.
    Of several pools, those of the first. Raises ConfigError.
    """  # fmt: skip
    pool = plan_of(config)[0]
    return None if pool.config.fixed_times else _band(pool)


def _band(pool: ServedPool) -> ErrorBand | None:
    deployment, data = pool.deployment, _data()
    gpu = data["gpus"].get(deployment.gpu.key)
    if gpu is None:
        return None
    alike = [family for family in data["models"] if _same(_spec(family), deployment.model)]
    parallel = deployment.parallel
    split = "".join(f" {name}{size}" for name, size in (("dp", parallel.dp), ("ep", parallel.ep)) if size > 1)
    for family in alike:
        name = f"{family} {deployment.weight_dtype} {deployment.gpu.key} {deployment.engine.base} tp{parallel.tp}{split}"
        own = data["deployments"].get(name)
        if parallel.pp == 1 and own is not None and own["runs"] >= _ENOUGH_RUNS:
            return ErrorBand(name, own["runs"], _errors(own))
    if alike:
        model = data["models"][alike[0]]
        worst = {metric: _worse(_errors(gpu)[metric], _errors(model)[metric]) for metric in METRICS}
        runs = gpu["runs"] + model["runs"]
        return ErrorBand(f"{alike[0]} anywhere and of all models on {deployment.gpu.key}", runs, worst)
    caution = f"{deployment.model.name} was not among the models"
    if deployment.model.confidence != FITTED and deployment.model.confidence:
        caution += f", and its times are {deployment.model.confidence}"
    return ErrorBand(f"other models on {deployment.gpu.key}", gpu["runs"], _errors(gpu), caution)


def _worse(one: RelativeError, other: RelativeError) -> RelativeError:
    return RelativeError(max(one.median, other.median), max(one.p90, other.p90))


def _errors(group: Mapping[str, Any]) -> dict[str, RelativeError]:
    return {metric: RelativeError(group[metric][0] / 100, group[metric][1] / 100) for metric in METRICS}


def _spec(family: str) -> ModelSpec | None:
    try:
        return find_model(family)
    except DeploymentError:
        return None


def _same(measured: ModelSpec | None, model: ModelSpec) -> bool:
    """Whether they are one architecture, whatever their weights were trained on."""
    if measured is None:
        return False
    return (measured.hidden, measured.vocab, measured.groups) == (model.hidden, model.vocab, model.groups)


@cache
def _data() -> dict[str, Any]:
    text = files("llmirage_server.perf.catalogue").joinpath("data/accuracy.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
