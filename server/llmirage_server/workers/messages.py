"""What an engine process and its workers tell each other of requests and of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from llmirage_server.cluster.request import Request
from llmirage_server.telemetry.journal import JournalEntry, Outcome
from llmirage_shared.log_histogram import LogHistogram, ServedTimes
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire.errors import ApiError

# What the cluster writes of a request, besides `produced`.
_WRITTEN = (
    "age_s", "arrival_s", "instance", "at_rank", "placed_s", "stream", "cached_tokens", "external_tokens", "preemptions",
    "admitted_s", "handed_s", "joined_s", "first_token_s", "finished_s", "failed", "dropped",
)  # fmt: skip
written = attrgetter(*_WRITTEN)


def write(request: Request, values: tuple[Any, ...]) -> None:
    """Set what `written` returned of the same request in another process."""
    for name, value in zip(_WRITTEN, values, strict=True):
        setattr(request, name, value)


class Hello(NamedTuple):
    """The first message of a worker. pid: of its process."""

    pid: int


class Ready(NamedTuple):
    """A worker listens."""


class Submitted(NamedTuple):
    """Requests, without their tags, and replies whose texts prompts may repeat. Other fields: see Driver.submit."""

    requests: list[Request]
    arrived_s: float
    last: bool
    remembered: list[tuple[str, TokenIds]]


class Cancelled(NamedTuple):
    """Requests are cancelled."""

    numbers: list[int]


class Counted(NamedTuple):
    """A request has ended: the metrics may count it. finish_reason: of its complete reply."""

    number: int
    finish_reason: str


class Answered(NamedTuple):
    """All choices of a prompt have ended."""

    numbers: list[int]


class Responded(NamedTuple):
    """A response has ended: an entry of the journal, see Journal.end."""

    entry: JournalEntry
    status: int | None
    outcome: Outcome
    elapsed_s: float


class Draining(NamedTuple):
    """A worker ends. closing: what is in progress ends with an error; else no new request is taken."""

    closing: bool


class Clock(NamedTuple):
    """The cluster's time. start_s: the time on the machine's clock at which it was 0."""

    start_s: float
    speed: float


Due = tuple[float, float, bytes, bytes, list[tuple[int, tuple[Any, ...]]]]
"""Tokens are due, or there is more to tell of requests.

The cluster's time of the earliest token, and of the latest; the numbers of requests and how many tokens each has produced,
unsigned 32-bit; what `written` returns of some requests, by number.
"""


class Placed(NamedTuple):
    """Submitted requests have their place in the cluster, or none, for which there is an error."""

    number: int
    error: ApiError | None


class Remembered(NamedTuple):
    """Replies whose texts prompts may repeat, with their token ids."""

    replies: list[tuple[str, TokenIds]]


class There(NamedTuple):
    """Which instances of the fleet there are."""

    instances: list[bool]


class Sync(NamedTuple):
    """The answer is a Report. alone: only the engine process can answer requests for replies. asleep: the server sleeps."""

    alone: bool
    asleep: bool


@dataclass(slots=True)
class Report:
    """What a worker has measured since its last report, and the bytes that it holds."""

    served: ServedTimes = field(default_factory=ServedTimes)
    lags: LogHistogram = field(default_factory=LogHistogram)
    late_tokens: int = 0
    max_s: float = 0.0
    errors: int = 0
    blocks: int = 0
    longest_s: float = 0.0
    held_bytes: int = 0
