"""Plays of recorded trees: the agents of a trace, where each of them stands, and the instant at which a play begins."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.request_graph import shared_blocks
from llmirage_client.workload.session import Session, Workload


@dataclass(slots=True, frozen=True)
class Stream:
    """An agent of a trace. parent, spawned_by: the session and the turn that start it, of the root None and 0."""

    session: Session
    parent: str | None = None
    spawned_by: int = 0

    def next_turn(self, at_s: float) -> int:
        """Return the first turn that was sent at that instant of the recording or later."""
        turns = self.session.turns
        return next((i for i, turn in enumerate(turns) if (turn.recorded_s or 0.0) >= at_s), len(turns))


def streams_of(workload: Workload, root: Session) -> tuple[Stream, ...]:
    """Return the agents of a trace, parents before their children."""
    found = [Stream(root)]
    for stream in found:
        for index, turn in enumerate(stream.session.turns):
            for branch in turn.branches:
                found += [Stream(workload.sessions[child], stream.session.id, index) for child in branch.children]
    return tuple(found)


@dataclass(slots=True)
class Play:
    """A trace on a lane.

    place: number of traces that the lane has had before.
    origin_s: the instant of the recording at which it is taken up.
    turns: the next turn of each agent that has one behind it, by session.
    ended: agents that send no further turn, whatever they have left.
    held: a request was left to the next phase.
    """

    streams: tuple[Stream, ...]
    lane: int
    place: int
    marker: str
    origin_s: float
    turns: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    held: bool = False

    @property
    def root(self) -> Session:
        return self.streams[0].session

    def about(self) -> dict[str, Any]:
        """Return where it stands, for JSON."""
        live = self.under_way()
        return {
            "lane": self.lane,
            "trace": self.root.id,
            "start_s": self.origin_s,
            "root_turn": self.next_turn(self.root.id),
            "under_way": len(live),
            "gated": sum(self.gated(*each) for each in live),
        }

    def next_turn(self, session: str) -> int:
        return self.turns.get(session, 0)

    def under_way(self) -> list[tuple[Stream, int]]:
        """Return the agents that have begun and have turns left, with their next turns."""
        begun: set[str] = set()
        live = []
        for stream in self.streams:
            if stream.parent is None or (stream.parent in begun and stream.spawned_by < self.next_turn(stream.parent)):
                begun.add(stream.session.id)
                index = self.next_turn(stream.session.id)
                if index < len(stream.session.turns) and stream.session.id not in self.ended:
                    live.append((stream, index))
        return live

    def resumed(self) -> dict[str, int]:
        """Return the next turns of the agents that are under way, or have descendants that are, and of the root."""
        needed = {self.root.id} | {stream.session.id for stream, _ in self.under_way()}
        for stream in reversed(self.streams):
            if stream.session.id in needed and stream.parent is not None:
                needed.add(stream.parent)
        return {name: self.next_turn(name) for name in needed}

    def gated(self, stream: Stream, index: int) -> bool:
        """Return whether a turn takes in the result of an agent that is not over."""
        after = stream.session.turns[index].after
        return any(each.join and each.turn >= self.next_turn(each.session) for each in after)

    def offset_s(self, stream: Stream, index: int) -> float:
        """Return how long after the instant a turn was sent in the recording."""
        return max((stream.session.turns[index].recorded_s or 0.0) - self.origin_s, 0.0)


def known_prefixes(streams: Sequence[Stream]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return by session and turn how many blocks a prompt begins with that the recording had before, and how many it has."""
    ids_of = {
        (stream.session.id, index): turn.synthetic.block_ids
        for stream in streams
        for index, turn in enumerate(stream.session.turns)
        if turn.synthetic is not None and turn.synthetic.block_ids is not None
    }
    starts = {(s.session.id, i): turn.recorded_s or 0.0 for s in streams for i, turn in enumerate(s.session.turns)}
    seen: set[int] = set()
    last: dict[str, npt.NDArray[np.int64]] = {}
    found = {}
    for place in sorted(ids_of, key=lambda place: starts[place]):
        ids, before = ids_of[place], last.get(place[0])
        hits = 0 if before is None else shared_blocks(before, ids)
        more = ids[hits:].tolist()
        hits += next((number for number, block in enumerate(more) if block not in seen), len(more))
        found[place] = hits, len(ids)
        seen.update(more)
        last[place[0]] = ids
    return found


def sampled_instant_s(streams: tuple[Stream, ...], low: float, high: float, seed: object, lane: int) -> float:
    """Return an instant of a recording, uniform between two shares of the time from its first request to its last."""
    starts_ms = [(turn.recorded_s or 0.0) * 1e3 for stream in streams for turn in stream.session.turns]
    first_ms, length_ms = min(starts_ms), max(starts_ms) - min(starts_ms)
    low_ms, high_ms = first_ms + low * length_ms, first_ms + high * length_ms
    if high_ms <= low_ms:
        return low_ms / 1e3
    digest = hashlib.sha256(f"{seed}:{streams[0].session.id}:{lane}".encode()).digest()
    return float(np.random.default_rng(int.from_bytes(digest[:8], "big")).uniform(low_ms, high_ms)) / 1e3
