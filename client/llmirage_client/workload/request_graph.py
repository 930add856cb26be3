"""Recorded requests that wait for each other, as sessions: what traces of agents come to, whatever their format.

A play is a set of requests that run together. Requests of one stream that follow each other are the turns of one session; a
stream that begins after a request of another one is started by that one's session; all other waits are `Turn.after`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmirage_client.workload.session import After, Branch, ContextMode, Event, Session, Turn


@dataclass(slots=True, frozen=True)
class Need:
    """Another request of the play, and how long after its event this one may go out."""

    request: str
    delay_s: float = 0.0
    event: Event = "reply"


@dataclass(slots=True, frozen=True)
class Request:
    """turn: what is sent; its times, waits and branches are written here. start_s: when it was sent in the recording."""

    id: str
    stream: str
    turn: Turn
    start_s: float
    needs: tuple[Need, ...] = ()
    line: int | None = None


class GraphError(ValueError):
    """Requests that wait for one another, or for one that is not there. request: one of them."""

    def __init__(self, message: str, request: Request) -> None:
        super().__init__(message)
        self.request = request


def sessions_of_play(
    name: str,
    requests: Sequence[Request],
    arrival_s: float | None = None,
    *,
    floors: bool = False,
    mode: ContextMode = "isolated",
) -> list[Session]:
    """The sessions of one play, its root first: called `name`, the others `name/stream`.

    arrival_s: of the root, where the file has a schedule. floors: on a schedule no request goes out before its recorded
    start. Raises GraphError for waits that cannot end.
    """
    play = _Play(name, arrival_s, floors)
    for request in in_order(requests):
        play.add(request)
    return [
        Session(
            chain.name,
            tuple(chain.turns),
            mode,
            arrival_s if chain is play.chains[0] else None,
            line=chain.line,
        )
        for chain in play.chains
    ]


def in_order(requests: Sequence[Request]) -> Iterator[Request]:
    """By recorded start, each after those it waits for. Raises GraphError where there is no such order."""
    by_id = {request.id: request for request in requests}
    place = {request.id: number for number, request in enumerate(requests)}
    missing = dict.fromkeys(by_id, 0)
    waiting: dict[str, list[str]] = {}
    for request in requests:
        for need in request.needs:
            if need.request not in by_id:
                raise GraphError(f"waits for '{need.request}', which is not among the requests", request)
            missing[request.id] += 1
            waiting.setdefault(need.request, []).append(request.id)
    ready = [(request.start_s, place[request.id]) for request in requests if not missing[request.id]]
    heapq.heapify(ready)
    done = 0
    while ready:
        request = requests[heapq.heappop(ready)[1]]
        done += 1
        yield request
        for other in waiting.get(request.id, ()):
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (by_id[other].start_s, place[other]))
    if done < len(requests):
        stuck = next(request for request in requests if missing[request.id])
        raise GraphError("waits for a request that waits for it", stuck)


@dataclass(slots=True)
class _Chain:
    """A session in the making."""

    name: str
    stream: str
    line: int | None
    turns: list[Turn] = field(default_factory=list)
    last: str = ""  # the request of its last turn


class _Play:
    def __init__(self, name: str, arrival_s: float | None, floors: bool) -> None:
        self.chains: list[_Chain] = []
        self._name = name
        self._arrival_s = arrival_s
        self._floors = floors
        self._origin_s = 0.0
        self._root_request = ""
        self._places: dict[str, tuple[_Chain, int]] = {}
        self._names = {name}

    def add(self, request: Request) -> None:
        chain, before = self._continued(request)
        if chain is None:
            chain, before = self._begun(request)
        after = [need for need in request.needs if need is not before or self._floors]
        since_origin_s = request.start_s - self._origin_s
        turn = replace(
            request.turn,
            delay_s=0.0 if before is None else before.delay_s,
            arrival_s=self._arrival_of(chain, since_origin_s),
            after=tuple(After(*self._named(need.request), need.delay_s, need.event) for need in after),
        )
        self._root_request = self._root_request or request.id
        self._places[request.id] = chain, len(chain.turns)
        chain.turns.append(turn)
        chain.last = request.id

    def _arrival_of(self, chain: _Chain, since_origin_s: float) -> float | None:
        is_root = chain is self.chains[0]
        if self._floors:
            return since_origin_s + ((self._arrival_s or 0.0) if is_root else 0.0)
        return self._arrival_s if is_root and not chain.turns else None

    def _named(self, request: str) -> tuple[str, int]:
        chain, index = self._places[request]
        return chain.name, index

    def _continued(self, request: Request) -> tuple[_Chain | None, Need | None]:
        """The chain of the request's stream whose last reply it waits for."""
        for need in request.needs:
            chain, _ = self._places[need.request]
            if need.event == "reply" and chain.last == need.request and chain.stream == request.stream:
                return chain, need
        return None, None

    def _begun(self, request: Request) -> tuple[_Chain, Need | None]:
        """A new chain: the root, or one that a turn of another chain starts."""
        if not self.chains:
            self._origin_s = request.start_s
            root = _Chain(self._name, request.stream, request.line)
            self.chains.append(root)
            return root, None
        if request.needs:
            before = next((need for need in request.needs if need.event == "dispatch"), request.needs[-1])
        else:  # it comes with the play, whose root comes first
            before = Need(self._root_request, request.start_s - self._origin_s, "dispatch")
        parent, index = self._places[before.request]
        chain = _Chain(self._free_name(request.stream), request.stream, request.line)
        parent.turns[index] = _with_child(parent.turns[index], f"{parent.name}:{index}", chain.name, before.event)
        self.chains.append(chain)
        return chain, before

    def _free_name(self, stream: str) -> str:
        name, number = f"{self._name}/{stream}", 1
        while name in self._names:
            number += 1
            name = f"{self._name}/{stream}#{number}"
        self._names.add(name)
        return name


def _with_child(turn: Turn, place: str, child: str, event: Event) -> Turn:
    """The turn with one more session that it starts."""
    same = next((branch for branch in turn.branches if branch.at == event), None)
    if same is None:
        name = place if event == "reply" else f"{place}:dispatch"
        return replace(turn, branches=(*turn.branches, Branch(name, "spawn", (child,), at=event)))
    more = replace(same, children=(*same.children, child))
    return replace(turn, branches=tuple(more if branch is same else branch for branch in turn.branches))
