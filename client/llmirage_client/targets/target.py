"""The interface of a target: somewhere a turn's request can be sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.endpoints.protocol import ReplyReader
from llmirage_shared.virtual_time import SimulatedTimeLoop


def run_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the precise clock with loop.time()'s base.

    time.monotonic() on a loop of real time, because uvloop rounds its own time to milliseconds; else the loop's.
    """
    return loop.time if isinstance(loop, SimulatedTimeLoop) else time.monotonic


@dataclass(slots=True)
class Call:
    """One request, ready to send.

    path: below the API root, such as "/chat/completions"; with from_root, below the host's root. api: the endpoint's name.
    new_reply: what reads this API's replies. affinity_id: calls with the same one should go to the same server.
    empty_ok: a whole reply that says nothing is a success, and an empty message in the history; else it is an error.
    on_sent: called by the target as soon as the whole request is out; twice when it had to be sent again.
    """

    path: str
    body: Mapping[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    stream: bool = True
    on_sent: Callable[[], None] | None = None
    new_reply: Callable[[], ReplyReader] = ChatReply
    api: str = "chat"
    from_root: bool = False
    affinity_id: str = ""
    empty_ok: bool = False


@dataclass(slots=True)
class TransportUse:
    """Requests that went through httpx's own transport, and what that cost. how: proxy and protocol, for people.

    cpu_s: CPU time of the thread in that transport. versions: of HTTP, that were spoken. left_unsaid: how many were given up
    over HTTP/2 while their connection carried others, so that the server was not told at once.
    """

    how: str
    requests: int = 0
    cpu_s: float = 0.0
    versions: frozenset[str] = frozenset()
    left_unsaid: int = 0


class Target(Protocol):
    """Sends calls. Never raises for what an endpoint does: faults of any kind are in the Exchange's error."""

    def now(self) -> float:
        """Return the run's clock in seconds; the same base as loop.time(), finer where the loop's own is coarse."""
        ...

    async def send(self, call: Call) -> Exchange:
        """Send and wait for the whole reply. Cancelling the task closes the connection."""
        ...

    async def close(self) -> None: ...


class EndpointTarget(Target, Protocol):
    """A target that is an HTTP endpoint: it can be queried for its models and its health, too."""

    async def get(self, path: str, from_root: bool = False) -> tuple[int, bytes]:
        """Ask for GET of a path below the API root: status and body. Raises targets.fault.Fault."""
        ...

    def uses(self) -> list[TransportUse]:
        """Return the use of httpx's own transport so far; empty where connections are direct."""
        ...
