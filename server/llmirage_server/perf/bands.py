"""Within which factor of a figure measured servers lie: prediction intervals from the errors on measured runs.

An interval is symmetric in the logarithm: from value / f to value x f. tools/accuracy/bands.py works f out, docs/accuracy.md
has its coverage of groups of runs that were left out. The data are read when a figure is first asked for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from llmirage_server.perf.catalogue.gpus import FITTED as FITTED_GPU
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import FITTED_MODEL, ModelSpec

if TYPE_CHECKING:
    from llmirage_server.perf.deployment import Deployment

Quantity = Literal["ttft", "tpot", "latency", "throughput"]
QUANTITIES: tuple[Quantity, ...] = ("ttft", "tpot", "latency", "throughput")
Share = Literal[50, 90]
SHARES: tuple[Share, ...] = (50, 90)  # per cent of measured runs within the interval

UNKNOWN = 10.0  # a factor: figures that may be ten times as high, or a tenth, are far from all that was measured
_CLASSES = {"moe": "mixtures of experts", "dense": "dense models"}


@dataclass(frozen=True, slots=True)
class Band:
    """factors: by quantity and share. of: which runs it comes from. caution: what of deployment or load was not measured.

    measured: whether runs of its GPU, and of its kind of model under its engine, are among them.
    """

    factors: dict[Quantity, dict[Share, float]]
    of: str
    caution: str = ""
    measured: bool = True

    def factor(self, quantity: Quantity, share: Share) -> float | None:
        """Return the factor within which that share of measured runs lies; None: the figure may be anything."""
        factors = self.factors[quantity]
        return factors[share] if factors[90] <= UNKNOWN else None

    def interval(self, quantity: Quantity, value: float, share: Share) -> tuple[float, float] | None:
        """Return the values between which that share of measured runs lies; None: not known."""
        factor = self.factor(quantity, share)
        return None if factor is None else (value / factor, value * factor)

    @property
    def about(self) -> str:
        caution = f"; {self.caution}" if self.caution else ""
        return f"of {self.of}{caution} (docs/accuracy.md)"


def family_of(model: str) -> str:
    """Return the family that a model's name begins with: Qwen3.5 of Qwen/Qwen3.5-397B-A17B; its sizes are one family."""
    name = model.rpartition("/")[2].removeprefix("Meta-")
    found = re.match(r"[A-Za-z]+(?:[-.]?[A-Za-z]*\d+(?:\.\d+)?(?![\d.]*[Bb]\b)|-oss)?", name)
    return found[0] if found else name


def strata(kernels: str, kind: str, engine: str, gpu: str, weights: str, family: str) -> list[str]:
    """Names of the groups that a run belongs to, the widest first: kernels are "measured" or "transferred"."""
    parts = (kernels, kind, engine, gpu, weights, family)
    return [" ".join(parts[:n]) for n in range(len(parts) + 1)]


def strata_for(model: ModelSpec, gpu: GpuSpec, engine: str, weights: str) -> list[str]:
    """Return the names of the groups that runs of a model belong to, the widest first. engine: its base."""
    measured = gpu.confidence == FITTED_GPU and model.confidence in ("", FITTED_MODEL)
    kind = "moe" if model.moe else "dense"
    return strata("measured" if measured else "transferred", kind, engine, gpu.key, weights, family_of(model.name))


def strata_of(deployment: Deployment) -> list[str]:
    """Return the names of the groups that runs of a deployment belong to, the widest first."""
    return strata_for(deployment.model, deployment.gpu, deployment.engine.base, deployment.weight_dtype)


def band_of(deployment: Deployment, concurrency: float | None = None, isl: float | None = None) -> Band:
    """Return the band of the narrowest group with measured runs, wider beyond the measured loads.

    How many typical errors wide: as many as runs of other deployments show where the family was measured in this format on
    this GPU under this engine; else as many as whole families, GPUs and versions do that are left out. A GPU without runs
    whose kernels are another's has at least the band that the catalogue gives these.

    concurrency: requests in flight on an instance. isl: tokens of a prompt, mean. None: not known.
    """
    data, names = _data(), strata_of(deployment)
    known = [name for name in names if name in data["groups"]]
    group = data["groups"][known[-1]]
    doublings, why = 0.0, []
    for name, value in (("concurrency", concurrency), ("isl", isl)):
        most = group[name]
        if value and value > most:
            doublings = max(doublings, math.log2(value / most))
            what = "requests in flight" if name == "concurrency" else "tokens of a prompt"
            why.append(f"{value:,.0f} {what}, measured were at most {most:,.0f}")
    gpu = _unmeasured_gpu(deployment, data["groups"])
    least = math.log1p(deployment.gpu.within) if gpu else 0.0
    factors: dict[Quantity, dict[Share, float]] = {}
    for quantity in QUANTITIES:
        by_engine = data["levels"][quantity]
        seen = known[-1] == names[-1]
        levels = data["seen"][quantity] if seen else by_engine.get(deployment.engine.base, by_engine[""])
        width = max(group["scale"][quantity], least / levels[-1]) * _growth(data["beyond"][quantity], doublings)
        factors[quantity] = {share: math.exp(width * level) for share, level in zip(SHARES, levels, strict=True)}
    unmeasured = [*filter(None, [gpu]), *_unmeasured(deployment, data["groups"])]
    return Band(factors, _about(data["groups"], known), "; ".join([*unmeasured, *why]), not unmeasured)


def _growth(measured: Sequence[float], doublings: float) -> float:
    """Return the factor of a width so many doublings of a load beyond the measured ones.

    measured: after one, two, ... doublings, between which it is linear. Beyond the last nothing is known.
    """
    if doublings > len(measured):
        return math.inf
    whole = math.ceil(doublings)
    below, above = ([1.0, *measured][max(0, at)] for at in (whole - 1, whole))
    return above - (whole - doublings) * (above - below)


def _unmeasured_gpu(deployment: Deployment, groups: dict[str, Any]) -> str:
    """Return, in words, that no measured run tells of the GPU; "": some do."""
    _, kind, _, gpu, *_ = strata_of(deployment)[-1].split()
    kinds = {parts[1] for parts in map(str.split, groups) if len(parts) == 4 and parts[3] == gpu}
    if not kinds:
        least = f", at least the {100 * within:.0f} % of its kernels" if (within := deployment.gpu.within) else ""
        return f"no measured runs of {deployment.gpu.name}; band from all others{least}"
    if deployment.gpu.confidence != FITTED_GPU and kind not in kinds:
        return f"no measured runs of {_CLASSES[kind]} on {deployment.gpu.name}, whose kernels were fitted on others alone"
    return ""


def _unmeasured(deployment: Deployment, groups: dict[str, Any]) -> Iterator[str]:
    """Yield what else of the deployment no measured run had."""
    kind, engine = strata_of(deployment)[3].split()[1:]
    seen = [name.split() for name in groups if len(name.split()) >= 4]
    family = family_of(deployment.model.name)
    if not any(parts[5:] == [family] for parts in seen):
        yield f"no measured runs of the family {family}; band from other families"
    if not any(parts[1:3] == [kind, engine] for parts in seen):
        yield f"no measured runs of {_CLASSES[kind]} under {deployment.engine.title}"
    if deployment.perf_model == "silicon":
        yield "the band is that of the roofline model"
    if deployment.speculative is not None:
        yield "no measured runs with speculation in the band"


def _about(groups: dict[str, Any], known: Sequence[str]) -> str:
    """Return the runs in words; the narrow group draws on the wider ones."""
    group, everything = groups[known[-1]], groups[""]
    parts = known[-1].split()
    if not parts:
        return f"{everything['runs']:,} measured runs"
    named = [
        {"measured": "", "transferred": "GPUs or models with kernels of others"}[parts[0]],
        *(_CLASSES[kind] for kind in parts[1:2]),
        *parts[2:],
    ]
    what = ", ".join(name for name in named if name) or "measured GPUs"
    return f"{everything['runs']:,} measured runs, {group['runs']:,} of them of {what}"


@cache
def _data() -> dict[str, Any]:
    text = files("llmirage_server.perf.catalogue").joinpath("data/bands.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
