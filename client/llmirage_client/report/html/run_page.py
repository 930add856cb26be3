"""The page of a run, or of several beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from llmirage_client.measure.comparison import compare, run_differences
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.run_folder import ClusterLevels
from llmirage_client.measure.slo import Objective
from llmirage_client.report.console import difference_cells, difference_heads, reading_notes
from llmirage_client.report.html import run_sections
from llmirage_client.report.html.charts import Axis, Bars, Mark, ParetoPoint, Series, bars, line, pareto
from llmirage_client.report.html.page import Banner, PageHead, Section, State, charts, figure, notes, page, paragraph, table
from llmirage_client.report.html.run_sections import LATENCIES, cluster_section, latencies
from llmirage_client.report.html.run_view import RunView, cards, facts, rolling, time_span, verdicts, view_run
from llmirage_client.report.html.swimlane import swimlane
from llmirage_client.report.load_points import LoadSweep
from llmirage_client.report.screen import cached_cell, count, latency_cells, number, rate_cells


def run_page(
    runs: Sequence[tuple[str, RunResult]],
    clusters: Mapping[str, ClusterLevels] | None = None,
    sweep: LoadSweep | None = None,
) -> str:
    """Return one HTML document. runs: name and result of each; the name matters only among several.

    clusters: by name of a run, what its cluster did, where known; it is only on the page of a single run.
    sweep: what the sweep that made the runs says of them.
    """
    views = [view_run(result, name) for name, result in runs]
    if len(views) > 1:
        return comparison_page(views, sweep)
    return single_page(views[0], (clusters or {}).get(runs[0][0]))


def single_page(view: RunView, cluster: ClusterLevels | None = None, *, brief: bool = False) -> str:
    """Return the page of one run. brief: the first charts only, as a notebook shows them."""
    parts = [
        run_sections.distributions(view),
        run_sections.timeline(view),
        *([cluster_section(cluster)] if cluster is not None else []),
    ]
    if not brief:
        parts += [
            swimlane(view),
            run_sections.groups(view),
            run_sections.dependence(view),
            run_sections.errors(view),
            run_sections.slowest(view),
        ]
    parts.append(run_sections.run_notes(view, reading_notes(view.result, view.metrics)))
    title = " on ".join(text for text in (view.result.workload_path, view.result.model) if text) or "A run"
    head = PageHead(title, facts(view), verdicts(view), cards(view))
    return page(head, parts, f"Written by llmirage {version('llmirage')} from the records of the run.")


_CONFIDENCE = 95.0  # of the bounds of differences, percent
_MOST_OVERLAID = 7  # as many as there are colours; more lines on one chart cannot be told apart anyway


def comparison_page(views: Sequence[RunView], sweep: LoadSweep | None = None) -> str:
    """Return the page of several runs.

    The names of the views tell them apart; they are shown by load where it is known. sweep: what theirs says.
    """
    sweep = sweep or LoadSweep()
    load = load_of(views)
    if load is not None:
        views = [views[i] for i in np.argsort(load.values, kind="stable")]
        load = VariedLoad(load.title, load.unit, sorted(load.values))
    parts = [
        against_load(views, load, sweep.objectives),
        _table(views, sweep),
        *([_differences(views)] if load is None else []),
        _distributions(views),
        _over_time(views),
        _notes(views, sweep),
    ]
    models = dict.fromkeys(v.result.model for v in views)
    workloads = dict.fromkeys(v.result.workload_path for v in views)
    about = {"Runs": ", ".join(v.name for v in views), "Models": ", ".join(models), "Workloads": ", ".join(workloads)}
    about["When"] = time_span(v.result for v in views)
    answer = [Banner("good" if sweep.found else "warn", sweep.answer)] if sweep.answer else []
    head = PageHead(
        f"{len(views)} runs beside each other", {k: t for k, t in about.items() if t}, [*answer, *_verdicts(views)]
    )
    return page(head, parts, f"Written by llmirage {version('llmirage')} from the records of the runs.")


def _verdicts(views: Sequence[RunView]) -> list[Banner]:
    """Return one when all went well; else one of all failures and one of all doubts, each line with the runs it is about."""
    runs_of: dict[State, dict[str, list[str]]] = {"bad": {}, "warn": {}}
    for view in views:
        for verdict in verdicts(view):
            if verdict.state != "good":
                runs_of[verdict.state].setdefault(verdict.headline, []).append(view.name)
    headlines: dict[State, str] = {"bad": "Requests failed", "warn": "Some figures are to be read with care"}
    found = [
        Banner(state, headlines[state], [f"{', '.join(names)}: {said}." for said, names in lines.items()])
        for state, lines in runs_of.items()
        if lines
    ]
    requests = sum(v.metrics.whole_run.get("request_count", 0) for v in views)
    return found or [Banner("good", f"All {count(requests)} requests of all {len(views)} runs succeeded")]


def _table(views: Sequence[RunView], sweep: LoadSweep) -> Section:
    columns = ["Run", *(["objectives"] if sweep.met else []), "ok", "failed", "requests/s", "output tokens/s"]
    columns += ["TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"]
    columns += ["latency p50", "latency p99", "cached"]
    rows = []
    for view in views:
        metrics = view.metrics
        counts = [count(metrics.whole_run.get(t, 0)) for t in ("request_count", "error_request_count")]
        met = {True: "met", False: "missed", None: "-"}[sweep.met.get(view.name.rpartition("/")[2])]
        figures = [*rate_cells(metrics), *latency_cells(metrics), cached_cell(metrics)]
        rows.append([view.name, *([met] if sweep.met else []), *counts, *figures])
    return Section("Figures", [table(columns, rows)], "Times in ms of cluster time.")


def _differences(views: Sequence[RunView]) -> Section:
    """Return each run against the first, as `llmirage compare` tells."""
    blocks = []
    first, others = views[0], views[1:_MOST_OVERLAID]
    for view in others:
        found = compare(first.result, view.result, confidence=_CONFIDENCE / 100)
        said = [f"{text.rstrip('.')}." for text in run_differences(first.result, view.result)]
        if len(others) > 1:
            blocks.append(paragraph(f"{view.name} against {first.name}"))
        rows = [difference_cells(one) for one in found.differences]
        heads = difference_heads(_CONFIDENCE)
        blocks += [table([heads[0], first.name, view.name, *heads[3:]], rows), notes(said)]
    lead = (
        f"Against {first.name}, as the command compare tells. Within noise: runs of one system differ as much by chance. "
        "Too few: there are not enough requests to tell."
    )
    return Section("Differences", blocks, lead)


def _distributions(views: Sequence[RunView]) -> Section:
    shown = views[:_MOST_OVERLAID]
    figures = []
    for tag, title, short in LATENCIES:
        if named := [(v.name, v) for v in shown if tag in v.metrics.per_request]:
            figures.append(latencies(named, tag, title, short))
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
            rolled = rolling(view.start_s, view.value(tag))
            if 50 in rolled.percentiles:
                series.append(Series(view.name, rolled.at_s, rolled.percentiles[50], "line", index))
        if series:
            x = Axis("Time since the first request of each run", "s")
            chart = line(series, title=f"{title}, rolling median", x=x, y=Axis("", "ms", log=None))
            figures.append(figure(chart))
    return Section("Over time", [charts(*figures, size="half")])


def _notes(views: Sequence[RunView], sweep: LoadSweep) -> Section:
    texts = [*sweep.notes]
    texts += [f"{v.name}: {text}" for v in views for text in v.result.notes]
    return Section("Notes", [notes(texts)])


_DOUBLINGS = 8  # loads that differ by more were doubled, not stepped: a log axis spreads them evenly


@dataclass(frozen=True, slots=True)
class VariedLoad:
    """The varied option: its name, its unit, and its value in each run."""

    title: str
    unit: str
    values: list[float]


def load_of(views: Sequence[RunView]) -> VariedLoad | None:
    """Return the option of the load that differs between runs that are alike otherwise.

    None: nothing to draw a curve over.
    """
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
    """Return the load and the endpoint, to find runs that are alike."""
    result = view.result
    return result.model, result.url, result.endpoint, result.workload_path, result.deployment


def against_load(views: Sequence[RunView], load: VariedLoad | None, objectives: Sequence[Objective] = ()) -> Section:
    """Return curves over what was varied, with the limits of the objectives; empty without a load that differs.

    views: by that load.
    """
    if load is None:
        return Section("Against load", [])
    x = Axis(load.title, load.unit, log=min(load.values) > 0 and max(load.values) >= _DOUBLINGS * min(load.values))

    def curve(title: str, unit: str, tag: str, lines: Sequence[str]) -> str:
        """Draw statistics of a metric of requests, or a metric of the whole run as the only line."""
        series = []
        for name in lines:
            values = [
                getattr(v.metrics.per_request[tag], name)
                if tag in v.metrics.per_request
                else v.metrics.whole_run.get(tag, np.nan)
                for v in views
            ]
            tips = [f"{v.name}\n{name}: {number(value)} {unit}" for v, value in zip(views, values, strict=True)]
            series.append(Series(name, load.values, values, "points", tips=tips))
        if not any(np.isfinite(s.y).any() for s in series):
            return ""
        limits = [Mark(o.limit, o.text) for o in objectives if o.metric.tag == tag]
        return figure(line(series, title=title, x=x, y=Axis("", unit, log=None), marks=limits))

    curves = [
        curve("Output tokens per second", "tokens/s", "output_token_throughput", ["output tokens"]),
        curve("Requests per second", "requests/s", "request_throughput", ["requests"]),
        *(
            curve(title, "ms", tag, _statistics(objectives, tag))
            for tag, title, _ in LATENCIES
            if tag != "inter_chunk_latency"
        ),
        _user_against_cluster(views),
    ]
    return Section("Against load", [charts(*curves, size="half")], "Each point is a run; point at it for its name.")


def _user_against_cluster(views: Sequence[RunView]) -> str:
    """Draw speed for one user against tokens of all, the trade of every operator."""
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


def _statistics(objectives: Sequence[Objective], tag: str) -> list[str]:
    """Return p50, p90, p99, and what an objective asks for beside them."""
    asked = [o.statistic for o in objectives if o.metric.tag == tag and o.statistic]
    return list(dict.fromkeys(("p50", "p90", "p99", *asked)))
