"""Carries engine plans out, the half of the golden files' knowledge of the product that is about the cluster.

It enters by `ClusterConfig` -> `plan` -> `build`, and of the cluster by `submit`, `cancel`, `clear_cache`, `advance`,
`advance_to_next`, `next_event_time`, `snapshot`, `transfers`; of a request by its fields, and its `spans` where single
tokens are not told. `per_sequence` follows every sequence through every step and takes one step end at a time; `default`
is what simulations build and drive, which runs through steady batches in one go where its rules allow it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from stored import Row, packed

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.config import ClusterConfig, EventConfig, KvTransferConfig, PoolConfig
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, plan

# --- clusters ----------------------------------------------------------------------------------------------------------


_UNSAID = {"instances": 2, "weights": "fp8"}  # what the plans mean where they do not say


def config_of(settings: Mapping[str, Any]) -> ClusterConfig:
    """From settings by the names of a cluster file."""
    given = _UNSAID | settings
    pools = tuple(PoolConfig(**(_UNSAID | pool)) for pool in given.pop("pools", ()))
    events = tuple(EventConfig(**event) for event in given.pop("events", ()))
    transfer = given.pop("kv_transfer", None)
    return ClusterConfig(**given, pools=pools, events=events, kv_transfer=transfer and KvTransferConfig(**transfer))


def cluster_of(
    settings: Mapping[str, Any],
    per_sequence: bool,
    limits: Mapping[str, Any] | None = None,
    link: Mapping[str, Any] | None = None,
    front_end_s: float | None = None,
) -> Cluster:
    """limits, link: of all schedulers and of the KV link, where they are other than what follows from the settings."""
    config = config_of(settings)
    pools = [_changed(pool, limits or {}, front_end_s) for pool in plan(config)]
    kv = kv_link(config, pools)
    return build(config, pools, kv and replace(kv, **link or {}), fast_forward=not per_sequence)


def _changed(pool: ServedPool, limits: Mapping[str, Any], front_end_s: float | None) -> ServedPool:
    deployment = pool.deployment
    if front_end_s is not None:
        engine = deployment.engine
        deployment = replace(deployment, engine=replace(engine, front_end_ms=front_end_s * 1e3 + engine.tokenize_ms))
    return replace(pool, limits=replace(pool.limits, **limits), deployment=deployment)


def is_fast(row: Row) -> bool:
    """Whether some instance of an engine plan, played by default, runs through steady batches in one go."""
    return any(isinstance(each, Instance) and each.fast_forward for each in _cluster(row, False)._instances)


# --- engine plans ------------------------------------------------------------------------------------------------------


def play_engine(row: Row, way: str) -> Row:
    """Submits and cancels as the plan says, looks at the cluster now and then, and lets it finish."""
    per_sequence = way == "per_sequence"
    cluster = _cluster(row, per_sequence)
    requests = [_request(number, ask) for number, ask in enumerate(row["requests"])]
    times: dict[int, list[float]] = {request.id: [] for request in requests}
    refused: set[int] = set()
    over: dict[int, None] = {}  # in the order in which the caller is told
    looks: list[Any] = []
    moments = _moments(row)

    def note(ends: Iterable[StepEnd]) -> None:
        for end in ends:
            for request in end.emitted:
                known = times[request.id]
                told = len(known) + sum(last - first + 1 for _, first, last in request.spans)
                if told < request.produced:
                    known += [end.time_s] * (request.produced - told)
                if request.failed or request.produced == request.output_tokens:
                    if request.id not in over:
                        for moment in _following(row, request.id, end.time_s):
                            heappush(moments, moment)
                    over.pop(request.id, None)  # several steps may end at one moment, and bring it further tokens
                    over[request.id] = None

    while True:
        to = moments[0][0] if moments else math.inf
        next_s = cluster.next_event_time()
        if next_s <= to and next_s < math.inf:
            note(cluster.advance(next_s, 1) if per_sequence else cluster.advance_to_next(to))
            continue
        if not moments:
            break
        at_s, number, what = heappop(moments)
        note(cluster.advance(at_s))
        if what == _LOOK:
            looks.append([[s.running, s.waiting, s.kv_used_tokens, s.cached_tokens, s.state] for s in cluster.snapshot()])
        elif what == _CLEAR:
            cluster.clear_cache(at_s)
        elif what == _CANCEL:
            cluster.cancel(requests[number], at_s)
        else:
            try:
                cluster.submit(requests[number], at_s)
            except ValueError:
                refused.add(number)
    for request in requests:
        for ends_s, first, last in request.spans:
            times[request.id] += ends_s[first : last + 1]
    return {
        "name": row["name"],
        "requests": [_told(request, sorted(times[request.id]), request.id in refused) for request in requests],
        "over": list(over),
        "looks": looks,
        "counters": [_counters(state) for state in cluster.snapshot()],
        "transfers": [cluster.transfers.done, cluster.transfers.tokens, cluster.transfers.bytes],
    }


def _cluster(row: Row, per_sequence: bool) -> Cluster:
    return cluster_of(row["cluster"], per_sequence, row.get("limits"), row.get("link"), row.get("front_end_s"))


_LOOK, _CLEAR, _SUBMIT, _CANCEL = range(4)
Moment = tuple[float, int, int]
"""When, about which request (-1: none), what. Of one moment the smallest comes first."""


def _moments(row: Row) -> list[Moment]:
    """What the caller does when, as a heap."""
    moments = [(at_s, -1, _LOOK) for at_s in row.get("looks", ())]
    moments += [(at_s, -1, _CLEAR) for at_s in row.get("clear", ())]
    moments += [(ask["at"], number, _SUBMIT) for number, ask in enumerate(row["requests"]) if "at" in ask]
    moments += [(ask["cancel"], number, _CANCEL) for number, ask in enumerate(row["requests"]) if "cancel" in ask]
    heapify(moments)
    return moments


def _following(row: Row, over: int, now: float) -> Iterator[Moment]:
    """What the caller does when a request is over: it looks, sends others, or cancels them."""
    if over in row.get("looks_with", ()):
        yield now, -1, _LOOK
    for number, ask in enumerate(row["requests"]):
        if ask.get("after", (None,))[0] == over:
            yield now + ask["after"][1], number, _SUBMIT
        if ask.get("cancel_with") == over:
            yield now, number, _CANCEL


def ids_of(stretches: Iterable[tuple[int, int]]) -> np.ndarray:
    """Token ids: (number, tokens) is the beginning of the stretch of that number, which is like no other."""
    pieces = [np.arange(number * 10_000, number * 10_000 + tokens, dtype=np.int32) for number, tokens in stretches]
    return np.concatenate(pieces)


def _request(number: int, ask: Row) -> Request:
    output = ids_of([(10_000 + number, ask["out"])])
    request = Request(
        number, ids_of(ask["in"]), output, ask.get("key"), ask.get("model"), ask.get("priority", 0), ask.get("max", 0)
    )
    request.age_s = ask.get("age", 0.0)
    return request


def _told(request: Request, times_s: list[float], refused: bool) -> Row:
    finished = request.produced == request.output_tokens
    assert not finished or (times_s[0], times_s[-1]) == (request.first_token_s, request.finished_s)
    assert len(times_s) == request.produced
    if refused:
        state = "refused"
    elif math.isnan(request.arrival_s):
        state = "never sent"
    else:
        state = "cancelled" if request.cancelled else "failed" if request.failed else "ok"
    assert finished == (state == "ok")
    return {
        "id": request.id,
        "state": state,
        "instance": request.instance,
        "cached": request.cached_tokens,
        "preempted": request.preemptions,
        "admitted_s": None if math.isnan(request.admitted_s) else request.admitted_s,
        "times_s": packed(times_s),
    }


def _counters(state: Any) -> Row:
    counters = {
        "hits": state.prefix_hit_tokens,
        "queries": state.prefix_query_tokens,
        "preemptions": state.preemptions,
        "cached": state.cached_tokens,
        "used": state.kv_used_tokens,
        "state": state.state,
    }
    return counters | {
        tier.name: [v for v in asdict(tier).values() if not isinstance(v, (str, bool))] for tier in state.tiers
    }
