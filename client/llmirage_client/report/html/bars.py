"""Bars over categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmirage_client.report.html.frame import (
    ABOVE_PLOT_PX,
    AXIS_TITLE_PX,
    SMALL,
    LegendEntry,
    Plot,
    Size,
    axis_title,
    color,
    empty,
    heading,
    svg,
    y_grid,
)
from llmirage_client.report.html.scale import TEXT_PX, Axis, figure, scale, with_unit
from llmirage_client.report.html.svg import join, line, rect, shorten, text, text_width


@dataclass(frozen=True, slots=True)
class Bars:
    """One value a category; NaN: no bar. color: which of the palette, from 0; None: the place of the series."""

    name: str
    values: npt.ArrayLike
    color: int | None = None


def bars(categories: Sequence[str], series: Sequence[Bars], *, title: str, x: str = "", y: Axis, size: Size = SMALL) -> str:
    """Upright bars, series beside each other. x: what the categories are. Labels never touch."""
    tall = [np.asarray(s.values, dtype=np.float64) for s in series]
    if not len(categories) or not any(np.isfinite(v).any() for v in tall):
        return empty(title, size, "no data")
    numbers = [color(i if s.color is None else s.color) for i, s in enumerate(series)]
    keys = [LegendEntry(s.name, f"f{n}", "box") for s, n in zip(series, numbers, strict=True)] if len(series) > 1 else []
    head, top = heading(title, size.width, keys)
    top += AXIS_TITLE_PX
    bottom = size.height - (40.0 if x else 24.0)
    sy = scale(y, tall, bottom, top, max(2, int((bottom - top) / 38.0)))
    left = 14.0 + max((text_width(label, TEXT_PX) for _, label in sy.ticks), default=0.0)
    plot = Plot(left, top, size.width - 12.0, bottom)
    each = (plot.right - plot.left) / len(categories)

    parts = [head, text(axis_title(y, sy), 6.0, top - ABOVE_PLOT_PX), y_grid(sy, plot)]
    inner = each * (0.8 if each > 6 else 0.95)
    wide = inner / len(series)
    for place, category in enumerate(categories):
        ground = sy.at(0.0) if sy.low <= 0 else plot.bottom
        for index, (one, values, number) in enumerate(zip(series, tall, numbers, strict=True)):
            value = float(values[place])
            if not np.isfinite(value):
                continue
            x_px = plot.left + each * place + (each - inner) / 2 + wide * index
            y_px = sy.at(value)
            said = with_unit(figure(value), y.unit)
            tip = f"{category}, {one.name}: {said}" if len(series) > 1 else f"{category}: {said}"
            parts.append(rect(x_px, min(y_px, ground), wide, abs(ground - y_px), f"f{number}", tip))
    parts.append(line(plot.left, plot.bottom, plot.right, plot.bottom, "g0"))
    parts.append(_labels(categories, plot, each))
    if x:
        parts.append(text(x, (plot.left + plot.right) / 2, size.height - 6.0, anchor="middle"))
    return svg(size, title, parts)


def _labels(categories: Sequence[str], plot: Plot, each: float) -> str:
    """Every label, shortened if that leaves it readable; else every n-th."""
    widest = max(text_width(c, TEXT_PX) for c in categories)
    every = 1
    if widest + 8.0 > each:
        every = 1 if each >= 60.0 else int(np.ceil((min(widest, 60.0) + 8.0) / each))
    parts = []
    for i, category in enumerate(categories):
        label, middle = shorten(category, each * every - 6.0, TEXT_PX), plot.left + each * (i + 0.5)
        if i % every == 0 and middle + text_width(label, TEXT_PX) / 2 < plot.right + 10.0:
            parts.append(text(label, middle, plot.bottom + 18.0, anchor="middle"))
    return join(parts)
