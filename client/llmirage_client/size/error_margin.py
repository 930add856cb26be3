"""The distance of a simulated figure from its limit, compared with the errors of the model against measured servers.

safe: the objective would still be met at the worse end of the band of 90 % of measured runs. marginal: at that of 50 %. not
proven: not even that, or there is nothing to compare. Where nothing alike was measured, it is one step less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.bands import Band, Quantity, band_of_cluster
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.trial import Trial

Confidence = Literal["safe", "marginal", "not proven"]
_RANK: dict[Confidence, int] = {"safe": 0, "marginal": 1, "not proven": 2}

# The measured quantity whose band applies to a metric.
_COMPARED: dict[str, Quantity] = {
    "time_to_first_token": "ttft",
    "first_turn_time_to_first_token": "ttft",
    "subsequent_turn_time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "tpot",
    "output_token_throughput_per_user": "tpot",
    "request_latency": "latency",
    "request_throughput": "throughput",
    "output_token_throughput": "throughput",
    "total_token_throughput": "throughput",
}


@dataclass(frozen=True, slots=True)
class ErrorMargin:
    """half, most: between which values 50 and 90 % of measured runs lie, in the unit of the objective. of: which runs."""

    confidence: Confidence
    about: str
    half: tuple[float, float] | None = None
    most: tuple[float, float] | None = None
    of: str | None = None

    @property
    def band_text(self) -> str:
        return "not known" if self.most is None else f"{self.most[0]:,.4g} to {self.most[1]:,.4g}"


def error_margin(
    verdict: Verdict, config: ClusterConfig, concurrency: float | None = None, isl: float | None = None
) -> ErrorMargin:
    """concurrency, isl: see perf.bands.band_of."""
    band = band_of_cluster(config, concurrency, isl)
    quantity = _COMPARED.get(verdict.objective.metric.tag)
    if band is None or quantity is None or verdict.value is None:
        why = "times of the user's own have no band" if band is None else f"{verdict.objective.name} was never compared"
        return ErrorMargin("not proven", f"Band: {why}.")
    half, most = (band.interval(quantity, verdict.value, share) for share in (50, 90))
    confidence: Confidence = "not proven"
    if _holds(verdict, most):
        confidence = "safe"
    elif _holds(verdict, half):
        confidence = "marginal"
    if not band.measured:
        confidence = "not proven" if confidence == "marginal" else "marginal" if confidence == "safe" else confidence
    return ErrorMargin(confidence, _about(band), half, most, band.of)


def margins_of(trial: Trial) -> list[ErrorMargin]:
    """One for each verdict of the trial, at the worse end of what the noise of the simulation leaves open."""
    pairs = zip(trial.verdicts, trial.intervals, strict=True)
    worst = [
        verdict if interval is None else replace(verdict, value=interval.worse(verdict.objective))
        for verdict, interval in pairs
    ]
    concurrency = trial.figures.get("users", 0.0) / trial.config.instances
    return [error_margin(verdict, trial.config, concurrency, trial.figures.get("isl")) for verdict in worst]


def least_confident(margins: Iterable[ErrorMargin]) -> Confidence:
    return max((margin.confidence for margin in margins), key=lambda confidence: _RANK[confidence])


def _holds(verdict: Verdict, interval: tuple[float, float]) -> bool:
    """Whether the objective is met at the worse end of the interval."""
    return verdict.objective.met_by(interval[1] if verdict.objective.comparison[0] == "<" else interval[0])


def _about(band: Band) -> str:
    return f"Band: within which 90 % of measured means lie, {band.about}."
