"""Rows of colour over time: one strip an instance, a user, a turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.frame import RIGHT_PX, WIDE, Plot, axis_title, empty, heading, hover, svg, x_axis
from llmirage_client.report.html.scale import TEXT_PX, Axis, figure, scale, with_unit
from llmirage_client.report.html.svg import join, path, px, rect, shorten, text, text_width

LEVELS = 8
MOST_ROWS = 64
_MOST_COLUMNS = 300
_LABEL_PX = 170.0


def heat_strip(rows: Sequence[str], edges: npt.ArrayLike, values: npt.ArrayLike, *, title: str, x: Axis, value: Axis) -> str:
    """rows: their names. edges: shape (columns + 1,), on x. values: shape (rows, columns); NaN stays blank.

    Colour goes from value.low (default 0) to value.high (default the largest). The chart is as high as its rows need; only
    the first MOST_ROWS are drawn, and the title says so.
    """
    cells = np.atleast_2d(np.asarray(values, dtype=np.float64))[:MOST_ROWS]
    at = np.asarray(edges, dtype=np.float64)
    if not cells.size or not np.isfinite(cells).any():
        return empty(title, WIDE, "no data")
    if len(rows) > MOST_ROWS:
        title += f" (first {MOST_ROWS} of {len(rows)})"
    cells, at = _fewer_columns(cells, at)
    low = value.low if value.low is not None else 0.0
    high = value.high if value.high is not None else float(np.nanmax(cells))
    high = high if high > low else low + 1.0
    names = [shorten(name, _LABEL_PX, TEXT_PX) for name in rows[:MOST_ROWS]]
    head, top = heading(title, WIDE.width, ())
    top += 24.0
    row_px = 22.0 if len(names) <= 16 else 15.0
    plot = Plot(14.0 + max(text_width(n, TEXT_PX) for n in names), top, WIDE.width - RIGHT_PX, top + row_px * len(names))
    whole = WIDE.tall(plot.bottom + 40.0)
    sx = scale(Axis(x.title, x.unit, False, float(at[0]), float(at[-1])), [], plot.left, plot.right, 14)
    levels = np.clip(np.ceil((np.nan_to_num(cells, nan=low) - low) / (high - low) * LEVELS), 1, LEVELS).astype(int)
    levels[~np.isfinite(cells)] = 0

    parts = [head, _legend(value, low, high, top - 22.0)]
    drawn: dict[int, list[str]] = {}
    px_at = sx(at)
    for row in range(len(names)):
        y = plot.top + row_px * row
        parts.append(text(names[row], plot.left - 6.0, y + row_px / 2 + 4.0, anchor="end"))
        starts = np.flatnonzero(np.diff(levels[row], prepend=-1))
        for a, b in zip(starts, [*starts[1:], levels.shape[1]], strict=True):
            drawn.setdefault(int(levels[row, a]), []).append(
                f"M{px(px_at[a])} {px(y + 1)}H{px(px_at[b])}v{px(row_px - 2)}H{px(px_at[a])}Z"
            )
    parts += [path("".join(d), f"h{level}") for level, d in sorted(drawn.items()) if level]
    parts.append(x_axis(sx, plot, axis_title(x, sx)))
    parts.append(_hover(rows, cells, sx.say, px_at, at, value, plot))
    return svg(whole, title, parts)


def _fewer_columns(cells: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Neighbours averaged until there are at most _MOST_COLUMNS."""
    columns = cells.shape[1]
    if columns <= _MOST_COLUMNS:
        return cells, edges
    cuts = np.linspace(0, columns, _MOST_COLUMNS + 1).astype(int)
    known = np.isfinite(cells)
    sums = np.add.reduceat(np.where(known, cells, 0.0), cuts[:-1], axis=1)
    counts = np.add.reduceat(known.astype(np.float64), cuts[:-1], axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), edges[cuts]


def _legend(value: Axis, low: float, high: float, y: float) -> str:
    label = f"{value.title}: {with_unit(figure(low), value.unit)}"
    start = 12.0 + text_width(label, TEXT_PX)
    steps = join(rect(start + 18.0 * (n - 1), y, 18.0, 11.0, f"h{n}") for n in range(1, LEVELS + 1))
    return (
        text(label, 6.0, y + 10.0) + steps + text(with_unit(figure(high), value.unit), start + 18.0 * LEVELS + 6.0, y + 10.0)
    )


def _hover(rows: Sequence[str], cells: Floats, say: object, px_at: Floats, edges: Floats, value: Axis, plot: Plot) -> str:
    assert callable(say)
    shown = np.unique(np.linspace(0, cells.shape[1] - 1, min(cells.shape[1], 120)).astype(int))
    few = range(min(cells.shape[0], 12))
    lines = [
        [str(say(float(edges[c])))]
        + [f"{rows[r]}: {with_unit(figure(float(cells[r, c])), value.unit)}" for r in few if np.isfinite(cells[r, c])]
        for c in shown
    ]
    return hover(plot, ((px_at[shown] + px_at[shown + 1]) / 2).tolist(), lines)
