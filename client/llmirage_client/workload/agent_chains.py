"""Agents in a flat recording: requests are assigned to them by the beginnings of their prompts.

As AIPerf tells it for WEKA traces: an agent goes on with a prompt that begins with its whole last one; a prompt that shares
less begins another agent, or is the same one after it has shortened its context, if nothing goes on from the longer state.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    """One agent's requests by time. group: its group and its place in there, if several began together."""

    requests: list[Recorded]
    group: tuple[int, int] | None = None


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
    return [Agent(main.requests), *(Agent(chain.requests, groups.get(number)) for number, chain in enumerate(others))]


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
