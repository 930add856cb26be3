"""A conversation on its way through a simulation without tasks, and its requests."""

from __future__ import annotations

from itertools import count

from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import BranchMode
from llmirage_client.simulate.token_rows import TokenRow, TokenRows
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.simulate.walk_loop import Act, WalkLoop
from llmirage_client.workload.session import Session


class Walk:
    """A conversation under way.

    waits: for what. cancelled: it ends when it goes on next. due_s: when the turn was due that waited for a tick.
    """

    __slots__ = ("_id", "_identifiers", "_place", "cancelled", "due_s", "number", "ready", "resume", "session", "waits")
    parent = None
    depth = 0
    branch_mode: BranchMode = "root"
    parent_turn_index = None
    resume: Act

    def __init__(self, session: Session, number: int, tools: WalkTools, place: tuple[str, int]) -> None:
        """place: what it is named by."""
        self.session = session
        self.number = number
        self.ready = tools.loop.ready
        self.cancelled = False
        self.waits = NOTHING
        self._identifiers = tools.identifiers
        self._place = place
        self._id = ""

    @property
    def correlation_id(self) -> str:
        """Made when it is asked for: few routers do, and reports do it after the run."""
        if not self._id:
            self._id = self._identifiers.make("conversation", *self._place)
        return self._id

    @property
    def root_correlation_id(self) -> str:
        return self.correlation_id

    @property
    def affinity_id(self) -> str:
        return self.correlation_id

    def wake(self) -> None:
        if self.waits:
            self.waits = NOTHING
            self.ready.append(self.resume)

    def wake_last(self) -> None:
        """The same, when nothing more is done in this act: what would be the next to be done can be done at once."""
        if self.ready:
            self.wake()
        elif self.waits:
            self.waits = NOTHING
            self.resume()

    def go(self, due_s: float) -> None:
        """Its next turn has got a tick."""
        self.due_s = due_s
        self.wake()


NOTHING, MOMENT, REPLY = 0, 1, 2  # that a walk waits for; a moment may be a tick


def finished() -> None:
    """What goes on with a walk that is over: nothing."""


class WalkRow(TokenRow):
    """Wakes its conversation when the reply is there."""

    __slots__ = ()

    def over(self) -> None:
        self.conversation.wake()  # type: ignore[attr-defined]  # a Walk


class WalkTools:
    """What the phases of one run have in common. named: requests carry the name of their conversation, for the router."""

    def __init__(self, loop: WalkLoop, options: RunOptions, rows: TokenRows, named: bool) -> None:
        self.loop = loop
        self.streams = TokenStreams(options.session_prefix == "extend")
        self.identifiers = Identifiers(options.seed)
        self.rows = rows
        self.named = named
        self.numbers = count()
        self.request_ids = count()
