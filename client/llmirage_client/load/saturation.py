"""Whether the load was what it should be, and whether the endpoint kept up with it: tests on what a run recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import Record

GROWTH_LIMIT = 0.1  # seconds that latency grows in a second of load: the endpoint serves less than 91 % of what is offered
GAIN_LIMIT = 0.1  # doubling the concurrency must bring 7 % more output: 2 ** 0.1
LATENCY_FACTOR = 10.0  # against the lightest load of a sweep
_FEWEST_REQUESTS = 10


def backlog_growth(records: Sequence[Record]) -> float | None:
    """How many seconds of waiting are added in a second of load: the slope of latency over due time, by least squares.

    About 0 while an endpoint keeps up; with a load of L times what it can serve, L - 1. Only the second half of the
    requests counts, when the endpoint has warmed to the load. None with too few requests to tell.
    """
    measured = sorted(
        (r.issued_s, r.exchange.end_s - r.issued_s)
        for r in records
        if r.phase == "profiling" and r.ok and r.exchange.end_s is not None
    )
    half = np.array(measured[len(measured) // 2 :])
    if len(half) < _FEWEST_REQUESTS or np.ptp(half[:, 0]) == 0:
        return None
    due_s, latency_s = half[:, 0] - half[:, 0].mean(), half[:, 1]
    return float((due_s * latency_s).sum() / (due_s * due_s).sum())


def falls_behind(records: Sequence[Record]) -> bool:
    """Whether requests that come at a rate wait longer and longer."""
    growth = backlog_growth(records)
    return growth is not None and growth > GROWTH_LIMIT


def offered_per_s(records: Sequence[Record], speed: float = 1.0) -> float | None:
    """How many turns of roots a second were due, over the whole run; None with too few to tell."""
    due_s = [r.issued_s for r in records if r.phase == "profiling" and r.agent_depth == 0]
    if len(due_s) < _FEWEST_REQUESTS or max(due_s) == min(due_s):
        return None
    return (len(due_s) - 1) / (max(due_s) - min(due_s)) / speed


def rate_not_reached(records: Sequence[Record], per_s: float, speed: float = 1.0) -> float | None:
    """What was offered, when that is clearly less than the rate: by a tenth, and by more than chance explains."""
    offered = offered_per_s(records, speed)
    if offered is None:
        return None
    turns = sum(r.phase == "profiling" and r.agent_depth == 0 for r in records)
    return offered if offered < per_s * (1 - max(0.1, 2 / math.sqrt(turns))) else None


def rate_note(records: Sequence[Record], options: RunOptions) -> str | None:
    """What to say of a whole run that offered less than the rate it was asked for."""
    rate = options.request_rate_per_s
    if rate is None or options.request_rate_ramp_s or options.request_rate_of == "conversations":
        return None
    offered = rate_not_reached(records, rate, options.speed)
    if offered is None:
        return None
    why = f"all {options.concurrency} slots were taken or " if options.concurrency else ""
    return (
        f"{rate:g} turns a second were asked for, and {offered:.3g} on average were there to send: {why}too few "
        "conversations ran at a time, with the think times they have. --duration keeps new ones coming."
    )


def output_per_s(metrics: Metrics) -> float:
    """Output tokens per second, or requests where tokens are not counted."""
    values = metrics.whole_run
    return values.get("output_token_throughput") or values.get("request_throughput", 0.0)


def gains_nothing(before: Metrics, after: Metrics, load_ratio: float) -> bool:
    """Whether more concurrency brought next to no more output: its elasticity is below GAIN_LIMIT."""
    first, second = output_per_s(before), output_per_s(after)
    if load_ratio <= 1 or first <= 0:
        return False
    return second <= 0 or math.log(second / first) < GAIN_LIMIT * math.log(load_ratio)


def latency_exploded(lightest: Metrics, now: Metrics) -> bool:
    """Whether the median request takes ten times as long as under the lightest load."""
    first, second = lightest.per_request.get("request_latency"), now.per_request.get("request_latency")
    return first is not None and second is not None and second.p50 > LATENCY_FACTOR * first.p50
