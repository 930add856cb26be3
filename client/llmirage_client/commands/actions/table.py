"""Rows of a list as a plain table."""

from __future__ import annotations

import sys
from typing import Any

from llmirage_client.report.screen import Screen, ScreenTable, plain_table

Row = dict[str, Any]
_PIPE_WIDTH = 200
_DIGITS = str.maketrans("", "", "0123456789.,-+e")


def print_table(rows: list[Row], hidden: frozenset[str] = frozenset(), stderr: bool = False) -> None:
    """Print rows of the same keys without the `hidden` ones: as wide as the terminal, or 200 columns in a pipe."""
    screen = Screen(sys.stderr if stderr else sys.stdout, _PIPE_WIDTH)
    screen.print(table_of(rows, hidden))
    screen.close()


def table_of(rows: list[Row], hidden: frozenset[str] = frozenset()) -> ScreenTable:
    """Return the rows as a table for a screen, without the hidden columns."""
    keys = [key for key in rows[0] if key not in hidden]
    words = [at for at, key in enumerate(keys) if not all(_is_figure(_text(row[key])) for row in rows)]
    table = plain_table(*(key.replace("_", " ") for key in keys), words=words)
    for row in rows:
        table.add_row(*(_text(row[key]) for key in keys))
    return table


def _is_figure(cell: str) -> bool:
    return cell == "-" or cell.translate(_DIGITS) == ""


def _text(value: Any) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
