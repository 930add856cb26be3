"""The distance of a simulated figure from its limit, compared with its noise and the errors against measured servers.

A band is the interval of the simulation's own noise, widened at both ends by the factor within which 50 or 90 % of measured
runs lie, so it holds the figure itself. safe: the objective would still be met at the worse end of the band of 90 %.
marginal: at that of 50 %, if the noise does not rule out that more instances are needed, or if fewer than three requests
are expected beyond the percentile: without one beyond the limit, so few say nothing of it with 95 % confidence. not proven:
not even that, or there is nothing to compare. Where nothing alike was measured, it is one step less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.deployments import SHARES, UNKNOWN, Band, Quantity, Share, band_of_cluster, decoding
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.early_stopping import Interval
from llmirage_client.size.sizing import Capacity
from llmirage_client.size.trial import Trial
from llmirage_shared.plural import plural, rounded

Confidence = Literal["safe", "marginal", "not proven"]
_FEWEST_BEYOND = 3 - 1e-9  # the rule of three
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
    """half, most: the bands of 50 and 90 %, in the unit of the objective. of: from which measured runs.

    lowered: why the confidence is lower than the bands say.
    """

    confidence: Confidence
    about: str
    half: tuple[float, float] | None = None
    most: tuple[float, float] | None = None
    of: str | None = None
    lowered: str | None = None

    @property
    def band_text(self) -> str:
        return "unknown" if self.most is None else f"{rounded(self.most[0])} to {rounded(self.most[1])}"


def error_margin(
    verdict: Verdict,
    config: ClusterConfig,
    concurrency: float | None = None,
    isl: float | None = None,
    noise: Interval | None = None,
) -> ErrorMargin:
    """Return the margin of a verdict.

    concurrency, isl: see perf.bands.band_of. noise: where the figure lies in an endless simulation; None: where it is.
    """
    band = band_of_cluster(config, concurrency, isl)
    quantity = _COMPARED.get(verdict.objective.metric.tag)
    if band is None or quantity is None or verdict.value is None:
        why = "times of the user's own have no band" if band is None else f"{verdict.objective.name} was never compared"
        return ErrorMargin("not proven", f"Band: {why}.")
    noise = noise or Interval(verdict.value, verdict.value)
    if not math.isfinite(noise.high - noise.low):
        return ErrorMargin("not proven", f"Band: too few requests to know the noise of {verdict.objective.name}.")
    half, most = (_widened(noise, band, quantity, share) for share in SHARES)
    if half is None or most is None:
        return ErrorMargin("not proven", f"Band: unknown of {verdict.objective.name}, {band.about}.", of=band.of)
    if most[1] > UNKNOWN * verdict.value or most[0] * UNKNOWN < verdict.value:
        why = "too few requests for its noise, of which the band with the error is past a factor of ten"
        return ErrorMargin("not proven", f"Band: unknown of {verdict.objective.name}: {why}.", of=band.of)
    confidence: Confidence = "not proven"
    if _holds(verdict, most):
        confidence = "safe"
    elif _holds(verdict, half):
        confidence = "marginal"
    margin = ErrorMargin(confidence, _about(band), half, most, band.of)
    if band.measured or confidence == "not proven":
        return margin
    lower: Confidence = "marginal" if confidence == "safe" else "not proven"
    why = "Verdicts are one step lower than the bands say: nothing like it was measured."
    return replace(margin, confidence=lower, lowered=why)


def margins_of(trial: Trial) -> list[ErrorMargin]:
    """Return one for each verdict of the trial."""
    concurrency = trial.figures.get("users", 0.0) / decoding(trial.config)
    margins = [
        error_margin(verdict, trial.config, concurrency, trial.figures.get("isl"), noise)
        for verdict, noise in zip(trial.verdicts, trial.intervals, strict=True)
    ]
    for i, verdict in enumerate(trial.verdicts):
        statistic = verdict.objective.statistic
        if trial.counted * _beyond(statistic) < _FEWEST_BEYOND:
            why = f"No verdict on {statistic} is safe: fewer than 3 of {plural(trial.counted, 'request')} lie beyond."
            margins[i] = _not_safe(margins[i], why)
    return margins


def _beyond(statistic: str | None) -> float:
    """Return the share of requests on the smaller side of a percentile; 1 for other statistics."""
    if statistic is None or not statistic.startswith("p"):
        return 1.0
    share = float(statistic[1:]) / 100
    return min(share, 1 - share)


def _not_safe(margin: ErrorMargin, why: str) -> ErrorMargin:
    return replace(margin, confidence="marginal", lowered=why) if margin.confidence == "safe" else margin


def margins_of_answer(capacity: Capacity) -> list[ErrorMargin]:
    """Return one for each verdict of its trial; none is safe where the next number of instances may be needed."""
    margins = margins_of(capacity.trial)
    if capacity.most == capacity.instances:
        return margins
    why = f"No verdict is safe: the noise of the simulation may need {plural(capacity.most, 'instance')}."
    return [_not_safe(margin, why) for margin in margins]


def least_confident(margins: Iterable[ErrorMargin]) -> Confidence:
    """Return the lowest confidence among the margins."""
    return max((margin.confidence for margin in margins), key=lambda confidence: _RANK[confidence])


def _holds(verdict: Verdict, interval: tuple[float, float]) -> bool:
    """Return whether the objective is met at the worse end of the interval."""
    return verdict.objective.met_by(interval[1] if verdict.objective.comparison[0] == "<" else interval[0])


def _widened(noise: Interval, band: Band, quantity: Quantity, share: Share) -> tuple[float, float] | None:
    factor = band.factor(quantity, share)
    return None if factor is None else (max(noise.low, 0.0) / factor, noise.high * factor)


def _about(band: Band) -> str:
    return (
        "Band: where the noise of the simulation (95 % confidence) leaves the figure, widened at both ends by the factor "
        f"within which 90 % of measured means lie, {band.about}."
    )
