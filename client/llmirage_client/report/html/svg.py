"""Pieces of SVG as text: escaped, rounded to a tenth of a pixel, measured without a font."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.arrays import Floats

# Widths in em of DejaVu Sans, the widest of the usual system fonts: text measured by them fits in the others too.
_NARROW = {**dict.fromkeys("ijlI'|.,:; !()[]/\\", 0.4), **dict.fromkeys("ftr-", 0.42)}
_WIDE = {**dict.fromkeys("mMW@%", 0.98), **dict.fromkeys("wABCDEGHKNOPQRSUVXYZ&+=<>~_", 0.8)}
_USUAL = 0.64
_BOLD = 1.1


def escape(text: object) -> str:
    """Text for an element or an attribute in either kind of quotes; characters that XML cannot hold become spaces."""
    plain = "".join(c if c in "\t\n" or ("\x20" <= c < "\x7f") or _holdable(c) else " " for c in str(text))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;").replace("'", "&#39;")


def _holdable(c: str) -> bool:
    return "\xa0" <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c >= "\U00010000"


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide `text` is, px; rather too wide than too narrow."""
    em = sum(_NARROW.get(c) or _WIDE.get(c) or (_USUAL if c < "\u2e80" else 1.05) for c in text)
    return em * size * (_BOLD if bold else 1.0)


def shorten(text: str, most_px: float, size: float) -> str:
    """The text, or its start and end around an ellipsis where it is too wide: ids differ at both."""
    if text_width(text, size) <= most_px:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = (kept + 1) // 2
        short = f"{text[:head]}…{text[len(text) - (kept - head) :]}"
        if text_width(short, size) <= most_px:
            return short
    return "…"


@dataclass(frozen=True, slots=True)
class Box:
    """Where something stands, px; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box, gap: float = 0.0) -> bool:
        return (
            self.left < other.right + gap
            and other.left < self.right + gap
            and self.top < other.bottom + gap
            and other.top < self.bottom + gap
        )


def text_box(text: str, x: float, y: float, size: float, anchor: str = "start", bold: bool = False) -> Box:
    """The box of text whose baseline is at y."""
    width = text_width(text, size, bold)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return Box(left, y - 0.8 * size, left + width, y + 0.25 * size)


def px(value: float) -> str:
    """A coordinate, to a tenth."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def text(content: str, x: float, y: float, css: str = "a", anchor: str = "start") -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{px(x)}" y="{px(y)}" class="{css}"{at}>{escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, css: str, tip: str = "", radius: float = 0.0) -> str:
    head = f'<rect x="{px(x)}" y="{px(y)}" width="{px(max(width, 0.0))}" height="{px(max(height, 0.0))}" class="{css}"'
    if radius:
        head += f' rx="{px(radius)}"'
    return f"{head}><title>{escape(tip)}</title></rect>" if tip else head + "/>"


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<path d="M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}" class="{css}"/>'


def path(d: str, css: str, tip: str = "") -> str:
    return f'<path d="{d}" class="{css}"><title>{escape(tip)}</title></path>' if tip else f'<path d="{d}" class="{css}"/>'


def polyline(x: Floats, y: Floats) -> str:
    """Path data through the points in order; a point that is not finite breaks the line."""
    parts, pen = [], "M"
    for a, b in zip(np.round(x, 1).tolist(), np.round(y, 1).tolist(), strict=True):
        if a != a or b != b or abs(b) == float("inf"):
            pen = "M"
            continue
        parts.append(f"{pen}{a:g} {b:g}")
        pen = "L"
    return "".join(parts)


def dots(x: Floats, y: Floats) -> str:
    """Path data of round dots: lines without length, which a round cap makes visible. Equal dots are drawn once."""
    kept = np.isfinite(x) & np.isfinite(y)
    points = np.unique(np.round(np.stack([x[kept], y[kept]], axis=1), 1), axis=0)
    return "".join(f"M{a:g} {b:g}h0" for a, b in points.tolist())


def join(parts: Iterable[str]) -> str:
    return "".join(parts)
