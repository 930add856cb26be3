"""Rows of a list as a plain table."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def print_table(rows: list[Row], hidden: frozenset[str] = frozenset(), stderr: bool = False) -> None:
    """Print rows of the same keys without the `hidden` ones: as wide as the terminal, or 200 columns in a pipe."""
    keys = [key for key in rows[0] if key not in hidden]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in keys:
        numeric = all(isinstance(row[key], int | float | None) for row in rows)
        table.add_column(
            key.replace("_", " "), justify="right" if numeric else "left", overflow="fold", no_wrap=key == "name"
        )
    for row in rows:
        table.add_row(*(_text(row[key]) for key in keys))
    width = shutil.get_terminal_size((100, 24)).columns if (sys.stderr if stderr else sys.stdout).isatty() else 200
    Console(width=width, highlight=False, stderr=stderr).print(table)


def _text(value: Any) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
