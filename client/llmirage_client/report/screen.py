"""Figures as text, for the screen and pages, and tables and styled lines on the screen; files have figures in full.

The one module of the report that knows rich. It imports rich when something is drawn: a run sends its first request without
waiting for a table library.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from llmirage_client.measure.breakdowns import RequestGroup
    from llmirage_client.measure.metrics import Metrics
    from llmirage_shared.statistics import Summary

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

    A screen too narrow for all columns shows as many as fit: the first `keys` columns, which say what a row is, the last
    `ends` columns, and others from the left. words: other columns of text; these and the keys may break lines.
    """

    columns: tuple[str, ...]
    keys: int = 1
    ends: int = 0
    words: frozenset[int] = frozenset()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def fitting(self, width: int | None) -> list[int]:
        """Return the columns for a screen of `width` characters. None: of any width."""
        shown = [*range(len(self.columns))]
        last = len(shown) - self.ends
        while width is not None and last > self.keys + (not self.ends) and self.least_width(shown) > width:
            last -= 1
            shown.remove(last)
        return shown

    def least_width(self, columns: Sequence[int]) -> int:
        """Return the characters that these columns need."""
        widths = [max(len(row[at]) for row in (self.columns, *self.rows)) for at in columns]
        return _GAP * (len(widths) - 1) + sum(
            min(wide, max(_WORDS, self._longest_word(at))) if self._breaks(at) else wide
            for at, wide in zip(columns, widths, strict=True)
        )

    def _breaks(self, at: int) -> bool:
        return at in self.words or at < self.keys

    def _longest_word(self, at: int) -> int:
        """Return the width that keeps the names in a column whole, so that they can be copied."""
        return min(_NAME, max(len(word) for row in (self.columns, *self.rows) for word in row[at].split() or [""]))

    def drawn(self, columns: Sequence[int], least: int | None) -> Table:
        """Return the table of rich. least: its width in characters, on whatever screen."""
        from rich import box
        from rich.table import Table

        heads = [self.columns[at] for at in columns]
        table = Table(show_header=any(heads), show_edge=False, pad_edge=False, box=box.Box(_LINES, ascii=True), width=least)
        for at, head in zip(columns, heads, strict=True):
            left = self._breaks(at)
            longest = self._longest_word(at) if left else None
            table.add_column(head, justify="left" if left else "right", overflow="fold", no_wrap=not left, min_width=longest)
        for row in self.rows:
            table.add_row(*(row[at] for at in columns))
        return table


WIDE = "llmirage.wide"  # in a context's `meta`: tables have all columns


def shows_wide_tables() -> bool:
    """Return whether the command line has --wide."""
    import click

    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))


def drawn(blocks: Iterable[Block], width: int, cut: str | None = None) -> Iterator[Text | Table]:
    """Yield the blocks as rich draws them, for a screen of `width` characters.

    cut: leave out the columns that do not fit; the text stands behind their names.
    """
    for block in blocks:
        if not isinstance(block, ScreenTable):
            yield styled(block, "") if isinstance(block, str) else block
            continue
        columns = block.fitting(None if cut is None else width)
        least = block.least_width(columns)
        yield block.drawn(columns, least if cut is None and least > width else None)
        if hidden := [name for at, name in enumerate(block.columns) if at not in columns]:
            yield styled(f"Not shown: {', '.join(hidden)}{cut}", "dim")


def print_blocks(
    blocks: Iterable[Block],
    stream: TextIO | None = None,
    width: int | None = None,
    *,
    wrap: bool = True,
    plain_width: int = _PLAIN_WIDTH,
) -> None:
    """Draw blocks on a stream, by default standard output, without blanks at line ends.

    As wide as its terminal, with colours there; without control codes elsewhere (a pipe, a file), COLUMNS or `plain_width`
    characters wide. Where neither a terminal nor COLUMNS limits the width, tables have all columns. Characters that the
    stream cannot carry become "?".

    width: characters, where that is not the stream's. wrap: break lines of text there; tables always fit.
    """
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    text = io.StringIO()
    terminal, limit = stream.isatty(), _width(stream)
    cut = not (width or limit is None or shows_wide_tables())
    console = Console(
        file=text,
        width=width or limit or plain_width,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for block in blocks:
        for piece in drawn([block], console.width, " (--wide shows them)" if cut else None):
            whole = getattr(piece, "no_wrap", None)  # of a text; the console would forget it
            console.print(
                piece,
                soft_wrap=not wrap and not isinstance(block, ScreenTable),
                no_wrap=whole,
                overflow="ignore" if whole else None,
                crop=cut and not whole,
            )
    lines = "\n".join(line.rstrip() for line in text.getvalue().split("\n"))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough, as `| head` has
        stream.write(lines.encode(encoding, "replace").decode(encoding))
        stream.flush()


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


def plain_table(
    *columns: str, keys: int = 1, ends: int = 0, words: Iterable[int] = (), rows: Iterable[Sequence[str]] = ()
) -> ScreenTable:
    """Return a table without lines."""
    return ScreenTable(columns, keys, ends, frozenset(words), list(map(tuple, rows)))


def _width(stream: TextIO) -> int | None:
    """Return the characters of a line; None where neither a terminal nor COLUMNS limits them."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


Row = dict[str, Any]
_PIPE_WIDTH = 200
_DIGITS = str.maketrans("", "", "0123456789.,-+e")


def print_table(rows: list[Row], hidden: frozenset[str] = frozenset(), stderr: bool = False) -> None:
    """Print rows of the same keys without the `hidden` ones: as wide as the terminal, or 200 columns in a pipe."""
    print_blocks([table_of(rows, hidden)], sys.stderr if stderr else sys.stdout, plain_width=_PIPE_WIDTH)


def table_of(rows: list[Row], hidden: frozenset[str] = frozenset()) -> ScreenTable:
    """Return the rows as a table for a screen, without the hidden columns."""
    keys = [key for key in rows[0] if key not in hidden]
    words = [at for at, key in enumerate(keys) if not all(_is_figure(_text(row[key])) for row in rows)]
    cells = ([_text(row[key]) for key in keys] for row in rows)
    return plain_table(*(key.replace("_", " ") for key in keys), words=words, rows=cells)


def _is_figure(cell: str) -> bool:
    return cell == "-" or cell.translate(_DIGITS) == ""


def _text(value: Any) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def number(value: float) -> str:
    """Return three digits or more, with no more decimals than anyone reads."""
    size = abs(value)
    decimals = 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{decimals}f}"


def count(value: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{round(value):,}"


def percent(value: float) -> str:
    """Return a percentage with one decimal."""
    return f"{value:.1f} %"


def known(value: float | None, form: Callable[[float], str] = number) -> str:
    """Return the figure; "-" where there is none."""
    return "-" if value is None else form(value)


def statistic(summary: Summary | None, name: str) -> str:
    """Return one figure of a summary; "-" where there is none."""
    return "-" if summary is None else number(getattr(summary, name))


_FAIR_WORDS = {"tokens": "tokens", "time_to_first_token": "mean TTFT", "good_request_fraction": "requests within limits"}


def fairness_line(fairness: Mapping[str, float]) -> str:
    """Return Jain's indices over the tenants. fairness: as Metrics has it."""
    indices = ", ".join(f"{_FAIR_WORDS[name]} {index:.3f}" for name, index in fairness.items())
    return f"Jain's index of fairness among tenants (1: equal): {indices}"


def duration(seconds: float) -> str:
    """Return seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate_cells(metrics: Metrics) -> list[str]:
    """Return requests and output tokens per second."""
    return [known(metrics.whole_run.get(tag)) for tag in ("request_throughput", "output_token_throughput")]


def latency_cells(metrics: Metrics) -> list[str]:
    """Return p50 and p99 of TTFT, TPOT and latency, ms."""
    tags = ("time_to_first_token", "inter_token_latency", "request_latency")
    return [statistic(metrics.per_request.get(tag), name) for tag in tags for name in ("p50", "p99")]


def group_cells(group: RequestGroup, *times: tuple[str, str]) -> list[str]:
    """Return the cells of a group: ok, failed, these statistics of times, mean tokens in and out, cached share."""
    wanted = (*times, ("input_sequence_length", "avg"), ("output_sequence_length", "avg"))
    figures = [statistic(group.per_request.get(tag), name) for tag, name in wanted]
    return [count(group.ok), count(group.failed), *figures, known(group.cached_pct, percent)]


def cached_cell(metrics: Metrics) -> str:
    """Return the share of prompt tokens found in the cache."""
    return known(metrics.whole_run.get("overall_usage_prompt_cache_read_pct"), percent)
