"""The traffic to be carried, at a rate or by a number of users, and the bounds that an unloaded instance sets for it.

Lower bounds: an objective that fails on an unloaded instance cannot be met by adding instances or removing load. Where all
requests have the same lengths the bound is proved. Else a few requests stand for all, and a statistic of all of them is at
least the lower end of what these say: _DEVIATIONS standard errors below their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.arrays import Floats, Ints
from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulate.saturation import clumping_of, root_turns
from llmirage_client.simulator.bounds import Bounds, Lengths
from llmirage_client.workload.session import Session, Workload
from llmirage_client.workload.synthetic_load import synthetic_load, with_priorities
from llmirage_shared.plural import plural, rounded

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
