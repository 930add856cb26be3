"""The part of a simulation that counts: after the cluster has filled up, and while the load is still on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmirage_client.simulate.token_rows import TokenRow, TokenRows

WINDOW_OVER = "all requests that count are over"


@dataclass(frozen=True, slots=True)
class Window:
    """`count` requests from number `first` on count, in the order in which they go out; the run ends with the last of them.

    early_stop: asked about each of them as it is over; a sentence ends the run there and then.
    """

    first: int
    count: int
    early_stop: Callable[[TokenRow], str | None] = lambda row: None

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
            reason = self.early_stop(row) or (WINDOW_OVER if left == 0 else None)
            if reason is not None:
                cancel(reason)

        rows.counted = range(self.first, self.first + self.count)
        rows.on_row = over
