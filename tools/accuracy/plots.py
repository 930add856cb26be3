"""Scatter plots of errors as SVG: one dot for each measured run, one colour for each engine, logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy.closed_loop import Prediction

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 12.0, 30.0, 42.0
_COLOURS = {"vllm": "#1f6feb", "sglang": "#d1570b", "trtllm": "#3a9a3a"}


@dataclass(frozen=True, slots=True)
class Axis:
    """name: its title. value: of a run. ticks: where it has numbers; the first and the last are its ends."""

    name: str
    value: Callable[[Prediction], float]
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        """Where a value lies between the ends, which hold those beyond."""
        low, high = math.log(self.ticks[0]), math.log(self.ticks[-1])
        return (math.log(min(max(value, self.ticks[0]), self.ticks[-1])) - low) / (high - low)


def scatter(title: str, x: Axis, y: Axis, predictions: Sequence[Prediction], diagonal: bool) -> str:
    """diagonal: where both axes are equal; else a line at 1 of the y axis."""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + width * x.share(value)

    def down(value: float) -> float:
        return _TOP + height * (1 - y.share(value))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" font-family="sans-serif" '
        f'font-size="11" fill="#444"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="13">{title}</text>',
    ]
    for tick in x.ticks:
        at = across(tick)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{tick:,g}</text>')
    for tick in y.ticks:
        at = down(tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    ends = (x.ticks[0], x.ticks[-1])
    line = [(across(end), down(end if diagonal else 1.0)) for end in ends]
    parts.append("<path d='" + "L".join(f"{a:.1f} {b:.1f}" for a, b in line).join(("M", "'")) + " stroke='#888'/>")
    for number, (engine, colour) in enumerate(_COLOURS.items()):
        here = [p for p in predictions if p.run.engine == engine]
        if not here:
            continue
        beside = 0.0 if diagonal else 5.0 * (number - 1)  # runs of different engines have the same few loads
        dots = "".join(f"M{across(x.value(p)) + beside:.1f} {down(y.value(p)):.1f}h0" for p in here)
        parts.append(f'<path d="{dots}" stroke="{colour}" stroke-width="4" stroke-linecap="round" stroke-opacity=".45"/>')
        at = _WIDTH - _RIGHT - 70 * (len(_COLOURS) - number)
        parts.append(f'<circle cx="{at}" cy="14" r="4" fill="{colour}"/><text x="{at + 8}" y="18">{engine}</text>')
    parts.append(f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{x.name}</text>')
    middle = _TOP + height / 2
    parts.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{y.name}</text></svg>')
    return "\n".join(parts) + "\n"


_RATIOS = (0.2, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 5)


def _ratio(metric: str) -> Axis:
    name = "TTFT" if metric == "ttft" else metric
    return Axis(f"{name}, predicted / measured", lambda p: p.error(metric) + 1, _RATIOS)


_CONCURRENCY = Axis("clients", lambda p: p.run.concurrency, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
_ISL = Axis("prompt tokens", lambda p: p.run.isl, (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768))


def plots(predictions: Sequence[Prediction]) -> dict[str, tuple[str, str]]:
    """File name: title and SVG."""
    found: dict[str, tuple[str, str]] = {}

    def add(name: str, title: str, x: Axis, y: Axis, diagonal: bool = False) -> None:
        found[f"{name}.svg"] = title, scatter(title, x, y, predictions, diagonal)

    add("latency-concurrency", "Request latency against concurrency", _CONCURRENCY, _ratio("latency"))
    add("ttft-concurrency", "TTFT against concurrency", _CONCURRENCY, _ratio("ttft"))
    add("latency-isl", "Request latency against prompt length", _ISL, _ratio("latency"))
    add("ttft-isl", "TTFT against prompt length", _ISL, _ratio("ttft"))
    ms = (10, 100, 1000, 1e4, 1e5)
    for metric, ticks in (("latency", (100, 1000, 1e4, 1e5, 1e6)), ("ttft", ms)):
        measured = Axis("measured (ms)", lambda p, name=metric: getattr(p.run, f"{name}_ms"), ticks)  # type: ignore[misc]
        predicted = Axis("predicted (ms)", lambda p, name=metric: getattr(p, f"{name}_ms"), ticks)  # type: ignore[misc]
        name = "TTFT" if metric == "ttft" else "Request latency"
        add(f"{metric}-measured", f"{name}: predicted against measured", measured, predicted, diagonal=True)
    return found


def write_plots(folder: Path, predictions: Sequence[Prediction]) -> str:
    """Write the files and return the Markdown that shows them."""
    folder.mkdir(exist_ok=True)
    lines = []
    for name, (title, svg) in plots(predictions).items():
        (folder / name).write_text(svg)
        lines.append(f"![{title}]({folder.name}/{name})")
    return "\n\n".join(lines)
