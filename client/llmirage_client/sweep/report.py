"""The results of a study as files, as a table on the screen, and as an HTML page."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_client.measure.slo import parse_slo
from llmirage_client.report.html.charts import Axis, ParetoPoint, Series, frontier, line, pareto
from llmirage_client.report.html.page import Banner, PageHead, Section, charts, figure, page, paragraph, table
from llmirage_client.report.html.run_view import cluster_text
from llmirage_client.report.screen import Block, duration, plain_table
from llmirage_client.simulator.cluster_settings import effect_notes
from llmirage_client.simulator.deployments import assumed
from llmirage_client.simulator.engine import described, plan_of
from llmirage_client.sweep.file import Study
from llmirage_client.sweep.sweep import Row, Sweep
from llmirage_shared.plural import plural

_ROWS_SHOWN = 60
_REASONS_SHOWN = 8
_COLUMNS = (  # figure, heading, format
    ("gpus", "GPUs", ",.0f"),
    ("instances_ready", "ready", ",.2f"),
    ("offered_per_s", "offered", ",.4g"),
    ("delivered_per_s", "delivered", ",.4g"),
    ("ttft_p99_ms", "TTFT p99", ",.0f"),
    ("tpot_mean_ms", "TPOT", ",.2f"),
    ("latency_mean_ms", "latency", ",.0f"),
    ("user_tok_per_s", "user", ",.0f"),
    ("output_tok_per_s_per_gpu", "GPU", ",.0f"),
    ("usd_per_m_output_tokens", "USD/M", ",.2f"),
    ("cached_token_share", "cached", ".0%"),
)
_ALL_DELIVERED = "All request rates were delivered. "
_FACTORS = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency", "throughput": "throughput"}
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}


def records(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a flat record of each point: number, what is varied, status, reason, figures.

    A figure that has the name of what is varied, as `requests` may, goes by result_NAME.
    """
    varied = sweep.study.varied
    figures = list(dict.fromkeys(name for row in sweep.rows for name in row.figures))
    return [
        {
            "number": row.point.number,
            **{name: row.point.varied.get(name) for name in varied},
            "status": row.status,
            "reason": row.reason,
            **{f"result_{name}" if name in varied else name: row.figures.get(name) for name in figures},
            "cpu_s": row.cpu_s,
        }
        for row in sweep.rows
    ]


def write_tables(sweep: Sweep, folder: Path) -> list[Path]:
    """Return results.csv, and results.parquet where pyarrow is installed. Raises OSError."""
    rows = records(sweep)
    path = folder / "results.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["number"])
        writer.writeheader()
        writer.writerows(rows)
    written = [path]
    if importlib.util.find_spec("pyarrow") is not None:
        pa: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
        written.append(folder / "results.parquet")
        parquet.write_table(pa.table(columns_of(sweep)), str(written[-1]))
    return written


def columns_of(sweep: Sweep) -> dict[str, list[Any]]:
    """Return the records as columns, numbers where what is varied are numbers."""
    rows, varied = records(sweep), sweep.study.varied
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return {name: _typed(column) if name in varied else column for name, column in columns.items()}


def _typed(texts: list[str | None]) -> list[Any]:
    """Return numbers, where all are; what is varied is kept as it was written."""
    for kind in (int, float):
        try:
            return [None if text is None else kind(text) for text in texts]
        except ValueError:
            continue
    return texts


def best(rows: Sequence[Row]) -> set[int]:
    """Return numbers of the points that no other beats in both output tokens/s a GPU and tokens/s of a user."""
    done = [row for row in rows if row.status == "ok"]
    x = np.array([value(row, "user_tok_per_s") for row in done], dtype=np.float64)
    y = np.array([value(row, "output_tok_per_s_per_gpu") for row in done], dtype=np.float64)
    return {done[index].point.number for index in frontier(x, y, "more", "more")} if done else set()


def scaled(rows: Sequence[Row]) -> bool:
    """Return whether instances came or went in one of the points."""
    for row in rows:
        pools = () if row.point.config is None else row.point.config.all_pools
        ready = value(row, "instances_ready")
        if not np.isnan(ready) and abs(ready - sum(pool.instances for pool in pools)) > 1e-9:
            return True
    return False


def value(row: Row, name: str) -> float:
    """Return a figure; NaN where there is none."""
    figure = row.figures.get(name)
    return float("nan") if figure is None else float(figure)


def _short(row: Row) -> bool:
    """Return whether less than the offered rate was delivered, or will be as a queue grows."""
    offered = value(row, "offered_per_s")
    least = offered * (1 - value(row, "shortfall_allowed"))
    return value(row, "delivered_per_s") < least or (offered > 0 and bool(row.figures.get("saturated")))


def blocks(sweep: Sweep, folder: Path | None, files: Sequence[str]) -> Iterator[Block]:
    """Yield the blocks of the screen. folder, files: of written results; None: nothing was written."""
    rows = [row for row in sweep.rows if row.figures]
    yield f"{sweep.study.name}: {plural(len(sweep.rows), 'point')}, {_counts(sweep)}"
    if rows:
        yield ""
        yield _table(sweep, rows[:_ROWS_SHOWN])
        if len(rows) > _ROWS_SHOWN:
            place = f", in {folder / 'results.csv'}" if folder else ""
            yield f"... and {plural(len(rows) - _ROWS_SHOWN, 'point')} more{place}"
        yield _legend(rows)
        yield from band_lines(rows)
        known = [row.point.config for row in rows if row.point.config is not None]
        texts = [assumed(config) for config in known]
        if everywhere := [text for text in texts[0] if all(text in others for others in texts)]:
            yield f"Assumed, as not given: {'; '.join(everywhere)}."
        yield from effect_notes(known)
    yield ""
    yield from _reasons(sweep)
    reused = f", {plural(sweep.reused, 'point')} from earlier results" if sweep.reused else ""
    written = f" Written to {folder}: {', '.join(files)}" if files else ""
    yield f"{duration(sweep.wall_s)}, {sweep.cpu_s:.1f} CPU s{reused}.{written}"


def _legend(rows: Sequence[Row]) -> str:
    """Return the meaning of the columns and the values that all rows share."""
    most = " at most" if scaled(rows) else ""
    alike = f"{plural(int(value(rows[0], 'gpus')), 'GPU')}{most} in every point. " if _equal_gpus(rows) else ""
    ready = "ready: mean number of ready instances. " if most else ""
    offered = any(not np.isnan(value(row, "offered_per_s")) for row in rows)
    rates = "offered, delivered: requests/s. " if any(map(_short, rows)) else _ALL_DELIVERED if offered else ""
    return (
        f"{alike}{ready}{rates}"
        "TTFT, TPOT and latency (means unless stated otherwise) in ms; user: output tokens/s per user, "
        "1/TPOT; GPU: output tokens/s per GPU; USD/M: per million output tokens. *: Pareto-optimal in "
        "user and GPU."
    )


def _equal_gpus(rows: Sequence[Row]) -> bool:
    return len(rows) > 1 and len({value(row, "gpus") for row in rows}) == 1


def band_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on the distance of measured servers from the figures."""
    parts = []
    for name, heading in _FACTORS.items():
        banded = [row for row in rows if f"{name}_factor_90" in row.figures]
        factors = [factor for row in banded if not np.isnan(factor := value(row, f"{name}_factor_90"))]
        if factors:
            least, most = f"{min(factors):.2f}", f"{max(factors):.2f}"
            text = f"{heading} {least}" + (f" to {most}" if least != most else "")
            unknown = len(banded) - len(factors)
            parts.append(text + (f" (unknown at {plural(unknown, 'point')})" if unknown else ""))
        elif banded:
            parts.append(f"{heading} unknown")
    if not parts:
        return
    yield f"Error bands: 90 % of measured means lie within a factor of {', '.join(parts)} (docs/accuracy.md)."
    cautions = dict.fromkeys(part for row in rows for part in str(row.figures.get("band_caution") or "").split("; ") if part)
    loads = [caution for caution in cautions if "measured were at most" in caution]
    shown = [caution for caution in cautions if caution not in loads] + ["loads beyond the measured ones"] * bool(loads)
    if shown:
        yield f"Wider than elsewhere or less certain: {'; '.join(shown)}."


def _counts(sweep: Sweep) -> str:
    words = {"ok": "done", "refused": "refused", "stopped": "stopped early", "failed": "failed"}
    counts = {status: sum(row.status == status for row in sweep.rows) for status in words}
    return ", ".join(f"{count:,} {words[status]}" for status, count in counts.items() if count)


def _table(sweep: Sweep, rows: Sequence[Row]) -> Block:
    varied = sweep.study.varied
    columns = _columns(rows)
    judged = any("slo_met" in row.figures for row in rows)
    odd = any(row.status != "ok" or row.figures.get("saturated") for row in rows)
    heads = [heading for _, heading, _ in columns]
    named = varied or ["point"]
    ends = ["SLO"] * judged + ["note"] * odd
    table = plain_table("", *named, *heads, *ends, keys=1 + len(named), ends=len(ends))
    front = best(sweep.rows)
    for row in rows:
        cells = ["*" if row.point.number in front else " "]
        cells += [row.point.varied.get(name, "") for name in varied] or [row.point.name]
        cells += [*_figures(row, columns), *([_verdict(row)] if judged else []), *([note_of(row)] if odd else [])]
        table.add_row(*cells)
    return table


def _figures(row: Row, columns: Sequence[tuple[str, str, str]]) -> list[str]:
    figures = ((value(row, name), form) for name, _, form in columns)
    return ["-" if np.isnan(figure) else format(figure, form) for figure, form in figures]


def _verdict(row: Row) -> str:
    return {True: "met", False: "missed", None: "-"}[row.figures.get("slo_met")]


def _columns(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return the columns that tell the rows apart; values that all rows share are in the legend."""
    hidden: set[str] = set()
    if not any(value(row, "cached_token_share") > 0 for row in rows):
        hidden.add("cached_token_share")
    if not any(map(_short, rows)):
        hidden |= {"offered_per_s", "delivered_per_s"}
    if not scaled(rows):
        hidden.add("instances_ready")
    if _equal_gpus(rows):
        hidden.add("gpus")
    entries = [entry for entry in (*_wanted(rows), *_COLUMNS) if entry[0] not in hidden]
    return [entry for entry in entries if any(not np.isnan(value(row, entry[0])) for row in rows)]


def _wanted(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return columns for what the objectives are about, where the table has none of its own."""
    own = {name for name, _, _ in _COLUMNS}
    found: dict[str, str] = {}
    for slo in dict.fromkeys(row.point.load["slo"] for row in rows if "slo" in row.point.load):
        for objective in parse_slo(slo):
            metric, _, statistic = re.split(r"[<>]", objective.text)[0].strip().lower().partition("_")
            name = f"{metric}_{statistic}_ms"
            if metric in _SHORT and name not in own:
                found[name] = f"{_SHORT[metric]} {statistic}"
    return [(name, heading, ",.0f") for name, heading in found.items()]


def note_of(row: Row) -> str:
    """Return the note on a point in the table."""
    if row.status != "ok":
        return row.status
    if not row.figures.get("saturated"):
        return ""
    state = row.figures.get("queue", "stable")
    return "saturated" if state == "stable" else f"saturated, {state}"


def _reasons(sweep: Sweep) -> Iterator[str]:
    by_reason: dict[str, list[Row]] = {}
    for row in sweep.rows:
        if row.reason:  # of a point that is done: what its figures do not stand for
            status = "note" if row.status == "ok" else row.status
            by_reason.setdefault(f"{status}: {row.reason}", []).append(row)
    for reason, rows in list(by_reason.items())[:_REASONS_SHOWN]:
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        yield f"{rows[0].point.name}{more}: {reason}"
    if len(by_reason) > _REASONS_SHOWN:
        yield f"... and {len(by_reason) - _REASONS_SHOWN} other reasons, in results.csv"


_LINES = 7  # points whose clusters are drawn over time
_PAGE_COLUMNS = (
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
        Section(
            "All points", [_points_table(sweep, done)], " ".join(("* on the line of the first chart.", *band_lines(done)))
        ),
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
    text = f"{len(met):,} of {plural(len(judged), 'point')} met the objectives."
    return [Banner("good", text, [f"Cheapest: {cheap.point.name}{price}"])]


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


def _points_table(sweep: Sweep, rows: list[Row]) -> str:
    if not rows:
        return paragraph("No point was computed.")
    columns = [entry for entry in _PAGE_COLUMNS if any(not np.isnan(value(row, entry[0])) for row in rows)]
    if not scaled(rows):
        columns = [entry for entry in columns if entry[0] != "instances_ready"]
    judged = any("slo_met" in row.figures for row in rows)
    front = best(sweep.rows)
    heads = [*sweep.study.varied, "", *(heading for _, heading, _ in columns), *(["SLO"] if judged else []), "Note"]
    cells = []
    for row in rows:
        met = [_verdict(row)] if judged else []
        varied = [row.point.varied.get(name, "") for name in sweep.study.varied]
        star = "*" if row.point.number in front else ""
        cells.append([*varied, star, *_figures(row, columns), *met, note_of(row)])
    return table(heads, cells, left=len(sweep.study.varied))


def _over_time(rows: list[Row], name: str, title: str) -> str:
    series = [
        Series(row.point.name, row.series["time_s"], row.series[name], style="step")
        for row in rows
        if row.series.get("time_s")
    ]
    return line(series, title=title, x=Axis("Cluster time", "s"), y=Axis("Requests", integer=True))
