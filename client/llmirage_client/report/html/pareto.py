"""Which of many candidates nothing else beats: points of two goals and the frontier of the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.frame import HALF, LegendEntry, Plot, Size, chart, color, empty
from llmirage_client.report.html.scale import TEXT_PX, Axis, Scale
from llmirage_client.report.html.svg import Box, escape, join, path, px, shorten, text, text_box

Better = Literal["more", "less"]
_LABEL_PX = 190.0
_PLACES = ((9, -6, "start"), (-9, -6, "end"), (9, 16, "start"), (-9, 16, "end"))  # of a name beside its point, px
_LINE_STEP_PX = 4.0
_ROOM = 0.08  # of what the points span, on each side of them
_MOST_POINTS = 3000


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A candidate. group: its colour and legend entry. tip: shown under the pointer; empty: name and both values."""

    x: float
    y: float
    name: str = ""
    group: str = ""
    tip: str = ""


def frontier(x: Floats, y: Floats, better_x: Better, better_y: Better) -> list[int]:
    """Indices of the points that no other point equals or beats in both, by x ascending. None has a NaN."""
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
    size: Size = HALF,
) -> str:
    """All points, the frontier as a line through the best, their names where there is room for them.

    groups_of: what the groups are values of. The axes span the points, not 0.
    """
    known = [p for p in points if np.isfinite(p.x) and np.isfinite(p.y)]
    if not known:
        return empty(title, size, "no data")
    xs, ys = np.array([p.x for p in known]), np.array([p.y for p in known])
    best = frontier(xs, ys, better_x, better_y)
    groups = list(dict.fromkeys(p.group for p in known))
    numbers = {g: color(i) for i, g in enumerate(groups)}
    named = [g for g in groups if g]
    keys = [LegendEntry(f"{groups_of}:", shape="none")] if groups_of and named else []
    keys += [LegendEntry(g, f"d d{numbers[g]} big", "dot") for g in named]
    keys.append(LegendEntry("not beaten by any other", "l front"))
    every = len(known) // _MOST_POINTS + 1
    shown = [known[i] for i in sorted({*best, *range(0, len(known), every)})]

    def body(sx: Scale, sy: Scale, plot: Plot) -> str:
        chosen = {id(known[i]) for i in best}
        # Away from the corner of the best, each corner of the frontier stands for what both neighbours reach.
        corner = [f"M{px(sx.at(xs[best[0]]))} {px(sy.at(ys[best[0]]))}"]
        corner += [f"L{px(sx.at(xs[i]))} {px(sy.at(ys[i]))}" for i in best[1:]]
        parts = [path("".join(corner), "l front")]
        for p in shown:
            css = f"f{numbers[p.group]}" + ("" if id(p) in chosen else " dim")
            tip = p.tip or f"{p.name}: {sx.say(p.x)}, {sy.say(p.y)}"
            parts.append(
                f'<circle cx="{px(sx.at(p.x))}" cy="{px(sy.at(p.y))}" r="{5 if id(p) in chosen else 3.5}" class="{css}">'
                f"<title>{escape(tip)}</title></circle>"
            )
        parts.append(_labels([known[i] for i in best], sx, sy, plot))
        return join(parts)

    return chart(title, size, replace(x, zero=False), replace(y, zero=False), [_with_room(xs)], [_with_room(ys)], body, keys)


def _with_room(values: Floats) -> Floats:
    """The values, and one on each side of them that keeps points and names off the edges; none below 0 that is not."""
    low, high = float(values.min()), float(values.max())
    room = _ROOM * (high - low) or 0.1 * abs(high)
    least = low - room
    return np.append(values, [low if least <= 0 < low else least, high + room])


def _labels(best: Sequence[ParetoPoint], sx: Scale, sy: Scale, plot: Plot) -> str:
    """Names beside their points, each in the first of four places where it touches nothing, or else only the line through
    the points; without a place, none.
    """
    at = [(sx.at(p.x), sy.at(p.y)) for p in best]
    taken = [Box(a - 5, b - 5, a + 5, b + 5) for a, b in at]
    joined = [box for one, other in pairwise(at) for box in _along(one, other)]
    parts = []
    for p in best:
        if not p.name:
            continue
        name = shorten(p.name, _LABEL_PX, TEXT_PX)
        a, b = sx.at(p.x), sy.at(p.y)
        free = []
        for dx, dy, anchor in _PLACES:
            box = text_box(name, a + dx, b + dy, TEXT_PX, anchor)
            inside = (
                box.left > plot.left and box.right < plot.right + 16 and box.top > plot.top - 4 and box.bottom < plot.bottom
            )
            if inside and not any(box.overlaps(other, 2) for other in taken):
                free.append((any(box.overlaps(dot) for dot in joined), box, text(name, a + dx, b + dy, "n", anchor)))
        if free:
            _, box, drawn = min(free, key=lambda place: place[0])
            taken.append(box)
            parts.append(drawn)
    return join(parts)


def _along(one: tuple[float, float], other: tuple[float, float]) -> Iterator[Box]:
    """Points of the line between two, close enough to tell what it crosses."""
    if not np.isfinite([*one, *other]).all():  # of 0, which a logarithmic axis does not have
        return
    steps = int(max(abs(one[0] - other[0]), abs(one[1] - other[1])) / _LINE_STEP_PX) + 1
    for x, y in zip(np.linspace(one[0], other[0], steps + 1), np.linspace(one[1], other[1], steps + 1), strict=True):
        yield Box(float(x), float(y), float(x), float(y))
