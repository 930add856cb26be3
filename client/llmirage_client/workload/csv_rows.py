"""CSV files with a header: every row by column name, one after the other, each fault with its line and column."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence

from llmirage_client.workload.checking import FIELD_REQUIRED, Checker
from llmirage_client.workload.files import fault, read_lines
from llmirage_client.workload.session import Problem


def header_of(line: str) -> frozenset[str]:
    """The names of columns in a first line; none where it is no CSV."""
    try:
        return frozenset(cell.strip() for cell in next(csv.reader([line]), []))
    except csv.Error:
        return frozenset()


def read_table(path: str, columns: Sequence[str], problems: list[Problem]) -> Iterator[tuple[Mapping[str, str], Checker]]:
    """Yields the cells of every row that is not blank, with its checker.

    A row without a cell in one of `columns` is a problem, and not yielded. What the checker finds goes to the problems.
    Raises WorkloadError for a header without these columns.
    """
    rows = _rows(path, problems)
    line, header = next(rows, (1, []))
    names = [cell.strip() for cell in header]
    if missing := [f"'{column}'" for column in columns if column not in names]:
        seen = ", ".join(repr(name[:40]) for name in names[:8])
        raise fault(path, f"the header has no column {', '.join(missing)} (it has {seen})", line)
    for line, cells in rows:
        check = Checker(line)
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        for column in columns:
            if not row.get(column):
                check.fail(column, FIELD_REQUIRED)
        if not check.problems:
            yield row, check
        problems += check.problems


def _rows(path: str, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank, the header first."""
    reader = csv.reader(_text(path))
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            problems.append(Problem(f"invalid CSV: {error}", reader.line_num))
            continue
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield reader.line_num, row


def _text(path: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise fault(path, f"not UTF-8 text: byte 0x{line[error.start]:02x}", number) from None
