"""A sample as it lies: a histogram over its cumulative distribution, on one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.frame import (
    ABOVE_PLOT_PX,
    AXIS_TITLE_PX,
    RIGHT_PX,
    SMALL,
    LegendEntry,
    Plot,
    axis_title,
    color,
    empty,
    heading,
    hover,
    svg,
    x_axis,
    y_grid,
)
from llmirage_client.report.html.scale import TEXT_PX, Axis, Scale, figure, scale, with_unit
from llmirage_client.report.html.svg import Box, line, path, polyline, px, text, text_box, text_width

_BINS = 48
_CDF_POINTS = 160
_LABEL_ROW_PX = 15.0
_TAIL = 1.5  # a largest value so many times the last one to be shown is off the axis
_GAP_PX = 34.0  # between histogram and CDF


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one distribution. marks: percentiles and the like to be marked, computed where they are defined."""

    name: str
    values: npt.ArrayLike
    marks: Mapping[str, float] = field(default_factory=dict)


def histogram(
    samples: Sequence[Sample], *, title: str, x: Axis, counted: str = "requests", most: float | None = None
) -> str:
    """One sample as bars, several as outlines in percent, above the share of values at or below each x.

    The marks of a single sample are drawn through both; those of several are in the tooltips of the legend's table.
    most: the share of values that the axis reaches to, where the rest would take more room than they; None: all.
    """
    kept = [(s, _finite(s.values), color(i)) for i, s in enumerate(samples)]
    kept = [(s, v, n) for s, v, n in kept if v.size]
    if not kept:
        return empty(title, SMALL, "no data")
    several = len(kept) > 1
    head, top = heading(title, SMALL.width, [LegendEntry(s.name, f"l l{n}") for s, _, n in kept] if several else ())
    values = [v for _, v, _ in kept]
    beyond, x = _cut(values, x, most)
    left = 14.0 + max(text_width("100", TEXT_PX), text_width("10.0k", TEXT_PX))
    right = SMALL.width - RIGHT_PX
    sx = scale(x, values, left, right, max(2, int((right - left) / 62.0)))
    marks = {} if several else dict(kept[0][0].marks)
    labels = _labels(marks, sx, left, right)
    band_px = _LABEL_ROW_PX * (1 + max((row for *_, row in labels), default=-1))

    top += AXIS_TITLE_PX
    plot_top, bottom = top + band_px, SMALL.height - 40.0
    high = bottom - plot_top - _GAP_PX
    upper = Plot(left, plot_top, right, plot_top + 0.62 * high)
    lower = Plot(left, upper.bottom + _GAP_PX, right, bottom)
    edges = np.geomspace(sx.low, sx.high, _BINS + 1) if sx.log else np.linspace(sx.low, sx.high, _BINS + 1)
    heights = [np.histogram(v, edges)[0] * (100.0 / v.size if several else 1.0) for v in values]
    y_title = f"share of {counted} (%)" if several else counted
    most = max(2, int((upper.bottom - upper.top) / 34.0))
    sy = scale(Axis(y_title, integer=not several), heights, upper.bottom, upper.top, most)
    share = scale(Axis("", "%", low=0, high=100), [], lower.bottom, lower.top, 2)

    parts = [head, text(y_title, 6.0, top - ABOVE_PLOT_PX)]
    parts += [y_grid(sy, upper), x_axis(sx, upper, None)]
    parts += [text("at or below (%)", 6.0, lower.top - 9.0), y_grid(share, lower), x_axis(sx, lower, axis_title(x, sx))]
    parts.append(_hover([(s.name if several else "", v) for s, v, _ in kept], sx, edges, heights, counted, upper, lower))
    for (_, v, number), tall in zip(kept, heights, strict=True):
        parts.append(_outline(sx, sy, edges, tall, number) if several else _bars(sx, sy, edges, tall, number))
        at = np.unique(np.linspace(0, v.size - 1, min(v.size, _CDF_POINTS)).astype(int))
        # What a log scale cannot show lies at its left edge.
        xs, ys = np.nan_to_num(sx(np.sort(v)[at]), nan=left), share((at + 1) * (100.0 / v.size))
        xs, ys = np.append(xs[xs < right], right), np.append(ys[xs < right], share((v <= sx.high).mean() * 100.0))
        parts.append(path(polyline(np.repeat(xs, 2), np.append(lower.bottom, np.repeat(ys, 2)[:-1])), f"l l{number}"))
    zeros = float((np.concatenate(values) < sx.low).mean()) if sx.log else 0.0
    if beyond:
        parts.append(text(f"{beyond}, right of the axis", right, lower.bottom - 6.0, anchor="end"))
    if zeros:
        parts.append(text(f"{100 * zeros:.2g} % are about 0, left of the axis", right, lower.top - 9.0, anchor="end"))
    for label, at_px, box, row in labels:
        parts += [line(at_px, panel.top, at_px, panel.bottom, "m") for panel in (upper, lower)]
        parts.append(text(label, box.left, plot_top - 4.0 - _LABEL_ROW_PX * row))
    return svg(SMALL, title, parts, _words(kept[0][0]))


def _cut(values: Sequence[Floats], x: Axis, most: float | None) -> tuple[str, Axis]:
    """What is said of the values that the axis does not show, and the axis."""
    high = max(float(v.max()) for v in values)
    end = high if most is None else max(float(np.quantile(v, most)) for v in values)
    if high <= _TAIL * end:
        return "", x
    share = float(np.mean(np.concatenate(values) > end))
    return f"{100 * share:.2g} % up to {with_unit(figure(high), x.unit)}", replace(x, high=end)


def _finite(values: npt.ArrayLike) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    return sample[np.isfinite(sample)]


def _bars(sx: Scale, sy: Scale, edges: Floats, tall: Floats, number: int) -> str:
    """All bars in one path."""
    at, ground = sx(edges), sy.at(0)
    tops = sy(tall)
    d = "".join(
        f"M{px(a + 0.5)} {px(ground)}V{px(t)}H{px(b - 0.5)}V{px(ground)}Z"
        for a, b, t, count in zip(at[:-1], at[1:], tops, tall, strict=True)
        if count
    )
    return path(d, f"b f{number}")


def _outline(sx: Scale, sy: Scale, edges: Floats, tall: Floats, number: int) -> str:
    at = np.repeat(sx(edges), 2)
    heights = np.concatenate([[0.0], np.repeat(tall, 2), [0.0]])
    d = polyline(at, sy(heights))
    return path(d + "Z", f"w f{number}") + path(d, f"l l{number}")


def _labels(marks: Mapping[str, float], sx: Scale, left: float, right: float) -> list[tuple[str, float, Box, int]]:
    """Each mark's label, place, box and row: a label that would touch another goes one row higher."""
    placed: list[tuple[str, float, Box, int]] = []
    for name, value in marks.items():
        label = f"{name} {sx.say(value)}"
        at = sx.at(value) if value >= sx.low else sx.start_px
        wide = text_width(label, TEXT_PX)
        x = min(max(at - wide / 2, left + 3.0), right + 18.0 - wide)
        box = text_box(label, x, 0.0, TEXT_PX)
        row = 0
        while any(r == row and box.overlaps(b, 6.0) for *_, b, r in placed):
            row += 1
        placed.append((label, at, box, row))
    return placed


def _hover(
    samples: Sequence[tuple[str, Floats]],
    sx: Scale,
    edges: Floats,
    heights: Sequence[Floats],
    counted: str,
    upper: Plot,
    lower: Plot,
) -> str:
    middles = np.sqrt(edges[1:] * edges[:-1]) if sx.log else (edges[1:] + edges[:-1]) / 2
    rows = []
    for i in range(middles.size):
        row = [f"{sx.say(float(edges[i]))} to {sx.say(float(edges[i + 1]))}"]
        for (name, values), tall in zip(samples, heights, strict=True):
            below = 100.0 * float((values <= edges[i + 1]).mean())
            here = f"{tall[i]:.1f} %" if name else f"{int(tall[i])} {counted}"
            row.append(f"{name}{': ' if name else ''}{here}, {below:.1f} % at or below")
        rows.append(row)
    return hover(Plot(upper.left, upper.top, upper.right, lower.bottom), sx(middles).tolist(), rows)


def _words(sample: Sample) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in sample.marks.items())
