"""The measured part of a simulation: after the cluster has filled up, and while the load is still on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmirage_client.simulate.token_rows import TokenRow, TokenRows

WINDOW_OVER = "all requests that count are over"


@dataclass(slots=True)
class Window:
    """A window of `count` requests from number `first` on, in the order of sending; the run ends with the last of them.

    early_stop: called with each of them as it ends. A sentence ends the run at once; a number says that this many are
        enough, and ends it as if these had been all: `count` is then that number.
    """

    first: int
    count: int
    early_stop: Callable[[TokenRow], str | int | None] = lambda row: None

    def watch(self, rows: TokenRows | None, cancel: Callable[[str], None]) -> None:
        """Start watching, before the run; `cancel` ends it. Raises TypeError for a run that keeps no rows."""
        if rows is None:
            raise TypeError("a window is for workloads in token counts, via the engine")
        left = self.count

        def over(row: TokenRow) -> None:
            nonlocal left
            if not row.measured:
                return
            left -= 1
            verdict = self.early_stop(row)
            if isinstance(verdict, int):
                self.count = verdict
            if verdict is not None or left == 0:
                cancel(verdict if isinstance(verdict, str) else WINDOW_OVER)

        rows.counted = range(self.first, self.first + self.count)
        rows.on_row = over

    def finish(self, rows: TokenRows | None) -> None:
        """Exclude the requests beyond the last that counts, after the run."""
        for row in rows.rows if rows is not None else ():
            row.measured = row.measured and row.request.id < self.first + self.count
