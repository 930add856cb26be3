"""The report of `llmirage size` as text and JSON, and the parts that the report of the highest rate shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.report.numbers import plural
from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulate.rates import rates_text
from llmirage_client.simulator.deployments import InstanceShape, Refused
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.error_margin import ErrorMargin, least_confident, margins_of_answer
from llmirage_client.size.sizing import SAMPLED, CapacitySearch, Priced, Sizing
from llmirage_client.size.traffic import Traffic
from llmirage_client.size.trial import FEW_REQUESTS, Effort, Trial


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


_REASONS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The answer to a sizing, as lines, tables and JSON."""

    question: Question
    sizing: Sizing

    @property
    def answered(self) -> bool:
        return self.sizing.answer is not None

    def json(self) -> dict[str, Any]:
        sizing, traffic = self.sizing, self.question.traffic
        return {
            "model": self.question.base.model,
            "traffic": {"kind": traffic.kind, "amount": traffic.amount, "requests": traffic.source.text},
            "slo": [objective.text for objective in self.question.objectives],
            "goal": sizing.goal,
            "answer": None if sizing.answer is None else _priced_json(sizing.answer),
            "runners_up": [_priced_json(priced) for priced in sizing.runners_up],
            "given_up": [{**shape_json(search.shape), "reason": search.reason} for search in sizing.given_up],
            "not_looked_at": [{**shape_json(shape), "at_least_instances": least} for shape, least in sizing.left],
            **self.question.end_json(sizing.refused, sizing.effort),
        }

    def blocks(self) -> Iterator[Block]:
        question, answer = self.question, self.sizing.answer
        yield f"{question.base.model}, {question.traffic.text}: {question.traffic.source.text}"
        yield f"Objectives: {question.slo}"
        yield ""
        if answer is None:
            yield bold("No deployment meets the objectives.", bad=True)
            yield from self._why_nothing()
        else:
            yield bold(answer_line(answer))
            yield from _between(answer)
            yield from self._details(answer)
            yield ""
            yield from self._others()
        yield ""
        yield from self._left_out()
        yield from question.end_lines(self.sizing.effort)

    def _details(self, answer: Priced) -> Iterator[Block]:
        trial = answer.capacity.trial
        table = plain_table("objective", "simulated", "of the limit", "90 % band", "verdict")
        margins = margins_of_answer(answer.capacity)
        for verdict, margin in zip(trial.verdicts, margins, strict=True):
            share = f"{verdict.load:.0%}"
            table.add_row(verdict.objective.text, value_text(verdict), share, margin.band_text, margin.confidence)
        yield table
        yield ""
        tightest = trial.tightest
        if tightest is not None:
            left = max(0.0, 1 - tightest.load)
            yield f"Binding objective: {tightest.objective.text}, with a margin of {left:.0%} of its limit."
        yield from about_lines(margins)
        yield from notes_of(answer, self.question.traffic)

    def _others(self) -> Iterator[Block]:
        if not self.sizing.runners_up:
            return
        table = plain_table("runners-up", "GPUs", "USD/h", "tightest", "of its limit", "verdict")
        for priced in self.sizing.runners_up:
            trial = priced.capacity.trial
            confidence = least_confident(margins_of_answer(priced.capacity))
            table.add_row(name_of(priced), str(priced.gpus), usd(priced.usd_per_h), *tightest_cells(trial), confidence)
        yield table

    def _why_nothing(self) -> Iterator[str]:
        near = nearest(self.sizing)
        if near is not None:
            search, verdict = near
            missed = f": {verdict.objective.text} was {value_text(verdict)}, {verdict.load:,.1f} times its limit"
            yield f"The closest was {shape_name(search.shape)}{missed if verdict.load < 1e6 else ''}."
        if self.sizing.left:
            yield "More GPUs than --max-gpus allows: " + "; ".join(
                f"{shape_name(shape)} needs {plural(least, 'instance')} or more" for shape, least in self.sizing.left
            )

    def _left_out(self) -> Iterator[str]:
        given_up = [(shape_name(search.shape), search.reason) for search in self.sizing.given_up]
        yield from _first_of(given_up, "more that meet the objectives at no number of instances")
        yield from _first_of(refused_rows(self.sizing.refused), "more that cannot be deployed")
        if self.sizing.answer is None:
            return
        if self.sizing.left:
            names = ", ".join(f"{least} x {shape_name(shape)}" for shape, least in self.sizing.left)
            yield f"Not simulated, because more expensive than the answer: {names} or more"
        yield f"Prices: {self.question.price_source}"


def _first_of(rows: list[tuple[str, str]], rest: str) -> Iterator[str]:
    yield from (f"{name}: {reason}" for name, reason in rows[:_REASONS_SHOWN])
    if len(rows) > _REASONS_SHOWN:
        yield f"... and {len(rows) - _REASONS_SHOWN} {rest} (--json has all)"


def answer_line(priced: Priced) -> str:
    """Return the line that names a deployment, its GPUs and its cost."""
    cost = "" if priced.usd_per_h is None else f", {priced.usd_per_h:,.2f} USD/h"
    return f"{name_of(priced)}: {plural(priced.gpus, 'GPU')}{cost}"


def _between(priced: Priced) -> Iterator[str]:
    """Yield a line on the instance counts that simulation noise leaves open."""
    capacity = priced.capacity
    if capacity.fewest == capacity.most:
        return
    joined = "or" if capacity.most - capacity.fewest == 1 else "to"
    yield (
        f"{capacity.fewest} {joined} {capacity.most} instances: the noise of the simulations cannot tell these apart "
        "(more --requests can)."
    )


def name_of(priced: Priced) -> str:
    """Return the name of a deployment: instances and shape."""
    return f"{priced.capacity.instances} x {shape_name(priced.capacity.shape)}"


def notes_of(priced: Priced, traffic: Traffic) -> Iterator[str]:
    """Yield notes on how the metrics were simulated."""
    capacity, trial = priced.capacity, priced.capacity.trial
    users = trial.figures["users"]
    yield (
        f"In-flight requests: {users:,.0f}, or {users / trial.config.instances:,.1f} per instance. "
        f"Output tokens/s: {trial.figures['output_tok_per_s']:,.0f}."
    )
    yield from rates_of(trial)
    if capacity.sampled:
        instances = f"{SAMPLED} of the {capacity.instances} instances"
        yield f"Based on a simulation of {instances} with {trial.traffic}, at least their share of the traffic."
    elif trial.amount != traffic.amount:
        yield f"Based on a simulation of one instance with {trial.traffic}, more than its share of the traffic."
    if trial.counted < FEW_REQUESTS:
        yield f"Only {plural(trial.counted, 'request')} counted: high percentiles are unreliable."


def nearest(sizing: Sizing) -> tuple[CapacitySearch, Verdict] | None:
    """Return the excluded shape that came closest to the objectives, and its verdict."""
    known = [(search, search.nearest) for search in sizing.given_up if search.nearest is not None]
    return min(known, key=lambda pair: pair[1].load, default=None)


def _priced_json(priced: Priced) -> dict[str, Any]:
    capacity, trial = priced.capacity, priced.capacity.trial
    return {
        **shape_json(capacity.shape),
        "instances": capacity.instances,
        "instances_between": [capacity.fewest, capacity.most],
        "gpus": capacity.gpus,
        "usd_per_h": priced.usd_per_h,
        "objectives": verdicts_json(trial, margins_of_answer(capacity)),
        "judged_at": {"instances": trial.config.instances, "amount": trial.amount},
        "figures": trial.figures,
    }
