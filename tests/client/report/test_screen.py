"""Tables on screens of any width: no figure is cut, broken or left out."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.report.screen import Screen, ScreenTable, plain_table, print_blocks

WIDTHS = [60, 80, 100, 200]


def shown(table: ScreenTable, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    print_blocks([table], stream)
    return stream.getvalue().splitlines()


def figures(count: int) -> ScreenTable:
    table = plain_table("deployment", *(f"figure {i}" for i in range(count)))
    for row in range(3):
        table.add_row(f"row {row}", *(f"{(row + 1) * 1357 + i:,}" for i in range(count)))
    return table


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 5, 9, 30])
def test_every_figure_stands_whole_on_a_screen_of_any_width(width: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = figures(count)
    lines = shown(table, width, monkeypatch)
    assert max(map(len, lines)) <= width
    for name, *cells in table.rows:
        found = [word for line in lines if line.startswith(name) for word in re.split(r"\s{2,}", line)[1:]]
        assert found == cells
    heads = [word for line in lines if line.startswith("deployment") for word in re.split(r"\s{2,}", line)[1:]]
    assert heads == list(table.columns[1:])


def test_columns_that_fit_stand_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("", "batch", "waiting")
    table.add_row("0 (default)", "83", "1,357")
    assert shown(table, 60, monkeypatch) == [
        "              batch   waiting",
        "-----------------------------",
        "0 (default)      83     1,357",
    ]


def test_what_names_a_row_stands_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("", "instances", "TTFT p99, ms", "cost of a million tokens", keys=2)
    table.add_row("*", "4", "1,357", "12.5")
    assert shown(table, 40, monkeypatch) == [
        "    instances   TTFT p99, ms",
        "----------------------------",
        "*   4                  1,357",
        "",
        "    instances   cost of a million tokens",
        "----------------------------------------",
        "*   4                               12.5",
    ]


def test_words_break_their_lines_and_figures_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table("error", "requests")
    table.add_row("the endpoint closed the connection before it had answered the request", "12,345")
    lines = shown(table, 40, monkeypatch)
    assert max(map(len, lines)) <= 40
    assert sum("12,345" in line for line in lines) == 1
    assert " ".join(" ".join(lines[2:]).replace("12,345", "").split()) == table.rows[0][0]


@given(
    st.lists(st.lists(st.integers(0, 10**12).map("{:,}".format), min_size=4, max_size=4), min_size=1, max_size=5),
    st.sampled_from(WIDTHS),
    st.integers(1, 3),
)
def test_no_digit_is_lost(rows: list[list[str]], width: int, keys: int) -> None:
    table = plain_table(*(["k"] * keys), *"abcd", keys=keys)
    for number, row in enumerate(rows):
        table.add_row(*[f"r{number}"] * keys, *row)
    with pytest.MonkeyPatch.context() as patch:
        lines = shown(table, width, patch)
    assert all(sum(cell in line.split() for line in lines) for row in rows for cell in row)


def test_a_screen_draws_texts_and_tables_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    screen = Screen(stream)
    screen.print("before", figures(1), "after")
    screen.close()
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
