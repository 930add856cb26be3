"""The traffic to be carried, at a rate or by a number of users, and the bounds that an unloaded instance sets for it.

Lower bounds: an objective that fails on an unloaded instance cannot be met by adding instances or removing load. Where all
requests have the same lengths the bound is proved. Else a few requests stand for all, and a statistic of all of them is at
least the lower end of what these say: _DEVIATIONS standard errors below their own.

A traffic is measured in its steady state: after the cluster has filled up, and while the load is still on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulate.saturation import clumping_of, root_turns
from llmirage_client.simulate.simulation import Window
from llmirage_client.simulator.bounds import Bounds, Lengths
from llmirage_client.simulator.deployments import units
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.workload.session import Session, Workload
from llmirage_client.workload.synthetic_load import synthetic_load, with_priorities
from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import Floats, Ints

Kind = Literal["request_rate", "concurrency"]

_SAMPLE = 1024  # requests that stand for a synthetic load
_GROWTH = 2  # a synthetic load is made for 2, 4, 8, ... times _SAMPLE requests


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """Tokens of requests: the prompt, the part of it that no cache can hold, and the reply; int64, shape (n,)."""

    prompt: Ints
    new: Ints
    reply: Ints


class RequestSource:
    """Where requests come from. make: returns a workload of at least that many requests, or of all there are.

    limit: how many there are; None: any number. text: what they are, for people.
    """

    def __init__(self, make: Callable[[int], Workload], limit: int | None, text: str) -> None:
        self._make = make
        self.limit = limit
        self.text = text
        self._made: dict[int, Workload] = {}

    def workload(self, requests: int) -> Workload:
        """Return the same workload for all numbers up to the next power of two, so that few are made."""
        size = _SAMPLE
        while size < requests and self.limit is None:
            size *= _GROWTH
        if size not in self._made:
            self._made[size] = self._make(size)
        return self._made[size]

    @cached_property
    def in_tokens(self) -> bool:
        """True if all turns are token counts or ids."""
        return all(session.mode == "tokens" for session in self.workload(1).sessions.values())

    @cached_property
    def tokens_alone(self) -> bool:
        """True if turns are lengths, so that a simulation needs no text."""
        sessions = self.workload(1).sessions.values()
        return all(
            session.mode == "tokens" and all(turn.tokens and turn.tokens.input_ids is None for turn in session.turns)
            for session in sessions
        )

    @cached_property
    def single_turns(self) -> bool:
        return all(len(session.turns) == 1 for session in self.workload(1).sessions.values())

    @cached_property
    def forks(self) -> bool:
        """True if a conversation may have several requests in progress at a time."""
        return any(turn.branches for session in self.workload(1).sessions.values() for turn in session.turns)

    @cached_property
    def mean_turns(self) -> float:
        """Turns of a root conversation."""
        return float(root_turns(self.workload(1)).mean())

    @cached_property
    def clumping(self) -> float:
        return clumping_of(root_turns(self.workload(1)))

    def ages_s(self, latency_s: float) -> Floats:
        """Return the times of all turns after their conversation's start, ascending, for requests of that duration."""
        workload = self.workload(1)
        ages: list[float] = []
        for root in workload.roots:
            age_s = 0.0
            for place, turn in enumerate(workload.sessions[root].turns):
                age_s += turn.delay_s + (latency_s if place else 0.0)
                ages.append(age_s)
        return np.sort(ages or [0.0])

    @cached_property
    def sizes(self) -> RequestSizes | None:
        """None where turns are text, whose tokens are not counted yet."""
        rows: list[tuple[int, int, int]] = []
        for session in self.workload(1).sessions.values():
            rows += _rows(session)
            if any(row[0] < 1 for row in rows[-len(session.turns) :]):
                return None
        if not rows:
            return None
        prompt, new, reply = np.array(rows, dtype=np.int64).T
        return RequestSizes(prompt, new, reply)

    @cached_property
    def spread(self) -> float:
        """Mean square of the requests' tokens over the square of their mean, of prompts or replies, whichever is more.

        1 where all are equal; so many times more requests are needed for means that are as precise.
        """
        if self.sizes is None:
            return 1.0
        tokens = np.array([self.sizes.new, self.sizes.reply], dtype=np.float64)
        return float(((tokens**2).mean(axis=1) / tokens.mean(axis=1) ** 2).max())

    @cached_property
    def lengths(self) -> Lengths | None:
        """Means of the sizes."""
        sizes = self.sizes
        if sizes is None:
            return None
        return Lengths(float(sizes.prompt.mean()), float(sizes.new.mean()), float(sizes.reply.mean()))


def _rows(session: Session) -> list[tuple[int, int, int]]:
    """Return prompt, new and reply tokens of each turn. With ids, all of a prompt but its last token may be cached."""
    rows, before = [], 0
    for turn in session.turns:
        spec = turn.tokens
        if spec is None:
            return [(0, 0, 0)]
        new = 1 if spec.input_ids is not None else max(1, spec.input_tokens - before)
        rows.append((spec.input_tokens, new, spec.output_tokens))
        before = spec.input_tokens + spec.output_tokens
    return rows


def synthetic_source(isl: str, osl: str, turns: str, think_time_s: str, shared_prefix: int, seed: int) -> RequestSource:
    """Return the source of synthetic requests. Its first workload raises WorkloadError for lengths that make no sense."""

    def make(requests: int) -> Workload:
        return synthetic_load(
            isl, osl, requests, turns=turns, wait_s=think_time_s, shared_prefix_tokens=shared_prefix, seed=seed
        )

    more = [f"{turns} turns a session"] if turns != "1" else []
    more += [f"{shared_prefix:,} tokens shared by all"] if shared_prefix else []
    return RequestSource(make, None, ", ".join([f"{isl} tokens in, {osl} out", *more]))


def file_source(workload: Workload) -> RequestSource:
    """Return the source of a file's requests.

    Conversations in tokens come again as often as needed, with fresh tokens; text, which takes long, does not.
    """
    requests = sum(len(session.turns) for session in workload.sessions.values())
    again = all(session.mode == "tokens" for session in workload.sessions.values())
    return RequestSource(lambda _: workload, None if again else requests, f"{workload.path}: {plural(requests, 'request')}")


def prioritised(source: RequestSource, shares: Sequence[tuple[int, float]], seed: int) -> RequestSource:
    """Return the source with priorities of its conversations, drawn in these shares."""

    def make(requests: int) -> Workload:
        return with_priorities(source.workload(requests), shares, seed)

    return RequestSource(make, source.limit, source.text)


@dataclass(frozen=True, slots=True)
class Traffic:
    """amount: requests per second (turns of root conversations, as in `llmirage run`), or users at once.

    options: of the runner, without the amount; of a scenario, the whole run, which is simulated as it is.
    """

    source: RequestSource
    kind: Kind
    amount: float
    options: RunOptions

    def of(self, amount: float) -> Traffic:
        """Return the same traffic with another amount."""
        return replace(self, amount=amount)

    @property
    def scenario(self) -> str | None:
        return self.options.scenario

    @property
    def text(self) -> str:
        if self.scenario is None:
            return amount_text(self.kind, self.amount)
        slots = plural(int(self.amount), "slot" if self.options.lanes is None else "lane")
        lasts = self.options.benchmark_duration_s
        return f"scenario {self.scenario} with {slots}" + ("" if lasts is None else f" for {lasts:,g} s")

    def run_options(self, requests: int, ramp_s: float) -> RunOptions:
        """Return options of a run of that many requests. ramp_s: how long the users at once take to be all there.

        A rate of turns becomes one of conversations that do not know of each other: each turn goes out when it is ready.
        """
        if self.scenario is not None:
            return replace(self.options, concurrency=int(self.amount))
        options = replace(self.options, request_count=requests, vary=True)
        if self.kind == "concurrency":
            users = int(self.amount)
            return replace(options, concurrency=users, concurrency_ramp_s=ramp_s if users > 1 else 0.0)
        if self.source.single_turns:
            return replace(options, request_rate_per_s=self.amount)
        rate = self.amount / self.source.mean_turns
        return replace(options, request_rate_per_s=rate, request_rate_of="conversations")


def amount_text(kind: Kind, amount: float) -> str:
    """Return a text such as "20 req/s" or "64 users at once"."""
    if kind == "request_rate":
        return f"{rounded(amount)} req/s"
    return "1 user at a time" if amount == 1 else f"{amount:,.0f} users at once"


_BOUND_SAMPLE = 128  # requests whose bounds are computed
_DEVIATIONS = 4.0  # standard errors: a few in 100,000 samples are further off


def tpot_limit_s(objectives: Sequence[Objective], lengths: Lengths) -> float:
    """Return the mean time between tokens that upper limits of TPOT and latency leave at most; infinite without any."""
    per_token = {"inter_token_latency": 1.0, "request_latency": lengths.reply}
    limits = [
        one.limit * 1e-3 / per_token[one.metric.tag]
        for one in objectives
        if one.metric.tag in per_token and one.comparison[0] == "<"
    ]
    return min(limits, default=math.inf)


def missed_unloaded(objectives: Sequence[Objective], sizes: RequestSizes | None, bounds: Bounds) -> list[Verdict]:
    """Return the objectives that one user alone misses at best.

    Only upper limits of TTFT, TPOT and latency can be judged so.
    """
    if sizes is None:
        return []
    rows = np.unique(np.linspace(0, sizes.prompt.size - 1, _BOUND_SAMPLE).astype(int))
    found: dict[tuple[int, int, int], tuple[float, float] | None] = {}
    values: list[tuple[float, float, float]] = []
    for prompt, new, reply in zip(sizes.prompt[rows], sizes.new[rows], sizes.reply[rows], strict=True):
        key = int(prompt), int(new), int(reply)
        if key not in found:
            ttft, tpot = bounds.ttft_s(key[0], key[1]), bounds.tpot_s(key[0])
            found[key] = None if ttft is None or tpot is None else (ttft * 1e3, tpot * 1e3)
        pair = found[key]
        if pair is None:
            return []
        ttft_ms, tpot_ms = pair
        values.append((ttft_ms, tpot_ms if key[2] > 1 else 0.0, ttft_ms + (key[2] - 1) * tpot_ms))
    columns = dict(zip(("time_to_first_token", "inter_token_latency", "request_latency"), np.array(values).T, strict=True))
    verdicts = [
        Verdict(objective, _statistic(columns[objective.metric.tag], objective.statistic))
        for objective in objectives
        if objective.metric.tag in columns and objective.comparison[0] == "<"
    ]
    return [verdict for verdict in verdicts if not verdict.met]


def _statistic(values: Floats, statistic: str | None) -> float:
    """Return a bound at or below the same statistic of all requests; 0 for statistics that a few requests cannot bound."""
    if statistic == "max" or (values == values[0]).all():
        return float(values.max()) if statistic is not None and statistic[0] != "s" else 0.0
    if statistic == "avg":
        return float(values.mean() - _DEVIATIONS * values.std() / math.sqrt(values.size))
    if statistic is not None and statistic[0] == "p":
        share = float(statistic[1:]) / 100
        low = share - _DEVIATIONS * math.sqrt(share * (1 - share) / values.size)
        return float(np.percentile(values, low * 100, method="lower")) if low > 0 else 0.0
    return 0.0


NOT_STEADY = (
    "a steady state needs one request rate or a number of users all the time, requests in token counts (lengths, or a "
    "file of them), and one pool without fixed times"
)
_FILLING = 8  # requests sent before those that are measured, beside as many as the cluster holds
_LATENCY_S = 5.0  # assumed where the roofline has no estimate
_OLD = 99  # percent of the turns are not older: a simulation is measured when these ages are all there
_SETTLED = 1.5  # lifetimes until as many conversations end as begin and the caches are full
_OVERLOADED = 2  # times the measured requests: enough to fill a cluster that cannot keep up anyway


@dataclass(frozen=True, slots=True)
class FillUp:
    """The filling of a cluster by a traffic. busy: requests in flight then, about. first: requests sent until then.

    lifetime_s: how old conversations get. waiting: further requests of those that have begun; 0 for single turns at a rate.
    """

    busy: int
    first: int
    waiting: int
    lifetime_s: float


def fill_up(traffic: Traffic, bounds: Bounds, instances: int, measured: int) -> FillUp:
    """Return the filling of a cluster. bounds: of one instance. measured: how many requests are to be measured."""
    source, amount = traffic.source, traffic.amount
    busy = _running(traffic, bounds, instances, measured)
    by_rate = traffic.kind == "request_rate"
    latency_s = busy / amount if by_rate else _latency_s(source, bounds, instances, int(amount))
    ages_s = source.ages_s(latency_s)
    lifetime_s = float(np.percentile(ages_s, _OLD)) + latency_s
    if not by_rate:
        waiting = math.ceil(amount * source.clumping)
        return FillUp(busy, 2 * busy + waiting, waiting, lifetime_s)
    if source.single_turns:
        return FillUp(busy, busy + _FILLING, 0, lifetime_s)
    begun = amount * float(np.clip(_SETTLED * lifetime_s - ages_s, 0.0, None).mean())  # requests until then
    return FillUp(busy, math.ceil(begun + busy + _FILLING), math.ceil(amount * lifetime_s), lifetime_s)


def steady_load(
    config: ClusterConfig, source: RequestSource, options: RunOptions, count: int
) -> tuple[Workload, RunOptions, Window] | None:
    """Return a load of which `count` requests are measured; conversations at a rate do not know of each other.

    None for loads without one request rate or a number of users, where requests are text, and where the roofline does not
    know how long they take. Conversations of a file come in an order of the seed. Raises ConfigError.
    """
    rate = options.request_rate_per_s
    users = options.concurrency if options.rates is None else None
    scheduled = options.fixed_schedule or options.user_rate_per_s is not None
    if scheduled or (rate is None and users is None) or options.request_rate_ramp_s:
        return None
    if not _on_engine(config, source, options) or not fills_foreseeably(config):
        return None
    if rate is not None and options.request_rate_of == "conversations":
        rate *= source.mean_turns
    if options.sampling == "sequential":
        options = replace(options, sampling="shuffle")
    traffic = Traffic(source, "concurrency", users, options) if rate is None and users else None
    traffic = traffic or Traffic(source, "request_rate", rate or 0.0, options)
    instances = units(config)
    fill = fill_up(traffic, Bounds(replace(config, instances=1)), instances, count)
    sent = fill.first + count + 2 * fill.busy
    return source.workload(sent + fill.waiting), traffic.run_options(sent, fill.lifetime_s), Window(fill.first, count)


def _on_engine(config: ClusterConfig, source: RequestSource, options: RunOptions) -> bool:
    """Return whether the engine alone simulates these requests: lengths, and token ids for a completions API."""
    if source.tokens_alone:
        return True
    plain = options.streaming and not options.extra_inputs and options.endpoint_type in (None, "completions")
    return plain and source.in_tokens and len({pool.model for pool in plan_of(config)}) == 1


def fills_foreseeably(config: ClusterConfig) -> bool:
    """Return whether the roofline knows how long requests take: not for fixed times, nor for several pools."""
    return len(config.pools) < 2 and Bounds(replace(config, instances=1)).tpot_s(1) is not None


def _running(traffic: Traffic, bounds: Bounds, instances: int, measured: int) -> int:
    """Return the approximate number of requests in flight at a time."""
    if traffic.kind == "concurrency":
        return int(traffic.amount)
    lengths = traffic.source.lengths
    one = bounds.running(lengths, traffic.amount / instances) if lengths is not None else None
    if lengths is None or one is None:
        return math.ceil(traffic.amount * _LATENCY_S)
    busy = one * instances
    return busy if one != bounds.most_running(lengths) else min(busy, _OVERLOADED * measured)


def _latency_s(source: RequestSource, bounds: Bounds, instances: int, users: int) -> float:
    """Return the approximate latency of a request with `users` users."""
    lengths = source.lengths
    if lengths is None or (most := bounds.most_requests_per_s(lengths)) is None:
        return _LATENCY_S
    return max(bounds.latency_s(lengths) or 0.0, users / (most * instances))


def gradual_start_s(config: ClusterConfig, workload: Workload, options: RunOptions) -> float:
    """Return the time until all users have started: about a turn and the think time after it.

    0 for other loads than closed loops, and where the roofline does not know how long a turn takes: for texts, for
    fixed times and for several pools. Raises ConfigError.
    """
    users = options.concurrency or 1
    if users == 1 or options.rates is not None or options.fixed_schedule or options.user_rate_per_s is not None:
        return 0.0
    source, bounds = RequestSource(lambda _: workload, None, ""), Bounds(replace(config, instances=1))
    if source.lengths is None or len(config.pools) > 1 or bounds.most_requests_per_s(source.lengths) is None:
        return 0.0
    think_s = float(np.mean([turn.delay_s for session in workload.sessions.values() for turn in session.turns]))
    return _latency_s(source, bounds, units(config), users) + think_s
