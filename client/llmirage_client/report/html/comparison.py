"""Several runs on one page: what each reached at its load, and their distributions over each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from llmirage_client.measure.request_columns import chunk_gaps_ms
from llmirage_client.report.html import over_time, words
from llmirage_client.report.html.blocks import charts, figure, notes, paragraph, table
from llmirage_client.report.html.charts import Axis, Bars, Point, Sample, Series, bars, histogram, line, pareto
from llmirage_client.report.html.page import Head, Section, State, Verdict, page
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.sections import LATENCIES
from llmirage_client.report.numbers import count, number

_MOST_OVERLAID = 7  # as many as there are colours; more lines on one chart cannot be told apart anyway

_DOUBLINGS = 8  # loads that differ by more were doubled, not stepped: a log axis spreads them evenly


@dataclass(frozen=True, slots=True)
class Load:
    """What was varied: its name, its unit, and its value in each run."""

    title: str
    unit: str
    values: list[float]


def comparison_page(views: Sequence[RunView]) -> str:
    """Names of the views tell them apart."""
    parts = [_against_load(views), _table(views), _distributions(views), _over_time(views), _notes(views)]
    models = dict.fromkeys(v.result.model for v in views)
    workloads = dict.fromkeys(v.result.workload_path for v in views)
    facts = {"Runs": ", ".join(v.name for v in views), "Models": ", ".join(models), "Workloads": ", ".join(workloads)}
    facts["When"] = ", ".join(words.when(v.result) for v in (views[0], views[-1]))
    head = Head(f"{len(views)} runs beside each other", {k: t for k, t in facts.items() if t}, _verdicts(views))
    return page(head, parts, f"Written by llmirage {version('llmirage')} from the records of the runs.")


def load_of(views: Sequence[RunView]) -> Load | None:
    """The option of the load that differs between runs; else the concurrency measured; None without either."""
    for option, title, unit in (
        ("concurrency", "Concurrency", "conversations"),
        ("request_rate", "Request rate", "requests/s"),
        ("speed", "Speed", ""),
    ):
        values = [v.result.options.get(option) for v in views]
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values) and len(set(values)) > 1:
            return Load(title, unit, [float(x) for x in values if x is not None])
    levels = [v.metrics.over_time.get("effective_concurrency") for v in views]
    means = [level.avg for level in levels if level is not None]
    if len(means) == len(views) and max(means) > 1.05 * min(means):
        return Load("Requests in flight, mean", "", means)
    return None


def _verdicts(views: Sequence[RunView]) -> list[Verdict]:
    """One when all went well; else one of all failures and one of all doubts, each line with the runs it is about."""
    runs_of: dict[State, dict[str, list[str]]] = {"bad": {}, "warn": {}}
    for view in views:
        for verdict in words.verdicts(view):
            if verdict.state != "good":
                runs_of[verdict.state].setdefault(verdict.headline, []).append(view.name)
    headlines: dict[State, str] = {"bad": "Requests failed", "warn": "Some figures are to be read with care"}
    found = [
        Verdict(state, headlines[state], [f"{', '.join(names)}: {said}." for said, names in lines.items()])
        for state, lines in runs_of.items()
        if lines
    ]
    requests = sum(v.metrics.whole_run.get("request_count", 0) for v in views)
    return found or [Verdict("good", f"All {count(requests)} requests of all {len(views)} runs succeeded")]


def _against_load(views: Sequence[RunView]) -> Section:
    load = load_of(views)
    if load is None:
        return Section("Against load", [])
    x = Axis(load.title, load.unit, log=min(load.values) > 0 and max(load.values) >= _DOUBLINGS * min(load.values))
    order = np.argsort(load.values, kind="stable")
    at = np.array(load.values)[order]
    names = [views[i].name for i in order]

    def curve(title: str, unit: str, lines: Sequence[tuple[str, Callable[[RunView], float | None]]]) -> str:
        series = []
        for name, value_of in lines:
            found = [value_of(views[i]) for i in order]
            values = [np.nan if v is None else v for v in found]
            tips = [f"{run}\n{name}: {number(v)} {unit}" for run, v in zip(names, values, strict=True)]
            series.append(Series(name, at, values, "points", tips=tips))
        if not any(np.isfinite(s.y).any() for s in series):
            return ""
        return figure(line(series, title=title, x=x, y=Axis("", unit, log=None)))

    def whole(tag: str) -> Callable[[RunView], float | None]:
        return lambda v: v.metrics.whole_run.get(tag)

    def percentile(tag: str, name: str) -> Callable[[RunView], float | None]:
        return lambda v: getattr(v.metrics.per_request[tag], name) if tag in v.metrics.per_request else None

    curves = [
        curve("Output tokens per second", "tokens/s", [("output tokens", whole("output_token_throughput"))]),
        curve("Requests per second", "requests/s", [("requests", whole("request_throughput"))]),
    ]
    curves += [
        curve(title, "ms", [(p, percentile(tag, p)) for p in ("p50", "p90", "p99")])
        for tag, title, _ in LATENCIES
        if tag != "inter_chunk_latency"
    ]
    curves.append(_user_against_cluster(views))
    return Section("Against load", [charts(*curves, size="half")], "Each point is a run; point at it for its name.")


def _user_against_cluster(views: Sequence[RunView]) -> str:
    """The trade every operator makes: speed for one user against tokens of all."""
    one, all_ = "output_token_throughput_per_user", "output_token_throughput"
    points = [
        Point(v.metrics.per_request[one].p50, v.metrics.whole_run[all_], v.name)
        for v in views
        if one in v.metrics.per_request and all_ in v.metrics.whole_run
    ]
    if len(points) < 2:
        return ""
    x = Axis("Output tokens per second of one stream, median", "tokens/s")
    return figure(pareto(points, title="Tokens of all against speed for one", x=x, y=Axis("", "tokens/s")))


def _table(views: Sequence[RunView]) -> Section:
    columns = ["Run", "ok", "failed", "requests/s", "output tokens/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"]
    columns += ["latency p50", "latency p99", "cached"]
    rows = []
    for view in views:
        values, summaries = view.metrics.whole_run, view.metrics.per_request
        times = [
            number(getattr(summaries[tag], p)) if tag in summaries else "-"
            for tag in ("time_to_first_token", "inter_token_latency", "request_latency")
            for p in ("p50", "p99")
        ]
        rates = [number(values[t]) if t in values else "-" for t in ("request_throughput", "output_token_throughput")]
        cached = values.get("overall_usage_prompt_cache_read_pct")
        counts = [count(values.get(t, 0)) for t in ("request_count", "error_request_count")]
        rows.append([view.name, *counts, *rates, *times, "-" if cached is None else f"{cached:.1f} %"])
    return Section("Figures", [table(columns, rows)], "Times in ms of cluster time.")


def _distributions(views: Sequence[RunView]) -> Section:
    shown = views[:_MOST_OVERLAID]
    figures = []
    for tag, title, short in LATENCIES:
        samples = [
            Sample(v.name, chunk_gaps_ms(v.columns, v.result.speed) if tag == "inter_chunk_latency" else v.value(tag))
            for v in shown
            if tag in v.metrics.per_request
        ]
        if samples:
            counted = "gaps" if tag == "inter_chunk_latency" else "requests"
            figures.append(figure(histogram(samples, title=title, x=Axis(short, "ms", log=None), counted=counted)))
    hits = [v.metrics.whole_run.get("overall_usage_prompt_cache_read_pct") for v in views]
    if any(h is not None for h in hits):
        values = [np.nan if h is None else h for h in hits]
        y = Axis("Prompt tokens cached", "%", high=100.0)
        figures.append(figure(bars([v.name for v in views], [Bars("cached", values, 2)], title="Prompt tokens cached", y=y)))
    blocks = [charts(*figures)]
    if len(views) > len(shown):
        blocks.append(paragraph(f"Drawn are the first {len(shown)} of {len(views)} runs; the table has them all."))
    return Section("Distributions", blocks)


def _over_time(views: Sequence[RunView]) -> Section:
    shown = [v for v in views[:_MOST_OVERLAID] if len(v.columns)]
    figures = []
    for tag, title, _ in LATENCIES[:2]:
        series = []
        for index, view in enumerate(shown):
            rolled = over_time.rolling(view.start_s, view.value(tag))
            if 50 in rolled.percentiles:
                series.append(Series(view.name, rolled.at_s, rolled.percentiles[50], "line", index))
        if series:
            x = Axis("Time since the first request of each run", "s")
            chart = line(series, title=f"{title}, rolling median", x=x, y=Axis("", "ms", log=None))
            figures.append(figure(chart))
    return Section("Over time", [charts(*figures, size="half")])


def _notes(views: Sequence[RunView]) -> Section:
    texts = [f"{v.name}: {text}" for v in views for text in v.result.notes]
    return Section("Notes", [notes(texts)])
