"""Reading tables: CSV files with a header, each cell with its line and column for messages."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence

from llmirage_client.workload.checking import FIELD_REQUIRED, Checker
from llmirage_client.workload.files import fault, first_line, read_head, read_lines
from llmirage_client.workload.session import Problem
from llmirage_shared.plural import plural

_DELIMITERS = ",;\t|"


def header_line(path: str) -> str:
    """Return the first line as text, of a bad file an empty one."""
    return first_line(path).decode("utf-8", "replace").strip()


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of CSV; where it is none, all of it as one."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter_of(line)), [])]
    except csv.Error:
        return [line]


def delimiter_of(header: str) -> str:
    """Return what stands between the cells of a table with that first line."""
    return max(_DELIMITERS, key=header.count)


def header_of(line: str) -> frozenset[str]:
    """Return the names of columns in a first line."""
    return frozenset(cells_of(line))


def read_table(path: str, columns: Sequence[str], problems: list[Problem]) -> Iterator[tuple[Mapping[str, str], Checker]]:
    """Yield the cells of every row that is not blank, with its checker.

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
        if any(cells[len(names) :]):
            check.fail(None, f"has {len(cells)} cells, and the header {plural(len(names), 'column')}")
        for column in columns:
            if not row.get(column):
                check.fail(column, FIELD_REQUIRED)
        if not check.problems:
            yield row, check
        problems += check.problems


def _rows(path: str, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every row that is not blank, the header first."""
    first = read_head(path).lstrip().partition(b"\n")[0].decode("utf-8", "replace")
    reader = csv.reader(_text(path), delimiter=delimiter_of(first))
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
