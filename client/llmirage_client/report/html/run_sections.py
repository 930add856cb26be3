"""The sections of one run's page, each a heading, charts and tables: of its metrics and of its cluster over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from llmirage_client.measure.breakdowns import RequestGroup
from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.request_metrics import chunk_gaps_ms
from llmirage_client.measure.run_folder import ClusterLevels
from llmirage_client.report.html.charts import (
    MOST_DOTS,
    Axis,
    Bars,
    Sample,
    Series,
    bars,
    coarser,
    heat_strip,
    histogram,
    line,
    short_number,
)
from llmirage_client.report.html.page import Section, charts, figure, notes, paragraph, table
from llmirage_client.report.html.run_view import RunView, bins, mean_active, output_rate, rolling
from llmirage_client.report.screen import count, fairness_line, group_cells, known, number
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Floats

LATENCIES = (
    ("time_to_first_token", "Time to first token (TTFT)", "TTFT"),
    ("inter_token_latency", "Time per output token (TPOT)", "TPOT"),
    ("inter_chunk_latency", "Between chunks (ITL)", "ITL"),
    ("request_latency", "Request latency", "Latency"),
)
_MARKS = ("p50", "p90", "p99")
_SLOWEST = 12
_GAPS_SHOWN = 0.999  # of the gaps between chunks: a few long ones would flatten the rest
_ERRORS = 20
_TURN_BARS = 60
_SINCE = Axis("Time since the first request", "s")


def distributions(view: RunView) -> Section:
    """Return the section of latency distributions."""
    figures = []
    for tag, title, short in LATENCIES:
        summary = view.metrics.per_request.get(tag)
        if summary is None:
            continue
        figures.append(latencies([(short, view)], tag, title, short, {name: getattr(summary, name) for name in _MARKS}))
    for tag, title in (
        ("input_sequence_length", "Input tokens per request"),
        ("output_sequence_length", "Output tokens per request"),
    ):
        summary = view.metrics.per_request.get(tag)
        if summary is not None:
            marks = {name: getattr(summary, name) for name in _MARKS}
            sample = Sample(title, view.value(tag), marks)
            figures.append(figure(histogram([sample], title=title, x=Axis("Tokens", log=None), counted="requests")))
    lead = (
        "How many requests took how long (bars), and the share that took at most so long (line). Dashed: half, nine of ten "
        "and 99 of 100 requests were at or below it. An axis is logarithmic where values differ by a factor of 60 or more."
    )
    return Section("Distributions", [charts(*figures)], lead)


def latencies(
    named: Sequence[tuple[str, RunView]], tag: str, title: str, short: str, marks: Mapping[str, float] = MappingProxyType({})
) -> str:
    """Draw the distribution of one of LATENCIES in runs, each under its name."""
    gaps = tag == "inter_chunk_latency"
    samples = [
        Sample(name, chunk_gaps_ms(view.columns, view.result.speed) if gaps else view.value(tag), marks)
        for name, view in named
    ]
    x = Axis(short, "ms", log=None)
    counted, most = ("gaps", _GAPS_SHOWN) if gaps else ("requests", None)
    return figure(histogram(samples, title=title, x=x, counted=counted, most=most))


def timeline(view: RunView) -> Section:
    """Return the section of metrics over time."""
    figures = [_over_time(view, tag, title) for tag, title in (LATENCIES[0][:2], LATENCIES[1][:2])]
    if len(view.columns):
        edges = bins(float(np.nanmax(view.end_s)))
        figures += [_rate(view, edges), _in_flight(view, edges)]
    return Section("Over time", [charts(*figures, size="half")])


def _over_time(view: RunView, tag: str, title: str) -> str:
    if not view.has(tag):
        return ""
    values, ok = view.value(tag), view.columns.ok
    series = [Series("one request", view.start_s, values, "dots", color=0)]
    rolled = rolling(view.start_s, values)
    series += [
        Series(f"p{p}", rolled.at_s, v, "line", color)
        for (p, v), color in zip(rolled.percentiles.items(), (6, 1, 5), strict=False)
    ]
    failed = view.start_s[~ok & ~view.columns.cancelled]
    chart = line(series, title=f"{title} over time", x=_SINCE, y=Axis("", "ms", log=None))
    window = f"Percentiles over windows of {short_number(rolled.window_s)} s." if rolled.percentiles else ""
    lost = f" {plural(failed.size, 'request')} failed and cannot be shown." if failed.size else ""
    return figure(chart, " ".join(filter(None, ("By when a request was sent.", _drawn(values), window + lost))))


def _drawn(values: Floats) -> str:
    """Note that a cloud has more dots than are drawn."""
    dots = int(np.isfinite(values).sum())
    return f"Drawn are {count(MOST_DOTS)} of {count(dots)} requests, the highest among them." if dots > MOST_DOTS else ""


def _rate(view: RunView, edges: Floats) -> str:
    rate = output_rate(view, edges)
    if not rate.any():
        return ""
    width = float(edges[1] - edges[0])
    x = Axis(_SINCE.title, "s", low=0.0, high=float(edges[-1]))
    series = [Series("output tokens", edges, np.append(rate, rate[-1]), "area", 0)]
    return figure(
        line(series, title="Output tokens per second", x=x, y=Axis("", "tokens/s")),
        f"By arrival at the client, in steps of {short_number(width)} s.",
    )


def _in_flight(view: RunView, edges: Floats) -> str:
    columns = view.columns
    first, last = view.since_start_s(columns.first_s), view.since_start_s(columns.last_s)
    whole = mean_active(view.start_s, view.end_s, edges)
    x = Axis(_SINCE.title, "s", low=0.0, high=float(edges[-1]))
    series = [Series("in flight", edges, np.append(whole, whole[-1]), "area", 6)]
    streamed = columns.streamed & columns.ok
    if streamed.any():
        waiting = mean_active(view.start_s[streamed], first[streamed], edges)
        decoding = mean_active(first[streamed], last[streamed], edges)
        series.append(Series("waiting for a first token", edges, np.append(waiting, waiting[-1]), "step", 4))
        series.append(Series("receiving tokens", edges, np.append(decoding, decoding[-1]), "step", 0))
    return figure(
        line(series, title="Requests in flight", x=x, y=Axis("", "requests")),
        f"As the client saw them, averaged over {short_number(float(edges[1] - edges[0]))} s.",
    )


def dependence(view: RunView) -> Section:
    """Plot TTFT and latency against the tokens that they depend on."""
    figures = []
    isl, osl = view.value("input_sequence_length"), view.value("output_sequence_length")
    if view.has("time_to_first_token") and np.isfinite(isl).any():
        share, title = view.cached_share, "TTFT against input tokens"
        if np.isfinite(share).any():
            isl, title = isl * (1 - np.nan_to_num(share)), f"{title} that were not cached"
        figures.append(_against_tokens(title, isl, "TTFT", view.value("time_to_first_token")))
    if view.has("request_latency") and np.isfinite(osl).any():
        figures.append(_against_tokens("Latency against output tokens", osl, "Latency", view.value("request_latency")))
    return Section("What it depends on", [charts(*figures, size="half")], short="Dependence")


def _against_tokens(title: str, tokens: Floats, name: str, values_ms: Floats) -> str:
    series, x, y = [Series("requests", tokens, values_ms, "dots", 0)], Axis("Tokens", log=None), Axis(name, "ms", log=None)
    return figure(line(series, title=title, x=x, y=y), _drawn(values_ms))


def groups(view: RunView) -> Section:
    """Return by turn, by depth and by branch mode."""
    blocks, turns = [], view.metrics.by_turn
    if len(turns) > 1:
        names = [str(g.key) for g in turns[:_TURN_BARS]]
        drawn = [_cached_by_turn(turns[:_TURN_BARS], names)]
        drawn += [_ttft_by_turn(turns[:_TURN_BARS]), _tokens_by_turn(turns[:_TURN_BARS], names)]
        blocks.append(charts(*drawn))
        if len(turns) > _TURN_BARS:
            blocks.append(paragraph(f"Turns after the first {_TURN_BARS} of {len(turns)} are not drawn."))
    rows = []
    if len(view.metrics.by_depth) > 1:
        rows += [_row(f"depth {g.key}" + (" (roots)" if g.key == 0 else ""), g) for g in view.metrics.by_depth]
    if len(view.metrics.by_branch_mode) > 1:
        rows += [
            _row({"root": "roots", "fork": "forks", "spawn": "spawns"}[BRANCH_MODES[g.key]], g)
            for g in view.metrics.by_branch_mode
        ]
    by_tenants = view.metrics.by_tenants
    rows += [_row(f"{kind} {g.name or '(none)'}", g) for kind, several in by_tenants.items() for g in several]
    if rows:
        columns = [
            "Requests of", "ok", "failed", "TTFT p50", "TTFT p99", "TPOT p50", "latency p50", "tokens in", "tokens out",
            "cached",
        ]  # fmt: skip
        blocks.append(table(columns, rows))
        if "tenant" in by_tenants:
            blocks.append(paragraph(fairness_line(view.metrics.fairness)))
        blocks.append(
            paragraph("Times in ms; tokens are means. A fork goes on from its parent's conversation, a spawn begins anew.")
        )
    return Section("Turns and branches", blocks, "Turn 0 is the first request of a conversation." if turns else "")


def _figures(turns: tuple[RequestGroup, ...], tag: str, statistic: str) -> list[float]:
    return [getattr(g.per_request[tag], statistic) if tag in g.per_request else np.nan for g in turns]


def _cached_by_turn(turns: tuple[RequestGroup, ...], names: list[str]) -> str:
    hits = [np.nan if g.cached_pct is None else g.cached_pct for g in turns]
    if not np.isfinite(hits).any():
        return ""
    y = Axis("Prompt tokens cached", "%", high=100.0)
    return figure(bars(names, [Bars("cached", hits, 2)], title="Cache hits by turn", x="Turn", y=y))


def _ttft_by_turn(turns: tuple[RequestGroup, ...]) -> str:
    if not any("time_to_first_token" in g.per_request for g in turns):
        return ""
    x = np.array([g.key for g in turns], dtype=np.float64)
    series = [
        Series(name, x, _figures(turns, "time_to_first_token", name), "line", color)
        for name, color in (("p50", 6), ("p90", 1), ("p99", 5))
    ]
    return figure(line(series, title="TTFT by turn", x=Axis("Turn", integer=True), y=Axis("TTFT", "ms", log=None)))


def _tokens_by_turn(turns: tuple[RequestGroup, ...], names: list[str]) -> str:
    if not any("input_sequence_length" in g.per_request for g in turns):
        return ""
    values = [
        Bars(name, _figures(turns, f"{name}_sequence_length", "avg"), color) for name, color in (("input", 0), ("output", 1))
    ]
    return figure(bars(names, values, title="Tokens by turn, mean", x="Turn", y=Axis("Tokens")))


def _row(name: str, g: RequestGroup) -> list[str]:
    ttft, tpot, latency = "time_to_first_token", "inter_token_latency", "request_latency"
    return [name, *group_cells(g, (ttft, "p50"), (ttft, "p99"), (tpot, "p50"), (latency, "p50"))]


def errors(view: RunView) -> Section:
    """Return the section of errors."""
    found = view.metrics.errors
    rows = [[g.error.message, known(g.error.code, str), g.error.type, count(g.count)] for g in found[:_ERRORS]]
    if len(found) > _ERRORS:
        rest = found[_ERRORS:]
        rows.append([f"... and {plural(len(rest), 'more kind')}", "", "", count(sum(g.count for g in rest))])
    columns = ["Error", "Status", "Type", "Requests"]
    return Section("Errors", [table(columns, rows, wrap=(0,))] if rows else [])


def slowest(view: RunView) -> Section:
    """Return the section of requests with the longest latency, with their ids."""
    latency = view.value("request_latency")
    if not view.records or not np.isfinite(latency).any():
        return Section("Slowest requests", [])
    ttft, tpot = view.value("time_to_first_token"), view.value("inter_token_latency")
    isl, osl, share, start = (
        view.value("input_sequence_length"),
        view.value("output_sequence_length"),
        view.cached_share,
        view.start_s,
    )
    order = np.argsort(np.nan_to_num(latency, nan=-1.0), kind="stable")[::-1][:_SLOWEST]
    rows = []
    for i in order.tolist():
        if not np.isfinite(latency[i]):
            continue
        record = view.records[i]
        cells = [number(v) if np.isfinite(v) else "-" for v in (latency[i], ttft[i], tpot[i])]
        tokens = [count(v) if np.isfinite(v) else "-" for v in (isl[i], osl[i])]
        cached = f"{100 * share[i]:.0f} %" if np.isfinite(share[i]) else "-"
        rows.append(
            [record.conversation_id, record.turn_index, f"{start[i]:.2f}", *cells, *tokens, cached, record.request_id]
        )
    columns = [
        "Conversation", "Turn", "Sent at, s", "Latency, ms", "TTFT, ms", "TPOT, ms", "In", "Out", "Cached", "X-Request-ID",
    ]  # fmt: skip
    return Section("Slowest requests", [table(columns, rows)], short="Slowest")


def run_notes(view: RunView, more: list[str]) -> Section:
    """Return the section of notes."""
    texts = [*view.result.notes, *more]
    return Section("Notes", [notes(texts)] if texts else [])


_LINES = 4  # instances that lines can show; more become rows of colour
_STRETCHES = 100
_SMOOTH = {"busy_pct": 30}  # stretches of what jumps between idle and busy

# Title, unit and highest value of the levels that have a name of their own.
_KNOWN: dict[str, tuple[str, str, float | None]] = {
    "running": ("Batch size", "requests", None),
    "waiting": ("Queue", "requests", None),
    "kv_used_pct": ("KV cache in use", "%", 100.0),
    "busy_pct": ("Utilisation", "%", 100.0),
    "prefix_hit_pct": ("Prompt tokens found cached", "%", 100.0),
    "preemptions": ("Preemptions", "", None),
}


def cluster_section(series: ClusterLevels) -> Section:
    """Return a chart for each level that was ever above 0, and one of the parts of the step time."""
    few = len(series.instances) <= _LINES
    names = sorted(series.levels, key=lambda n: list(_KNOWN).index(n) if n in _KNOWN else len(_KNOWN))
    seen = [name for name in names if np.isfinite(series.levels[name]).any()]
    drawn = [figure((_lines if few else _strip)(series, name)) for name in seen if np.nanmax(series.levels[name]) > 0]
    blocks = [charts(*drawn, size="half" if few else "wide")]
    if series.step_time_s:
        parts = sorted(series.step_time_s.items(), key=lambda item: -item[1])
        whole = sum(value for _, value in parts) or 1.0
        shares = Bars("share", [100 * value / whole for _, value in parts])
        title = "Where the time of steps went"
        split = figure(bars([n for n, _ in parts], [shares], title=title, y=Axis("", "%")))
        blocks = [charts(*drawn, split, size="half")] if few else [*blocks, charts(split, size="half")]
    nothing = [_about(name)[0].lower() for name in seen if np.nanmax(series.levels[name]) <= 0]
    blocks.append(paragraph(f"0 on every instance all the time: {', '.join(nothing)}." if nothing else ""))
    return Section("Cluster", blocks, "As the simulated instances saw it.")


def _about(name: str) -> tuple[str, str, float | None]:
    return _KNOWN.get(name, (name.replace("_", " ").capitalize(), "", None))


def _lines(series: ClusterLevels, name: str) -> str:
    title, unit, high = _about(name)
    # Lines of several instances that jump at every sample would hide each other.
    edges_s, levels = coarser(series.edges_s, series.levels[name], _SMOOTH.get(name, _STRETCHES))
    rows = [
        # The last value once more, so that a step lasts to the last edge.
        Series(instance, edges_s, np.append(values, values[-1:]), "area" if len(series.instances) == 1 else "step")
        for instance, values in zip(series.instances, levels, strict=True)
    ]
    x = Axis("Time since the first request", "s", low=0.0, high=float(series.edges_s[-1]))
    return line(rows, title=title, x=x, y=Axis("", unit, low=0.0, high=high))


def _strip(series: ClusterLevels, name: str) -> str:
    title, unit, high = _about(name)
    return heat_strip(
        series.instances,
        series.edges_s,
        series.levels[name],
        title=title,
        x=Axis("Time since the first request", "s"),
        value=Axis(title, unit, high=high),
    )
