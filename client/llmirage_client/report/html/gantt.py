"""Lanes of bars over time with connectors between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmirage_client.report.html.frame import RIGHT_PX, WIDE, LegendEntry, Plot, axis_title, empty, heading, svg, x_axis
from llmirage_client.report.html.scale import TEXT_PX, Axis, Scale, scale
from llmirage_client.report.html.svg import escape, join, line, path, px, shorten, text, text_width

_LANE_PX = 22.0
_GROUP_PX = 26.0
_BAR_PX = 12.0
_LABEL_PX = 210.0
_INDENT_PX = 12.0
_NARROWEST_PX = 1.6  # a bar that can still be seen


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a lane: pieces after one another, each (from, to, style class), on the x axis; one tooltip for all."""

    pieces: Sequence[tuple[float, float, str]]
    tip: str = ""
    css: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """label: at the left, indented by depth. spans: (from, to, style class) of the thin lines behind the bars."""

    label: str
    bars: Sequence[Bar]
    spans: Sequence[tuple[float, float, str]] = ()
    depth: int = 0
    tip: str = ""


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Lanes under one heading."""

    title: str
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True)
class Link:
    """From one lane at a time to another at a time. Lanes are numbered through all groups, from 0."""

    from_lane: int
    from_x: float
    to_lane: int
    to_x: float
    css: str
    tip: str = ""


def gantt(
    groups: Sequence[LaneGroup], links: Sequence[Link] = (), *, title: str, x: Axis, keys: Sequence[LegendEntry] = ()
) -> str:
    """As high as its lanes need. Links run from lane to lane as curves that leave and arrive horizontally."""
    lanes = [lane for group in groups for lane in group.lanes]
    times = [t for lane in lanes for bar in lane.bars for a, b, _ in bar.pieces for t in (a, b)]
    if not times:
        return empty(title, WIDE, "no data")
    head, top = heading(title, WIDE.width, keys)
    labels = [shorten(lane.label, _LABEL_PX - _INDENT_PX * lane.depth, TEXT_PX) for lane in lanes]
    left = 24.0 + max(text_width(s, TEXT_PX) + _INDENT_PX * lane.depth for s, lane in zip(labels, lanes, strict=True))
    top += 20.0  # labels of the axis above the lanes too: a tall chart does not fit a screen
    headed = any(group.title for group in groups)
    bottom = top + _LANE_PX * len(lanes) + (_GROUP_PX * len(groups) if headed else 0.0)
    plot = Plot(left, top, WIDE.width - RIGHT_PX, bottom)
    sx = scale(x, [np.array(times)], plot.left, plot.right, 14)

    parts = [head, *(line(sx.at(v), plot.top, sx.at(v), plot.bottom, "g") for v, _ in sx.ticks)]
    middles: list[float] = []
    drawn: list[str] = []
    y = top
    for group in groups:
        if headed:
            drawn.append(line(6.0, y + 2.0, plot.right, y + 2.0, "g"))
            drawn.append(text(shorten(group.title, plot.right - 12.0, TEXT_PX), 6.0, y + 18.0, "a strong"))
            y += _GROUP_PX
        for lane in group.lanes:
            middles.append(y + _LANE_PX / 2)
            drawn.append(_lane(lane, labels[len(middles) - 1], sx, middles[-1]))
            y += _LANE_PX
    # Connectors lie over the grid and under the bars, so that they seem to leave and enter them.
    parts += [_link(link, sx, middles) for link in links]
    parts += drawn
    parts += [text(label, sx.at(v), plot.top - 6.0, anchor="middle") for v, label in sx.ticks]
    parts.append(x_axis(sx, plot, axis_title(x, sx)))
    return svg(WIDE.tall(bottom + 40.0), title, parts)


def _lane(lane: Lane, label: str, sx: Scale, middle: float) -> str:
    parts = [_label(lane, label, middle)]
    parts += [line(sx.at(a), middle, sx.at(b), middle, css) for a, b, css in lane.spans]
    for bar in lane.bars:
        pieces = []
        for a, b, css in bar.pieces:
            start, end = sx([a, b])
            wide = max(end - start, _NARROWEST_PX)
            pieces.append(
                f'<path d="M{px(start)} {px(middle - _BAR_PX / 2)}h{px(wide)}v{px(_BAR_PX)}h{px(-wide)}z" class="{css}"/>'
            )
        tip = f"<title>{escape(bar.tip)}</title>" if bar.tip else ""
        parts.append(f'<g class="r {bar.css}">{tip}{join(pieces)}</g>')
    return join(parts)


def _label(lane: Lane, label: str, middle: float) -> str:
    at = 6.0 + _INDENT_PX * lane.depth
    elbow = path(f"M{px(at - 8)} {px(middle - 8)}v7h5", "g0") if lane.depth else ""
    tip = f"<title>{escape(lane.tip)}</title>" if lane.tip else ""
    return f'{elbow}<text x="{px(at)}" y="{px(middle + 4)}" class="a">{tip}{escape(label)}</text>'


def _link(link: Link, sx: Scale, middles: Sequence[float]) -> str:
    a, b = sx.at(link.from_x), sx.at(link.to_x)
    y1, y2 = middles[link.from_lane], middles[link.to_lane]
    bend = min(max(abs(b - a) * 0.5, 6.0), 40.0)
    d = f"M{px(a)} {px(y1)}C{px(a + bend)} {px(y1)} {px(b - bend)} {px(y2)} {px(b)} {px(y2)}"
    return path(d, f"k {link.css}", link.tip)
