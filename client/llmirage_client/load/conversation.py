"""A running conversation: its identity, its position, and the event it waits for."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.plays import Play
from llmirage_client.measure.record import CANCELLED, BranchMode, RequestError
from llmirage_client.workload.session import (
    NOBODY,
    BranchKind,
    Event,
    Round,
    Session,
    SessionsOnDemand,
    Tenant,
    ThinkTime,
    Workload,
)

if TYPE_CHECKING:
    from llmirage_client.load.history import Thread


class Identifiers:
    """Names of conversations and requests: UUIDs that depend on the seed and on their place in the run, not on timing."""

    def __init__(self, seed: int | None) -> None:
        self._seed = os.urandom(16).hex() if seed is None else f"seed {seed}"

    def make(self, *place: object) -> str:
        """Return the name of a place."""
        name = "/".join(map(str, (self._seed, *place)))
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        variant = "89ab"[int(digest[16], 16) & 3]  # RFC 9562; put together by hand at a third of uuid.UUID's cost
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"


Place = tuple[object, ...]


class Wait:
    """An event that the rules of a conversation wait for: they yield it, and continue once it has come."""

    __slots__ = ()


class Until(Wait):
    """A time on the run's clock; the end of the phase ends the wait earlier."""

    __slots__ = ("when_s",)

    def __init__(self, when_s: float) -> None:
        self.when_s = when_s


NEXT_ROUND: Final = Wait()  # everything that is ready now has run
TICK: Final = Wait()  # the arrivals give a tick (`go`), or the phase ends
CHILD: Final = Wait()  # the own turns of the child `awaited` are finished
REPLY: Final = Wait()  # the request of turn `turn_index`, due at `due_s`, has ended
EVENT: Final = Wait()  # a request of its tree goes out or has its reply, or the phase ends
# Not yielded by rules:
NOTHING: Final = Wait()  # it is ready, running or finished
TREE: Final = Wait()  # its own turns are finished, those of its descendants are not

Waits = Generator[Wait, None, None]


class Cancelled(Exception):
    """The cancellation of a conversation, raised in its rules where they wait."""


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> object: ...


class InFlight(Protocol):
    """A request in flight."""

    def cancel(self) -> object:
        """End the request soon, as cancelled."""
        ...


class Group:
    """Unfinished conversations in the order in which they started, and a callback for when all have finished.

    leaving: how often the last one finished without being reported yet.
    gates: the children of a conversation for which its turns will wait, by turn.
    joined: the places of those for which they have waited.
    """

    __slots__ = ("gates", "joined", "leaving", "running", "when_over")

    def __init__(self) -> None:
        self.running: dict[Conversation, None] = {}
        self.leaving = 0
        self.when_over: Callable[[], object] | None = None
        self.gates: dict[int, list[Conversation]] = {}
        self.joined: dict[int, list[Place]] = {}  # no conversations, which would hold each other in memory

    @property
    def busy(self) -> bool:
        """True if a conversation is running or its end is not reported yet."""
        return bool(self.running) or self.leaving > 0

    def open_gate(self, turn_index: int) -> list[Conversation] | None:
        """Return the children for which that turn has to wait, None without a gate."""
        children = self.gates.pop(turn_index, None)
        if children is not None:
            self.joined[turn_index] = [child.place for child in children]
        return children

    def cancel(self) -> None:
        for conversation in self.running:
            conversation.cancel()


@dataclass(slots=True, frozen=True)
class Resumption:
    """A tree that is taken up in its middle: the next turn of each session, and when those that are under way go on."""

    turns: Mapping[str, int]
    due_s: Mapping[str, float]


class RequestTree:
    """A root with its descendants: the dispatch and reply times of the requests that turns of other sessions wait for.

    started: the sessions that have begun.
    play: the trace that it replays, on a lane (load.lanes). resumed: where it begins, if not at its beginning.
    skipped_s: idle time by which its waits have been moved earlier.
    awaited: session and turn of the requests for which turns of other sessions may wait.
    """

    __slots__ = ("_happened_s", "_waiting", "awaited", "play", "resumed", "skipped_s", "started")

    def __init__(self, awaited: frozenset[tuple[str, int]]) -> None:
        self.awaited = awaited
        self.started: set[str] = set()
        self.play: Play | None = None
        self.resumed: Resumption | None = None
        self.skipped_s = 0.0
        self._happened_s: dict[tuple[str, int, Event], float] = {}
        self._waiting: dict[tuple[str, int, Event], list[Conversation]] = {}

    def happened_s(self, session: str, turn: int, event: Event) -> float | None:
        return self._happened_s.get((session, turn, event))

    def note(self, session: str, turn: int, event: Event, now_s: float) -> None:
        """Record the first time of an event, and wake the conversations that wait for it."""
        key = (session, turn, event)
        if key not in self._happened_s:
            self._happened_s[key] = now_s
            for conversation in self._waiting.pop(key, ()):
                if conversation.waits is EVENT:
                    conversation.wake()

    def take_as_done(self, session: str, turns: int) -> None:
        """Take the first turns of a session for over since long ago."""
        for turn in range(turns):
            self._happened_s[session, turn, "dispatch"] = self._happened_s[session, turn, "reply"] = -math.inf

    def wait(self, conversation: Conversation, session: str, turn: int, event: Event) -> None:
        self._waiting.setdefault((session, turn, event), []).append(conversation)


class Conversation:
    """An instance of a session: the same session runs as several when roots repeat or parents share a child.

    number: counts the conversations of the run.
    branch_mode: how it began.
    group: the group it runs in.
    children: those it has started.
    thread: its history, where that is text.
    started_s: when the root of its tree was due.
    tree: None where no turn waits for requests of others.
    marker: a text before the first user message of each prompt. reply_tokens: the length of all replies, None: by the turn.

    The rules write what they wait for: awaited, and of a request turn_index (from then on the last turn that was sent) and
    due_s. The sender of the request writes its outcome: error, failed (unless it was cancelled), overflowed (the prompt is
    too long for the model, where that is not a failure), and over_s, its end.
    """

    __slots__ = (
        "_identifiers",
        "_own_id",
        "_started_by_turn",
        "awaited",
        "branch_mode",
        "cancelled",
        "children",
        "depth",
        "due_s",
        "error",
        "failed",
        "group",
        "in_flight",
        "marker",
        "number",
        "over_s",
        "overflowed",
        "parent",
        "place",
        "play",
        "reply_tokens",
        "rules",
        "session",
        "started_s",
        "thread",
        "timer",
        "tree",
        "turn_index",
        "waits",
    )

    play: Callable[[Conversation], object]  # resumes it after everything that is ready now
    rules: Waits | None  # None: its own turns are over
    group: Group
    children: Group | None
    thread: Thread | None
    in_flight: InFlight | None
    error: RequestError | None
    turn_index: int | None
    timer: Timer  # while it waits for a time
    awaited: Conversation | None  # the child that it waits for
    due_s: float
    over_s: float
    started_s: float
    tree: RequestTree | None

    def __init__(
        self,
        session: Session,
        number: int,
        identifiers: Identifiers,
        place: Place,
        parent: Conversation | None = None,
        branch_mode: BranchMode = "root",
        depth: int = 0,
    ) -> None:
        """Create a conversation. place: distinguishes its name from all others of its parent, whatever the run's timing."""
        self.session = session
        self.number = number
        self.parent = parent
        self.branch_mode: BranchMode = branch_mode
        self.depth = depth
        self._identifiers = identifiers
        self.place = place
        self._own_id = ""
        self.waits: Wait = NOTHING
        self.cancelled = self.failed = self.overflowed = False
        self.in_flight = self.error = self.children = self.thread = self.turn_index = self.awaited = None
        self.tree = None
        self.started_s = 0.0
        self.marker = ""
        self.reply_tokens: int | None = None
        if parent is not None:
            self._started_by_turn = parent.turn_index
            self.started_s, self.tree = parent.started_s, parent.tree
            self.marker, self.reply_tokens = parent.marker, parent.reply_tokens

    def __str__(self) -> str:
        return self.correlation_id

    @property
    def correlation_id(self) -> str:
        """Its own name, made on demand: in simulations few routers need it, and reports do after the run."""
        if not self._own_id:
            place = self.place if self.parent is None else (self.parent, *self.place)
            self._own_id = self._identifiers.make("conversation", *place)
        return self._own_id

    @property
    def affinity_id(self) -> str:
        """The key of sticky routers: a fork child has its parent's."""
        if self.branch_mode == "fork" and self.parent is not None:
            return self.parent.affinity_id
        return self.correlation_id

    @property
    def root_correlation_id(self) -> str:
        return self.correlation_id if self.parent is None else self.parent.root_correlation_id

    def tenant_of(self, turn_index: int) -> Tenant:
        """Return whose request that of a turn is."""
        asker, priority = self, self.session.turns[turn_index].extra.get("priority", 0)
        while asker.parent is not None and asker.session.tenant == NOBODY:
            asker = asker.parent
        tenant = asker.session.tenant
        return replace(tenant, priority=priority) if priority and type(priority) is int else tenant

    @property
    def parent_turn_index(self) -> int | None:
        """The parent's turn whose reply started it."""
        return None if self.parent is None else self._started_by_turn

    def joined(self, turn_index: int) -> tuple[str, ...]:
        """Return the correlation ids of the children that a turn waited for."""
        places = () if self.children is None else self.children.joined.get(turn_index, ())
        return tuple([self._identifiers.make("conversation", self, *place) for place in places])

    def wake(self) -> None:
        """Resume it: the event that it waits for has come."""
        if self.waits is not NOTHING:
            self.waits = NOTHING
            self.play(self)

    def wake_early(self) -> None:
        """Resume it before the event that it waits for."""
        if isinstance(self.waits, Until):
            self.timer.cancel()
        self.wake()

    def go(self, due_s: float) -> None:
        """Resume its turn, which has got a tick that was due at that time."""
        self.due_s = due_s
        self.wake()

    def cancel(self) -> None:
        """End it where it waits, with its request and its descendants."""
        if self.cancelled:
            return
        self.cancelled = True
        if self.in_flight is not None:
            self.in_flight.cancel()
        else:
            self.wake_early()


class Family:
    """The conversations of a run, all with distinct numbers, across the workers of a run too."""

    def __init__(self, workload: Workload, identifiers: Identifiers, share: Share | None = None) -> None:
        self._sessions = workload.sessions
        self._identifiers = identifiers
        self._awaited = frozenset() if workload.on_demand else _awaited(workload.sessions.values())
        share = share or Share()
        self._next, self._step = share.index, share.of

    def root(self, session: Session, *place: object) -> Conversation:
        number = self._next
        self._next = number + self._step
        conversation = Conversation(session, number, self._identifiers, place)
        sessions = self._sessions
        awaited = _awaited(sessions.tree(session.id)) if isinstance(sessions, SessionsOnDemand) else self._awaited
        if awaited:
            conversation.tree = RequestTree(awaited)
        return conversation

    def child(self, parent: Conversation, session_id: str, kind: BranchKind, *place: object) -> Conversation:
        """Return a child. A fork continues its parent (history, tools, affinity); a spawn starts from nothing."""
        session = self._of_repeat(session_id, parent)
        name = (kind, session_id, *place)
        child = Conversation(session, self._number(), self._identifiers, name, parent, kind, parent.depth + 1)
        if child.tree is not None:
            child.tree.started.add(session_id)
        if kind == "fork" and parent.thread is not None:
            child.thread = parent.thread.forked(session.mode)
        return child

    def pre_session_child(self, root: Conversation, session_id: str, *place: object) -> Conversation:
        """Return a child started before the first turn of `root`; nothing waits for it and it has no parent."""
        name = (root, "pre", session_id, *place)
        return Conversation(
            self._of_repeat(session_id, root), self._number(), self._identifiers, name, None, "spawn", depth=1
        )

    def abandon(self, tree: RequestTree, session_id: str, now_s: float, turn: int = 0) -> None:
        """Release the waits for the turns of a session from that one on, and for the sessions they would have started."""
        left = [(session_id, turn)]
        while left:
            name, first = left.pop()
            turns = self._sessions[name].turns
            for index in range(first, len(turns)):
                if (name, index) in tree.awaited:
                    tree.note(name, index, "dispatch", now_s)
                    tree.note(name, index, "reply", now_s)
                children = [child for branch in turns[index].branches for child in branch.children]
                left += [(child, 0) for child in children if child not in tree.started]

    def _of_repeat(self, session_id: str, parent: Conversation) -> Session:
        session, repeat = self._sessions[session_id], parent.session.repeat
        return replace(session, repeat=repeat) if repeat else session

    def _number(self) -> int:
        number = self._next
        self._next += self._step
        return number


def _awaited(sessions: Iterable[Session]) -> frozenset[tuple[str, int]]:
    """Return session and turn of the requests for which turns of other sessions wait."""
    return frozenset((each.session, each.turn) for session in sessions for turn in session.turns for each in turn.after)


def think_time_s(round_: Round, think_time: ThinkTime | None, rng: random.Random) -> float:
    """Return the pause before a round.

    It is the round's median with the session's lognormal spread around it, within the session's bounds.
    """
    if think_time is None:
        return round_.think_time_s
    pause_s = round_.think_time_s * math.exp(rng.gauss(0.0, think_time.sigma))
    return min(max(pause_s, think_time.min_s), think_time.max_s)


ON_PURPOSE = RequestError(499, CANCELLED, "cancelled on purpose (--request-cancellation-rate)")
BY_RUN = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class Sender:
    """The rules of sending the requests of a run, over HTTP (load.runner) or straight to a cluster (simulate.event_queue).

    phase: name of the present one. cancels: some requests of this phase are cancelled on purpose.
    """

    def __init__(self, options: RunOptions, identifiers: Identifiers) -> None:
        self.phase = ""
        self.cancels = False
        self.cancellation_delay_s = options.cancellation_delay_s / options.speed
        self._cancellation_share = options.cancellation_share
        self._identifiers = identifiers
        self._overflow = () if options.lanes is None else options.lanes.overflow

    def begin(self, phase: str) -> None:
        """Send the requests of this phase from now on."""
        self.phase = phase
        self.cancels = phase == "profiling" and self._cancellation_share > 0

    def request_id(self, conversation: Conversation, turn_index: int) -> str:
        return self._identifiers.make("request", conversation.correlation_id, turn_index)

    def is_cancelled_on_purpose(self, request_id: str) -> bool:
        """Return whether a request is cancelled `cancellation_delay_s` after it was sent, unless its reply is complete.

        It depends on the request's id alone, and so on the seed and not on timing.
        """
        return self.cancels and Random(f"cancel {request_id}").random() < self._cancellation_share

    def is_overflow(self, error: RequestError | None) -> bool:
        """Return whether an error says that the prompt is too long for the model, where that has a rule of its own."""
        if error is None or not self._overflow or (error.code is not None and error.code < 300):
            return False
        message = error.message.lower()
        return any(text in message for text in self._overflow)

    def end(self, conversation: Conversation, error: RequestError | None, end_s: float) -> None:
        """Tell the conversation the outcome of its request; a cancelled one is no failure."""
        conversation.in_flight = None
        conversation.error = error
        conversation.overflowed = self.is_overflow(error)
        conversation.failed = error is not None and error.type != CANCELLED and not conversation.overflowed
        conversation.over_s = end_s
