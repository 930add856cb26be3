"""The report of `llmirage size` as text and JSON, and the parts that the report of the highest rate shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.report.numbers import plural
from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulate.rates import rates_text
from llmirage_client.simulator.deployments import OF_SPLIT, InstanceShape, Refused, assumed
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.error_margin import ErrorMargin, least_confident, margins_of_answer
from llmirage_client.size.sizing import SAMPLED, Priced, Sizing
from llmirage_client.size.traffic import Traffic
from llmirage_client.size.trial import FEW_REQUESTS, Effort, Trial


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a sizing.

    notes: which parts of the input are not used.
    shapes: all that were considered, impossible ones included.
    explain: tell all that are left out, with the arithmetic behind it.
    """

    base: ClusterConfig
    traffic: Traffic
    objectives: Sequence[Objective]
    price_source: str
    notes: Sequence[str] = ()
    shapes: Sequence[InstanceShape] = ()
    explain: bool = False

    @property
    def slo(self) -> str:
        return ", ".join(objective.text for objective in self.objectives)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Values of each axis of the shapes, in the order of the search."""
        return {name: list(dict.fromkeys(getattr(shape, name) for shape in self.shapes)) for name in _AXES if self.shapes}

    def head_lines(self, searched_first: str) -> Iterator[str]:
        """Yield the objectives, which axes were searched and which were not, and what was assumed."""
        yield f"Objectives: {self.slo}"
        yield from (note for note in self.notes if note.startswith("Assumed"))
        if not self.shapes:
            return
        texts = {
            name: f"{_AXES[name]} {', '.join(map(str, sorted(values) if len(values) > 1 else values))}"
            for name, values in self.axes.items()
            if values != [None]
        }
        searched = [searched_first, *(text for name, text in texts.items() if len(self.axes[name]) > 1)]
        fixed = [text for name, text in texts.items() if len(self.axes[name]) == 1]
        yield f"Searched: {'; '.join(searched)}. Held fixed: {'; '.join(fixed)}, and all else."

    def end_json(self, refused: Iterable[Refused], effort: Effort) -> dict[str, Any]:
        """Return the keys that both answers end with."""
        return {
            "refused": [{**shape_json(one.shape), "reason": one.reason} for one in refused],
            "searched": self.axes,
            "notes": list(self.notes),
            "price_source": self.price_source,
            "simulations": effort.simulations,
            "simulated_requests": effort.requests,
            "cpu_s": round(effort.cpu_s, 3),
        }

    def end_lines(self, effort: Effort) -> Iterator[str]:
        yield from (f"Note: {note}" for note in self.notes if not note.startswith("Assumed"))
        yield effort_text(effort)


def shape_name(shape: InstanceShape) -> str:
    """Return the name of a shape: GPU, parallelism, engine, weights."""
    engine = "" if shape.engine is None else f" {shape.engine}"
    return f"{shape.gpu} {shape.split}{engine} {shape.weights}"


_AXES = {"gpu": "GPU", "engine": "engine", "weights": "weights", "tp": "TP", "pp": "PP", "dp": "DP", "ep": "EP"}


def shape_json(shape: InstanceShape) -> dict[str, Any]:
    """Return the fields of a shape for JSON."""
    return {name: getattr(shape, name) for name in _AXES}


def refused_rows(refused: Iterable[Refused], explain: bool) -> list[tuple[str, str]]:
    """Name and reason of shapes that cannot be deployed. explain: with the arithmetic behind it."""
    return [(shape_name(one.shape), f"cannot be deployed: {reason_text(one.reason, explain)}") for one in refused]


def reason_text(reason: str, explain: bool) -> str:
    """Return a reason in one line; without explain, what stands beside the name anyway is left out."""
    return ": ".join(reason.split("\n")) if explain else reason.partition("\n")[0].rpartition(" does not fit: ")[2]


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
_ALL = " (--explain and --json have all)"


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
            "missed": list(missed_lines(sizing)) if sizing.answer is None else [],
            "given_up": [{**shape_json(search.shape), "reason": search.reason} for search in sizing.given_up],
            "not_looked_at": [{**shape_json(one.shape), "at_least_instances": one.least} for one in sizing.left],
            **self.question.end_json(sizing.refused, sizing.effort),
        }

    def blocks(self) -> Iterator[Block]:
        question, answer = self.question, self.sizing.answer
        yield f"{question.base.model}, {question.traffic.text}: {question.traffic.source.text}"
        yield from question.head_lines("instances")
        yield ""
        if answer is None:
            yield bold("No deployment meets the objectives.", bad=True)
            yield from missed_lines(self.sizing)
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

    def _left_out(self) -> Iterator[str]:
        given_up = [(shape_name(search.shape), search.reason) for search in self.sizing.given_up]
        shown = None if self.question.explain else _REASONS_SHOWN
        yield from first_of(given_up, shown, f"more that meet the objectives at no number of instances{_ALL}")
        yield from first_of(
            refused_rows(self.sizing.refused, self.question.explain), shown, f"more that cannot be deployed{_ALL}"
        )
        if self.sizing.answer is None:
            return
        if self.sizing.left:
            names = ", ".join(f"{search.least} x {shape_name(search.shape)}" for search in self.sizing.left)
            yield f"Not simulated, because more expensive than the answer: {names} or more"
        yield f"Prices: {self.question.price_source}"


def first_of(rows: list[tuple[str, str]], count: int | None, rest: str) -> Iterator[str]:
    """Yield a line for each of the first `count` rows, and how many more there are."""
    yield from (f"{name}: {reason}" for name, reason in rows[:count])
    if count is not None and len(rows) > count:
        yield f"... and {len(rows) - count} {rest}"


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
    yield from (f"Assumed of it: {text}." for text in assumed(trial.config, only=OF_SPLIT))
    yield from rates_of(trial)
    if capacity.sampled:
        instances = f"{SAMPLED} of the {capacity.instances} instances"
        yield f"Based on a simulation of {instances} with {trial.traffic}, at least their share of the traffic."
    elif trial.amount != traffic.amount:
        yield f"Based on a simulation of one instance with {trial.traffic}, more than its share of the traffic."
    if trial.counted < FEW_REQUESTS:
        yield f"Only {plural(trial.counted, 'request')} counted: high percentiles are unreliable."


def missed_lines(sizing: Sizing) -> Iterator[str]:
    """Yield by how much the best deployments miss the objectives, where none meets them."""
    known = [(search, search.nearest) for search in sizing.given_up if search.nearest is not None]
    if known:
        search, verdict = min(known, key=lambda pair: pair[1].load)
        yield f"The closest was {shape_name(search.shape)}: {_missed_text(verdict)}."
    for search in sorted(sizing.left, key=lambda search: search.shape.gpus * (search.least or 0)):
        least = search.least or 0
        gpus = search.shape.gpus * least
        line = (
            f"{shape_name(search.shape)}: {plural(least, 'instance')} or more needed, {plural(gpus, 'GPU')}, "
            f"{gpus / sizing.max_gpus:,.2g} times --max-gpus {sizing.max_gpus:,}"
        )
        if sizing.nearest is not None and sizing.nearest[0] == search.shape:
            _, most, trial = sizing.nearest
            missed = [_missed_text(verdict) for verdict in trial.verdicts if not verdict.met]
            line += f"; with {most:,}, {', '.join(missed or [trial.reason])}"
        yield f"{line}."


def _missed_text(verdict: Verdict) -> str:
    times = f", {verdict.load:,.3g} times its limit" if verdict.load < 1e6 else ""
    return f"{verdict.objective.text} was {value_text(verdict)}{times}"


def _priced_json(priced: Priced) -> dict[str, Any]:
    capacity, trial = priced.capacity, priced.capacity.trial
    return {
        **shape_json(capacity.shape),
        "instances": capacity.instances,
        "instances_between": [capacity.fewest, capacity.most],
        "gpus": capacity.gpus,
        "usd_per_h": priced.usd_per_h,
        "objectives": verdicts_json(trial, margins_of_answer(capacity)),
        "assumed": assumed(trial.config, only=OF_SPLIT),
        "judged_at": {"instances": trial.config.instances, "amount": trial.amount},
        "figures": trial.figures,
    }
