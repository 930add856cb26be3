"""One total of the bytes that requests hold before they are planned, over all connections of a server."""

from __future__ import annotations

import threading

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_shared.wire import errors

HELD = "llmirage.held"  # key in a scope's state: what the HTTP server counts of the connection
MOST_UNREAD_BYTES = 256 << 20
SMALL_BYTES = 64 << 10  # requests that hold more may take half of the total together, for small ones to get through
KEPT_BYTES = 1 << 20  # a larger request counts until it is answered: what it brought stays in memory as long


class ByteBudget:
    """Bytes of unread requests: bodies, and what these are decompressed to. taken: now."""

    def __init__(self, most: int = MOST_UNREAD_BYTES) -> None:
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()  # bodies are decompressed in a thread

    def change(self, by: int, most: int) -> bool:
        """Take `by` bytes, or give them back; take none and return False if more than `most` would be taken then."""
        with self._lock:
            if by > 0 and self.taken + by > most:
                return False
            self.taken += by
            return True


class Held:
    """Bytes that one request, one connection or one line of a batch has taken of a budget.

    in_use: something works on them, and releases them. abandoned: nobody waits for that any more.
    """

    __slots__ = ("_budget", "_share", "abandoned", "bytes", "in_use", "refused")

    def __init__(self, budget: ByteBudget, share: int = 0) -> None:
        """share: it gives way to others, with which it may take so many bytes. 0: it does not."""
        self._budget = budget
        self._share = share
        self.bytes = 0
        self.refused = False  # some bytes found no room
        self.in_use = self.abandoned = False

    def takes(self, count: int, is_whole: bool = True) -> bool:
        """Take more bytes; return False, and take none, if there is no room for them.

        is_whole: False for a request that has come in part: those together leave room for what whole ones need.
        """
        most, is_alone = self._budget.most, self._budget.taken <= self.bytes
        if self.bytes + count > SMALL_BYTES:
            most = most // 2 if is_alone or is_whole else most * 3 // 8
        if self._share and not is_alone:
            most = self._share
        if not self._budget.change(count, most):
            self.refused = True
            return False
        self.bytes += count
        return True

    def take(self, count: int) -> None:
        """As `takes`. Raises ApiError (503) without room."""
        if not self.takes(count):
            raise errors.too_many_unread_bytes(self._budget.most)

    def planned(self) -> None:
        """Give back the bytes of a request that has been read, unless it is so large that it counts until its end."""
        if self.bytes <= KEPT_BYTES:
            self.release()

    def abandon(self) -> None:
        """Note that the client has left. What is in use still takes memory."""
        self.abandoned = True
        if not self.in_use:
            self.release()

    def release(self) -> None:
        if self.bytes:
            self._budget.change(-self.bytes, 0)
            self.bytes = 0


class CountedBodies:
    """ASGI middleware: bodies of requests whose HTTP server does not count what they hold."""

    def __init__(self, app: ASGIApp, budget: ByteBudget) -> None:
        self.app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or HELD in scope.get("state", ()):
            await self.app(scope, receive, send)
            return
        held = Held(self._budget)

        async def counted() -> Message:
            message = await receive()
            held.take(len(message.get("body", b"")))
            return message

        try:
            await self.app({**scope, "state": {**scope.get("state", {}), HELD: held}}, counted, send)
        finally:
            held.release()
