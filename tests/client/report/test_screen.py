"""Tables on screens of any width: no figure is cut or broken, and what is left out is named."""

import io
import re

import pytest
from click.testing import CliRunner

from llmirage_client.cli import main
from llmirage_client.report.screen import ScreenTable, plain_table, print_blocks

WIDTHS = [60, 80, 100, 200]
LIST = ["catalog", "gpus"]


def shown(table: ScreenTable, width: int | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines on a screen of this width, or of a stream without one."""
    monkeypatch.setenv("COLUMNS", "" if width is None else str(width))
    stream = io.StringIO()
    print_blocks([table], stream)
    return stream.getvalue().splitlines()


def figures(count: int) -> ScreenTable:
    table = plain_table("deployment", *(f"figure {i}" for i in range(count)))
    for row in range(3):
        table.add_row(f"row {row}", *(f"{(row + 1) * 1357 + i:,}" for i in range(count)))
    return table


@pytest.mark.parametrize("width", [*WIDTHS, None])
@pytest.mark.parametrize("count", [1, 5, 9, 30])
def test_a_table_has_the_columns_that_fit_and_names_the_others(
    width: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = figures(count)
    lines = shown(table, width, monkeypatch)
    (_, *heads), _, *rows = [re.split(r"\s{2,}", line) for line in lines[:5]]
    assert width is None or max(map(len, lines)) <= width
    assert len(heads) >= (count if width is None else min(count, (width - len("deployment")) // len("   figure 00")))
    assert heads == list(table.columns[1 : len(heads) + 1])
    assert rows == [list(row[: len(heads) + 1]) for row in table.rows]
    left = ", ".join(table.columns[len(heads) + 1 :])
    assert " ".join(lines[5:]) == (f"Not shown: {left} (--wide shows them)" if left else "")


def test_wide_shows_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    narrow, *wide = (CliRunner().invoke(main, words).output for words in (LIST, [*LIST, "--wide"], ["--wide", *LIST]))
    heads = [text.splitlines()[0] for text in (narrow, *wide)]
    assert len(heads[0]) <= 60 < len(heads[1])
    assert heads[1] == heads[2]
    assert ("Not shown" in narrow, "Not shown" in wide[0]) == (True, False)


def test_columns_that_fit_stand_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("", "batch", "waiting")
    table.add_row("0 (default)", "83", "1,357")
    assert shown(table, 60, monkeypatch) == [
        "              batch   waiting",
        "-----------------------------",
        "0 (default)      83     1,357",
    ]


def test_what_names_a_row_and_what_ends_it_are_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("", "instances", "TTFT p99, ms", "cost of a million tokens", "SLO", keys=2, ends=1)
    table.add_row("*", "4", "1,357", "12.5", "met")
    assert shown(table, 40, monkeypatch) == [
        "    instances   TTFT p99, ms   SLO",
        "----------------------------------",
        "*   4                  1,357   met",
        "Not shown: cost of a million tokens",
        "(--wide shows them)",
    ]


def test_words_break_their_lines_and_figures_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("error", "requests")
    table.add_row("the endpoint closed the connection before it had answered the request", "12,345")
    lines = shown(table, 40, monkeypatch)
    assert max(map(len, lines)) <= 40
    assert sum("12,345" in line for line in lines) == 1
    assert " ".join(" ".join(lines[2:]).replace("12,345", "").split()) == table.rows[0][0]


def test_a_screen_draws_texts_and_tables_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    print_blocks(["before", figures(1), "after"], stream)
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
