"""Service level objectives, such as `ttft_p99<500ms, tpot_p95<30ms, error_rate<1%`, and whether a run meets them.

An objective is metric, statistic, comparison, limit. A metric is a tag of measure.catalogue or one of its SHORT_NAMES; one
with a value per request or conversation needs a statistic (avg, min, max, p50, p99, ...), one of the run takes none.
`ttft_p99`, `p99_ttft` and `p99_ttft_ms` (as vLLM writes it) are the same. A limit without a unit is in the metric's own: ms,
%, tokens, tokens a second.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from llmirage_client.measure.catalogue import (
    PER_CONVERSATION,
    PER_REQUEST,
    SHORT_NAMES,
    WHOLE_RUN,
    Spec,
    own_metrics_problem,
)
from llmirage_client.measure.metrics import Metrics
from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Summary

STATISTICS: Mapping[str, str] = {"mean": "avg", "median": "p50", "avg": "avg", "min": "min", "max": "max"} | {
    field.name: field.name for field in fields(Summary) if re.fullmatch(r"p\d+", field.name)
}

MISSED = 3  # exit status of a command whose run missed an objective

_PER_S = {"/s": 1.0, "/sec": 1.0}
_UNITS: Mapping[str, Mapping[str, float]] = {  # the unit of a metric: what may be written, and how much of it that is
    "ms": {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3},
    "sec": {"s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0},
    "%": {"%": 1.0},
    "ratio": {"%": 0.01},
    "tokens": {"tokens": 1.0, "tok": 1.0},
    "requests": {"requests": 1.0, "req": 1.0},
    "requests/sec": {"requests/s": 1.0, "requests/sec": 1.0, "req/s": 1.0, "rps": 1.0, **_PER_S},
    "tokens/sec": {"tokens/s": 1.0, "tokens/sec": 1.0, "tok/s": 1.0, "tps": 1.0, **_PER_S},
    "tokens/sec/user": {"tokens/s": 1.0, "tok/s": 1.0, "tokens/sec/user": 1.0, "tok/s/user": 1.0, **_PER_S},
}
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EXPRESSION = re.compile(r"\s*([a-z][\w.]*)\s*(<=|>=|<|>)\s*(.+?)\s*", re.IGNORECASE)
_LIMIT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(\D.*)?", re.IGNORECASE)


class SloError(ValueError):
    """An expression that says nothing we could check. Carries every problem found, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


@dataclass(slots=True, frozen=True)
class Objective:
    """metric: what the catalogue says of it. statistic: a field of Summary, None for a metric of the whole run.

    limit: in the metric's unit. text: as the user wrote it, with the unit of a time that had none.
    """

    metric: Spec
    statistic: str | None
    comparison: str  # "<", "<=", ">" or ">="
    limit: float
    text: str

    @property
    def name(self) -> str:
        """The metric with its statistic, in one word."""
        return self.metric.tag if self.statistic is None else f"{self.metric.tag}_{self.statistic}"

    def value(self, metrics: Metrics) -> float | None:
        """Return the measured figure in the metric's unit; None if the run has none."""
        if self.statistic is None:
            return metrics.whole_run.get(self.metric.tag)
        tag = self.metric.tag
        summary = metrics.per_request.get(tag) or metrics.per_conversation.get(tag)
        return None if summary is None else float(getattr(summary, self.statistic))

    def met_by(self, value: float) -> bool:
        return bool(_COMPARISONS[self.comparison](value, self.limit))


@dataclass(slots=True, frozen=True)
class Verdict:
    """An objective and what was measured. What could not be measured does not meet it."""

    objective: Objective
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.objective.met_by(self.value)

    @property
    def measured(self) -> str:
        """Such as "612.3 ms"."""
        return "not measured" if self.value is None else f"{rounded(self.value)} {self.objective.metric.unit}"

    @property
    def load(self) -> float:
        """The used share of the limit: 1 at the limit, above 1 when missed; infinite when nothing was measured."""
        value, limit = self.value, self.objective.limit
        if value is None:
            return math.inf
        above, below = (value, limit) if self.objective.comparison[0] == "<" else (limit, value)
        if below <= 0:
            return 1.0 if above <= below else math.inf
        return max(above, 0.0) / below

    def __str__(self) -> str:
        """Return a text such as "ttft_p99<500ms: 612.3 ms, missed"."""
        mark = "" if self.value is None else ", met" if self.met else ", missed"
        return f"{self.objective.text}: {self.measured}{mark}"


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Return the objectives of an expression, separated by commas or semicolons. Raises SloError."""
    objectives: list[Objective] = []
    problems: list[str] = []
    for part in re.split(r"[,;]", text):
        if not part.strip():
            continue
        try:
            objectives.append(_objective(part.strip()))
        except SloError as error:
            problems += error.problems
    if problems:
        raise SloError(problems)
    if not objectives:
        raise SloError(["there is no objective; an example is ttft_p99<500ms"])
    return tuple(objectives)


def judge(objectives: Sequence[Objective], metrics: Metrics) -> tuple[Verdict, ...]:
    """Return each objective with what was measured, in their order."""
    return tuple(Verdict(objective, objective.value(metrics)) for objective in objectives)


def verdicts_of(options: Mapping[str, Any], metrics: Metrics) -> tuple[Verdict, ...]:
    """Return the verdicts on a run's own objectives, which are among its options. Raises SloError."""
    return judge(parse_slo(str(options["slo"])), metrics) if options.get("slo") else ()


def slo_problem(text: str) -> str | None:
    """Return the user's message on an invalid expression; None if it is valid."""
    try:
        parse_slo(text)
    except SloError as error:
        return "; ".join(error.problems)
    return None


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return a headline on the objectives, such as "SLO met"."""
    missed = sum(not verdict.met for verdict in verdicts)
    if len(verdicts) == 1:
        return "SLO missed" if missed else "SLO met"
    return f"SLO missed: {missed} of {len(verdicts)} objectives" if missed else f"SLO met: all {len(verdicts)} objectives"


def judge_failures(verdicts: Sequence[Verdict]) -> bool:
    """Return whether an objective limits failed requests."""
    return any(verdict.objective.metric.tag in ("request_error_rate", "error_request_count") for verdict in verdicts)


def verdicts_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return plain figures for JSON."""
    return {
        "met": all(verdict.met for verdict in verdicts),
        "objectives": [
            {
                "objective": verdict.objective.text,
                "metric": verdict.objective.metric.tag,
                "statistic": verdict.objective.statistic,
                "comparison": verdict.objective.comparison,
                "limit": verdict.objective.limit,
                "unit": verdict.objective.metric.unit,
                "value": verdict.value,
                "met": verdict.met,
            }
            for verdict in verdicts
        ],
    }


def metric_named(name: str) -> Spec | None:
    """Return the metric of that tag or short name."""
    tag = SHORT_NAMES.get(name.lower(), name.lower())
    own_metrics_problem(())  # the installed ones are in the catalogue then
    return PER_REQUEST.get(tag) or PER_CONVERSATION.get(tag) or WHOLE_RUN.get(tag)


def limit_in(unit: str, text: str) -> float:
    """Return a number with or without its unit, in `unit` of the catalogue. Raises SloError."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise SloError([f"{text!r} is not a number with a unit"])
    number, written = float(match[1]), (match[2] or "").strip().lower()
    units = _UNITS.get(unit, {})
    if written and written not in units:
        raise SloError([f"{text!r}: {written!r} is not a unit of it; known units: {', '.join(units)}"])
    value = number * (units[written] if written else 1.0)
    if not math.isfinite(value) or value < 0:
        raise SloError([f"{text!r} is not a number from 0 up"])
    return value


def _objective(text: str) -> Objective:
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise SloError([f"{text!r} is not of the form metric_statistic<limit, such as ttft_p99<500ms"])
    name, comparison, limit = match[1], match[2], match[3]
    metric, statistic = _metric_and_statistic(name, text)
    try:
        value = limit_in(metric.unit, limit)
    except SloError as error:
        raise SloError([f"{text!r}: {problem}" for problem in error.problems]) from None
    if metric.unit in ("ms", "sec") and not limit[-1].isalpha():  # who means seconds sees that it is ms
        text += next(iter(_UNITS[metric.unit]))
    return Objective(metric, statistic, comparison, value, text)


def _metric_and_statistic(name: str, text: str) -> tuple[Spec, str | None]:
    readings = ((metric_named(base), base, word) for base, word in ((name, ""), *_splits(name.lower().removesuffix("_ms"))))
    metric, base, word = next((reading for reading in readings if reading[0] is not None), (None, "", ""))
    if metric is None:
        known = ", ".join(SHORT_NAMES)
        raise SloError([f"{text!r}: there is no metric {name!r}; known are {known} and the tags of docs/metrics.md"])
    if metric.tag in WHOLE_RUN:
        if word:
            raise SloError([f"{text!r}: {base} has one value for the whole run and no {word}"])
        return metric, None
    if word not in STATISTICS:
        wrong = f"there is no statistic {word!r}" if word else f"{base} has many values in a run: choose a statistic"
        raise SloError([f"{text!r}: {wrong}; {base}_p99 is one, of {', '.join(STATISTICS)}"])
    return metric, STATISTICS[word]


def _splits(name: str) -> list[tuple[str, str]]:
    """Return the name without its last word, and without its first: ttft_p99, p99_ttft."""
    start, _, last = name.lower().rpartition("_")
    first, _, end = name.lower().partition("_")
    return [(start, last), (end, first)]
