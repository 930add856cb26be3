"""Loading a file: its rows, cells of tables, problems, rows that it leaves out, unknown keys."""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from typing import Any

from llmirage_client.workload.checking import FIELD_REQUIRED, Checker
from llmirage_client.workload.files import fault, first_line, read_head, read_lines, read_rows, read_rows_below
from llmirage_client.workload.session import Problem, WorkloadError
from llmirage_shared.plural import plural

_CLOSE = 0.75
_DELIMITERS = ",;\t|"


class LeftOut:
    """Counts of rows left out of a valid file, by reason, for the notes."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        self._reasons[reason] += 1

    def notes(self) -> list[str]:
        return [f"left out {count:,}: {reason}" for reason, count in self._reasons.items()]


class StrayKeys:
    """Collects the unknown keys of a file. Formats that allow any key would lose a misspelt one without a word."""

    def __init__(self) -> None:
        self._unused: Counter[str] = Counter()

    def look(self, row: Mapping[str, Any], known: AbstractSet[str], check: Checker, prefix: str = "") -> None:
        """Note a key that is nearly a known key which the row lacks as a problem."""
        if row.keys() <= known:
            return
        for key in row:
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
            if near and near[0] not in row:
                check.fail(prefix + key, f"is not a key of this format (did you mean '{near[0]}'?)")
            else:
                self._unused[key] += 1

    def count(self, keys: Iterable[str]) -> None:
        """Count unknown keys that no near miss makes a problem."""
        self._unused.update(keys)

    def notes(self) -> list[str]:
        return [f"'{key}' is not used (in {plural(count, 'place')})" for key, count in sorted(self._unused.items())]


class Loading:
    """One file, or a folder of them, that is being loaded. without_reply: number of recorded replies of 0 tokens."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.left_out = LeftOut()
        self.stray = StrayKeys()
        self.without_reply = 0

    def rows(self) -> Iterator[tuple[dict[str, Any], Checker]]:
        """Yield what `read_rows` does."""
        return read_rows(self.path, self.problems)

    def rows_below(self) -> Iterator[tuple[dict[str, Any], Checker]]:
        """Yield what `read_rows_below` does."""
        return read_rows_below(self.path, self.problems)

    def table(self, columns: Sequence[str]) -> Iterator[tuple[Mapping[str, str], Checker]]:
        """Yield the cells of every row that is not blank, with its checker.

        A row without a cell in one of `columns` is a problem, and not yielded. What the checker finds goes to the problems.
        Raises WorkloadError for a header without these columns.
        """
        rows = _rows(self.path, self.problems)
        line, header = next(rows, (1, []))
        names = [cell.strip() for cell in header]
        if missing := [f"'{column}'" for column in columns if column not in names]:
            seen = ", ".join(repr(name[:40]) for name in names[:8])
            raise fault(self.path, f"the header has no column {', '.join(missing)} (it has {seen})", line)
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
            self.problems += check.problems

    def finish(self, found: Sized, nothing: str) -> None:
        """Raise WorkloadError with all problems; where there are none and nothing was found, with this message."""
        if not found and not self.problems:
            self.problems.append(Problem("; ".join([nothing, *self.left_out.notes()])))
        self.raise_problems()

    def raise_problems(self) -> None:
        """Raise WorkloadError with all problems, if there are any."""
        if self.problems:
            raise WorkloadError(self.path, self.problems)

    def notes(self) -> list[str]:
        """Return the notes on unknown keys, on rows left out, and on replies of 0 tokens."""
        notes = [*self.stray.notes(), *self.left_out.notes()]
        if self.without_reply:
            replies = f"{self.without_reply:,} recorded replies have 0 tokens"
            notes.append(f"{replies}: these requests ask for 1, as an endpoint gives no fewer")
        return notes


# --- tables: CSV files with a header ---


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
