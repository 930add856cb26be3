"""Counts with their nouns, and rounded numbers, in text."""

from __future__ import annotations


def plural(value: float, noun: str) -> str:
    """Return the count with its noun, in the plural unless it is one."""
    return f"{round(value):,} {noun}{'' if round(value) == 1 else 's'}"


def rounded(value: float, digits: int = 4) -> str:
    """Return a number to so many significant digits, written out below 1e15: 11,190 and not 1.119e+04."""
    text = f"{value:,.{digits}g}"
    return f"{float(f'{value:.{digits}g}'):,.0f}" if "e+" in text and abs(value) < 1e15 else text
