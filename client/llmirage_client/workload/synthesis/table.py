"""The generated workload beside its parameters, and the parameters as a commented YAML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmirage_client.workload.synthesis.conversations import Plan
from llmirage_client.workload.synthesis.parameters import PARAMETERS, Values
from llmirage_client.workload.synthesis.profile import Profile

_SAMPLES = 100_000


@dataclass(slots=True, frozen=True)
class Moments:
    """Mean and percentiles of a sample."""

    mean: float
    p50: float
    p95: float


@dataclass(slots=True, frozen=True)
class Line:
    """One parameter: how it was asked for, the figures of that distribution, and those of what was drawn."""

    name: str
    asked_as: str
    asked: Moments
    drawn: Moments
    count: int


def compare(profile: Profile, plan: Plan) -> list[Line]:
    """Return a line for every distribution that was drawn from. asked: figures of 100,000 draws; the same in every call."""
    lines = []
    for name, distribution in profile.distributions.items():
        drawn = plan.drawn.get(name)
        if not drawn:
            continue
        source = np.random.default_rng(0)
        seconds = name.endswith("wait_s")
        wanted: Any = distribution.sample(source, _SAMPLES) if seconds else distribution.counts(source, _SAMPLES)
        lines.append(Line(name, str(distribution), _figures(wanted), _figures(drawn), len(drawn)))
    return lines


def gaps(plan: Plan) -> tuple[float, float] | None:
    """Return arrivals per second and how the gaps between them vary (standard deviation over mean); None without times."""
    times = [c.arrival_s for c in plan.conversations if c.arrival_s is not None]
    if len(times) < 3 or times[-1] <= 0:
        return None
    between = np.diff(np.array(times))
    return float(1 / between.mean()), float(between.std() / between.mean())


def _figures(values: Sequence[float] | Any) -> Moments:
    array = np.asarray(values, dtype=np.float64)
    p50, p95 = np.percentile(array, [50, 95])
    return Moments(float(array.mean()), float(p50), float(p95))


def as_yaml(values: Values) -> str:
    """Return all parameters; reading the text gives the same values."""
    lines = []
    section = ""
    for name, parameter in PARAMETERS.items():
        group, dot, key = name.rpartition(".")
        if group != section:
            section = group
            if dot:
                lines.append(f"{group}:")
        indent = "  " if dot else ""
        lines.append(f"{indent}{key}: {_shown(values[name])}  # {parameter.help}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    if value.get("distribution") == "constant":
        return json.dumps(value["value"])
    return "{" + ", ".join(f"{key}: {json.dumps(entry)}" for key, entry in value.items()) + "}"
