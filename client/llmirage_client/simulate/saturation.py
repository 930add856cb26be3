"""Checks of a simulation: whether the cluster kept up with the offered load, and whether it suits steady-state figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import Columns
from llmirage_client.simulate.cluster_series import ClusterSeries, by_pool
from llmirage_client.simulator.engine import QueueWait, ServedPool
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import Floats

LONG_WAIT_S = 5.0  # see Request.wait; the same limit as the server's own warning (drivers/pacing.py)
_LAST_SHARE = 0.1  # of the requests: the last ones, whose waits show a queue at the end
_START_SHARE = 0.25  # of the requests, or of the time in which they are sent: the cluster fills up
_BATCHES = 12  # of the others, in which a queue grows
_FEWEST = 5  # requests of a batch
_GROWTH = 1.5  # times as long a wait in the last third of the batches as in the first
_GROWTH_S = 0.1  # and so much longer
_ORDERED = 0.7  # Kendall's tau of the batches: less than 1 in 1,000 of 12 in random order have more
_LONG_SHARE = 0.1  # of the requests: so many long waits are no chance
_DRAINED = 0.5  # of the worst waits
_NAMED = 8  # instances
_BURST = 1.25  # times the 99th percentile of the other requests
_FEW_REQUESTS = 100
_SHORTFALL = 0.05  # of the offered rate that may be missing from the delivered one
_SHORTFALL_NOISE = 3.0  # standard deviations of a Poisson count
_FEWEST_RATED = 20  # requests for a rate to be reported


State = Literal["growing", "draining", "stable"]


@dataclass(frozen=True, slots=True)
class InstanceQueue:
    """The queue of an instance, or of the whole cluster.

    instance: its index; None: the cluster.
    overloaded: why it did not keep up with its load; None: it did.
    waited_s: of its requests at first, when it was worst, and at last (medians of batches).
    """

    instance: int | None
    state: State
    overloaded: str | None
    requests: int
    waited_s: tuple[float, float, float]


def queue_of(waited_s: Iterable[float], users: int = 0, instance: int | None = None) -> InstanceQueue:
    """Judge a queue by the waits of its requests, in the order in which they were over.

    Those that never began count until they were given up. users: of a closed loop, whose first requests wait for each other.
    """
    waits = np.array(list(waited_s), dtype=np.float64)
    waits = waits[~np.isnan(waits)]
    if not waits.size:
        return InstanceQueue(instance, "stable", None, 0, (0.0, 0.0, 0.0))
    counted = waits[users:] if waits.size >= 2 * users else waits
    medians = [_median(batch) for batch in np.array_split(counted, min(_BATCHES, -(-counted.size // _FEWEST)))]
    last_s = _median(waits[-max(1, int(waits.size * _LAST_SHARE)) :])
    first_s, worst_s = medians[0], max(medians)
    grows, share = _growth(waits, users), float((counted > LONG_WAIT_S).mean())
    why = None
    if last_s > LONG_WAIT_S:
        why = f"the last requests waited {last_s:,.0f} s in queues (median)"
    elif grows is not None:
        why = grows
    elif share > _LONG_SHARE and share * counted.size >= _FEWEST:
        tail_s = float(np.sort(counted)[int(0.9 * (counted.size - 1))])
        why = f"{share:.0%} of the requests waited more than {LONG_WAIT_S:g} s, the slowest tenth {tail_s:,.0f} s or more"
    state: State = "stable"
    if why is not None:
        if grows is not None:
            state = "growing"
        elif last_s < _DRAINED * worst_s:
            state = "draining"
            why += f"; the queue drains, from {worst_s:,.0f} s at worst to {last_s:,.1f} s at last"
        elif last_s > _GROWTH * first_s + _GROWTH_S:
            state = "growing"
    return InstanceQueue(instance, state, why, waits.size, (first_s, worst_s, last_s))


def queues_of(waits: Sequence[QueueWait], users: int, pools: Sequence[ServedPool]) -> list[InstanceQueue]:
    """Return the cluster's queue, and that of each instance, where an instance has the whole of a request."""
    whole = queue_of([wait.seconds for wait in waits], users)
    if any(pool.config.role != "both" for pool in pools):
        return [whole]
    count = sum(pool.config.instances for pool in pools)
    by_instance: list[list[float]] = [[] for _ in range(count)]
    for wait in waits:
        if wait.instance >= 0:
            by_instance[wait.instance].append(wait.seconds)
    each = [queue_of(waited_s, -(-users // count), index) for index, waited_s in enumerate(by_instance)]
    over = [queue for queue in each if queue.overloaded is not None]
    states = [queue.state for queue in (whole, *over)]
    if over and (len(over) < count or whole.overloaded is None):
        names = ", ".join(str(queue.instance) for queue in over[:_NAMED]) + ", ..." * (len(over) > _NAMED)
        worst = max(over, key=lambda queue: queue.waited_s[1])
        verb = f"instance {names} of {count} is" if len(over) == 1 else f"instances {names} of {count} are"
        whole = replace(whole, overloaded=f"{verb} overloaded: {worst.overloaded}")
    state: State = "growing" if "growing" in states else "draining" if "draining" in states else "stable"
    return [replace(whole, state=state), *each]


def _growth(waits: Floats, users: int) -> str | None:
    """Return a sentence if waits grow through the run."""
    waits = waits[max(int(waits.size * _START_SHARE), 2 * users) :]
    if waits.size < _BATCHES * _FEWEST:
        return None
    means = [float(batch.mean()) for batch in np.array_split(waits, _BATCHES)]
    third = _BATCHES // 3
    early_s, late_s = sum(means[:third]) / third, sum(means[-third:]) / third
    ordered = [math.copysign(later != sooner, later - sooner) for sooner, later in combinations(means, 2)]
    if late_s < max(_GROWTH * early_s, early_s + _GROWTH_S) or sum(ordered) < _ORDERED * len(ordered):
        return None
    return f"the queue grows, requests waited {early_s:,.2f} s at first and {late_s:,.2f} s at last"


def start_burst(columns: Columns, options: RunOptions) -> str | None:
    """Return a note where users who all begin at once decide the 99th percentile of TTFT."""
    users = options.concurrency or 0
    if users < 2 or options.concurrency_ramp_s or options.rates is not None or options.fixed_schedule:
        return None
    rows = columns.measured & columns.ok
    order = np.argsort(columns.start_s[rows], kind="stable")
    ttft_ms = ((columns.first_s - columns.start_s)[rows] * 1e3)[order]
    if ttft_ms.size < users + _FEW_REQUESTS:
        return None
    of_all, of_rest = _p99(ttft_ms), _p99(ttft_ms[users:])
    if not of_all > _BURST * of_rest:
        return None
    return (
        f"All {users:,} conversations start at once, and that decides the TTFT p99: it is {of_all:,.0f} ms, and "
        f"{of_rest:,.0f} ms without the first {users:,} requests. --concurrency-ramp-duration S starts them one by one."
    )


def idle_models(pools: Sequence[ServedPool], series: ClusterSeries) -> str | None:
    """Return a note where models of the cluster got no request.

    They count in its cost, and the load is one of the others alone.
    """
    worked: dict[str, float] = {}
    gpus: dict[str, int] = {}
    for pool, busy_s in zip(pools, by_pool(series.busy_s[:, -1], pools), strict=True):
        worked[pool.model] = worked.get(pool.model, 0.0) + float(busy_s.sum())
        gpus[pool.model] = gpus.get(pool.model, 0) + pool.config.instances * pool.deployment.gpus
    idle = [model for model, seconds in worked.items() if not seconds]
    if not idle or len(idle) == len(worked):
        return None
    unused = sum(gpus[model] for model in idle)
    return (
        f"No request was for {', '.join(idle)}: {plural(unused, 'GPU')} of the cluster served nothing, and count "
        "in its cost. Requests name a model in the workload's own fields; the others are for the cluster's first."
    )


def _p99(values: Floats) -> float:
    known = np.sort(values[~np.isnan(values)])
    return float(known[math.ceil(known.size * 0.99) - 1]) if known.size else math.nan


def _median(values: Floats) -> float:
    known = np.sort(values)  # np.median would load numpy.ma
    return float(known[(known.size - 1) // 2] + known[known.size // 2]) / 2


def in_step(workload: Workload, users: int | None) -> str | None:
    """Return a note on concurrent users whose think times and replies are all the same; None for others.

    Users who have once waited together send their next turns together, too.
    """
    if not users or users < 2:
        return None
    waits = {turn.delay_s for session in workload.sample for turn in session.turns[1:]}
    replies = {turn.tokens and turn.tokens.output_tokens for session in workload.sample for turn in session.turns}
    if len(waits) != 1 or len(replies) != 1 or None in replies or not (wait_s := waits.pop()):
        return None
    return (
        f"All think times are {wait_s:g} s and all replies {replies.pop():,} tokens long: users who once waited for each "
        "other stay in step and come as bursts; TTFT, TPOT and cache hits may be far from those of others (as with "
        f'--think-time "{wait_s / 2:g}:{wait_s * 1.5:g}").'
    )


@dataclass(frozen=True, slots=True)
class LoadRates:
    """Turns of root conversations per second.

    offered: as asked for.
    sent: the rate of turns there were to send, of a load that comes to an end.
    delivered: answered.
    allowed: share of `offered` that may be missing, as the noise of so few conversations explains it.
    held: limit of concurrent conversations, where others waited for these.
    brief: the load ends sooner than half of its requests; delivered is then all of them over the whole run.
    """

    offered: float
    sent: float
    delivered: float
    allowed: float
    held: int | None = None
    brief: bool = False

    @property
    def shortfall(self) -> str | None:
        """The end of a sentence, if less was sent or answered than was offered, by more than the allowed share."""
        least = self.offered * (1 - self.allowed)
        if self.held is not None and min(self.sent, self.delivered) < least:
            text = f"{rounded(min(self.sent, self.delivered), 3)} of {rounded(self.offered)} turns/s were sent"
            return f"{text}, as only {plural(self.held, 'conversation')} may be in progress at a time (--concurrency)"
        if self.sent < least:
            text = f"{rounded(self.sent, 3)} of {rounded(self.offered)} turns/s"
            return f"{text} were there to send: more requests keep new conversations coming"
        if self.delivered < least:
            text = f"{rounded(self.delivered)} of {rounded(self.offered)} requests/s are answered"
            if self.brief:
                return f"{text}, as no more come once the first half ends: more requests tell whether the rate is sustained"
            return f"the load is not sustained: {text}"
        return None


def rates_of(columns: Columns, offered: float, clumping: float, kept_on: bool) -> LoadRates:
    """Return the rates of recorded requests.

    clumping: requests that come as one.
    kept_on: the load continues after the measured requests, and had filled the cluster before them; else the cluster fills
        up first, and answers are counted as much later as one takes (median).
    """
    roots = columns.agent_depth == 0
    sent_s = columns.start_s[columns.measured & roots]
    allowed = max(_SHORTFALL, _SHORTFALL_NOISE * math.sqrt(clumping / max(sent_s.size, 1)))
    begin_s, end_s = float(sent_s.min(initial=math.inf)), float(sent_s.max(initial=-math.inf))
    if not end_s > begin_s:
        return LoadRates(offered, 0.0, 0.0, allowed)
    answered, later_s = roots & (columns.ok | columns.cancelled), 0.0
    if not kept_on:
        begin_s += _START_SHARE * (end_s - begin_s)
        took_s = (columns.end_s - columns.start_s)[answered & columns.measured]
        later_s = float(np.sort(took_s)[took_s.size // 2]) if took_s.size else 0.0
        if later_s > end_s - begin_s:
            whole_s = float(columns.end_s[answered & columns.measured].max()) - float(sent_s.min())
            delivered = int((answered & columns.measured).sum()) / whole_s
            return LoadRates(offered, offered, delivered, allowed, brief=True)
    sent = offered if kept_on else _within(columns.start_s[roots], begin_s, end_s) / (end_s - begin_s)
    delivered = _within(columns.end_s[answered], begin_s + later_s, end_s + later_s) / (end_s - begin_s)
    return LoadRates(offered, sent, delivered, allowed)


def rates_of_run(workload: Workload, options: RunOptions, columns: Columns, kept_on: bool) -> LoadRates | None:
    """Return the rates; None for loads without one constant rate, and for a handful of requests."""
    rate = options.request_rate_per_s
    if (
        rate is None
        or options.request_rate_ramp_s
        or int((columns.measured & (columns.agent_depth == 0)).sum()) < _FEWEST_RATED
    ):
        return None
    clumping = max(1.0, 1.0 / options.arrival_smoothness) if options.arrival_pattern == "gamma" else 1.0
    if options.request_rate_of != "turns":
        turns = root_turns(workload)
        rate, clumping = rate * float(turns.mean()), clumping_of(turns) * clumping
    held = options.concurrency if _others_waited(columns, options.concurrency) else None
    return replace(rates_of(columns, rate, clumping, kept_on), held=held)


def mean_in_progress(columns: Columns) -> float:
    """Return the mean of the requests in flight while the measured ones are sent."""
    rows = columns.rows(columns.measured)
    span_s = float(rows.start_s.max() - rows.start_s.min()) if len(rows) else 0.0
    busy_s = float(np.nansum(rows.end_s - rows.start_s)) if len(rows) else 0.0
    return busy_s / span_s if span_s > 0 else float(len(rows))


def steady_duration_s(columns: Columns, users: float, rates: LoadRates | None) -> float | None:
    """Return the time in which as many requests are answered under the load as were measured; None where none were.

    From the first start to the last end of those that were measured it is longer: the load stays on until that end, but
    answers to later requests do not count.
    users: in flight; each gets one answer in the time of a request (Little's law), where there is no rate.
    """
    rows = columns.rows(columns.measured & columns.ok & ((columns.agent_depth == 0) | (rates is None)))
    took_s = float((rows.end_s - rows.start_s).sum())
    if not took_s or (rates is not None and not rates.delivered):
        return None
    return took_s / users if rates is None else len(rows) / rates.delivered


def rates_text(rates: LoadRates) -> str:
    """Return the rates as a sentence."""
    return (
        f"Offered: {rounded(rates.offered)} requests/s. Delivered: {rounded(rates.delivered)} "
        f"(up to {rates.allowed:.0%} less is no shortfall)."
    )


def rates_json(rates: LoadRates | None) -> dict[str, float | None]:
    """Return the rates for summaries; None where there is no rate."""
    return {
        "offered_per_s": None if rates is None else rates.offered,
        "delivered_per_s": None if rates is None else rates.delivered,
        "shortfall_allowed": None if rates is None else rates.allowed,
    }


def root_turns(workload: Workload) -> Floats:
    """Return the turns of each root; of lengths without the last, which the number of requests may have cut."""
    whole = workload.roots[:-1] if workload.format == "synthetic" and len(workload.roots) > 1 else workload.roots
    return np.array([max(len(workload.sessions[root].turns), 1) for root in whole], dtype=np.float64)


def clumping_of(turns: Floats) -> float:
    """Return the requests that come as one: mean square of the turns of a root over their mean; 1 for single turns."""
    return float((turns**2).mean() / turns.mean())


def _others_waited(columns: Columns, concurrency: int | None) -> bool:
    """Return whether that many root conversations were in progress at a time, and there were more of them."""
    rows = columns.agent_depth == 0
    places = np.unique(columns.conversation[rows], return_inverse=True)[1]
    roots = int(places.max(initial=-1)) + 1
    if concurrency is None or roots <= concurrency:
        return False
    begin_s, end_s = np.full(roots, np.inf), np.full(roots, -np.inf)
    np.minimum.at(begin_s, places, columns.start_s[rows])
    np.maximum.at(end_s, places, columns.end_s[rows])
    changes = np.repeat([1, -1], roots)
    order = np.lexsort((changes, np.concatenate([begin_s, end_s])))  # one that is over makes room for the next
    return bool(np.cumsum(changes[order]).max() >= concurrency)


def _within(times_s: Floats, begin_s: float, end_s: float) -> int:
    return int(((times_s > begin_s) & (times_s <= end_s)).sum())
