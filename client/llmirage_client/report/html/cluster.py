"""The cluster's side of a simulated run: batches, queues and memory of every instance over time."""

from __future__ import annotations

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.cluster_series import ClusterLevels
from llmirage_client.report.html.charts import Axis, Bars, Series, bars, heat_strip, line
from llmirage_client.report.html.page import Section, charts, figure, paragraph

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
    """Return a chart for each level that was ever above 0; where the time of steps went."""
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


def _coarser(edges_s: Floats, levels: Floats, most: int) -> tuple[Floats, Floats]:
    """Average neighbouring stretches, weighted by length, until at most `most` are left.

    Lines of several instances that jump at every sample hide each other.
    """
    stretches = edges_s.size - 1
    if stretches <= most:
        return edges_s, levels
    cuts = np.linspace(0, stretches, most + 1).astype(int)
    widths = np.diff(edges_s) * np.isfinite(levels)
    whole = np.add.reduceat(widths, cuts[:-1], axis=1)
    sums = np.add.reduceat(np.nan_to_num(levels) * widths, cuts[:-1], axis=1)
    return edges_s[cuts], np.divide(sums, whole, out=np.full(sums.shape, np.nan), where=whole > 0)


def _lines(series: ClusterLevels, name: str) -> str:
    title, unit, high = _about(name)
    edges_s, levels = _coarser(series.edges_s, series.levels[name], _SMOOTH.get(name, _STRETCHES))
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
