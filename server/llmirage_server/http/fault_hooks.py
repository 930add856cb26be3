"""Interfaces of injected faults, for exchanges and endpoints; http/faults.py implements them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Send

from llmirage_server.telemetry.journal import Outcome

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule


class Placed(Protocol):
    """A request that the cluster serves."""

    @property
    def instance(self) -> int:
        """The number of the instance that serves it now, -1 for none."""
        ...


class Limits(Protocol):
    """Rate limits."""

    def admit(self, exchange: Any, model: str, tokens: int) -> None: ...


class FaultOfRequest(Protocol):
    """The faults that may be injected into one request, see http/faults.py."""

    generation: Placed | None
    limits: Limits | None

    async def choose(self, rules: tuple[FaultRule, ...] | None) -> None: ...

    async def parsed(self, body: Mapping[str, Any]) -> None: ...

    async def scripted(self, rule: FaultRule, streamed: bool) -> None: ...

    async def respond(self, response: Response, receive: Receive, send: Send) -> None: ...

    def ended(self, status: int | None, outcome: Outcome) -> tuple[int | None, Outcome]: ...


class Faults(Protocol):
    """The faults of a server: whether there may be one for a request is read without a call."""

    rules: tuple[FaultRule, ...]

    @property
    def cuts(self) -> Mapping[str, int]: ...

    async def arrived(self, exchange: Any) -> None: ...
