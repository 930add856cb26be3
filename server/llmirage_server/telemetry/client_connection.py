"""One connection of a client, as the HTTP server sees it. In process there is none."""

from __future__ import annotations

CONNECTION = "llmirage.connection"  # key in a scope's state


class ClientConnection:
    """Times are seconds on the server's clock.

    opened_s, closed_s: when it was opened and closed; closed_s None: it is open. unused_since_s: when its last response was
    complete; None while a request is under way, and before the first.
    """

    __slots__ = ("_blocked_s", "_blocked_since_s", "closed_s", "opened_s", "unused_since_s")

    def __init__(self, opened_s: float) -> None:
        self.opened_s = opened_s
        self.closed_s: float | None = None
        self.unused_since_s: float | None = None
        self._blocked_since_s: float | None = None
        self._blocked_s = 0.0

    def blocked(self, at_s: float) -> None:
        """Note that the buffers are full, because the client does not read, and the server has to wait."""
        self._blocked_since_s = at_s

    def unblocked(self, at_s: float) -> None:
        """Note that the buffers take bytes again."""
        self._blocked_s = self.longest_block_s(at_s)
        self._blocked_since_s = None

    def closed(self, at_s: float) -> None:
        self.closed_s = at_s
        self.unblocked(at_s)

    def longest_block_s(self, now_s: float) -> float:
        """Return the longest time for which nothing could be sent."""
        since_s = self._blocked_since_s
        return self._blocked_s if since_s is None else max(self._blocked_s, now_s - since_s)
