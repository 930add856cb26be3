"""Keys of an open format that it does not know: most likely typos are refused, the rest is not used, and noted."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from llmirage_client.workload.checking import Checker

_CLOSE = 0.75


class StrayKeys:
    """Collects the unknown keys of a file. Formats that allow any key would lose a misspelt one without a word."""

    def __init__(self) -> None:
        self._unused: Counter[str] = Counter()

    def look(self, row: Mapping[str, Any], known: Collection[str], check: Checker, prefix: str = "") -> None:
        """A key that is nearly a known one, which the row does not have, is a problem."""
        for key in row:
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
            if near and near[0] not in row:
                check.fail(prefix + key, f"is not a key of this format (did you mean '{near[0]}'?)")
            else:
                self._unused[key] += 1

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"'{key}' is not used (in {count} place{'s' * (count > 1)})" for key, count in sorted(self._unused.items())
        )
