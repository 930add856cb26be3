"""The metrics of every request at once: the formulas of measure.request_metrics on arrays. See docs/metrics.md."""

from __future__ import annotations

import numpy as np

from llmirage_client.measure.columns import Bools, Columns, Floats
from llmirage_client.measure.usage import USAGE_TAGS


def request_columns(columns: Columns, speed: float = 1.0) -> dict[str, Floats]:
    """By tag, an array with one value a row, NaN where the request does not have the metric; no array where none has it.

    Times are in ms and rates per second of cluster time. Only a request that succeeded has any of these metrics.
    """
    ok = columns.ok
    usage = {tag: _where(ok, columns.usage[tag]) for tag in USAGE_TAGS if tag in columns.usage}
    start, streamed = columns.start_s, ok & columns.streamed
    latency_s = _where(ok, columns.last_s - start) * speed
    ttft_s = _where(streamed, columns.first_s - start) * speed
    isl = _first(usage.get("usage_prompt_tokens"), _where(ok, columns.input_tokens))
    events = _where(streamed, columns.events.astype(np.float64))
    osl = _first(usage.get("usage_completion_tokens"), _where(ok, columns.output_tokens), events)
    decode_s = _where(columns.events > 1, latency_s - ttft_s)
    itl_s = np.divide(decode_s, osl - 1, out=np.full(len(columns), np.nan), where=osl > 1)
    found = {
        "time_to_first_token": ttft_s * 1e3,
        "time_to_second_token": _where(streamed, columns.second_s - columns.first_s) * (speed * 1e3),
        "time_to_first_output_token": _where(streamed, columns.first_output_s - start) * (speed * 1e3),
        "request_latency": latency_s * 1e3,
        "decode_duration": decode_s * 1e3,
        "inter_token_latency": itl_s * 1e3,
        "credit_to_start_latency": _where(ok, start - columns.issued_s) * (speed * 1e3),
        "effective_latency": _where(ok, columns.end_s - columns.issued_s) * (speed * 1e3),
        "output_token_throughput_per_user": ratio(np.ones(len(columns)), itl_s),
        "e2e_output_token_throughput": ratio(osl, latency_s),
        "prefill_throughput_per_user": ratio(isl, ttft_s),
        "input_sequence_length": isl,
        "output_sequence_length": osl,
        **_reasoning(osl, usage.get("usage_reasoning_tokens")),
        "osl_mismatch_diff_pct": 100 * ratio(osl - columns.asked_tokens, columns.asked_tokens),
        **usage,
        "usage_prompt_tokens_diff_pct": _apart(usage.get("usage_prompt_tokens"), columns.input_tokens),
        "usage_completion_tokens_diff_pct": _apart(usage.get("usage_completion_tokens"), columns.output_tokens),
    }
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def chunk_gaps_ms(columns: Columns, speed: float = 1.0) -> Floats:
    """inter_chunk_latency: all gaps between content events of the same reply, row after row, in ms of cluster time."""
    if columns.stamps_s is None:
        return np.empty(0)
    chosen = columns.ok & columns.streamed & (columns.events > 1)
    stamps = columns.stamps_s
    if not chosen.all():
        stamps = stamps[np.repeat(chosen, columns.events)]
    if not stamps.size:
        return np.empty(0)
    # One difference over all stamps, less those across replies.
    gaps: Floats = np.diff(stamps)
    gaps *= speed * 1e3
    within = np.ones(gaps.size, dtype=bool)
    within[np.cumsum(columns.events[chosen])[:-1] - 1] = False
    return gaps[within]


def ratio(upper: Floats, lower: Floats) -> Floats:
    """upper / lower, entry by entry; NaN where lower is not above 0."""
    shares: Floats = np.divide(upper, lower, out=np.full(lower.size, np.nan), where=lower > 0)
    return shares


def _reasoning(osl: Floats, reasoning: Floats | None) -> dict[str, Floats]:
    if reasoning is None:
        return {"output_token_count": osl}
    return {
        "output_token_count": np.maximum(osl - np.nan_to_num(reasoning), 0),
        "reasoning_token_count": _where((reasoning > 0) & ~np.isnan(osl), reasoning),
    }


def _apart(theirs: Floats | None, ours: Floats) -> Floats:
    """By how many percent of our count the server's is off it."""
    return np.full(ours.size, np.nan) if theirs is None else 100 * ratio(np.abs(theirs - ours), ours)


def _where(chosen: Bools, values: Floats) -> Floats:
    return values if chosen.all() else np.where(chosen, values, np.nan)


def _first(*choices: Floats | None) -> Floats:
    """For each row the first of the arrays that has a value."""
    given = [values for values in choices if values is not None]
    found = given[0]
    for values in given[1:]:
        missing = np.isnan(found)
        if not missing.any():
            break
        found = np.where(missing, values, found)
    return found
