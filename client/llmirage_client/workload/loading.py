"""What the loader of a file gathers beside its sessions: problems, rows that it leaves out, keys that no one knows."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import read_rows, read_rows_below
from llmirage_client.workload.session import Problem, WorkloadError
from llmirage_client.workload.tables import read_table
from llmirage_shared.plural import plural

_CLOSE = 0.75


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
        """Yield what `read_table` does."""
        return read_table(self.path, columns, self.problems)

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
