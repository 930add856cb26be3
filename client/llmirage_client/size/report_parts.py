"""Parts of both answers of `llmirage size`: names of shapes, lines about the search, the common keys of the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.report.numbers import plural
from llmirage_client.simulate.rates import rates_text
from llmirage_client.simulator.deployments import InstanceShape, Refused
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.error_margin import ErrorMargin
from llmirage_client.size.traffic import Traffic
from llmirage_client.size.trial import Effort, Trial


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a sizing. notes: which parts of the input are not used."""

    base: ClusterConfig
    traffic: Traffic
    objectives: Sequence[Objective]
    price_source: str
    notes: Sequence[str] = ()

    @property
    def slo(self) -> str:
        return ", ".join(objective.text for objective in self.objectives)

    def end_json(self, refused: Iterable[Refused], effort: Effort) -> dict[str, Any]:
        """Return the keys that both answers end with."""
        return {
            "refused": [{**shape_json(one.shape), "reason": one.reason} for one in refused],
            "notes": list(self.notes),
            "price_source": self.price_source,
            "simulations": effort.simulations,
            "simulated_requests": effort.requests,
            "cpu_s": round(effort.cpu_s, 3),
        }

    def end_lines(self, effort: Effort) -> Iterator[str]:
        yield from (f"Note: {note}" for note in self.notes)
        yield effort_text(effort)


def shape_name(shape: InstanceShape) -> str:
    """Return the name of a shape: GPU, parallelism, engine, weights."""
    engine = "" if shape.engine is None else f" {shape.engine}"
    return f"{shape.gpu} {shape.split}{engine} {shape.weights}"


def shape_json(shape: InstanceShape) -> dict[str, Any]:
    """Return the fields of a shape for JSON."""
    names = ("gpu", "engine", "weights", "tp", "pp", "dp", "ep")
    return {name: getattr(shape, name) for name in names}


def refused_rows(refused: Iterable[Refused]) -> list[tuple[str, str]]:
    """Name and reason of shapes that cannot be deployed."""
    return [(shape_name(one.shape), f"cannot be deployed: {one.reason}") for one in refused]


def verdicts_json(trial: Trial, margins: Iterable[ErrorMargin]) -> list[dict[str, Any]]:
    """Return the verdicts with their margins for JSON."""
    return [
        {
            "objective": verdict.objective.text,
            "value": verdict.value,
            "limit": verdict.objective.limit,
            "unit": verdict.objective.metric.unit,
            "share_of_limit": verdict.load,
            "verdict": margin.confidence,
            "band_50": margin.half,
            "band_90": margin.most,
            "band_of": margin.of,
        }
        for verdict, margin in zip(trial.verdicts, margins, strict=True)
    ]


def tightest_cells(trial: Trial) -> tuple[str, str]:
    """Return the tightest objective, and the share of its limit that is used."""
    tightest = trial.tightest
    return ("-", "-") if tightest is None else (tightest.objective.text, f"{tightest.load:.0%}")


def about_lines(margins: Iterable[ErrorMargin]) -> list[str]:
    """Return the sources of the bands, each sentence once."""
    return list(dict.fromkeys(margin.about for margin in margins))


def rates_of(trial: Trial) -> Iterator[str]:
    """Yield the offered and the delivered rate, side by side; nothing for users at once."""
    if trial.rates is not None:
        yield rates_text(trial.rates)


def value_text(verdict: Verdict) -> str:
    """Return the measured value with its unit."""
    return "nothing" if verdict.value is None else f"{verdict.value:,.4g} {verdict.objective.metric.unit}"


def usd(price: float | None) -> str:
    """Return an amount of US dollars, "-" if it is unknown."""
    return "-" if price is None else f"{price:,.2f}"


def effort_text(effort: Effort) -> str:
    """Return the number of simulations and requests, and the CPU time they took."""
    return f"{plural(effort.simulations, 'simulation')} of {effort.requests:,} requests in total, {effort.cpu_s:.1f} CPU s"
