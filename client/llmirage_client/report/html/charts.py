"""Charts as HTML: the figures that charts.js draws with uPlot, and the table of them that stands where no script runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmirage_client.report.html.page import escape
from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Floats

COLORS = 7  # series take them in turn; the page's style sheet has them for its two themes
LEVELS = 8  # colours of a heat strip
BINS = 48  # bars of a histogram
MOST_DOTS = 4000
MOST_POINTS = 400  # of a line: two a pixel would not be seen
MOST_ROWS = 64  # of a heat strip
_MOST_COLUMNS = 300
_MOST_TRADE_OFFS = 3000
_HOVER_ROWS = 160
_TABLE_ROWS = 12
_CDF_POINTS = 160
_HEIGHT_PX = 230
_HISTOGRAM_PX = (150, 130)
_LOG_FROM = 60.0  # a positive sample whose largest value is this many times its smallest reads better on a log scale
_NOUGHT = 1e-5  # of the largest value: smaller values count as 0
_SMALLEST = 1e-12  # smaller values are rounding, not measurements
_TAIL = 1.5  # a largest value this many times the last one to be shown is off the axis
_ROOM = 0.08  # of what trade-offs span, on each side of them
# Larger units of an axis, each from a value on: (from, divisor, name).
_LARGER: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((180.0, 60.0, "min"), (7200.0, 3600.0, "h")),
    "ms": ((5_000.0, 1e3, "s"), (300_000.0, 6e4, "min")),
}
Style = Literal["line", "step", "area", "dots", "points"]
Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis before its values are known.

    unit: of the values given; seconds and milliseconds are shown in a larger unit where the values are large. log: None
    decides by the values. low, high: limits that the values do not move. zero: a linear axis starts at 0 though no value
    is near it. integer: the values are whole numbers.
    """

    title: str
    unit: str = ""
    log: bool | None = False
    low: float | None = None
    high: float | None = None
    zero: bool = True
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis over its values: limits in the unit of the values, labels in `unit`, which is `divisor` times as large."""

    axis: Axis
    low: float
    high: float
    log: bool
    unit: str
    divisor: float

    @classmethod
    def of(cls, axis: Axis, values: Sequence[Floats], rounded: bool = False) -> Scale:
        """Lay an axis out over the finite ones of `values`. rounded: a linear one ends at a round number."""
        low, high, positive = _extent(values)
        log = axis.log if axis.log is not None else positive > 0 and low >= 0 and high / positive >= _LOG_FROM
        low, high = _log_limits(axis, positive, high) if log else _linear_limits(axis, low, high)
        if rounded and not log and axis.high is None:
            step = max(round_up((high - low) / 5), 1.0 if axis.integer else 0.0)
            high = step * math.ceil(high / step - 1e-9)
        divisor, unit = 1.0, axis.unit
        for least, by, name in _LARGER.get(axis.unit, ()):
            if high >= least:
                divisor, unit = by, name
        return cls(axis, low, high, log, unit, divisor)

    def say(self, value: float) -> str:
        """Return a value with three digits and its unit."""
        return with_unit(short_number(value / self.divisor), self.unit) if math.isfinite(value) else "none"

    def shown(self, values: npt.ArrayLike) -> list[float | None]:
        """Return values in the unit of the labels; None for those that the axis cannot show."""
        found = np.asarray(values, dtype=np.float64)
        least = self.low * (1 - 1e-9) if self.log else -np.inf
        return [
            None if not math.isfinite(v) or v < least else _short(v / self.divisor) for v in np.atleast_1d(found).tolist()
        ]

    def json(self, **more: Any) -> dict[str, Any]:
        title = f"{self.axis.title} ({self.unit})" if self.axis.title and self.unit else self.axis.title or self.unit
        limits = {"low": self.low / self.divisor, "high": self.high / self.divisor}
        return {"title": title, **limits, "log": self.log, "whole": self.axis.integer and self.divisor == 1.0, **more}


@dataclass(frozen=True, slots=True)
class Series:
    """x and y of equal length; NaN in y is a gap.

    style: "line"; "step" holds each value until the next x; "area" is a step filled to 0; "dots" a cloud without a line;
    "points" a line through marked points, each with its tip. color: of the palette, from 0; None: the place of the series.
    """

    name: str
    x: npt.ArrayLike
    y: npt.ArrayLike
    style: Style = "line"
    color: int | None = None
    tips: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A dashed line across the plot at a value of y."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """One value a category; NaN: no bar. color: of the palette, from 0; None: the place of the series."""

    name: str
    values: npt.ArrayLike
    color: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one distribution. marks: values of x to mark, by name."""

    name: str
    values: npt.ArrayLike
    marks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A candidate. group: its colour and legend entry. tip: shown under the pointer; empty: name and both values."""

    x: float
    y: float
    name: str = ""
    group: str = ""
    tip: str = ""


def line(series: Sequence[Series], *, title: str, x: Axis, y: Axis, marks: Sequence[Mark] = ()) -> str:
    """Return series over shared axes. Long lines keep the lowest and highest of each stretch, clouds their highest."""
    kept = [(s, _color(i, s.color), *_thinned(s)) for i, s in enumerate(series) if np.asarray(s.y).size]
    if not any(np.isfinite(ys).any() for *_, ys in kept):
        return _no_data(title)
    sx = Scale.of(x, [xs for *_, xs, _ in kept])
    sy = Scale.of(y, [ys for *_, ys in kept] + [np.array([m.value]) for m in marks], rounded=True)
    drawn, lines, rows = [], [], []
    for s, color, xs, ys in kept:
        one: dict[str, Any] = {"name": s.name, "color": color, "kind": s.style, "x": sx.shown(xs), "y": sy.shown(ys)}
        if s.style == "points":
            tips = s.tips or [f"{s.name}: {sy.say(b)} at {sx.say(a)}" for a, b in zip(xs, ys, strict=True)]
            one["tips"] = list(tips)
            rows += [tip.split("\n") for tip, value in zip(tips, ys, strict=False) if np.isfinite(value)]
        elif s.style == "dots":
            rows += _cloud_rows(s.name, xs, ys, sx, sy)
        else:
            lines.append((s.name, xs, ys))
        drawn.append(one)
    at, hover = _values_at(lines, sx, sy) if lines else ([], [])
    across = [[*sy.shown(m.value), m.label] for m in marks]
    return _chart(title, sx.json(), [{"y": sy.json(), "series": drawn, "across": across}], (at, hover), hover or rows)


def bars(categories: Sequence[str], series: Sequence[Bars], *, title: str, x: str = "", y: Axis) -> str:
    """Return upright bars, series beside each other. x: what the categories are."""
    tall = [np.asarray(s.values, dtype=np.float64) for s in series]
    if not len(categories) or not any(np.isfinite(v).any() for v in tall):
        return _no_data(title)
    sy = Scale.of(y, tall, rounded=True)
    each = (0.8 if len(categories) < 60 else 0.95) / len(series)
    drawn = []
    for i, (s, v) in enumerate(zip(series, tall, strict=True)):
        left = np.arange(len(categories)) + each * (i - len(series) / 2)
        drawn.append(
            _bars(s.name, _color(i, s.color), [round(a, 3) for a in left], [round(a + each, 3) for a in left], v, sy)
        )
    rows = [
        [name, *(f"{s.name}: {sy.say(float(v[i]))}" for s, v in zip(series, tall, strict=True) if np.isfinite(v[i]))]
        for i, name in enumerate(categories)
    ]
    sx = {"title": x, "low": -0.5, "high": len(categories) - 0.5, "log": False, "whole": True, "names": list(categories)}
    return _chart(title, sx, [{"y": sy.json(), "series": drawn}], (list(range(len(rows))), rows), rows)


def histogram(
    samples: Sequence[Sample], *, title: str, x: Axis, counted: str = "requests", most: float | None = None
) -> str:
    """Return one sample as bars, several as outlines in percent, above the share of values at or below each x.

    The marks of a single sample are drawn through both. most: the share of values that the axis reaches to, where the rest
    would take more room than they; None: all.
    """
    sorted_values = [np.sort(v[np.isfinite(v)]) for v in (np.asarray(s.values, dtype=np.float64) for s in samples)]
    kept = [(s.name, v, _color(i), s.marks) for i, (s, v) in enumerate(zip(samples, sorted_values, strict=True)) if v.size]
    if not kept:
        return _no_data(title)
    values, several = [v for _, v, *_ in kept], len(kept) > 1
    beyond, x = _cut(values, x, most)
    sx = Scale.of(x, values)
    edges = np.geomspace(sx.low, sx.high, BINS + 1) if sx.log else np.linspace(sx.low, sx.high, BINS + 1)
    heights = [np.histogram(v, edges)[0] * (100.0 / v.size if several else 1.0) for v in values]
    sy = Scale.of(Axis(f"share of {counted} (%)" if several else counted, integer=not several), heights, rounded=True)
    share = Scale.of(Axis("at most (%)", low=0, high=100), [])
    upper, lower = [], []
    for (name, v, color, _), tall in zip(kept, heights, strict=True):
        if several:
            stepped = [*tall.tolist(), float(tall[-1])]
            upper.append({"name": name, "color": color, "kind": "area", "x": sx.shown(edges), "y": sy.shown(stepped)})
        else:
            upper.append(_bars(name, color, sx.shown(edges[:-1]), sx.shown(edges[1:]), tall, sy))
        at = v[np.unique(np.linspace(0, v.size - 1, min(v.size, _CDF_POINTS)).astype(int))]
        at = np.concatenate([[sx.low], at[(at > sx.low) & (at < sx.high)], [sx.high]])
        below = np.searchsorted(v, at, side="right") * (100.0 / v.size)
        lower.append({"name": name, "color": color, "kind": "step", "x": sx.shown(at), "y": share.shown(below)})
    middles = np.sqrt(edges[1:] * edges[:-1]) if sx.log else (edges[1:] + edges[:-1]) / 2
    rows = []
    for i in range(BINS):
        row = [f"{sx.say(float(edges[i]))} to {sx.say(float(edges[i + 1]))}"]
        for (name, v, *_), tall in zip(kept, heights, strict=True):
            here = f"{name}: {tall[i]:.1f} %" if several else f"{int(tall[i])} {counted}"
            row.append(f"{here}, {100.0 * float((v <= edges[i + 1]).mean()):.1f} % at or below")
        rows.append(row)
    marks = {} if several else dict(kept[0][3])
    zeros = float((np.concatenate(values) < sx.low).mean()) if sx.log else 0.0
    told = [f"{beyond}, right of the axis."] if beyond else []
    told += [f"{rounded(100 * zeros, 2)} % are about 0, left of the axis."] if zeros else []
    down = [[*sx.shown(max(value, sx.low)), f"{name} {sx.say(value)}"] for name, value in marks.items()]
    panels: list[dict[str, Any]] = [
        {"y": one.json(), "series": drawn, "height": high, "down": down}
        for one, drawn, high in zip((sy, share), (upper, lower), _HISTOGRAM_PX, strict=True)
    ]
    said = ", ".join(f"{name} {sx.say(value)}" for name, value in marks.items())
    return _chart(title, sx.json(), panels, (sx.shown(middles), rows), rows, said, " ".join(told))


def heat_strip(rows: Sequence[str], edges: npt.ArrayLike, values: npt.ArrayLike, *, title: str, x: Axis, value: Axis) -> str:
    """Return a row of colours over x for each name. edges: shape (columns + 1,). values: shape (rows, columns); NaN: blank.

    Colours go from value.low (default 0) to value.high (default the largest). Only the first MOST_ROWS are drawn, and the
    title says so.
    """
    cells = np.atleast_2d(np.asarray(values, dtype=np.float64))[:MOST_ROWS]
    at = np.asarray(edges, dtype=np.float64)
    if not cells.size or not np.isfinite(cells).any():
        return _no_data(title)
    if len(rows) > MOST_ROWS:
        title += f" (first {MOST_ROWS} of {len(rows)})"
    at, cells = coarser(at, cells, _MOST_COLUMNS)
    low = value.low if value.low is not None else 0.0
    high = value.high if value.high is not None else float(np.nanmax(cells))
    high = high if high > low else low + 1.0
    levels = np.clip(np.ceil((np.nan_to_num(cells, nan=low) - low) / (high - low) * LEVELS), 1, LEVELS).astype(int)
    levels[~np.isfinite(cells)] = 0
    sx = Scale.of(Axis(x.title, x.unit, False, float(at[0]), float(at[-1])), [])
    shown = np.unique(np.linspace(0, cells.shape[1] - 1, min(cells.shape[1], 120)).astype(int))

    def say(number: float) -> str:
        return with_unit(short_number(number), value.unit)

    first = range(min(len(cells), _TABLE_ROWS))
    said = [
        [sx.say(float(at[c])), *(f"{rows[r]}: {say(float(cells[r, c]))}" for r in first if np.isfinite(cells[r, c]))]
        for c in shown
    ]
    panel = {
        "y": {"title": "", "low": -len(cells), "high": 0, "log": False, "whole": True, "names": list(rows[:MOST_ROWS])},
        "series": [],
        "cells": {"x": sx.shown(at), "levels": ["".join(map(str, row)) for row in levels.tolist()]},
        "height": 50 + len(cells) * (22 if len(cells) <= 16 else 15),
    }
    ramp = "".join(f'<i class="h{n}"></i>' for n in range(1, LEVELS + 1))
    scale = f"{escape(f'{value.title}: {say(low)}')} {ramp} {escape(say(high))}"
    found = _chart(title, sx.json(), [panel], (sx.shown((at[shown] + at[shown + 1]) / 2), said), said)
    return f'{found}<p class="ramp">{scale}</p>'


def frontier(x: Floats, y: Floats, better_x: Better, better_y: Better) -> list[int]:
    """Return the indices of the points that no other point equals or beats in both, by x ascending. None has a NaN."""
    fx = x if better_x == "more" else -x
    fy = y if better_y == "more" else -y
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    order = known[np.lexsort((-fy[known], -fx[known]))]
    best, kept = -np.inf, []
    for index in order.tolist():
        if fy[index] > best:
            best = fy[index]
            kept.append(index)
    return sorted(kept, key=lambda i: float(x[i]))


def pareto(
    points: Sequence[ParetoPoint],
    *,
    title: str,
    x: Axis,
    y: Axis,
    better_x: Better = "more",
    better_y: Better = "more",
    groups_of: str = "",
) -> str:
    """Return all points, the frontier as a line through the best, their names where there is room for them.

    groups_of: what the groups are values of. The axes span the points, not 0.
    """
    known = [p for p in points if np.isfinite(p.x) and np.isfinite(p.y)]
    if not known:
        return _no_data(title)
    xs, ys = np.array([p.x for p in known]), np.array([p.y for p in known])
    best = frontier(xs, ys, better_x, better_y)
    sx, sy = Scale.of(replace(x, zero=False), [_with_room(xs)]), Scale.of(replace(y, zero=False), [_with_room(ys)])
    shown = sorted({*best, *range(0, len(known), len(known) // _MOST_TRADE_OFFS + 1)})
    tips = {i: known[i].tip or f"{known[i].name}: {sx.say(known[i].x)}, {sy.say(known[i].y)}" for i in {*shown, *best}}
    drawn: list[dict[str, Any]] = [
        {"name": "not beaten by any other", "color": 0, "kind": "front", "x": sx.shown(xs[best]), "y": sy.shown(ys[best])}
    ]
    for number, group in enumerate(dict.fromkeys(p.group for p in known)):
        own = [i for i in shown if known[i].group == group]
        one = {"name": f"{groups_of}: {group}" if groups_of and group else group, "color": _color(number), "kind": "points"}
        drawn.append(one | {"x": sx.shown(xs[own]), "y": sy.shown(ys[own]), "tips": [tips[i] for i in own], "loose": True})
        drawn[-1]["big"] = [own.index(i) for i in best if i in own]
    names = [[*sx.shown(xs[i]), *sy.shown(ys[i]), shorten(known[i].name, 30)] for i in best if known[i].name]
    panel = {"y": sy.json(), "series": drawn, "names": names}
    rows = [[tips[i], f"{sx.say(known[i].x)}, {sy.say(known[i].y)}"] for i in best]
    return _chart(title, sx.json(), [panel], ([], []), rows)


def short_number(value: float) -> str:
    """Return a value as a tooltip or a table shows it: three significant digits, whole numbers in full."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.2f}M"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else rounded(value, 3)


def with_unit(number: str, unit: str) -> str:
    """Return the number with its unit, if there is one."""
    return f"{number} {unit}" if unit else number


def shorten(text: str, most: int) -> str:
    """Return the text, or its start and end around an ellipsis where it is longer: ids differ at both."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


def round_up(value: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{min(f * power for f in (1, 2, 5, 10) if f * power >= value * (1 - 1e-9)):.12g}")


def coarser(edges: Floats, levels: Floats, most: int) -> tuple[Floats, Floats]:
    """Average neighbouring columns, weighted by their width, until at most `most` are left. NaN counts as nothing."""
    columns = edges.size - 1
    if columns <= most:
        return edges, levels
    cuts = np.linspace(0, columns, most + 1).astype(int)
    widths = np.diff(edges) * np.isfinite(levels)
    whole = np.add.reduceat(widths, cuts[:-1], axis=1)
    sums = np.add.reduceat(np.nan_to_num(levels) * widths, cuts[:-1], axis=1)
    return edges[cuts], np.divide(sums, whole, out=np.full(sums.shape, np.nan), where=whole > 0)


def _chart(
    title: str,
    x: Mapping[str, Any],
    panels: Sequence[Mapping[str, Any]],
    hover: tuple[Sequence[Any], Sequence[Sequence[str]]],
    rows: Sequence[Sequence[str]],
    said: str = "",
    note: str = "",
) -> str:
    """Return a chart of panels over one x axis. hover: places on it and the lines of text shown there. rows: its table."""
    panels = [{"height": _HEIGHT_PX, **panel} for panel in panels]
    data = {"x": x, "panels": panels, "at": hover[0], "rows": hover[1]}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    few = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _TABLE_ROWS)).astype(int)).tolist() if rows else []
    cells = "".join(
        f'<tr><th scope="row">{escape(rows[i][0])}</th><td>{escape("; ".join(rows[i][1:]))}</td></tr>' for i in few
    )
    label = escape(f"{title}. {said}" if said else title)
    return (
        f'<h3>{escape(title)}</h3><div class="chart" role="img" aria-label="{label}" data-chart="{escape(text)}"></div>'
        f'<div class="values"><table><caption>{label}</caption><tbody>{cells}</tbody></table></div>'
    ) + (f'<p class="note">{escape(note)}</p>' if note else "")


def _no_data(title: str) -> str:
    return f'<h3>{escape(title)}</h3><p class="note">no data</p>'


def _color(index: int, wanted: int | None = None) -> int:
    return (index if wanted is None else wanted) % COLORS + 1


def _short(value: float) -> float:
    """Return a value with the digits that a screen can show; whole numbers without a point."""
    kept = float(f"{value:.6g}")
    return int(kept) if kept == int(kept) else kept


def _bars(name: str, color: int, left: Sequence[Any], right: Sequence[Any], tall: Floats, sy: Scale) -> dict[str, Any]:
    return {"name": name, "color": color, "kind": "bars", "x": left, "end": right, "y": sy.shown(tall)}


def _thinned(series: Series) -> tuple[Floats, Floats]:
    xs, ys = np.asarray(series.x, dtype=np.float64), np.asarray(series.y, dtype=np.float64)
    most = MOST_DOTS if series.style == "dots" else MOST_POINTS
    if xs.size <= most:
        return xs, ys
    if series.style == "dots":
        highest = np.argsort(np.where(np.isfinite(ys), ys, -np.inf))[-MOST_DOTS // 10 :]
        kept = np.union1d(np.linspace(0, xs.size - 1, MOST_DOTS - highest.size).astype(int), highest)
    else:
        stretches = np.array_split(np.arange(xs.size), MOST_POINTS // 2)
        filled = np.where(np.isfinite(ys), ys, 0.0)
        kept = np.unique([i for part in stretches for i in (part[filled[part].argmin()], part[filled[part].argmax()])])
    return xs[kept], ys[kept]


def _values_at(
    lines: Sequence[tuple[str, Floats, Floats]], sx: Scale, sy: Scale
) -> tuple[list[float | None], list[list[str]]]:
    """Return places on x, and the value of every line there."""
    every = np.unique(np.concatenate([xs for _, xs, _ in lines]))
    every = every[np.unique(np.linspace(0, every.size - 1, min(every.size, _HOVER_ROWS)).astype(int))]
    rows = []
    for value in every.tolist():
        row = [sx.say(value)]
        for name, xs, ys in lines:
            index = int(np.searchsorted(xs, value, side="right")) - 1
            if index >= 0 and np.isfinite(ys[index]):
                row.append(f"{name}: {sy.say(float(ys[index]))}")
        rows.append(row)
    return sx.shown(every), rows


def _cloud_rows(name: str, xs: Floats, ys: Floats, sx: Scale, sy: Scale) -> list[list[str]]:
    """Return the median and the highest of parts of a cloud, by x."""
    known = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
    parts = np.array_split(known[np.argsort(xs[known], kind="stable")], min(6, known.size))
    return [
        [
            f"{name} from {sx.say(float(xs[p[0]]))} to {sx.say(float(xs[p[-1]]))}",
            f"median {sy.say(float(np.median(ys[p])))}, highest {sy.say(float(ys[p].max()))}",
        ]
        for p in parts
        if p.size
    ]


def _cut(values: Sequence[Floats], x: Axis, most: float | None) -> tuple[str, Axis]:
    """Return a text on the values that the axis does not show, and the axis."""
    high = max(float(v.max()) for v in values)
    end = high if most is None else max(float(np.quantile(v, most)) for v in values)
    if high <= _TAIL * end:
        return "", x
    share = float(np.mean(np.concatenate(values) > end))
    return f"{rounded(100 * share, 2)} % up to {with_unit(short_number(high), x.unit)}", replace(x, high=end)


def _with_room(values: Floats) -> Floats:
    """Return the values and one on each side that keeps points and names off the edges; none below 0 that is not."""
    low, high = float(values.min()), float(values.max())
    room = _ROOM * (high - low) or 0.1 * abs(high)
    least = low - room
    return np.append(values, [low if least <= 0 < low else least, high + room])


def _extent(values: Sequence[Floats]) -> tuple[float, float, float]:
    """Return the smallest, largest and smallest positive of the finite values; 0, 1 and 1 without any."""
    finite = [kept for v in values if (kept := v[np.isfinite(v)]).size]
    if not finite:
        return 0.0, 1.0, 1.0
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    positive = [float(p.min()) for v in finite if (p := v[v > max(high, 0.0) * _NOUGHT]).size]
    return 0.0 if -high * _NOUGHT < low < 0 else low, high, min(positive, default=0.0)


def _linear_limits(axis: Axis, low: float, high: float) -> tuple[float, float]:
    low = axis.low if axis.low is not None else min(low, 0.0) if axis.zero else low
    high = axis.high if axis.high is not None else high
    if high - low <= max(_SMALLEST, 1e-9 * abs(low)):
        high = low + max(abs(low) * 0.1, _SMALLEST) if abs(low) > _SMALLEST else low + 1.0
    return low, high


def _log_limits(axis: Axis, low: float, high: float) -> tuple[float, float]:
    low = axis.low if axis.low and axis.low > 0 else low if low > 0 else 1.0
    high = max(axis.high if axis.high is not None else high, _SMALLEST)
    low = min(max(low, _SMALLEST), high)
    power = 10.0 ** math.floor(math.log10(low))
    low, high = max(f * power for f in (1, 2, 5) if f * power <= low * (1 + 1e-9)), round_up(high)
    return (low, high) if high > low else (low, low * 10)
