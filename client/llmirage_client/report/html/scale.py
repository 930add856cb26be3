"""From values to pixels: limits, ticks that people would choose, labels with the unit that suits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.svg import text_box

TEXT_PX = 12.0
_LOG_FROM = 60.0  # a positive sample whose largest value is so many times its smallest reads better on a log scale
_NOUGHT = 1e-5  # of the largest value
_SMALLEST = 1e-12  # what is below is rounding, not a measurement
_GAP_PX = 10.0  # between labels
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))  # prefixes of numbers from ten times their size
# Larger units of an axis, and from which value on they are used.
_LADDERS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((180.0, 60.0, "min"), (7200.0, 3600.0, "h")),
    "ms": ((5_000.0, 1e3, "s"), (300_000.0, 6e4, "min")),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows.

    unit: of the values given ("s", "ms", "%", "tokens/s"...); seconds and milliseconds are shown in a larger unit where
    the values are large. log: None decides by the values. low, high: limits, where the values shall not say.
    zero: a linear axis starts at 0 though no value is near it. integer: the values are whole numbers.
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
    """A laid-out axis. ticks: value and label. unit: of the labels, which are values over divisor."""

    low: float
    high: float
    log: bool
    start_px: float
    end_px: float
    ticks: tuple[tuple[float, str], ...]
    unit: str
    divisor: float

    def __call__(self, values: Floats | Sequence[float]) -> Floats:
        """Pixels of values; those outside the limits lie outside the axis, those below a log axis are NaN."""
        v = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.log:
            v = np.log10(np.where(v >= low * (1 - 1e-9), v, np.nan))
            low, high = math.log10(low), math.log10(high)
        return self.start_px + (v - low) / (high - low) * (self.end_px - self.start_px)

    def at(self, value: float) -> float:
        return float(self([value])[0])

    def say(self, value: float) -> str:
        """A value with three digits and its unit, for a tooltip."""
        if not math.isfinite(value):
            return "none"
        return with_unit(figure(value / self.divisor), self.unit)


def scale(axis: Axis, values: Sequence[Floats], start_px: float, end_px: float, most: int) -> Scale:
    """Lays an axis out over the finite ones of `values`. most: ticks at most; x labels that would touch get fewer."""
    low, high, positive_low = _extent(values)
    log = axis.log if axis.log is not None else positive_low > 0 and low >= 0 and high / positive_low >= _LOG_FROM
    if log:
        low, high = _log_limits(axis, positive_low, high)
    else:
        low, high = _linear_limits(axis, low, high)
    divisor, unit = _unit(axis.unit, high)
    horizontal = end_px > start_px
    for count in range(most, 0, -1):
        if log:
            ticks = log_ticks(low / divisor, high / divisor, count)
        else:
            ticks = nice_ticks(low / divisor, high / divisor, count, axis.integer and divisor == 1.0, unit in ("s", "min"))
        labels = tick_labels(ticks)
        made = tuple((t * divisor, label) for t, label in zip(ticks, labels, strict=True))
        laid = Scale(low, high, log, start_px, end_px, made, unit, divisor)
        if not horizontal or _apart(laid):
            break
    if not log and axis.high is None and not horizontal and made:
        # The value axis ends on a tick.
        step = made[1][0] - made[0][0] if len(made) > 1 else 0.0
        if step and made[-1][0] < high:
            top = made[-1][0] + step
            made = (*made, (top, tick_labels([t / divisor for t, _ in made] + [top / divisor])[-1]))
            high = top
    return Scale(low, high, log, start_px, end_px, made, unit, divisor)


def nice_ticks(low: float, high: float, most: int, integer: bool = False, time: bool = False) -> list[float]:
    """At most `most` + 1 multiples of 1, 2 or 5 (for times also 15 and 30) times a power of ten within the limits."""
    span = high - low
    if span <= 0 or most < 1:
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [power * m for m in (1, 2, 5, 10)]
    if time:
        steps = sorted({*steps, *(s for s in (15.0, 30.0, 60.0) if s >= raw and s <= 10 * power)})
    step = next(s for s in steps if s >= raw * (1 - 1e-9))
    if integer:
        step = max(step, 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Through the decimal text, so that 3 * 0.1 is 0.3.
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten within the limits, with 2 and 5 (or 3) between them while there is room for them."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    inside: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        inside = [v for e in range(first, last + 1) for f in factors if low * 0.999 <= (v := f * 10.0**e) <= high * 1.001]
        if len(inside) <= most + 1:
            break
    skip = math.ceil(len(inside) / (most + 1)) if len(inside) > most + 1 else 1
    return [float(f"{v:.12g}") for v in inside[::skip]]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Labels with the same number of decimals, in thousands (k) or millions (M) where they are large."""
    if not ticks:
        return []
    large = max(abs(t) for t in ticks)
    if len(ticks) > 2 and _geometric(ticks):
        return [figure_short(t) for t in ticks]
    divisor, suffix = next(((by, name) for by, name in _LARGE if large >= 10 * by), (1.0, ""))
    decimals = max((_decimals(t / divisor) for t in ticks), default=0)
    return ["0" if tick == 0 else f"{tick / divisor:.{decimals}f}{suffix}" for tick in ticks]


def figure(value: float) -> str:
    """A value as a tooltip or a table shows it: three significant digits, whole numbers in full."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.2f}M"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def figure_short(value: float) -> str:
    for divisor, suffix in _LARGE:
        if abs(value) >= 10 * divisor:
            return f"{value / divisor:g}{suffix}"
    return f"{value:g}"


def with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number


def _extent(values: Sequence[Floats]) -> tuple[float, float, float]:
    """Smallest, largest and smallest positive of the finite values; 0, 1 and 1 without any.

    What is 100,000 times smaller than the largest counts as 0: on no chart can both be read.
    """
    finite = [kept for v in values if (kept := v[np.isfinite(v)]).size]
    if not finite:
        return 0.0, 1.0, 1.0
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    positive = [float(p.min()) for v in finite if (p := v[v > max(high, 0.0) * _NOUGHT]).size]
    low = 0.0 if -high * _NOUGHT < low < 0 else low
    return low, high, min(positive, default=0.0)


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
    low, high = _step_down(low), _step_up(high)
    return (low, high) if high > low else (low, low * 10)


def _step_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(f * power for f in (1, 2, 5) if f * power <= value * (1 + 1e-9))


def _step_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(f * power for f in (1, 2, 5, 10) if f * power >= value * (1 - 1e-9))


def _unit(unit: str, high: float) -> tuple[float, str]:
    divisor, name = 1.0, unit
    for from_value, by, larger in _LADDERS.get(unit, ()):
        if high >= from_value:
            divisor, name = by, larger
    return divisor, name


def _decimals(value: float) -> int:
    text = f"{value:.6g}"
    if "e" in text:
        return 0 if abs(value) >= 1 else min(9, -math.floor(math.log10(abs(value))))
    return len(text.partition(".")[2])


def _geometric(ticks: Sequence[float]) -> bool:
    return (
        all(t > 0 for t in ticks)
        and ticks[-1] / ticks[0] >= 8
        and not math.isclose(ticks[1] - ticks[0], ticks[2] - ticks[1])
    )


def _apart(laid: Scale) -> bool:
    boxes = [text_box(label, laid.at(value), 0.0, TEXT_PX, "middle") for value, label in laid.ticks]
    return not any(a.overlaps(b, _GAP_PX) for a, b in pairwise(boxes))
