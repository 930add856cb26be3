"""The part of a simulation that counts: after the cluster has filled up, and while the load is still on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmirage_client.simulate.token_rows import TokenRow, TokenRows

WINDOW_OVER = "all requests that count are over"


@dataclass(slots=True)
class Window:
    """`count` requests from number `first` on count, in the order in which they go out; the run ends with the last of them.

    early_stop: asked about each of them as it is over. A sentence ends the run there and then; a number says that so many
    are enough, and ends it as if these had been all: `count` is then that number.
    """

    first: int
    count: int
    early_stop: Callable[[TokenRow], str | int | None] = lambda row: None

    def watch(self, rows: TokenRows | None, cancel: Callable[[str], None]) -> None:
        """Before the run begins; `cancel` ends it. Raises TypeError for a run that keeps no rows."""
        if rows is None:
            raise TypeError("a window is for workloads in token counts, via the engine")
        left = self.count

        def over(row: TokenRow) -> None:
            nonlocal left
            if not row.measured:
                return
            left -= 1
            said = self.early_stop(row)
            if isinstance(said, int):
                self.count = said
            if said is not None or left == 0:
                cancel(said if isinstance(said, str) else WINDOW_OVER)

        rows.counted = range(self.first, self.first + self.count)
        rows.on_row = over

    def settle(self, rows: TokenRows | None) -> None:
        """After the run: the requests beyond the last that counts do not count."""
        for row in rows.rows if rows is not None else ():
            row.measured = row.measured and row.request.id < self.first + self.count
