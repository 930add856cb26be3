"""What runs reached against the load they were under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.slo import Objective
from llmirage_client.report.html.page import Section, charts, figure
from llmirage_client.report.html.pareto import ParetoPoint, pareto
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.scale import Axis
from llmirage_client.report.html.sections import LATENCIES
from llmirage_client.report.html.xy import Mark, Series, line
from llmirage_client.report.numbers import number

_DOUBLINGS = 8  # loads that differ by more were doubled, not stepped: a log axis spreads them evenly


@dataclass(frozen=True, slots=True)
class VariedLoad:
    """What was varied: its name, its unit, and its value in each run."""

    title: str
    unit: str
    values: list[float]


def load_of(views: Sequence[RunView]) -> VariedLoad | None:
    """The option of the load that differs between runs that are alike otherwise; None: nothing to draw a curve over."""
    if any(_asked(view) != _asked(views[0]) for view in views):
        return None
    for option, title, unit in (
        ("concurrency", "Concurrency", "conversations"),
        ("request_rate", "Request rate", "requests/s"),
    ):
        values = [v.result.options.get(option) for v in views]
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values) and len(set(values)) > 1:
            return VariedLoad(title, unit, [float(x) for x in values if x is not None])
    return None


def _asked(view: RunView) -> tuple[object, ...]:
    """What was asked of whom."""
    result = view.result
    return result.model, result.url, result.endpoint, result.workload_path, result.deployment


def against_load(views: Sequence[RunView], load: VariedLoad | None, objectives: Sequence[Objective] = ()) -> Section:
    """Curves over what was varied, with the limits of the objectives; empty without a load that differs."""
    if load is None:
        return Section("Against load", [])
    x = Axis(load.title, load.unit, log=min(load.values) > 0 and max(load.values) >= _DOUBLINGS * min(load.values))
    order = np.argsort(load.values, kind="stable")
    at = np.array(load.values)[order]
    names = [views[i].name for i in order]

    def curve(title: str, unit: str, tag: str, lines: Sequence[tuple[str, Callable[[RunView], float | None]]]) -> str:
        series = []
        for name, value_of in lines:
            found = [value_of(views[i]) for i in order]
            values = [np.nan if v is None else v for v in found]
            tips = [f"{run}\n{name}: {number(v)} {unit}" for run, v in zip(names, values, strict=True)]
            series.append(Series(name, at, values, "points", tips=tips))
        if not any(np.isfinite(s.y).any() for s in series):
            return ""
        return figure(line(series, title=title, x=x, y=Axis("", unit, log=None), marks=_limits(objectives, tag)))

    def whole(tag: str) -> Callable[[RunView], float | None]:
        return lambda v: v.metrics.whole_run.get(tag)

    def percentile(tag: str, name: str) -> Callable[[RunView], float | None]:
        return lambda v: getattr(v.metrics.per_request[tag], name) if tag in v.metrics.per_request else None

    curves = [
        curve(title, unit, tag, [(name, whole(tag))])
        for title, unit, tag, name in (
            ("Output tokens per second", "tokens/s", "output_token_throughput", "output tokens"),
            ("Requests per second", "requests/s", "request_throughput", "requests"),
        )
    ]
    curves += [
        curve(title, "ms", tag, [(p, percentile(tag, p)) for p in _statistics(objectives, tag)])
        for tag, title, _ in LATENCIES
        if tag != "inter_chunk_latency"
    ]
    curves.append(_user_against_cluster(views))
    return Section("Against load", [charts(*curves, size="half")], "Each point is a run; point at it for its name.")


def _user_against_cluster(views: Sequence[RunView]) -> str:
    """The trade every operator makes: speed for one user against tokens of all."""
    one, all_ = "output_token_throughput_per_user", "output_token_throughput"
    points = [
        ParetoPoint(v.metrics.per_request[one].p50, v.metrics.whole_run[all_], v.name)
        for v in views
        if one in v.metrics.per_request and all_ in v.metrics.whole_run
    ]
    if len(points) < 2:
        return ""
    x = Axis("Output tokens per second of one stream, median", "tokens/s")
    return figure(pareto(points, title="Tokens of all against speed for one", x=x, y=Axis("", "tokens/s")))


def _limits(objectives: Sequence[Objective], tag: str) -> list[Mark]:
    return [Mark(o.limit, o.text) for o in objectives if o.metric.tag == tag]


def _statistics(objectives: Sequence[Objective], tag: str) -> list[str]:
    """p50, p90, p99, and what an objective asks for beside them."""
    asked = [o.statistic for o in objectives if o.metric.tag == tag and o.statistic]
    return list(dict.fromkeys(("p50", "p90", "p99", *asked)))
