"""How figures look on the screen; files carry them in full."""

from __future__ import annotations


def number(value: float) -> str:
    """Three digits or more, with no more decimals than anyone reads."""
    size = abs(value)
    decimals = 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{decimals}f}"


def count(value: float) -> str:
    return f"{round(value):,}"


def duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
