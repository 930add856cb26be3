"""Draws tables and styled lines on the screen.

The one module of the report that knows rich. It imports rich when something is drawn: a run sends its first request without
waiting for a table library.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Block: TypeAlias = "str | Text | Table"  # what a screen can draw

_PLAIN_WIDTH = 100  # where there is no terminal to ask
# A rule under the head and nothing else.
_LINES = "    \n    \n -- \n    \n    \n    \n    \n    \n"


class Screen:
    """Draws blocks for a stream: as wide as its terminal, with colours there; without control codes elsewhere (a pipe, a
    file), COLUMNS or 100 characters wide. Nothing is written before `close`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """stream: standard output by default."""
        from rich.console import Console

        self._stream = sys.stdout if stream is None else stream
        self._drawn = io.StringIO()
        terminal = self._stream.isatty()
        self.width = _width(self._stream)
        self._console = Console(
            file=self._drawn,
            width=self.width,
            force_terminal=terminal,
            color_system="auto" if terminal else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def print(self, *blocks: Block, wrap: bool = True) -> None:
        for block in blocks:
            self._console.print(block, soft_wrap=not wrap)

    def close(self) -> None:
        """Write what was drawn, without blanks at line ends. Characters that the stream cannot carry become "?"."""
        text = "\n".join(line.rstrip() for line in self._drawn.getvalue().split("\n"))
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except BrokenPipeError:  # the reader has seen enough, as `| head` has
            pass


def print_blocks(blocks: Iterable[Block], stream: TextIO | None = None) -> None:
    screen = Screen(stream)
    screen.print(*blocks)
    screen.close()


def styled(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style)


def bold(text: str, *, bad: bool = False) -> Text:
    return styled(text, "bold red" if bad else "bold")


def warning(text: str) -> Text:
    return styled(text, "yellow")


def plain_table(*columns: str) -> Table:
    """A table in ASCII, so that a saved report reads the same everywhere. The first column is left-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(show_header=any(columns), show_edge=False, pad_edge=False, box=box.Box(_LINES, ascii=True))
    for index, column in enumerate(columns):
        table.add_column(
            column, justify="left" if index == 0 else "right", overflow="fold", no_wrap=index > 0 or bool(column)
        )
    return table


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_WIDTH
    return _PLAIN_WIDTH
