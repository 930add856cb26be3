"""When a phase of a run ends: at its request cap, when its time is over, or when it is stopped."""

from __future__ import annotations

from collections.abc import Callable


class Stop:
    """Says whether one more request may go out, and tells who listens once none may.

    request_count: the literal cap on requests, None for no cap; with 0 it has ended.
    closed: no new conversation begins; those that began go on. ended: no request goes out any more.
    """

    def __init__(self, request_count: int | None, clock: Callable[[], float]) -> None:
        self.closed = self.ended = request_count == 0
        self._left = request_count
        self.clock = clock
        self._listeners: list[Callable[[], None]] = []

    def listen(self, heard: Callable[[], None]) -> None:
        """heard is called when the phase closes and when it ends."""
        self._listeners.append(heard)

    def permit(self) -> bool:
        """Takes the permission for one request; False when the phase has ended."""
        if self.ended:
            return False
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.end()
        return True

    def close(self) -> None:
        """No conversation begins from now on; those under way send all their turns. Idempotent."""
        self.closed = True
        for heard in self._listeners:
            heard()

    def end(self) -> None:
        """No request goes out from now on; those in flight go on. Idempotent."""
        self.ended = True
        self.close()
