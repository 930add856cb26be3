"""Lines and points over two axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.frame import HALF, LegendEntry, Plot, Size, chart, color, empty, hover
from llmirage_client.report.html.scale import TEXT_PX, Axis, Scale
from llmirage_client.report.html.svg import dots, escape, join, path, polyline, px, shorten, text

Style = Literal["line", "step", "area", "dots", "points"]
MOST_DOTS = 4000
MOST_POINTS = 400  # of a line: two a pixel would not be seen
_HOVER_ROWS = 160
_FEW_DOTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """x and y of equal length; NaN in y is a gap.

    style: "line"; "step" holds each value until the next x; "area" is a step filled to 0; "dots" a cloud without a line;
    "points" a line through marked points, each with its tip.
    color: which of the palette, from 0; None: the place of the series.
    """

    name: str
    x: npt.ArrayLike
    y: npt.ArrayLike
    style: Style = "line"
    color: int | None = None
    tips: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A reference line with a label, across the plot at a value of y."""

    value: float
    label: str


def line(series: Sequence[Series], *, title: str, x: Axis, y: Axis, size: Size = HALF, marks: Sequence[Mark] = ()) -> str:
    """Series over shared axes, with a legend when there is more than one, and values under the pointer.

    Long lines are thinned to MOST_POINTS (lowest and highest of each stretch stay) and clouds to MOST_DOTS.
    """
    prepared = [
        (s, color(i if s.color is None else s.color), *_thinned(s)) for i, s in enumerate(series) if np.asarray(s.y).size
    ]
    if not any(np.isfinite(ys).any() for _, _, _, ys in prepared):
        return empty(title, size, "no data")
    keys = [
        LegendEntry(s.name, _css(s, n) + " few", "dot") if s.style == "dots" else LegendEntry(s.name, _css(s, n))
        for s, n, _, _ in (prepared if len(prepared) > 1 else ())
    ]
    x_values = [xs for _, _, xs, _ in prepared]
    y_values = [ys for _, _, _, ys in prepared] + [np.array([m.value]) for m in marks]

    def body(sx: Scale, sy: Scale, plot: Plot) -> str:
        parts = []
        for s, number, xs, ys in prepared:
            parts.append(_drawn(s, number, sx, sy, xs, ys, plot))
        parts += [_mark(m, sy, plot) for m in marks]
        lines = [(s.name, xs, ys) for s, _, xs, ys in prepared if s.style not in ("dots", "points")]
        if lines:
            parts.insert(0, _hover(lines, sx, sy, plot))
        return join(parts)

    return chart(title, size, x, y, x_values, y_values, body, keys)


def _thinned(series: Series) -> tuple[Floats, Floats]:
    xs, ys = np.asarray(series.x, dtype=np.float64), np.asarray(series.y, dtype=np.float64)
    if series.style == "dots":
        return _fewer_dots(xs, ys)
    if xs.size <= MOST_POINTS:
        return xs, ys
    stretches = np.array_split(np.arange(xs.size), MOST_POINTS // 2)
    filled = np.where(np.isfinite(ys), ys, 0.0)
    kept = np.unique([i for part in stretches for i in (part[filled[part].argmin()], part[filled[part].argmax()])])
    return xs[kept], ys[kept]


def _fewer_dots(xs: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """Evenly by place in the series, and the highest always: they are what one looks for."""
    if xs.size <= MOST_DOTS:
        return xs, ys
    highest = np.argsort(np.where(np.isfinite(ys), ys, -np.inf))[-MOST_DOTS // 10 :]
    kept = np.union1d(np.linspace(0, xs.size - 1, MOST_DOTS - highest.size).astype(int), highest)
    return xs[kept], ys[kept]


def _css(series: Series, number: int) -> str:
    return f"d d{number}" if series.style == "dots" else f"l l{number}"


def _drawn(series: Series, number: int, sx: Scale, sy: Scale, xs: Floats, ys: Floats, plot: Plot) -> str:
    px_x, px_y = sx(xs), sy(ys)
    css = _css(series, number)
    if series.style == "dots":
        return path(dots(px_x, px_y), css + (" few" if xs.size <= _FEW_DOTS else ""))
    if series.style in ("step", "area"):
        px_x, px_y = np.repeat(px_x, 2)[1:], np.repeat(px_y, 2)[:-1]
    d = polyline(px_x, px_y)
    shapes = [path(d, css)]
    if series.style == "area" and d:
        shapes.insert(0, path(_to_ground(px_x, px_y, plot), f"w f{number}"))
    if series.style == "points":
        tips = series.tips or [f"{series.name}: {sy.say(b)} at {sx.say(a)}" for a, b in zip(xs, ys, strict=True)]
        shapes += [
            f'<circle cx="{px(a)}" cy="{px(b)}" r="4" class="f{number}"><title>{escape(tip)}</title></circle>'
            for a, b, tip in zip(px_x, px_y, tips, strict=False)
            if np.isfinite(b)
        ]
    return join(shapes)


def _to_ground(xs: Floats, ys: Floats, plot: Plot) -> str:
    ground = np.where(np.isfinite(ys), ys, plot.bottom)
    return (
        f"M{px(xs[0])} {px(plot.bottom)}" + polyline(xs, ground).replace("M", "L", 1) + f"L{px(xs[-1])} {px(plot.bottom)}Z"
    )


def _mark(mark: Mark, sy: Scale, plot: Plot) -> str:
    label = shorten(mark.label, plot.right - plot.left - 8.0, TEXT_PX)
    at = sy.at(mark.value)
    below = at - plot.top < 16.0
    return path(f"M{px(plot.left)} {px(at)}H{px(plot.right)}", "m") + text(
        label, plot.right - 2.0, at + (14.0 if below else -5.0), "a", "end"
    )


def _hover(lines: Sequence[tuple[str, Floats, Floats]], sx: Scale, sy: Scale, plot: Plot) -> str:
    every = np.unique(np.concatenate([xs for _, xs, _ in lines]))
    if every.size > _HOVER_ROWS:
        every = every[np.linspace(0, every.size - 1, _HOVER_ROWS).astype(int)]
    rows = []
    for value in every.tolist():
        row = [sx.say(value)]
        for name, xs, ys in lines:
            index = int(np.searchsorted(xs, value, side="right")) - 1
            if index >= 0 and np.isfinite(ys[index]):
                row.append(f"{name}: {sy.say(float(ys[index]))}")
        rows.append(row)
    return hover(plot, sx(every).tolist(), rows)
