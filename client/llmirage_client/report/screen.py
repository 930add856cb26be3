"""Draws tables and styled lines on the screen.

The one module of the report that knows rich. It imports rich when something is drawn: a run sends its first request without
waiting for a table library.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Block: TypeAlias = "str | Text | ScreenTable"  # what a screen can draw

_PLAIN_WIDTH = 100  # where there is no terminal to ask
# A rule under the head and nothing else.
_LINES = "    \n    \n -- \n    \n    \n    \n    \n    \n"
_GAP = 3  # characters between columns
_WORDS = 24  # characters that a column of words needs, if it has so many
_NAME = 40  # characters of a name that a column shows whole


@dataclass(slots=True)
class ScreenTable:
    """A table in ASCII, so that a saved report reads the same everywhere; figures are right-aligned and never cut.

    A screen too narrow for all columns shows them in several tables below each other: each has the first `keys` columns,
    which say what a row is, and as many others as fit. words: other columns of text; these and the keys may break lines.
    """

    columns: tuple[str, ...]
    keys: int = 1
    words: frozenset[int] = frozenset()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def fitting(self, width: int) -> Iterator[list[int]]:
        """Yield the columns of each table, for a screen of `width` characters."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        least = [
            min(wide, max(_WORDS, self._longest_word(at))) if self._breaks(at) else wide for at, wide in enumerate(widths)
        ]
        rest = range(self.keys, len(widths))
        if sum(least) + _GAP * (len(widths) - 1) <= width or not rest:
            yield [*range(len(widths))]
            return
        room = width - sum(least[: self.keys]) - _GAP * (self.keys - 1)
        shown: list[int] = []
        for at in rest:
            if shown and sum(least[i] + _GAP for i in (*shown, at)) > room:
                yield [*range(self.keys), *shown]
                shown = []
            shown.append(at)
        yield [*range(self.keys), *shown]

    def _breaks(self, at: int) -> bool:
        return at in self.words or at < self.keys

    def _longest_word(self, at: int) -> int:
        """Return the width that keeps the names in a column whole, so that they can be copied."""
        return min(_NAME, max(len(word) for row in (self.columns, *self.rows) for word in row[at].split() or [""]))

    def drawn(self, columns: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        heads = [self.columns[at] for at in columns]
        table = Table(show_header=any(heads), show_edge=False, pad_edge=False, box=box.Box(_LINES, ascii=True))
        for at, head in zip(columns, heads, strict=True):
            left = self._breaks(at)
            least = self._longest_word(at) if left else None
            table.add_column(head, justify="left" if left else "right", overflow="fold", no_wrap=not left, min_width=least)
        for row in self.rows:
            table.add_row(*(row[at] for at in columns))
        return table


class Screen:
    """The screen of a stream, on which blocks are drawn when it is closed.

    As wide as its terminal, with colours there; without control codes elsewhere (a pipe, a file), COLUMNS or 100 characters
    wide (unless said otherwise).
    """

    def __init__(self, stream: TextIO | None = None, plain_width: int = _PLAIN_WIDTH, width: int | None = None) -> None:
        """stream: standard output by default. plain_width: characters where there is no terminal to ask; width: anywhere."""
        from rich.console import Console

        self._stream = sys.stdout if stream is None else stream
        self._drawn = io.StringIO()
        terminal = self._stream.isatty()
        self.width = width or _width(self._stream, plain_width)
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
            for piece in drawn([block], self.width):
                whole = getattr(piece, "no_wrap", None)  # of a text; the console would forget it
                self._console.print(
                    piece,
                    soft_wrap=not wrap and not isinstance(block, ScreenTable),
                    no_wrap=whole,
                    overflow="ignore" if whole else None,
                    crop=not whole,
                )

    def close(self) -> None:
        """Write what was drawn, without blanks at line ends. Characters that the stream cannot carry become "?"."""
        text = "\n".join(line.rstrip() for line in self._drawn.getvalue().split("\n"))
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except BrokenPipeError:  # the reader has seen enough, as `| head` has
            pass


def drawn(blocks: Iterable[Block], width: int) -> Iterator[Text | Table]:
    """Yield the blocks as rich draws them, for a screen of `width` characters."""
    for block in blocks:
        if not isinstance(block, ScreenTable):
            yield styled(block, "") if isinstance(block, str) else block
            continue
        for index, columns in enumerate(block.fitting(width)):
            if index:
                yield styled("", "")
            yield block.drawn(columns)


def print_blocks(
    blocks: Iterable[Block], stream: TextIO | None = None, width: int | None = None, *, wrap: bool = True
) -> None:
    """Set up the screen.

    width: characters, where that is not the stream's. wrap: break lines of text there; tables always fit.
    """
    screen = Screen(stream, width=width)
    screen.print(*blocks, wrap=wrap)
    screen.close()


def styled(text: str, style: str) -> Text:
    """Return text in a style of rich."""
    from rich.text import Text

    return Text(text, style=style)


def unbroken(text: str) -> Text:
    """Return a line to be copied, in one piece on any screen."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def bold(text: str, *, bad: bool = False) -> Text:
    """Return bold text, red if it is bad."""
    return styled(text, "bold red" if bad else "bold")


def warning(text: str) -> Text:
    """Return text in the colour of warnings."""
    return styled(text, "yellow")


def plain_table(*columns: str, keys: int = 1, words: Iterable[int] = ()) -> ScreenTable:
    """Return a table without lines."""
    return ScreenTable(columns, keys, frozenset(words))


def _width(stream: TextIO, plain_width: int) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or plain_width
    return plain_width


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
