"""Counts with their nouns."""

from __future__ import annotations


def plural(value: float, noun: str) -> str:
    """Return the count with its noun, in the plural unless it is one."""
    return f"{round(value):,} {noun}{'' if round(value) == 1 else 's'}"
