"""Checks of a recorded run: whether it offered the load asked for, whether the endpoint kept up, and what repeated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.load.variation import common_shares
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.metrics import MLPERF, Metrics, performance_of
from llmirage_client.measure.record import NOTABLE, Record, Repeats, RunResult
from llmirage_client.measure.submission import ReplayCounts, submission_of
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Bools, Floats

GROWTH_LIMIT = 0.1  # seconds that latency grows in a second of load: the endpoint serves less than 91 % of the offered load
GAIN_LIMIT = 0.1  # doubling the concurrency must bring 7 % more output: 2 ** 0.1
LATENCY_FACTOR = 10.0  # against the lightest load of a sweep
_FEWEST_REQUESTS = 10


def judge_scenario(result: RunResult, options: RunOptions, metrics: Metrics, columns: Columns) -> None:
    """Write the verdict of the rules of a run's scenario, if it has one, into its result."""
    if options.scenario is None:
        return
    profile = columns.measured & columns.ok
    result.submission = submission_of(
        result.replay or ReplayCounts(),
        int(metrics.whole_run.get("completed_request_count", 0)),
        columns.first_s[profile & ~np.isnan(columns.first_s)],
        columns.end_s[profile & (columns.events > 1)],
        scenario=options.scenario,
        violations=options.violations,
        start_s=result.start_s,
        duration_s=None if options.lanes is None else options.benchmark_duration_s,
        speed=options.speed,
        cancelled=result.cancelled,
    )
    if options.scenario == MLPERF and result.window is not None:
        performance = performance_of(columns, result.window, result.speed)
        reasons = (*result.submission.reasons, "data_set_not_verified")
        result.submission = replace(result.submission, reasons=reasons, performance=performance)
    result.notes += result.submission.notes()


def backlog_growth(records: Sequence[Record]) -> float | None:
    """Return the seconds of waiting added in a second of load: the slope of latency over due time, by least squares.

    About 0 while an endpoint keeps up; with a load of L times its capacity, L - 1. Only the second half of the requests
    counts, when the endpoint has warmed to the load. None with too few requests to tell.
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
    """Return whether requests that come at a rate wait longer and longer."""
    growth = backlog_growth(records)
    return growth is not None and growth > GROWTH_LIMIT


def offered_per_s(records: Sequence[Record], speed: float = 1.0) -> float | None:
    """Return the turns of roots that were due per second, over the whole run; None with too few to tell."""
    due_s = [r.issued_s for r in records if r.phase == "profiling" and r.agent_depth == 0]
    if len(due_s) < _FEWEST_REQUESTS or max(due_s) == min(due_s):
        return None
    return (len(due_s) - 1) / (max(due_s) - min(due_s)) / speed


def rate_not_reached(records: Sequence[Record], per_s: float, speed: float = 1.0) -> float | None:
    """Return the offered rate if it is clearly below the rate: by a tenth, and by more than chance explains."""
    offered = offered_per_s(records, speed)
    if offered is None:
        return None
    turns = sum(r.phase == "profiling" and r.agent_depth == 0 for r in records)
    return offered if offered < per_s * (1 - max(0.1, 2 / math.sqrt(turns))) else None


def rate_note(records: Sequence[Record], options: RunOptions) -> str | None:
    """Return a note on a whole run that offered less than the rate it was asked for."""
    rate = options.request_rate_per_s
    if rate is None or options.request_rate_ramp_s or options.request_rate_of == "conversations":
        return None
    offered = rate_not_reached(records, rate, options.speed)
    if offered is None:
        return None
    why = f"all {options.concurrency} slots were taken or " if options.concurrency else ""
    return (
        f"{rate:g} turns a second were asked for, and {rounded(offered, 3)} on average were there to send: {why}too few "
        "conversations ran at a time, with the think times they have. --duration keeps new ones coming."
    )


def output_per_s(metrics: Metrics) -> float:
    """Return output tokens per second, or requests where tokens are not counted."""
    values = metrics.whole_run
    return values.get("output_token_throughput") or values.get("request_throughput", 0.0)


def gains_nothing(before: Metrics, after: Metrics, load_ratio: float) -> bool:
    """Return whether more concurrency brought almost no more output: its elasticity is below GAIN_LIMIT."""
    first, second = output_per_s(before), output_per_s(after)
    if load_ratio <= 1 or first <= 0:
        return False
    return second <= 0 or math.log(second / first) < GAIN_LIMIT * math.log(load_ratio)


def latency_exploded(lightest: Metrics, now: Metrics) -> bool:
    """Return whether the median request takes ten times as long as under the lightest load."""
    first, second = lightest.per_request.get("request_latency"), now.per_request.get("request_latency")
    return first is not None and second is not None and second.p50 > LATENCY_FACTOR * first.p50


_COUNTS = ("prompt", "prompt_cache_read", "completion")


def repeats_in_run(
    workload: Workload,
    options: RunOptions,
    roots_taken: int,
    columns: Columns,
    names: Callable[[], Sequence[str]],
    endpoint_new: bool = True,
) -> Repeats | None:
    """Return the conversations of a run that repeat, or are fewer than its concurrency; None if there are none.

    names: of the sessions, one a row.
    endpoint_new: it cannot know prompts of an earlier run.
    """
    if options.lanes is not None and options.lanes.marks:  # plays of a trace differ by their markers
        return None
    closed = options.rates is None and options.user_rate_per_s is None and not options.fixed_schedule
    limited = options.open_ended or options.num_conversations is not None
    slots = options.concurrency if closed and not limited else None
    repeats = roots_taken > len(workload.roots) or options.sampling == "random"
    fewer = slots is not None and slots > max(roots_taken - options.first_root, len(workload.roots))
    if not repeats and not fewer and (endpoint_new or (_known_share(columns) or 0.0) <= NOTABLE):
        return None
    return _repeats_of(names(), columns, options.vary, slots if fewer else None, common_shares(workload), endpoint_new)


def _repeats_of(
    names: Sequence[str],
    columns: Columns,
    varied: bool,
    unfilled: int | None,
    shared: Mapping[str, float],
    endpoint_new: bool,
) -> Repeats | None:
    """Return the repeats; None if there are none.

    names: of the sessions, one a row.
    unfilled: see Repeats, if there are so few.
    shared: by name, the share of a first prompt that other conversations begin with; without those that inherit a context.
    """
    numbers = columns.conversation.tolist()
    depths = columns.agent_depth
    of_roots = (depths == depths.min(initial=1)).tolist()  # of orchestrators, which send nothing, their children
    roots = {number: name for name, number, root in zip(names, numbers, of_roots, strict=True) if root}
    counts = Counter(roots.values())
    first: dict[str, int] = {}
    for name, number in zip(names, numbers, strict=True):
        first[name] = min(number, first.get(name, number))
    most = max(counts.values(), default=0)
    begun = np.array([shared.get(name, 0.0) for name in names])
    counted = np.array(
        [varied or first[name] == number for name, number in zip(names, numbers, strict=True)], dtype=np.bool_
    )
    found = Repeats(
        conversations=len(roots),
        distinct=len(counts),
        most=most,
        varied=varied,
        unfilled=unfilled if unfilled is not None and len(roots) < unfilled and most == 1 else None,
        hit_share=_hit_share(names, first, columns, begun) if most > 1 else None,
        known_share=None if endpoint_new else _known_share(columns, begun, counted),
    )
    return found if most > 1 or found.unfilled is not None or found.known else None


def _hit_share(names: Sequence[str], first: Mapping[str, int], columns: Columns, begun: Floats) -> float | None:
    """Return the share of cached tokens that only repeats explain.

    begun: the share of its first prompt that other conversations of the workload begin with, a row.
    """
    prompt, cached, reply = (columns.usage.get(f"usage_{name}_tokens") for name in _COUNTS)
    if prompt is None or cached is None or reply is None:
        return None
    known = columns.ok & ~np.isnan(cached)
    before = columns.continues
    own = np.where((before >= 0) & known[before], (prompt + np.nan_to_num(reply))[before], 0.0)
    places = list(zip(names, columns.turn_index.tolist(), strict=True))
    again = np.array([first[name] for name in names]) != columns.conversation
    found_first = {places[i]: cached[i] for i in np.flatnonzero(known & ~again).tolist()}
    own = np.fmax(own, np.where(columns.turn_index == 0, begun, 0.0) * prompt)
    could = np.maximum([found_first.get(place, 0.0) for place in places], own)
    counted = known & columns.measured
    total = cached[counted].sum()
    more = np.maximum(cached - could, 0.0)[counted & again].sum()
    return float(more / total) if total else None


def _known_share(columns: Columns, begun: Floats | float = 0.0, counted: Bools | bool = True) -> float | None:
    """Return the share of first prompts cached beyond what other conversations begin with.

    counted: the rows to count.
    """
    prompt, cached, _ = (columns.usage.get(f"usage_{name}_tokens") for name in _COUNTS)
    if prompt is None or cached is None:
        return None
    rows = columns.ok & (columns.turn_index == 0) & (columns.agent_depth == 0) & ~np.isnan(cached + prompt) & counted
    total = prompt[rows].sum()
    return float(np.maximum(cached - prompt * begun, 0.0)[rows].sum() / total) if total else None
