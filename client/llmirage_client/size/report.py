"""The report of `llmirage size` as text and JSON, and the parts that the report of the highest rate shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulate.saturation import rates_text
from llmirage_client.simulator.deployments import (
    OF_SPLIT,
    ROLES,
    InstanceShape,
    PoolShape,
    Refused,
    Shape,
    assumed,
    decoding,
)
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.error_margin import ErrorMargin, least_confident, margins_of_answer
from llmirage_client.size.pools import PoolSizing, ratio_json
from llmirage_client.size.sizing import SAMPLED, Capacity, Priced, Sizing
from llmirage_client.size.traffic import Traffic
from llmirage_client.size.trial import FEW_REQUESTS, Effort, Trial
from llmirage_shared.plural import plural, rounded


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a sizing.

    notes: which parts of the input are not used.
    shapes: those that were considered. refused: others, which are not possible.
    effort: of the answer.
    explain: tell all that are left out, with the arithmetic behind it.
    """

    base: ClusterConfig
    traffic: Traffic
    objectives: Sequence[Objective]
    price_source: str
    notes: Sequence[str]
    shapes: Sequence[Shape]
    refused: Sequence[Refused]
    effort: Effort
    explain: bool

    @property
    def slo(self) -> str:
        return ", ".join(objective.text for objective in self.objectives)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Values of each axis of the shapes, in the order of the search."""
        every = (*self.shapes, *(one.shape for one in self.refused))
        shapes = [shape for shape in every if isinstance(shape, InstanceShape)]
        return {name: list(dict.fromkeys(getattr(shape, name) for shape in shapes)) for name in _AXES if shapes}

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
        fixed = [] if self.traffic.scenario is None else [self.traffic.text]
        fixed += [text for name, text in texts.items() if len(self.axes[name]) == 1]
        yield f"Searched: {'; '.join(searched)}. Held fixed: {'; '.join(fixed)}, and all else."

    def end_json(self) -> dict[str, Any]:
        """Return the keys that all answers end with."""
        return {
            "refused": [{**shape_json(one.shape), "reason": one.reason} for one in self.refused],
            "searched": self.axes,
            "notes": list(self.notes),
            "price_source": self.price_source,
            "simulations": self.effort.simulations,
            "simulated_requests": self.effort.requests,
            "cpu_s": round(self.effort.cpu_s, 3),
        }

    def end_lines(self) -> Iterator[str]:
        yield from (f"Note: {note}" for note in self.notes if not note.startswith("Assumed"))
        yield effort_text(self.effort)


_AXES = {"gpu": "GPU", "engine": "engine", "weights": "weights", "tp": "TP", "pp": "PP", "dp": "DP", "ep": "EP"}


def shape_json(shape: Shape) -> dict[str, Any]:
    """Return the fields of a shape for JSON."""
    if isinstance(shape, PoolShape):
        return {role: shape_json(getattr(shape, role)) for role in ROLES}
    return {name: getattr(shape, name) for name in _AXES}


def refused_rows(refused: Iterable[Refused], explain: bool) -> list[tuple[str, str]]:
    """Name and reason of shapes that cannot be deployed. explain: with the arithmetic behind it."""
    return [(one.shape.name, f"cannot be deployed: {reason_text(one.reason, explain)}") for one in refused]


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
    told = [*(margin.about for margin in margins), *(margin.lowered for margin in margins)]
    return [text for text in dict.fromkeys(told) if text]


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
    """The answer to a sizing, as lines, tables and JSON. pools: the best with separate pools, where these were asked for."""

    question: Question
    sizing: Sizing
    pools: PoolSizing | None = None

    @property
    def answered(self) -> bool:
        return self.sizing.answer is not None or (self.pools is not None and self.pools.answer is not None)

    def json(self) -> dict[str, Any]:
        sizing, traffic = self.sizing, self.question.traffic
        options = traffic.options
        held = {
            "scenario": options.scenario,
            "benchmark_duration": options.benchmark_duration_s,
            "random_seed": options.seed,
        }
        return {
            "model": self.question.base.model,
            "traffic": {
                "kind": traffic.kind,
                "amount": traffic.amount,
                "requests": traffic.source.text,
                **(held if options.scenario else {}),
            },
            "slo": [objective.text for objective in self.question.objectives],
            "goal": sizing.goal,
            **_outcome_json(sizing),
            "not_looked_at": [{**shape_json(one.shape), "at_least_instances": one.least} for one in sizing.left],
            **({} if self.pools is None else {"disaggregated": _pools_json(self.pools)}),
            **self.question.end_json(),
        }

    def blocks(self) -> Iterator[Block]:
        question, answer = self.question, self.sizing.answer
        yield f"{question.base.model}, {question.traffic.text}: {question.traffic.source.text}"
        yield from question.head_lines("instances")
        yield ""
        if answer is None:
            which = "deployment" if self.pools is None else "aggregated deployment"
            yield bold(f"No {which} meets the objectives.", bad=True)
            yield from missed_lines(self.sizing)
        else:
            yield from self._answer(answer)
            yield ""
            yield from self._others()
        yield ""
        if self.pools is not None:
            yield from self._disaggregated(self.pools)
            yield ""
        yield from self._left_out()
        yield from question.end_lines()

    def _disaggregated(self, pools: PoolSizing) -> Iterator[Block]:
        answer = pools.answer
        if answer is None:
            yield bold("No separate prefill and decode pools meet the objectives.", bad=True)
            yield from missed_lines(pools.sizing)
            yield from first_of([(one.shape.name, one.reason) for one in pools.sizing.given_up], _REASONS_SHOWN, "more")
            return
        yield from self._answer(answer)
        yield ""
        yield from pool_lines(self.sizing.answer, pools)
        yield ""
        columns, rows = ratio_rows(pools)
        yield plain_table(*columns, rows=rows)
        yield (
            "P:D: prefill and decode instances; prefill/s, transfer/s, decode/s: requests/s that each carries, "
            "by the roofline, decode within the limit of TPOT or latency; bound by: the least of them and its use."
        )

    def _answer(self, answer: Priced) -> Iterator[Block]:
        trial = answer.capacity.trial
        yield bold(answer_line(answer))
        yield from _between(answer)
        table = plain_table("objective", "simulated", "of the limit", "90 % band", "verdict", ends=1)
        margins = margins_of_answer(answer.capacity)
        for verdict, margin in zip(trial.verdicts, margins, strict=True):
            share = f"{verdict.load:.0%}"
            table.add_row(verdict.objective.text, verdict.measured, share, margin.band_text, margin.confidence)
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
        table = plain_table("runners-up", "GPUs", "USD/h", "tightest", "of its limit", "verdict", ends=1)
        for priced in self.sizing.runners_up:
            trial = priced.capacity.trial
            confidence = least_confident(margins_of_answer(priced.capacity))
            table.add_row(name_of(priced), str(priced.gpus), usd(priced.usd_per_h), *tightest_cells(trial), confidence)
        yield table

    def _left_out(self) -> Iterator[str]:
        given_up = [(search.shape.name, search.reason) for search in self.sizing.given_up]
        shown = None if self.question.explain else _REASONS_SHOWN
        yield from first_of(given_up, shown, f"more that meet the objectives at no number of instances{_ALL}")
        refused = refused_rows(self.question.refused, self.question.explain)
        yield from first_of(refused, shown, f"more that cannot be deployed{_ALL}")
        if self.sizing.answer is None:
            return
        if self.sizing.left:
            names = ", ".join(search.shape.named(search.least or 1) for search in self.sizing.left)
            cause = "more expensive than the answer" if self.sizing.goal == "cost" else "they take more GPUs"
            yield f"Not simulated, because {cause}: {names} or more"
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
    return priced.capacity.shape.named(priced.capacity.instances)


def notes_of(priced: Priced, traffic: Traffic) -> Iterator[str]:
    """Yield notes on how the metrics were simulated."""
    capacity, trial = priced.capacity, priced.capacity.trial
    users = trial.figures["users"]
    yield (
        f"In-flight requests: {users:,.0f}, or {users / decoding(trial.config):,.1f} per instance. "
        f"Output tokens/s: {trial.figures['output_tok_per_s']:,.0f}."
    )
    yield from (f"Assumed of it: {text}." for text in assumed(trial.config, only=OF_SPLIT))
    if trial.rates is not None:
        yield rates_text(trial.rates)
    if capacity.sampled:
        instances = f"{SAMPLED} of the {capacity.instances} instances"
        yield f"Based on a simulation of {instances} with {trial.traffic}, at least their share of the traffic."
    elif trial.amount != traffic.amount:
        yield f"Based on a simulation of one instance with {trial.traffic}, more than its share of the traffic."
    if trial.counted < FEW_REQUESTS:
        yield f"Only {plural(trial.counted, 'request')} counted: high percentiles are unreliable."


def pool_lines(aggregated: Priced | None, pools: PoolSizing) -> Iterator[str]:
    """Yield how separate pools compare with the best deployment without them, and the cost of the transfer."""
    answer, transfer = pools.answer, pools.transfer
    if answer is None or transfer is None:
        return
    if aggregated is None:
        yield "No aggregated deployment meets the objectives."
    else:
        priced = answer.usd_per_h is not None and aggregated.usd_per_h is not None
        costs = (answer.usd_per_h or 0.0, aggregated.usd_per_h or 0.0) if priced else (answer.gpus, aggregated.gpus)
        change = costs[0] / costs[1] - 1 if costs[1] else 0.0
        than = f"{abs(change):.0%} {'more' if change > 0 else 'less'} than" if change else "as much as"
        yield f"Separate pools cost {than} {name_of(aggregated)}, the best aggregated deployment."
    trial = answer.capacity.trial
    senders = sum(pool.instances for pool in trial.config.all_pools if pool.role == "prefill")
    used = float(trial.figures["request_per_s"]) * transfer.link_s / senders
    yield (
        f"KV transfer: {rounded(transfer.bytes / 1e6)} MB a request, {rounded(transfer.link_s * 1e3, 3)} ms of its sender's "
        f"link ({used:.0%} used), {rounded(transfer.latency_s * 1e3, 3)} ms latency and hand-off."
    )


def ratio_rows(pools: PoolSizing) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of ratios."""
    columns = ["P:D", "GPUs", "USD/h", "prefill/s", "transfer/s", "decode/s", "bound by", "simulated"]
    rows = []
    for one in pools.ratios:
        carries = [rounded(rate) for rate in one.carries.values()]
        gpus = sum(one.shape.gpus_of(one.instances).values())
        name = ":".join(map(str, one.shape.counts(one.instances)))
        rows.append([name, str(gpus), usd(one.usd_per_h), *carries, f"{one.bound}, {one.use:.0%}", one.result])
    return columns, rows


def _pools_json(pools: PoolSizing) -> dict[str, Any]:
    sizing, transfer = pools.sizing, pools.transfer
    return {
        **_outcome_json(sizing),
        "kv_transfer": None
        if transfer is None
        else {"bytes": transfer.bytes, "link_s": transfer.link_s, "latency_s": transfer.latency_s},
        "ratios": [ratio_json(ratio) for ratio in pools.ratios],
    }


def _outcome_json(sizing: Sizing) -> dict[str, Any]:
    return {
        "answer": None if sizing.answer is None else _priced_json(sizing.answer),
        "runners_up": [_priced_json(priced) for priced in sizing.runners_up],
        "missed": list(missed_lines(sizing)) if sizing.answer is None else [],
        "given_up": [{**shape_json(search.shape), "reason": search.reason} for search in sizing.given_up],
    }


def missed_lines(sizing: Sizing) -> Iterator[str]:
    """Yield by how much the best deployments miss the objectives, where none meets them."""
    known = [(search, search.nearest) for search in sizing.given_up if search.nearest is not None]
    if known:
        search, verdict = min(known, key=lambda pair: pair[1].load)
        yield f"The closest was {search.shape.name}: {_missed_text(verdict)}."
    for search in sorted(sizing.left, key=lambda search: sum(search.shape.gpus_of(search.least or 0).values())):
        least = search.least or 0
        gpus = sum(search.shape.gpus_of(least).values())
        line = (
            f"{search.shape.name}: {plural(least, 'instance')} or more needed, {plural(gpus, 'GPU')}, "
            f"{rounded(gpus / sizing.max_gpus, 2)} times --max-gpus {sizing.max_gpus:,}"
        )
        if sizing.nearest is not None and sizing.nearest[0] == search.shape:
            _, most, trial = sizing.nearest
            missed = [_missed_text(verdict) for verdict in trial.verdicts if not verdict.met]
            line += f"; with {most:,}, {', '.join(missed or [trial.reason])}"
        yield f"{line}."


def _missed_text(verdict: Verdict) -> str:
    times = f", {rounded(verdict.load, 3)} times its limit" if verdict.load < 1e6 else ""
    return f"{verdict.objective.text} was {verdict.measured}{times}"


def _of_pools(capacity: Capacity) -> dict[str, Any]:
    if not isinstance(capacity.shape, PoolShape):
        return {}
    counts = zip(ROLES, capacity.shape.counts(capacity.instances), strict=True)
    return {f"{role}_instances": count for role, count in counts}


def _priced_json(priced: Priced) -> dict[str, Any]:
    capacity, trial = priced.capacity, priced.capacity.trial
    return {
        **shape_json(capacity.shape),
        "instances": capacity.instances,
        **_of_pools(capacity),
        "instances_between": [capacity.fewest, capacity.most],
        "gpus": capacity.gpus,
        "usd_per_h": priced.usd_per_h,
        "objectives": verdicts_json(trial, margins_of_answer(capacity)),
        "assumed": assumed(trial.config, only=OF_SPLIT),
        "judged_at": {"instances": trial.config.instances, "amount": trial.amount},
        "figures": trial.figures,
    }
