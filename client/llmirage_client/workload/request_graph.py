"""Recorded requests that wait for each other, as sessions: what traces of agents come to, whatever their format.

A play is a set of requests that run together. Requests of one stream that follow each other are the turns of one session; a
stream that begins after a request of another one is started by that one's session; all other waits are `Turn.after`.

Agents in a flat recording are told by the beginnings of prompts, as AIPerf does for WEKA traces: an agent goes on with a
prompt that begins with its whole last one; a prompt that shares less begins another agent, or is the same one after it has
shortened its context, if nothing goes on from the longer state.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.session import After, Branch, ContextMode, Event, Session, Turn


class Need(NamedTuple):
    """Another request of the play, and how long after its event this one may go out. join: see After."""

    request: str
    delay_s: float = 0.0
    event: Event = "reply"
    join: bool = False


class RecordedRequest(NamedTuple):  # a trace has hundreds of thousands, and a frozen dataclass takes thrice as long to make
    """turn: what is sent; its times, waits and branches are written here. start_s: when it was sent in the recording."""

    id: str
    stream: str
    turn: Turn
    start_s: float
    needs: tuple[Need, ...] = ()
    line: int | None = None


class GraphError(ValueError):
    """Requests that wait for one another, or for one that is not there. request: one of them."""

    def __init__(self, message: str, request: RecordedRequest) -> None:
        super().__init__(message)
        self.request = request


def sessions_of_play(
    requests: Sequence[RecordedRequest],
    names: set[str],
    arrival_s: float | None = None,
    *,
    floors: bool = False,
    mode: ContextMode = "isolated",
) -> list[Session]:
    """Return the sessions of one play, its root first, called as their streams.

    names: those of the file so far; a stream whose name is taken gets a number. arrival_s: of the root, where the file has a
    schedule. floors: on a schedule no request goes out before its recorded start. Raises GraphError for waits that cannot
    end.
    """
    play = _Play(names, arrival_s, floors)
    for request in in_order(requests):
        play.add(request)
    return [
        Session(chain.name, tuple(chain.turns), mode, arrival_s if chain is play.chains[0] else None, line=chain.line)
        for chain in play.chains
    ]


def in_order(requests: Sequence[RecordedRequest]) -> Iterator[RecordedRequest]:
    """Yield by recorded start, each after those it waits for. Raises GraphError where there is no such order."""
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


def finished_before(streams: Sequence[Sequence[tuple[int, float, float]]]) -> dict[int, list[int]]:
    """Return by request: those of other streams that had to be over, as they were in the recording, when it started.

    streams: place, start and end of requests. Of every stream it is the latest request that had started before and ended by
    then; what another one of these implies is left out.
    """
    if len(streams) < 2:
        return {}
    by_end = [sorted(stream, key=lambda request: (request[2], request[1])) for stream in streams]
    ends = [[end_s for _, _, end_s in stream] for stream in by_end]
    found: dict[int, list[int]] = {}
    for own, stream in enumerate(streams):
        for place, start_s, _ in stream:
            frontier = []
            for other, candidates in enumerate(by_end):
                at = bisect_right(ends[other], start_s + _TOUCH_S) - 1
                while at >= 0 and candidates[at][1] >= start_s:
                    at -= 1
                if other != own and at >= 0:
                    frontier.append(candidates[at])
            latest_s = max((start for _, start, _ in frontier), default=0.0)
            kept = [earlier for earlier, start, end in frontier if start == latest_s or end > latest_s + _TOUCH_S]
            if kept:
                found[place] = kept
    return found


def free_name(name: str, names: set[str]) -> str:
    """Return the name, with a number after it if it is taken; it is among the names from then on."""
    free, number = name, 1
    while free in names:
        number += 1
        free = f"{name}#{number}"
    names.add(free)
    return free


def plays_of(requests: Sequence[RecordedRequest]) -> list[list[RecordedRequest]]:
    """Return requests that wait for each other, directly or by way of others, in the order given."""
    leader = {request.id: request.id for request in requests}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for request in requests:
        for need in request.needs:
            if need.request not in leader:
                raise GraphError(f"waits for '{need.request}', which is not among the requests", request)
            leader[find(request.id)] = find(need.request)
    plays: dict[str, list[RecordedRequest]] = {}
    for request in requests:
        plays.setdefault(find(request.id), []).append(request)
    return list(plays.values())


@dataclass(slots=True)
class _Chain:
    """A session in the making."""

    name: str
    stream: str
    line: int | None
    turns: list[Turn] = field(default_factory=list)
    last: str = ""  # the request of its last turn


class _Play:
    def __init__(self, names: set[str], arrival_s: float | None, floors: bool) -> None:
        self.chains: list[_Chain] = []
        self._names = names
        self._arrival_s = arrival_s
        self._floors = floors
        self._origin_s = 0.0
        self._root_request = ""
        self._places: dict[str, tuple[_Chain, int]] = {}

    def add(self, request: RecordedRequest) -> None:
        chain, before = self._continued(request)
        if chain is None:
            chain, before = self._begun(request)
        needs = [need for need in request.needs if need is not before or self._floors]
        since_origin_s = request.start_s - self._origin_s
        turn = replace(
            request.turn,
            delay_s=0.0 if before is None else before.delay_s,
            arrival_s=self._arrival_of(chain, since_origin_s),
            after=tuple([self._after(need) for need in needs]),
            recorded_s=request.start_s,
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

    def _after(self, need: Need) -> After:
        chain, index = self._places[need.request]
        return After(chain.name, index, need.delay_s, need.event, need.join)

    def _continued(self, request: RecordedRequest) -> tuple[_Chain | None, Need | None]:
        """Return the chain of the request's stream whose last reply it waits for."""
        for need in request.needs:
            chain, _ = self._places[need.request]
            if need.event == "reply" and chain.last == need.request and chain.stream == request.stream:
                return chain, need
        return None, None

    def _begun(self, request: RecordedRequest) -> tuple[_Chain, Need | None]:
        """Return a new chain: the root, or one that a turn of another chain starts."""
        if not self.chains:
            self._origin_s = request.start_s
            root = _Chain(free_name(request.stream, self._names), request.stream, request.line)
            self.chains.append(root)
            return root, None
        if request.needs:
            before = next((need for need in request.needs if need.event == "dispatch"), request.needs[-1])
        else:  # it comes with the play, whose root comes first
            before = Need(self._root_request, request.start_s - self._origin_s, "dispatch")
        parent, index = self._places[before.request]
        chain = _Chain(free_name(request.stream, self._names), request.stream, request.line)
        parent.turns[index] = _with_child(parent.turns[index], f"{parent.name}:{index}", chain.name, before.event)
        self.chains.append(chain)
        return chain, before


def _with_child(turn: Turn, place: str, child: str, event: Event) -> Turn:
    """Return the turn with one more session that it starts."""
    same = next((branch for branch in turn.branches if branch.at == event), None)
    if same is None:
        name = place if event == "reply" else f"{place}:dispatch"
        return replace(turn, branches=(*turn.branches, Branch(name, "spawn", (child,), at=event)))
    more = replace(same, children=(*same.children, child))
    return replace(turn, branches=tuple(more if branch is same else branch for branch in turn.branches))


_TOUCH_S = 1e-6
_LEAST_IN_GROUP = 3  # agents that fork from one request and run at once: AIPerf's WEKA_WORKER_GROUP_MIN
_TITLE_TOKENS = 64  # a request before the conversation that names it has a shorter reply
_LONG_GAP_S, _LEAST_SHARE = 3600.0, 0.5
_NO_IDS: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Recorded(NamedTuple):
    """place: in the file. end_s: its start where the duration is not known. ids: of the prompt's blocks."""

    place: int
    start_s: float
    end_s: float
    model: str
    output_tokens: int
    ids: npt.NDArray[np.int64] = _NO_IDS


class Agent(NamedTuple):
    """One agent's requests by time. group: its group and its place in there, if several began together.

    titled: its first request names the conversation, and has nothing in common with the others.
    """

    requests: list[Recorded]
    group: tuple[int, int] | None = None
    titled: bool = False

    @property
    def talk(self) -> list[Recorded]:
        """Its requests but the title."""
        return self.requests[self.titled :]


@dataclass(slots=True)
class _CallChain:
    """tail: the last request with ids. depth: blocks shared with the request that it was forked from, at `fork`."""

    requests: list[Recorded]
    tail: Recorded | None = None
    depth: int = 0
    fork: int = -1

    def add(self, request: Recorded) -> None:
        self.requests.append(request)
        if len(request.ids):
            self.tail = request


def agents(requests: Sequence[Recorded]) -> list[Agent]:
    """Return the agents of a recording, the main one first, the others as they begin."""
    ordered = sorted(requests, key=lambda request: (request.start_s, request.place))
    title, rest = _without_title(ordered)
    chains: list[_CallChain] = []
    forks: dict[int, list[_CallChain]] = {}  # by place of the request that they share a beginning with
    owners: dict[int, _CallChain] = {}
    for request in rest:
        owners[request.place] = _place(request, chains, forks)
    _join_shortened(forks, owners)
    live = [chain for chain in chains if chain.requests]
    if not live:
        return [Agent(title)] if title else []
    main, *others = live
    main.requests = sorted([*title, *main.requests], key=lambda request: (request.start_s, request.place))
    others.sort(key=lambda chain: (chain.requests[0].start_s, chain.requests[0].place))
    groups = _groups(others)
    return [
        Agent(main.requests, titled=bool(title)),
        *(Agent(chain.requests, groups.get(number)) for number, chain in enumerate(others)),
    ]


def _groups(others: Sequence[_CallChain]) -> dict[int, tuple[int, int]]:
    """Return the group and the place in it of chains that fork from one request and overlap in time, as AIPerf numbers them.

    others: chains as they begin. A group has at least three; groups count as their first members begin.
    """
    together: list[list[int]] = []
    open_until: dict[int, tuple[float, list[int]]] = {}  # by the place of the fork: the group's latest end, its chains
    for number, chain in enumerate(others):
        if not chain.depth:
            continue
        end_s, members = open_until.get(chain.fork, (0.0, []))
        if not members or chain.requests[0].start_s >= end_s:
            members = []
            together.append(members)
        members.append(number)
        open_until[chain.fork] = max(end_s, max(request.end_s for request in chain.requests)), members
    groups = [members for members in together if len(members) >= _LEAST_IN_GROUP]
    return {number: (group, place) for group, members in enumerate(groups) for place, number in enumerate(members)}


def shared_blocks(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return blocks with which both begin."""
    size = min(len(one), len(other))
    if not size or one[0] != other[0]:
        return 0
    differ = one[:size] != other[:size]
    first = int(differ.argmax())
    return first if differ[first] else size


def _without_title(ordered: Sequence[Recorded]) -> tuple[list[Recorded], Sequence[Recorded]]:
    """Tell off a first request that shares no beginning with any other: it names the conversation, or stands alone."""
    if len(ordered) < 2 or not len(ordered[0].ids):
        return [], ordered
    first, *rest = ordered
    if any(shared_blocks(first.ids, other.ids) for other in rest):
        return [], ordered
    if first.output_tokens > _TITLE_TOKENS and any(np.isin(first.ids, other.ids).any() for other in rest):
        return [], ordered
    return [first], rest


def _place(request: Recorded, chains: list[_CallChain], forks: dict[int, list[_CallChain]]) -> _CallChain:
    """Add the request to the chain that it continues, or begin one."""
    if not chains:
        chains.append(_CallChain([]))
    tails = [(chain, chain.tail) for chain in chains if chain.tail is not None]
    if not len(request.ids) or not tails:  # nothing tells: it is the main agent's
        chains[0].add(request)
        return chains[0]
    shared = [shared_blocks(tail.ids, request.ids) for _, tail in tails]
    continued = [
        (depth, -number)
        for number, (depth, (_, tail)) in enumerate(zip(shared, tails, strict=True))
        if depth == len(tail.ids) and tail.model == request.model and tail.end_s <= request.start_s + _TOUCH_S
    ]
    if continued:
        chain = tails[-max(continued)[1]][0]
        chain.add(request)
        return chain
    number = max(range(len(tails)), key=lambda n: (shared[n], len(tails[n][1].ids), -n))
    chain = _CallChain([], depth=shared[number], fork=tails[number][1].place)
    chain.add(request)
    chains.append(chain)
    if chain.depth:
        forks.setdefault(chain.fork, []).append(chain)
    return chain


def _join_shortened(forks: dict[int, list[_CallChain]], owners: dict[int, _CallChain]) -> None:
    """Put chains back that are an agent's own after it has shortened its context."""
    waiting = list(forks)
    heapq.heapify(waiting)
    while waiting:
        place = heapq.heappop(waiting)
        registered = [chain for chain in forks.pop(place, ()) if chain.requests]
        owner = owners[place]
        tail = owner.tail
        if tail is None or tail.place != place:
            continue  # it went on from the longer state
        candidates = [chain for chain in registered if _may_go_on(chain, tail)]
        if not candidates:
            continue
        elected = max(candidates, key=lambda chain: (chain.depth, -chain.requests[0].start_s))
        owner.requests += elected.requests
        owner.tail = elected.tail
        owners.update((request.place, owner) for request in elected.requests)
        elected.requests = []
        assert owner.tail is not None
        left = [chain for chain in registered if chain is not elected]
        for chain in left:
            depth = shared_blocks(owner.tail.ids, chain.requests[0].ids)
            if depth:
                chain.depth, chain.fork = depth, owner.tail.place
                forks.setdefault(chain.fork, []).append(chain)
        if owner.tail.place in forks:
            heapq.heappush(waiting, owner.tail.place)


def _may_go_on(chain: _CallChain, tail: Recorded) -> bool:
    first = chain.requests[0]
    if tail.end_s > first.start_s + _TOUCH_S or first.model != tail.model:
        return False
    return first.start_s - tail.end_s <= _LONG_GAP_S or chain.depth >= _LEAST_SHARE * len(tail.ids)
