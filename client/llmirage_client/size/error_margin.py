"""The distance of a simulated figure from its limit, compared with the error of the model against measured servers.

safe: the objective would still be met if the model were as wrong as in the worst tenth of comparable runs. marginal: if it
were as wrong as in the median run, but not as in the worst tenth. not proven: not even that, or there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.accuracy import ErrorBand, band_of
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.trial import Trial

Confidence = Literal["safe", "marginal", "not proven"]
_RANK: dict[Confidence, int] = {"safe": 0, "marginal": 1, "not proven": 2}

# The compared metric whose error applies to a metric.
_COMPARED = {
    "time_to_first_token": "ttft",
    "first_turn_time_to_first_token": "ttft",
    "subsequent_turn_time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "tpot",
    "output_token_throughput_per_user": "tpot",
    "request_latency": "latency",
    "request_throughput": "latency",
    "output_token_throughput": "latency",
    "total_token_throughput": "latency",
}


@dataclass(frozen=True, slots=True)
class ErrorMargin:
    """median, p90: absolute error of the model, as shares of the measured value. of: the runs that were compared."""

    confidence: Confidence
    about: str
    median: float | None = None
    p90: float | None = None
    of: str | None = None

    @property
    def error_text(self) -> str:
        return "not known" if self.p90 is None else f"{self.median:.0%}, p90 {self.p90:.0%}"


def error_margin(verdict: Verdict, config: ClusterConfig) -> ErrorMargin:
    band = band_of(config)
    compared = _COMPARED.get(verdict.objective.metric.tag)
    if band is None or compared is None or verdict.value is None:
        why = "no run of a real server was compared" if band is None else f"{verdict.objective.name} was never compared"
        return ErrorMargin("not proven", why)
    error = band.errors[compared]
    confidence: Confidence = "not proven"
    if _holds(verdict, error.p90):
        confidence = "safe"
    elif _holds(verdict, error.median):
        confidence = "marginal"
    if band.caution:  # nothing comparable was measured: one step less
        confidence = "not proven" if confidence == "marginal" else "marginal" if confidence == "safe" else confidence
    return ErrorMargin(confidence, _about(band), error.median, error.p90, band.of)


def margins_of(trial: Trial) -> list[ErrorMargin]:
    """One for each verdict of the trial, at the worse end of what the noise of the simulation leaves open."""
    pairs = zip(trial.verdicts, trial.intervals, strict=True)
    worst = [
        verdict if interval is None else replace(verdict, value=interval.worse(verdict.objective))
        for verdict, interval in pairs
    ]
    return [error_margin(verdict, trial.config) for verdict in worst]


def least_confident(margins: Iterable[ErrorMargin]) -> Confidence:
    return max((margin.confidence for margin in margins), key=lambda confidence: _RANK[confidence])


def _holds(verdict: Verdict, error: float) -> bool:
    """Whether the objective is met if the simulated value is off by that share of the measured one, to the worse side."""
    assert verdict.value is not None
    if verdict.objective.comparison[0] == "<":
        return error < 1 and verdict.objective.met_by(verdict.value / (1 - error))
    return verdict.objective.met_by(verdict.value / (1 + error))


def _about(band: ErrorBand) -> str:
    more = f"; {band.caution}" if band.caution else ""
    return f"Errors: median and 90th percentile of {band.runs} measured runs of {band.of} (docs/accuracy.md){more}."
