"""Sessions of served requests: which request each follows, which started it, and which it waited for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmirage_server.telemetry.traces.served import TracedRequest

MOST_SESSIONS = 20_000  # that are remembered; the one unused for longest is forgotten
_MOST_RECENT = 64  # requests of a session
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 over the golden ratio

Hashes = npt.NDArray[np.int64]


def prefix_hashes(ids: npt.NDArray[np.int32]) -> Hashes:
    """Return the hash of the prompt up to each token, shape (tokens,), 63 bits: equal where all tokens so far are."""
    numbers = ids.astype(np.uint64) + (np.arange(len(ids), dtype=np.uint64) << np.uint64(32))
    return (_mixed(np.cumsum(_mixed(numbers), dtype=np.uint64)) >> np.uint64(1)).view(np.int64)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers that have nothing to do with their neighbours (the finisher of SplitMix64)."""
    x = numbers * _SPREAD
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58_476D_1CE4_E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D0_49BB_1331_11EB)
    x ^= x >> np.uint64(31)
    return x


class Earlier(NamedTuple):
    """A request that had ended."""

    id: str
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class TracedSession:
    """parent: the session that started it. root: the first of its tree. joined: no request waits for its last one."""

    name: str
    parent: TracedSession | None = None
    recent: list[Earlier] = field(default_factory=list)
    children: dict[str, TracedSession] = field(default_factory=dict)
    joined: bool = False
    begun_s: float = 0.0

    @property
    def root(self) -> TracedSession:
        return self if self.parent is None else self.parent.root

    def last_before(self, time_s: float) -> Earlier | None:
        """Return the request that was the last to end by then."""
        return max((one for one in self.recent if one.end_s <= time_s), key=lambda one: one.end_s, default=None)


@dataclass(slots=True, frozen=True)
class PlacedRequest:
    """A request in its session. hashes: of the prompt, see `prefix_hashes`.

    previous: the request that it follows. spawned_by: of the first of a session, the parent's request that it follows.
    joins: sessions that it started which had all ended, with the last request of each.
    """

    served: TracedRequest
    session: TracedSession
    hashes: Hashes
    previous: Earlier | None
    spawned_by: Earlier | None
    joins: tuple[tuple[TracedSession, Earlier], ...]

    def blocks(self, block_tokens: int, cut: bool = False) -> list[int]:
        """Return the hashes of the whole blocks; cut: and of the last one, which may be shorter."""
        ends = list(range(block_tokens - 1, len(self.hashes), block_tokens))
        if cut and len(self.hashes) % block_tokens:
            ends.append(len(self.hashes) - 1)
        found: list[int] = self.hashes[ends].tolist()
        return found


class Sessions:
    """Places requests in the order in which they end.

    Without a header that names it, a request belongs to the session of the last one whose prompt it continues.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, TracedSession] = OrderedDict()
        self._continued: OrderedDict[int, tuple[int, str]] = OrderedDict()  # by hash of a prompt: its length, its session
        self._lengths: Counter[int] = Counter()  # of these prompts

    def place(self, served: TracedRequest) -> PlacedRequest:
        hashes = prefix_hashes(np.frombuffer(served.prompt, np.int32))
        name = served.session or self._found(hashes, served) or f"session-{served.id}"
        session = self._session(name, served)
        previous = session.last_before(served.arrival_s)
        spawned_by = None
        if not session.recent and session.parent is not None:
            spawned_by = session.parent.last_before(served.arrival_s)
        joins = []
        for child in session.children.values():
            if child.joined or not child.recent or max(one.end_s for one in child.recent) > served.arrival_s:
                continue
            last = child.last_before(served.arrival_s)
            assert last is not None
            child.joined = True
            joins.append((child, last))
        session.joined = False
        session.begun_s = min(session.begun_s, served.arrival_s) if session.recent else served.arrival_s
        session.recent = [*session.recent[1 - _MOST_RECENT :], Earlier(served.id, served.arrival_s, served.end_s)]
        if served.session is None and len(hashes):
            self._remember(int(hashes[-1]), len(hashes), name)
        return PlacedRequest(served, session, hashes, previous, spawned_by, tuple(joins))

    def _remember(self, prompt: int, tokens: int, name: str) -> None:
        """Note the session of a prompt, by its hash."""
        if prompt not in self._continued:
            self._lengths[tokens] += 1
        self._continued[prompt] = tokens, name
        if len(self._continued) > MOST_SESSIONS:
            length, _ = self._continued.popitem(last=False)[1]
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def _found(self, hashes: Hashes, served: TracedRequest) -> str | None:
        """Return the session whose longest prompt so far this one begins with, if that request had ended."""
        lengths = sorted([length for length in self._lengths if length < len(hashes)], reverse=True)
        for known in hashes[np.array(lengths, dtype=np.int64) - 1].tolist() if lengths else ():
            if (found := self._continued.get(known)) is None:
                continue
            session = self._sessions.get(found[1])
            if session is not None and session.last_before(served.arrival_s) is not None:
                return found[1]
        return None

    def _session(self, name: str, served: TracedRequest) -> TracedSession:
        if (known := self._sessions.get(name)) is not None:
            self._sessions.move_to_end(name)
            return known
        asked = served.parent or (served.affinity if served.affinity != name else None)
        parent = self._sessions.get(asked) if asked else None
        session = self._sessions[name] = TracedSession(name, parent)
        if parent is not None:
            parent.children[name] = session
        while len(self._sessions) > MOST_SESSIONS:
            _, forgotten = self._sessions.popitem(last=False)
            if forgotten.parent is not None:
                forgotten.parent.children.pop(forgotten.name, None)
        return session
