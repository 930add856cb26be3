"""The results of a study as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llmirage_client.report.html.charts import Axis, ParetoPoint, Series, line, pareto
from llmirage_client.report.html.page import Banner, PageHead, Section, State, charts, figure, page, paragraph, table
from llmirage_client.report.html.run_summary import cluster_text
from llmirage_client.simulator.engine import described, plan_of
from llmirage_client.sweep.file import Study
from llmirage_client.sweep.sweep import Row, Sweep
from llmirage_client.sweep.table import band_lines, best, note_of, scaled, value
from llmirage_shared.plural import plural

_LINES = 7  # points whose clusters are drawn over time
_COLUMNS = (
    ("gpus", "GPUs", ",.0f"),
    ("instances_ready", "Instances ready", ",.2f"),
    ("request_per_s", "req/s", ",.3g"),
    ("ttft_p50_ms", "TTFT p50, ms", ",.1f"),
    ("ttft_p99_ms", "TTFT p99, ms", ",.1f"),
    ("tpot_mean_ms", "TPOT mean, ms", ",.2f"),
    ("tpot_p99_ms", "TPOT p99, ms", ",.2f"),
    ("latency_p99_ms", "Latency p99, ms", ",.0f"),
    ("user_tok_per_s", "tok/s a user", ",.1f"),
    ("output_tok_per_s", "Output tok/s", ",.0f"),
    ("output_tok_per_s_per_gpu", "tok/s a GPU", ",.0f"),
    ("usd_per_m_output_tokens", "USD per M out", ",.2f"),
    ("cached_token_share", "Cached", ".0%"),
    ("utilisation", "Busy", ".0%"),
    ("preemptions", "Preemptions", ",.0f"),
    ("energy_kwh_at_tdp", "kWh", ",.3g"),
)


def page_of(sweep: Sweep) -> str:
    """Return the HTML page of a sweep."""
    study, rows = sweep.study, sweep.rows
    done = [row for row in rows if row.figures]
    facts = {"Points": f"{len(rows):,}", "Varied": ", ".join(study.varied) or "nothing", **_in_common(study, done)}
    sections = [
        Section(
            "Throughput and user speed",
            [charts(*[figure(chart) for chart in _trade_offs(done, study.varied)])],
            "The line joins the Pareto-optimal points. The axes span the points, not 0.",
            "Trade-offs",
        ),
        Section("All points", [_table(sweep, done)], " ".join(("* on the line of the first chart.", *band_lines(done)))),
    ]
    if 0 < len(done) <= _LINES:
        running, waiting = (
            _over_time(done, "running", "Requests in batches"),
            _over_time(done, "waiting", "Requests waiting"),
        )
        sections.append(Section("Over time", [charts(figure(running), figure(waiting), size="half")]))
    if about := [[row.point.name, "", row.reason] for row in rows if row.status == "ok" and row.reason]:
        sections.append(Section("Notes", [table(["Point", "", "Note"], about, left=3, wrap=(0, 2))]))
    odd = [[row.point.name, row.status, row.reason] for row in rows if row.status != "ok"]
    if odd:
        sections.append(Section("Not done", [table(["Point", "", "Why"], odd, left=3, wrap=(0, 2))]))
    foot = f"{sweep.cpu_s:.1f} CPU s of simulation, on the llmirage performance model (docs/accuracy.md)."
    return page(PageHead(study.name, facts, list(_verdicts(rows))), sections, foot)


def _in_common(study: Study, done: Sequence[Row]) -> dict[str, str]:
    """Return the cluster parts and load that all finished points share."""
    known = [row.point for row in done]
    clusters = [described(point.config, plan_of(point.config)) for point in known if point.config is not None]
    first = clusters[0] if clusters and all(len(pools) == len(clusters[0]) for pools in clusters) else []
    shared = [
        {key: value for key, value in pool.items() if all(pools[at].get(key) == value for pools in clusters)}
        for at, pool in enumerate(first)
    ]
    models = dict.fromkeys(str(pool["model"]) for pools in clusters for pool in pools if pool.get("model"))
    load = {key: value for key, value in known[0].load.items() if key not in study.varied} if known else {}
    load = {key: value for key, value in load.items() if all(point.load.get(key) == value for point in known)}
    words = [
        key if value is True else f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in load.items()
    ]
    found = {
        "Models" if len(models) > 1 else "Model": ", ".join(models),
        "Cluster": cluster_text(shared),
        "Load": ", ".join(words),
    }
    return {name: text for name, text in found.items() if text}


def _verdicts(rows: tuple[Row, ...]) -> list[Banner]:
    judged = [row for row in rows if "slo_met" in row.figures]
    if not judged:
        return []
    met = [row for row in judged if row.figures["slo_met"]]
    if not met:
        return [Banner("bad", "No point meets the objectives.")]
    cheap = min(met, key=lambda row: (value(row, "usd_per_m_output_tokens"), value(row, "gpus")))
    usd = value(cheap, "usd_per_m_output_tokens")
    price = "" if np.isnan(usd) else f", at {usd:,.2f} USD per million output tokens"
    state: State = "good"
    return [
        Banner(
            state,
            f"{len(met):,} of {plural(len(judged), 'point')} met the objectives.",
            [f"Cheapest: {cheap.point.name}{price}"],
        )
    ]


def _trade_offs(rows: list[Row], varied: list[str]) -> Iterator[str]:
    colours = varied[0].replace("_", " ") if varied else ""
    yield pareto(
        _points(rows, varied, "user_tok_per_s", "output_tok_per_s_per_gpu"),
        title="Throughput per GPU against speed per user",
        x=Axis("Speed per user (1/TPOT)", "tokens/s"),
        y=Axis("Output tokens/s a GPU", "tokens/s"),
        groups_of=colours,
    )
    for statistic in ("p50", "p99"):
        yield pareto(
            _points(rows, varied, f"ttft_{statistic}_ms", "usd_per_m_output_tokens"),
            title=f"Cost against TTFT {statistic}",
            x=Axis(f"TTFT {statistic}", "ms", log=None),
            y=Axis("USD per million output tokens", "USD", log=None),
            better_x="less",
            better_y="less",
            groups_of=colours,
        )


def _points(rows: list[Row], varied: list[str], x: str, y: str) -> list[ParetoPoint]:
    first = varied[0] if varied else ""
    return [
        ParetoPoint(
            value(row, x),
            value(row, y),
            ", ".join(row.point.varied.values()),
            row.point.varied.get(first, ""),
            row.point.name,
        )
        for row in rows
        if row.status == "ok"
    ]


def _table(sweep: Sweep, rows: list[Row]) -> str:
    if not rows:
        return paragraph("No point was computed.")
    columns = [entry for entry in _COLUMNS if any(not np.isnan(value(row, entry[0])) for row in rows)]
    if not scaled(rows):
        columns = [entry for entry in columns if entry[0] != "instances_ready"]
    judged = any("slo_met" in row.figures for row in rows)
    front = best(sweep.rows)
    heads = [*sweep.study.varied, "", *(heading for _, heading, _ in columns), *(["SLO"] if judged else []), "Note"]
    cells = []
    for row in rows:
        figures = [value(row, name) for name, _, _ in columns]
        shown = ["-" if np.isnan(f) else format(f, form) for f, (_, _, form) in zip(figures, columns, strict=True)]
        met = [] if not judged else [{True: "met", False: "missed", None: "-"}[row.figures.get("slo_met")]]
        star = "*" if row.point.number in front else ""
        cells.append([*(row.point.varied.get(name, "") for name in sweep.study.varied), star, *shown, *met, note_of(row)])
    return table(heads, cells, left=len(sweep.study.varied))


def _over_time(rows: list[Row], name: str, title: str) -> str:
    series = [
        Series(row.point.name, row.series["time_s"], row.series[name], style="step")
        for row in rows
        if row.series.get("time_s")
    ]
    return line(series, title=title, x=Axis("Cluster time", "s"), y=Axis("Requests", integer=True))
