"""Rows of a simulation as columns of measure: token times are put together from the steps of the instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.load.sender import BY_RUN, ON_PURPOSE
from llmirage_client.measure.catalogue import PER_REQUEST
from llmirage_client.measure.columns import BRANCH_MODES, Columns, filled
from llmirage_client.measure.goodput import parse_goodput
from llmirage_client.measure.metrics import ErrorGroup, Metrics, compute_columns
from llmirage_client.simulate.token_rows import TokenRow, TokenRows
from llmirage_client.simulate.token_times import TokenTimes


def columns_of_rows(kept: TokenRows, times: TokenTimes) -> Columns:
    """The columns of requests, in their order, without the stamps of single tokens."""
    rows = kept.rows
    n = len(rows)
    requests, conversations, errors = (list(map(attrgetter(name), rows)) for name in ("request", "conversation", "error"))
    failed = {place: error for place, error in enumerate(errors) if error is not None}
    ok = np.ones(n, dtype=bool)
    ok[list(failed)] = False
    cancelled = np.zeros(n, dtype=bool)
    cancelled[[place for place, error in failed.items() if error is BY_RUN or error is ON_PURPOSE]] = True
    counts = {
        "usage_prompt_tokens": _column(requests, "prompt_tokens"),
        "usage_completion_tokens": _column(requests, "produced"),
        "usage_prompt_cache_read_tokens": _column(requests, "cached_tokens"),
    }
    usage = {tag: np.where(ok, values, np.nan) for tag, values in counts.items()}
    usage["usage_total_tokens"] = usage["usage_prompt_tokens"] + usage["usage_completion_tokens"]
    of_branches: dict[str, npt.NDArray[Any]] = {}
    if kept.branching:
        modes = map(BRANCH_MODES.index, [conversation.branch_mode for conversation in conversations])
        of_branches["branch_mode"] = np.fromiter(modes, dtype=np.int64, count=n)
        of_branches["agent_depth"] = _column(conversations, "depth", np.int64)
    return filled(
        _column(rows, "start_s"),
        issued_s=_column(rows, "issued_s"),
        first_s=times.first_s,
        second_s=times.second_s,
        last_s=times.last_s,
        end_s=_column(rows, "end_s"),
        events=times.events,
        input_tokens=counts["usage_prompt_tokens"] if kept.lengths_known else np.full(n, np.nan),
        asked_tokens=_column(requests, "output_tokens"),
        conversation=_column(conversations, "number", np.int64),
        turn_index=_column(rows, "turn_index", np.int64),
        ok=ok,
        cancelled=cancelled,
        measured=_column(rows, "measured", np.bool_),
        usage=usage,
        **of_branches,
    )


def _column(things: Sequence[object], name: str, kind: Any = np.float64) -> npt.NDArray[Any]:
    return np.fromiter(map(attrgetter(name), things), dtype=kind, count=len(things))


def token_metrics(rows: Sequence[TokenRow], columns: Columns, times: TokenTimes, shown: Mapping[str, Any]) -> Metrics:
    """`measure.metrics.compute` of these rows. shown: the settings of the run; its objectives for goodput are there."""
    goodput = shown.get("goodput")
    limits = parse_goodput(goodput) if isinstance(goodput, str) and goodput else None
    failed = Counter(row.error for row in rows if row.error is not None and row.measured and not row.is_cancelled)
    errors = tuple(ErrorGroup(error, times) for error, times in failed.most_common())
    metrics = compute_columns(columns, errors=errors, goodput=limits)
    if gaps := times.gaps_ms(columns.ok & columns.measured):
        found = {**metrics.per_request, "inter_chunk_latency": gaps}
        metrics = replace(metrics, per_request={tag: found[tag] for tag in PER_REQUEST if tag in found})
    return metrics
