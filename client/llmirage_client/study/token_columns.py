"""Rows of a simulation as columns of measure: token times are put together from the steps of the instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.catalogue import PER_REQUEST
from llmirage_client.measure.columns import BRANCH_MODES, Columns, filled
from llmirage_client.measure.goodput import parse_goodput
from llmirage_client.measure.metrics import ErrorGroup, Metrics, compute_columns
from llmirage_client.study.token_rows import TokenRow
from llmirage_shared.statistics import PERCENTILES, Summary

Floats = npt.NDArray[np.float64]


def columns_of_rows(rows: Sequence[TokenRow]) -> Columns:
    """The columns of requests, in their order, without the stamps of single tokens."""
    n = len(rows)
    requests = [row.request for row in rows]
    first, second, last = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    events = np.zeros(n, dtype=np.int64)
    for i, row in enumerate(rows):
        spans = row.request.spans
        if len(spans) == 1:
            ends_s, begin, end = spans[0]
            first[i], last[i] = ends_s[begin], ends_s[end]
            events[i] = end - begin + 1
            if end > begin:
                second[i] = ends_s[begin + 1]
        elif len(times := row.arrivals):
            first[i], last[i], events[i] = times[0], times[-1], len(times)
            if len(times) > 1:
                second[i] = times[1]
    ok = np.array([row.error is None for row in rows], dtype=bool)
    counts = {
        "usage_prompt_tokens": [request.prompt_tokens for request in requests],
        "usage_completion_tokens": [request.produced for request in requests],
        "usage_prompt_cache_read_tokens": [request.cached_tokens for request in requests],
    }
    usage = {tag: np.where(ok, np.array(values, dtype=np.float64), np.nan) for tag, values in counts.items()}
    usage["usage_total_tokens"] = usage["usage_prompt_tokens"] + usage["usage_completion_tokens"]
    return filled(
        np.array([row.start_s for row in rows]),
        issued_s=np.array([row.issued_s for row in rows]),
        first_s=first,
        second_s=second,
        last_s=last,
        end_s=np.array([row.end_s for row in rows], dtype=np.float64),
        events=events,
        input_tokens=np.array(counts["usage_prompt_tokens"], dtype=np.float64),
        asked_tokens=np.array([request.output_tokens for request in requests], dtype=np.float64),
        conversation=np.array([row.conversation.number for row in rows], dtype=np.int64),
        turn_index=np.array([row.turn_index for row in rows], dtype=np.int64),
        agent_depth=np.array([row.conversation.depth for row in rows], dtype=np.int64),
        branch_mode=np.array([BRANCH_MODES.index(row.conversation.branch_mode) for row in rows], dtype=np.int64),
        ok=ok,
        cancelled=np.array([row.is_cancelled for row in rows], dtype=bool),
        measured=np.array([row.measured for row in rows], dtype=bool),
        usage=usage,
    )


def token_metrics(rows: Sequence[TokenRow], columns: Columns, shown: Mapping[str, Any]) -> Metrics:
    """`measure.metrics.compute` of these rows. shown: the settings of the run; its objectives for goodput are there."""
    goodput = shown.get("goodput")
    limits = parse_goodput(goodput) if isinstance(goodput, str) and goodput else None
    failed = Counter(row.error for row in rows if row.error is not None and row.measured and not row.is_cancelled)
    errors = tuple(ErrorGroup(error, times) for error, times in failed.most_common())
    metrics = compute_columns(columns, errors=errors, goodput=limits)
    if gaps := gaps_ms(rows):
        found = {**metrics.per_request, "inter_chunk_latency": gaps}
        metrics = replace(metrics, per_request={tag: found[tag] for tag in PER_REQUEST if tag in found})
    return metrics


def gaps_ms(rows: Sequence[TokenRow]) -> Summary | None:
    """The gaps between the tokens of each request that succeeded, all together, ms.

    Requests of one batch have the same gaps: each is counted as often as it occurs, without writing it down so often.
    """
    weights: dict[int, tuple[Any, list[int], list[int]]] = {}  # by instance: ends of steps, and where spans begin and end
    single: list[Floats] = []
    for row in rows:
        if row.error is not None or not row.measured:
            continue
        spans = row.request.spans
        if not spans:
            single.append(np.diff(row.arrivals))
        before = None
        for ends_s, begin, end in spans:
            if before is not None:
                single.append(np.array([ends_s[begin] - before]))
            before = ends_s[end]
            if end > begin:
                known = weights.get(id(ends_s))
                if known is None:
                    known = weights[id(ends_s)] = ends_s, [], []
                known[1].append(begin)
                known[2].append(end)
    values, counts = [], []
    for ends_s, begins, ends in weights.values():
        steps = len(ends_s)
        change = np.bincount(begins, minlength=steps) - np.bincount(ends, minlength=steps)
        times = np.cumsum(change)[:-1]  # how many requests have the gap from step i to i + 1
        used = times > 0
        values.append(np.diff(np.array(ends_s))[used])
        counts.append(times[used])
    for gaps in single:
        values.append(gaps)
        counts.append(np.ones(len(gaps), dtype=np.int64))
    if not values:
        return None
    return weighted_summary(np.concatenate(values) * 1e3, np.concatenate(counts))


def weighted_summary(values: Floats, counts: npt.NDArray[np.int64]) -> Summary | None:
    """`summarize` of a sample in which values[i] occurs counts[i] times."""
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(values)
    ranked, upto = values[order], np.cumsum(counts[order])
    places = (total - 1) * np.array(PERCENTILES) / 100.0
    below = np.floor(places).astype(np.int64)
    low = ranked[np.searchsorted(upto, below, side="right")]
    high = ranked[np.searchsorted(upto, np.minimum(below + 1, total - 1), side="right")]
    percentiles = low + (places - below) * (high - low)
    whole = float((values * counts).sum())
    mean = min(max(whole / total, float(ranked[0])), float(ranked[-1]))
    std = float(np.sqrt(((values - mean) ** 2 * counts).sum() / total))
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)}
    return Summary(avg=mean, min=float(ranked[0]), max=float(ranked[-1]), std=std, count=total, sum=whole, **named)
