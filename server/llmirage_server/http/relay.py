"""Responses that come from elsewhere, piece by piece: from a recording, or from another server (upstream.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.types import Receive, Scope, Send

from llmirage_server.http.event_stream import EventStream, Shutdown
from llmirage_server.http.exchange import Header, HttpExchange
from llmirage_server.telemetry.journal import Outcome
from llmirage_shared.wire.errors import ApiError

Ending = Literal["complete", "cut", "client_left", "stopped"]
"""The end of a body. cut: its source broke off, and so must this response. stopped: the server ended it."""
_OUTCOMES: dict[Ending, Outcome] = {
    "complete": "complete", "cut": "failed", "client_left": "client_left", "stopped": "failed",
}  # fmt: skip


class Tap(Protocol):
    """Sees a response as it passes. Each method must return at once."""

    def started(self, status: int, headers: Mapping[str, str]) -> None: ...

    def received(self, data: bytes) -> None: ...

    def ended(self, ending: Ending) -> None: ...


@dataclass(slots=True, frozen=True)
class ForwardedRequest:
    """A request as it goes to the upstream. target: its path with its query. body: decompressed."""

    method: str
    target: str
    headers: Sequence[Header]
    body: bytes

    @classmethod
    def of(cls, exchange: HttpExchange, body: bytes) -> ForwardedRequest:
        scope = exchange.scope
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope.get("query_string", b"").decode("latin-1")
        return cls(scope["method"], f"{path}?{query}" if query else path, scope["headers"], body)


class BrokenOffError(Exception):
    """The source of a body broke off."""


class RelayedResponse(EventStream):
    """Sends its head at once and each piece of the body, events or not, when it is there. Subclasses have `pieces`, `ended`.

    A body that breaks off is not completed, at which an HTTP server closes the connection: the client sees that it was cut.
    """

    def __init__(self, status: int, headers: Sequence[Header], under_way: set[Any] | None = None) -> None:
        """under_way: has the response while it is sent, so that it can be aborted."""
        super().__init__(self._pieces(), headers, Shutdown(), status=status, ping_s=0, grace_s=0)
        self._under_way: set[Any] = set() if under_way is None else under_way
        self._at_end = False
        self.outcome: Outcome = "failed"

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises BrokenOffError if it breaks off."""
        raise NotImplementedError

    async def ended(self, ending: Ending) -> None:
        """Finish, once, after the last piece."""

    def abort(self, error: ApiError) -> None:
        """End the response; nothing is sent of the error, since the body is not this server's own."""
        self._shutdown.begin()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ending: Ending = "stopped"
        self._under_way.add(self)
        self._at_end = scope["method"] == "HEAD"
        try:
            await super().__call__(scope, receive, send)
            if not self._shutdown.begun:
                ending = "complete" if self._at_end else "client_left"
        except* BrokenOffError:
            ending = "cut"
        finally:
            self._under_way.discard(self)
            self.outcome = _OUTCOMES[ending]
            await self.ended(ending)

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for piece in self.pieces():
            yield piece
        self._at_end = True


class Upstream(Protocol):
    """Another server that answers requests in this one's place. key: what it is sent in place of the requests' keys."""

    key: str | None

    async def answer(
        self, request: ForwardedRequest, tap: Tap | None = None, under_way: set[Any] | None = None
    ) -> RelayedResponse:
        """Return the upstream's response, whatever its status. Raises ApiError (502) if there is none.

        tap: sees the response pass. under_way: has it while it passes.
        """
        ...

    async def close(self) -> None: ...
