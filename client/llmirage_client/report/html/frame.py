"""What all charts share: title, legend, axes, grid, and the words a screen reader says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.scale import TEXT_PX, Axis, Scale, scale
from llmirage_client.report.html.svg import escape, join, line, px, rect, text, text_width

COLORS = 7  # series take them in turn; the page's style sheet says what they are in its two themes
RIGHT_PX = 20.0  # from the end of the x axis to the edge of the chart
AXIS_TITLE_PX = 26.0  # of the row above the y axis with its title
ABOVE_PLOT_PX = 13.0  # from the baseline of such a title to the plot
_LEGEND_ROW_PX = 18.0
_LEGEND_PX = 14.0  # of the legend's text where it is largest, on a narrow screen
_X_TICK_EVERY_PX = 62.0
_Y_TICK_EVERY_PX = 38.0


@dataclass(frozen=True, slots=True)
class Size:
    """Of a chart, px. name: its style class, which says how narrow a screen may make it."""

    width: float
    height: float
    name: str

    def tall(self, height: float) -> Size:
        return Size(self.width, height, self.name)


SMALL = Size(420, 324, "small")  # three beside each other on a desktop, a whole phone
HALF = Size(520, 284, "half")  # two beside each other; on a phone at two thirds, with larger text
WIDE = Size(1180, 284, "wide")


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of the legend. css: of the swatch, as the chart's own shapes have it. shape: "none" of what has no swatch:
    a name of the entries after it."""

    name: str
    css: str = ""
    shape: Literal["line", "box", "dot", "none"] = "line"


@dataclass(frozen=True, slots=True)
class Plot:
    """The area between the axes, px."""

    left: float
    top: float
    right: float
    bottom: float


def color(index: int) -> int:
    """The number in the style classes of the index-th series: 1 to COLORS."""
    return index % COLORS + 1


def chart(
    title: str,
    size: Size,
    x: Axis,
    y: Axis,
    x_values: Sequence[Floats],
    y_values: Sequence[Floats],
    body: Callable[[Scale, Scale, Plot], str],
    keys: Sequence[LegendEntry] = (),
) -> str:
    """An SVG with two axes; `body` draws what is between them."""
    head, top = heading(title, size.width, keys)
    top += AXIS_TITLE_PX
    bottom = size.height - 40.0
    y_scale = scale(y, y_values, bottom, top, max(2, int((bottom - top) / _Y_TICK_EVERY_PX)))
    left = 14.0 + max((text_width(label, TEXT_PX) for _, label in y_scale.ticks), default=0.0)
    right = size.width - RIGHT_PX
    x_scale = scale(x, x_values, left, right, max(2, int((right - left) / _X_TICK_EVERY_PX)))
    plot = Plot(left, top, right, bottom)
    parts = [
        head,
        text(axis_title(y, y_scale), 6.0, top - ABOVE_PLOT_PX),
        y_grid(y_scale, plot),
        x_axis(x_scale, plot, axis_title(x, x_scale)),
        body(x_scale, y_scale, plot),
    ]
    return svg(size, title, parts)


def svg(size: Size, title: str, parts: Sequence[str], description: str = "") -> str:
    said = f"{title}. {description}" if description else title
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart {size.name}" '
        f'viewBox="0 0 {px(size.width)} {px(size.height)}" role="img" aria-label="{escape(said)}">{join(parts)}</svg>'
    )


def empty(title: str, size: Size, why: str) -> str:
    """A chart without data says so."""
    parts = [heading(title, size.width, ())[0], text(why, size.width / 2, size.height / 2, anchor="middle")]
    return svg(size, title, parts, why)


def heading(title: str, width: float, keys: Sequence[LegendEntry]) -> tuple[str, float]:
    """Title and legend at the top of a chart; and where they end, px."""
    parts = [text(title, 6.0, 18.0, "t")]
    at, row = 6.0, 40.0
    for key in keys:
        swatch_px = 0.0 if key.shape == "none" else 18.0
        wide = swatch_px + 2.0 + text_width(key.name, _LEGEND_PX)
        if at > 6.0 and at + wide > width - 6.0:
            at, row = 6.0, row + _LEGEND_ROW_PX
        if swatch_px:
            parts.append(_swatch(key, at, row))
        parts.append(text(key.name, at + swatch_px, row))
        at += wide + 12.0
    return join(parts), row + 6.0 if keys else 26.0


def _swatch(key: LegendEntry, x: float, baseline: float) -> str:
    middle = baseline - 4.0
    if key.shape == "line":
        return line(x, middle, x + 13.0, middle, key.css)
    if key.shape == "dot":
        return f'<path d="M{px(x + 6.5)} {px(middle)}h0" class="{key.css}"/>'
    return rect(x, middle - 5.0, 12.0, 10.0, key.css, radius=2.0)


def axis_title(axis: Axis, laid: Scale) -> str:
    return f"{axis.title} ({laid.unit})" if axis.title and laid.unit else axis.title or laid.unit


def y_grid(laid: Scale, plot: Plot) -> str:
    parts = []
    for value, label in laid.ticks:
        at = laid.at(value)
        parts.append(line(plot.left, at, plot.right, at, "g"))
        parts.append(text(label, plot.left - 6.0, at + 4.0, anchor="end"))
    return join(parts)


def x_axis(laid: Scale, plot: Plot, title: str | None) -> str:
    """title: below the labels; None: the axis has neither."""
    parts = [line(plot.left, plot.bottom, plot.right, plot.bottom, "g0")]
    for value, label in laid.ticks:
        at = laid.at(value)
        parts.append(line(at, plot.bottom, at, plot.bottom + 4.0, "g0"))
        if title is not None:
            # A wide label of the last tick stays inside, also when its place is rounded to a tenth.
            edge = plot.right + RIGHT_PX - 0.1 - text_width(label, TEXT_PX) / 2
            parts.append(text(label, min(at, edge), plot.bottom + 17.0, anchor="middle"))
    if title is not None:
        parts.append(text(title, (plot.left + plot.right) / 2, plot.bottom + 34.0, anchor="middle"))
    return join(parts)


def hover(plot: Plot, at_px: Sequence[float], rows: Sequence[Sequence[str]]) -> str:
    """An invisible area that shows the nearest row of text under the pointer, with a line through it (see page.js)."""
    content = json.dumps([[round(p, 1) for p in at_px], [list(r) for r in rows]], separators=(",", ":"), ensure_ascii=False)
    return (
        f'<g class="hover" data-rows="{escape(content)}"><rect class="no" x="{px(plot.left)}" y="{px(plot.top)}" '
        f'width="{px(plot.right - plot.left)}" height="{px(plot.bottom - plot.top)}"/></g>'
    )
