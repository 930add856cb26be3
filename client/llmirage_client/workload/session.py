"""The one in-memory form of every workload format: a Workload is Sessions, a Session is Turns, a Turn may branch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmirage_shared.settings import make_plain

BranchKind = Literal["fork", "spawn"]
Event = Literal["reply", "dispatch"]
"""Of a request: that its reply is complete (or it failed, or will never be sent), or that it goes out."""

ContextMode = Literal[
    "accumulate", "accumulate_authored", "server_state", "server_conversation", "isolated", "verbatim", "tokens"
]
"""How a turn's request is built.

accumulate: the turn's messages are appended to the history, the live reply is appended after it (DAG, multi-turn).
accumulate_authored: messages are appended too, but live replies are dropped: the file holds the assistant's messages.
server_state: as accumulate, but the server keeps the history: only what is new goes out, with the last reply's id
(Responses).
server_conversation: likewise, with the id of a conversation that the server keeps; a fork begins one of its own.
isolated: the turn's messages are the whole message array; nothing is carried from turn to turn.
verbatim: the turn's `payload` is the whole body, nothing added or taken away (inputs_json).
tokens: the turn's `tokens` say how many tokens (or which) go in and come out (flat and agentic JSONL).
"""


@dataclass(slots=True, frozen=True)
class Branch:
    """Children that start when the turn which carries the branch has its reply, or goes out.

    fork: children inherit the parent's history, live reply included. spawn: children start empty.
    at: "dispatch" only for a spawn.
    join_at: index of the turn of the SAME session that waits for all children of this branch; None: none waits.
    background: for a fork, the parent goes on with its remaining turns.
    """

    id: str  # "<session_id>:<turn>" with ":fork", ":bg_fork", ":spawn", ... when several coexist
    kind: BranchKind
    children: tuple[str, ...]
    join_at: int | None = None
    background: bool = False
    at: Event = "reply"


@dataclass(slots=True, frozen=True)
class After:
    """A request of the same tree of sessions, and how long after its event a turn may go out.

    join: it is the last request of a session that the turn's session has started, and whose result the turn takes in.
    """

    session: str
    turn: int
    delay_s: float = 0.0
    event: Event = "reply"
    join: bool = False


@dataclass(slots=True, frozen=True)
class TokenSpec:
    """A call given in tokens: how many go in and come out, and which, if the file says so."""

    input_tokens: int
    output_tokens: int
    input_ids: npt.NDArray[np.int32] | None = None  # shape (input_tokens,)
    output_ids: npt.NDArray[np.int32] | None = None  # shape (output_tokens,)

    def __post_init__(self) -> None:
        if type(self.input_tokens) is not int or type(self.output_tokens) is not int:
            make_plain(self)


@dataclass(slots=True, frozen=True)
class SyntheticUser:
    """A user message known by its length: written when its turn goes out, in the tokenizer of the run.

    The same key and tokens give the same text. prefix_tokens: further tokens that come first, the same in every message with
    a prefix. Counts are of the content alone, without the chat template.
    system_tokens: the first of them are a system message of their own.
    block_ids: what a trace knows of the content: equal ids stand for equal blocks of block_tokens tokens each, the last
    of which may be cut; what follows after them is like no other text. An empty array: all of it is like no other.
    """

    tokens: int
    key: int
    prefix_tokens: int = 0
    block_ids: npt.NDArray[np.int64] | None = None  # shape (blocks,)
    block_tokens: int = 0
    system_tokens: int = 0


@dataclass(slots=True, frozen=True)
class Turn:
    """One request of a session. Exactly one of messages, payload and tokens is set, as the session's mode says.

    synthetic: one more user message after `messages`, in the modes that have messages.

    delay_s: seconds to wait after the previous reply of the session before this turn goes out (think time, tool wait).
    arrival_s: the turn's own time on the file's schedule, by the clock of the session's arrival_s. A run that keeps to the
    schedule sends the turn then, or with the previous reply if that comes later, and does not look at delay_s. In a session
    that another one starts it counts from the start of the tree's root.
    recorded_s: when the request was sent in the recording, by a clock of the whole tree.
    after: other requests of the tree for which the turn waits, in every run that has children. A session that others name
    here is started once in its tree.
    model, max_tokens, extra hold for this turn only; tools hold on for later turns and for fork children (None:
    unchanged), but in isolated sessions they are those of the turn.
    min_tokens: the least length of the reply where the endpoint can be told (`ignore_eos`, `min_tokens`).
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    payload: Mapping[str, Any] | None = None
    tokens: TokenSpec | None = None
    model: str | None = None
    max_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0
    branches: tuple[Branch, ...] = ()
    synthetic: SyntheticUser | None = None
    arrival_s: float | None = None
    min_tokens: int | None = None
    after: tuple[After, ...] = ()
    recorded_s: float | None = None

    def __post_init__(self) -> None:
        if type(self.delay_s) is not float or (self.arrival_s is not None and type(self.arrival_s) is not float):
            make_plain(self)

    @property
    def limit(self) -> int | None:
        """Most tokens of the reply, None without a limit."""
        return self.max_tokens if self.tokens is None else self.tokens.output_tokens


@dataclass(slots=True, frozen=True)
class Round:
    """One round of a request-less orchestrator session: children that start together; the next round waits for all.

    think_time_s: pause before this round's children start (after those of the previous round are done); the median
    of the pause when the session has a ThinkTime. awaited: False where nothing comes after it that would wait.
    """

    children: tuple[str, ...]
    think_time_s: float = 0.0
    awaited: bool = True


@dataclass(slots=True, frozen=True)
class ThinkTime:
    """Lognormal pause before each round of an orchestrator: median, sigma of the logarithm, bounds; seconds.

    median_s is the session's default; a Round's own think_time_s is the median of its pause.
    """

    median_s: float
    sigma: float = 0.0
    min_s: float = 0.0
    max_s: float = float("inf")


@dataclass(slots=True, frozen=True)
class Tenant:
    """Whose requests they are, and the class of service that they are promised; empty: not known.

    priority: less is served first.
    """

    name: str = ""
    service_class: str = ""
    priority: int = 0


NOBODY = Tenant()


@dataclass(slots=True, frozen=True)
class Session:
    """An ordered chain of turns.

    arrival_s: when the session starts, seconds from the start of the run; None: when the load strategy says.
    pre_session_spawns: sessions started just before turn 0, fire and forget.
    rounds: only for an orchestrator session, which has no turns and sends nothing itself.
    ends_on_failure: after a failed request its later turns are not sent.
    repeat: 0: as the file has it; else the tokens that are its own are fresh, and the same in every copy of this number.
    routed: its name goes out with each request as X-Session-ID, with __repeat_N from its second time in the run on.
    salted: its system message stands between a text for the number of the repeat and one for the session.
    tenant: without a name or class, that of the session that starts it. The priority is in the `extra` of the turns.
    """

    id: str
    turns: tuple[Turn, ...]
    mode: ContextMode = "accumulate"
    arrival_s: float | None = None
    pre_session_spawns: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    think_time: ThinkTime | None = None
    line: int | None = None  # where the session stands in its file, for messages
    ends_on_failure: bool = False
    repeat: int = 0
    routed: bool = False
    salted: bool = False
    tenant: Tenant = NOBODY

    @property
    def route(self) -> str:
        """Its name in X-Session-ID."""
        return f"{self.id}__repeat_{self.repeat + 1}" if self.repeat else self.id

    def __post_init__(self) -> None:
        if self.arrival_s is not None and type(self.arrival_s) is not float:
            make_plain(self)


def with_tools(session: Session) -> Iterator[tuple[Turn, list[Mapping[str, Any]] | None]]:
    """Yield each turn with the tools of its request: its own, or the last that a turn before it had. A fork parent's not."""
    held: list[Mapping[str, Any]] | None = None
    for turn in session.turns:
        if session.mode == "isolated":
            held = None
        if turn.tools is not None:
            held = list(turn.tools)
        yield turn, held


class SessionsOnDemand(Mapping[str, Session]):
    """Sessions of many traces by name, of which each is read when one of its sessions is first asked for.

    Names of sessions that a root starts, however far down, begin with the root's and "::". To go through all of them reads
    all traces; those read last stay in memory.
    """

    def __init__(self, readers: Mapping[str, Callable[[], Sequence[Session]]]) -> None:
        """readers: by the name of the root, what reads the sessions of its trace."""
        self._readers = readers
        self._trees: OrderedDict[str, dict[str, Session]] = OrderedDict()
        self._turns = 0

    def __getitem__(self, name: str) -> Session:
        root = name
        while root not in self._readers:
            root, between, _ = root.rpartition("::")
            if not between:
                raise KeyError(name)
        return self._tree(root)[name]

    def __iter__(self) -> Iterator[str]:
        for root in self._readers:
            yield from self._tree(root)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def tree(self, root: str) -> Collection[Session]:
        return self._tree(root).values()

    def _tree(self, root: str) -> dict[str, Session]:
        tree = self._trees.get(root)
        if tree is None:
            tree = self._trees[root] = {session.id: session for session in self._readers[root]()}
            self._turns += _turns_of(tree)
            while self._turns > _MOST_TURNS and len(self._trees) > 1:
                self._turns -= _turns_of(self._trees.popitem(last=False)[1])
        self._trees.move_to_end(root)
        return tree


_MOST_TURNS = 60_000  # about 60 MB


def _turns_of(tree: Mapping[str, Session]) -> int:
    return sum(len(session.turns) for session in tree.values())


@dataclass(slots=True, frozen=True)
class Workload:
    """A loaded, valid file.

    roots: ids of the sessions nothing refers to; these are what a run starts. In file order, or by arrival time where
    the file gives one. notes: what a user should know though the file is valid (keys that are not used, and the like).
    skipped: number of roots at the end of `roots` that a run takes only when it needs more than those before them.
    frees_early: the slot of a root is free when its own turns are over, though its descendants have turns left.
    """

    format: str
    path: str
    sessions: Mapping[str, Session]
    roots: tuple[str, ...]
    notes: tuple[str, ...] = ()
    skipped: int = 0
    frees_early: bool = False

    @classmethod
    def of_roots(cls, format: str, path: str, sessions: Iterable[Session], notes: Iterable[str] = ()) -> Workload:
        """Return a workload whose sessions are all roots, in this order."""
        by_id = {session.id: session for session in sessions}
        return cls(format, path, by_id, tuple(by_id), tuple(notes))

    @property
    def timed(self) -> bool:
        """True when the file itself says when each root starts."""
        return bool(self.roots) and all(self.sessions[r].arrival_s is not None for r in self.roots)

    @property
    def generated(self) -> bool:
        """True if it was not recorded: lengths alone, or a file of this package."""
        return self.format in ("synthetic", "generated") or self.path.startswith("bundled:")

    @property
    def on_demand(self) -> bool:
        """True if traces are read as they begin; then it is not known what all of them hold."""
        return isinstance(self.sessions, SessionsOnDemand)

    @property
    def sample(self) -> Collection[Session]:
        """All sessions; of one that is read on demand those of the first tree with requests: it has the form of all."""
        sessions = self.sessions
        if not isinstance(sessions, SessionsOnDemand):
            return sessions.values()
        trees = (sessions.tree(root) for root in self.roots)
        return next((tree for tree in trees if any(session.turns for session in tree)), ())

    @property
    def branching(self) -> bool:
        if self.on_demand:
            return True
        for session in self.sessions.values():
            if session.pre_session_spawns or session.rounds:
                return True
            for turn in session.turns:
                if turn.branches:
                    return True
        return False


class RowNumber(int):
    """The place from 1 of a row in an array that is on one line, where other rows have the number of their line."""


@dataclass(slots=True, frozen=True)
class Problem:
    """One thing wrong with a workload file. file: which one, when the workload is a directory of files."""

    message: str
    line: int | None = None
    field: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        unit = "row" if isinstance(self.line, RowNumber) else "line"
        places = [self.file or "", f"{unit} {self.line}" if self.line is not None else ""]
        where = "".join(f"{place}: " for place in places if place)
        what = f"{self.field}: " if self.field else ""
        return f"{where}{what}{self.message}"


class WorkloadError(Exception):
    """A file that cannot be run. Carries every problem found, not only the first, in the order of files and lines."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        self.path = path
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file or "", problem.line or 0)))
        super().__init__("\n".join(f"{path}: {p}" for p in self.problems))
