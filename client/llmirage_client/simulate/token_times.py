"""Token times of all requests of a simulation at once, from the steps of the instances, and the columns made of them.

Most requests have spans: tokens from one step of an instance to another; several, in the order of time, where they were
preempted or where the instance runs prompts in steps of their own. All these are worked out as arrays; only requests whose
tokens were reported one by one, or sent in intervals, are handled singly.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.load.conversation import BY_RUN, ON_PURPOSE
from llmirage_client.measure.catalogue import PER_REQUEST
from llmirage_client.measure.columns import BRANCH_MODES, Columns, filled
from llmirage_client.measure.metrics import ErrorGroup, Metrics, compute_columns
from llmirage_client.measure.record import RequestError
from llmirage_client.measure.request_metrics import all_request_columns, parse_goodput
from llmirage_client.simulate.token_rows import TokenRow, TokenRows
from llmirage_client.workload.session import NOBODY, Tenant
from llmirage_shared.statistics import PERCENTILES, Bools, Floats, Ints, Summary

Span = tuple["array[float]", int, int]
Gaps = tuple[Floats, Ints]  # values, and how often each occurs

_MOST_ROWS = 16_384  # that are kept until they are columns; `simulate` writes the records of fewer
_MOST_BINS = 1 << 16


class TokenTimes:
    """The times of each request's first, second and last token, NaN without one, and their number; shape (rows,)."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        self._rows = rows
        spans = [() if row.token_s or row.request.stream else row.request.spans for row in rows]
        self._counts = np.fromiter(map(len, spans), dtype=np.int64, count=len(rows))
        self._steps_s, self._begins, self._ends = _positions(list(chain.from_iterable(spans)))
        self._others = np.flatnonzero(self._counts == 0).tolist()

        spanned = self._counts > 0
        after = np.cumsum(self._counts)[spanned]  # the first span of the next request
        first = after - self._counts[spanned]
        begin, end = self._begins[first], self._ends[after - 1]
        tokens = np.concatenate([[0], np.cumsum(self._ends - self._begins + 1)])
        events = tokens[after] - tokens[first]
        in_first = self._ends[first] > begin
        second = np.where(in_first, begin + 1, self._begins[np.minimum(first + 1, after - 1)])
        self.first_s, self.second_s, self.last_s = (np.full(len(rows), np.nan) for _ in range(3))
        self.events = np.zeros(len(rows), dtype=np.int64)
        self.first_s[spanned], self.last_s[spanned], self.events[spanned] = self._steps_s[begin], self._steps_s[end], events
        self.second_s[spanned] = np.where(events > 1, self._steps_s[second], np.nan)
        for place in self._others:
            if len(times := rows[place].arrivals):
                self.first_s[place], self.last_s[place], self.events[place] = times[0], times[-1], len(times)
                if len(times) > 1:
                    self.second_s[place] = times[1]

    def gaps_ms(self, chosen: Bools) -> Gaps:
        """Return the gaps between the tokens of each chosen request, all together, ms. chosen: shape (rows,).

        Requests of one batch have the same gaps: each is counted as often as it occurs, without writing it down as often.
        """
        of_chosen = np.repeat(chosen, self._counts)
        size = self._steps_s.size
        change = np.bincount(self._begins[of_chosen], minlength=size)
        change -= np.bincount(self._ends[of_chosen], minlength=size)
        # How many requests have the gap from step i to i + 1; 0 between instances.
        times = np.cumsum(change, out=change)[:-1]
        used = np.flatnonzero(times)
        values, counts = [np.diff(self._steps_s)[used]], [times[used]]
        within = np.repeat(np.arange(chosen.size), self._counts)  # the row of each span
        goes_on = np.flatnonzero((within[1:] == within[:-1]) & of_chosen[1:])
        values.append(self._steps_s[self._begins[goes_on + 1]] - self._steps_s[self._ends[goes_on]])
        values += [np.diff(self._rows[place].arrivals) for place in self._others if chosen[place]]
        counts += [np.ones(len(gaps), dtype=np.int64) for gaps in values[1:]]
        gaps_ms = np.concatenate(values)
        gaps_ms *= 1e3
        return gaps_ms, np.concatenate(counts)


def _positions(spans: Sequence[Span]) -> tuple[Floats, Ints, Ints]:
    """Return the steps of all instances in one array, and the beginning and end in it of each span."""
    if not spans:
        return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    arrays, begins, ends = zip(*spans, strict=True)
    ids = list(map(id, arrays))
    offsets, steps = {}, 0
    instances = dict(zip(ids, arrays, strict=True))
    for name, ends_s in instances.items():
        offsets[name] = steps
        steps += len(ends_s)
    offset = np.fromiter(map(offsets.__getitem__, ids), dtype=np.int64, count=len(ids))
    together = np.concatenate([np.array(ends_s, dtype=np.float64) for ends_s in instances.values()])
    return together, offset + np.array(begins, dtype=np.int64), offset + np.array(ends, dtype=np.int64)


def weighted_summary(values: Floats, counts: Ints) -> Summary | None:
    """Return `summarize` of a sample in which values[i] occurs counts[i] times.

    Here and in `_at_ranks` arrays are changed in place: they are long, and new memory costs more than the arithmetic.
    """
    total = int(counts.sum())
    if not total:
        return None
    places = (total - 1) * np.array(PERCENTILES) / 100.0
    below = np.floor(places).astype(np.int64)
    low, high = _at_ranks(values, counts, np.concatenate([below, np.minimum(below + 1, total - 1)])).reshape(2, -1)
    percentiles = low + (places - below) * (high - low)
    least, most = float(values.min()), float(values.max())
    weights = counts.astype(np.float64)
    apart = values * weights
    whole = float(apart.sum())  # not as a product of vectors, which would wake the threads of BLAS
    mean = min(max(whole / total, least), most)
    np.subtract(values, mean, out=apart)
    apart *= apart
    apart *= weights
    std = math.sqrt(float(apart.sum()) / total)
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)}
    return Summary(avg=mean, min=least, max=most, std=std, count=total, sum=whole, **named)


def _at_ranks(values: Floats, counts: Ints, ranks: Ints) -> Floats:
    """Return the values of these ranks, from 0, in the sample written out and sorted.

    Only bins of values with one of the ranks are sorted: gaps between tokens are many, and ranks few.
    """
    size = min(values.size, _MOST_BINS)
    least, most = values.min(), values.max()
    spread = most - least
    scale = size / spread if spread > 1e-200 else 0.0
    scaled = values - least
    scaled *= scale
    bins = scaled.astype(np.int64)
    np.minimum(bins, size - 1, out=bins)
    upto = np.cumsum(np.bincount(bins, weights=counts, minlength=size).astype(np.int64))
    wanted = np.zeros(size, dtype=bool)
    wanted[np.searchsorted(upto, ranks, side="right")] = True
    kept = np.flatnonzero(wanted[bins])
    kept = kept[np.argsort(values[kept])]
    # Ranks among the kept values: less the dropped values of earlier bins.
    skipped = np.cumsum(np.where(wanted, 0, np.diff(upto, prepend=0)))
    found = ranks - skipped[np.searchsorted(upto, ranks, side="right")]
    found_at: Ints = kept[np.searchsorted(np.cumsum(counts[kept]), found, side="right")]
    return np.asarray(values[found_at])


class FinishedRows:
    """The requests of a run that are over, as columns, taken from its rows.

    priorities: those that occur.
    """

    def __init__(self, kept: TokenRows, *, forgets: bool) -> None:
        """forgets: rows are dropped in the middle of the run, with the times of single tokens."""
        self._kept = kept
        self._parts: list[dict[str, npt.NDArray[Any]]] = []
        self._gaps: list[Gaps] = []
        self._tenants: dict[Tenant, int] = {}
        self._errors: Counter[RequestError] = Counter()
        self.priorities: set[int] = set()
        if forgets:
            kept.on_many = self._forget
            kept.many = _MOST_ROWS

    def _forget(self) -> None:
        self._take()
        gaps = self._gaps
        gaps.append(_distinct([gaps.pop()]))
        while len(gaps) > 1 and gaps[-2][0].size <= 2 * gaps[-1][0].size:  # each is merged few times
            gaps.append(_distinct([gaps.pop(), gaps.pop()]))
        self._kept.forget()

    def _take(self) -> None:
        rows = self._kept.rows
        times = TokenTimes(rows)
        part = self._columns(rows, times)
        self._gaps.append(times.gaps_ms(part["ok"] & part["measured"]))
        self._errors.update(row.error for row in rows if row.error is not None and row.measured and not row.is_cancelled)
        self.priorities.update(row.request.priority for row in rows)
        self._parts.append(part)

    def _columns(self, rows: Sequence[TokenRow], times: TokenTimes) -> dict[str, npt.NDArray[Any]]:
        n = len(rows)
        requests, conversations = (list(map(attrgetter(name), rows)) for name in ("request", "conversation"))
        failed = {place: row.error for place, row in enumerate(rows) if row.error is not None}
        ok = np.ones(n, dtype=bool)
        ok[list(failed)] = False
        cancelled = np.zeros(n, dtype=bool)
        cancelled[[place for place, error in failed.items() if error is BY_RUN or error is ON_PURPOSE]] = True
        of_branches: dict[str, npt.NDArray[Any]] = {}
        if self._kept.branching:
            modes = map(BRANCH_MODES.index, [conversation.branch_mode for conversation in conversations])
            of_branches["branch_mode"] = np.fromiter(modes, dtype=np.int64, count=n)
            of_branches["agent_depth"] = _column(conversations, "depth", np.int64)
        numbers = self._tenants
        tenants = [numbers.setdefault(row.conversation.tenant_of(row.turn_index), len(numbers)) for row in rows]
        return {
            "start_s": _column(rows, "start_s"),
            "tenant": np.array(tenants, dtype=np.int64),
            "issued_s": _column(rows, "issued_s"),
            "first_s": times.first_s,
            "second_s": times.second_s,
            "last_s": times.last_s,
            "end_s": _column(rows, "end_s"),
            "events": times.events,
            "prompt_tokens": _column(requests, "prompt_tokens"),
            "produced": _column(requests, "produced"),
            "cached_tokens": _column(requests, "cached_tokens"),
            "asked_tokens": _column(requests, "output_tokens"),
            "conversation": _column(conversations, "number", np.int64),
            "turn_index": _column(rows, "turn_index", np.int64),
            "ok": ok,
            "cancelled": cancelled,
            "measured": _column(rows, "measured", np.bool_),
            **of_branches,
        }

    def columns(self) -> Columns:
        """Return the columns of all requests, in their order, without the stamps of single tokens. Call it once."""
        self._take()
        known = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        prompts, produced, cached = (known.pop(name) for name in ("prompt_tokens", "produced", "cached_tokens"))
        counts = {
            "usage_prompt_tokens": prompts,
            "usage_completion_tokens": produced,
            "usage_prompt_cache_read_tokens": cached,
        }
        usage = {tag: np.where(known["ok"], values, np.nan) for tag, values in counts.items()}
        usage["usage_total_tokens"] = usage["usage_prompt_tokens"] + usage["usage_completion_tokens"]
        return filled(
            known.pop("start_s"),
            tenants=() if self._tenants.keys() <= {NOBODY} else tuple(self._tenants),
            input_tokens=prompts if self._kept.lengths_known else np.full(len(prompts), np.nan),
            usage=usage,
            **known,
        )

    def metrics(
        self,
        columns: Columns,
        shown: Mapping[str, Any],
        span_s: tuple[float, float] | None = None,
        duration_s: float | None = None,
    ) -> Metrics:
        """Return `measure.metrics.compute` of the columns. shown: the run's settings, with its objectives for goodput.

        span_s: when the phase began and ended, if all of it is measured. duration_s: see compute_columns.
        """
        goodput = shown.get("goodput")
        limits = parse_goodput(goodput) if isinstance(goodput, str) and goodput else None
        errors = tuple(ErrorGroup(error, times) for error, times in self._errors.most_common())
        measured = columns.rows(columns.measured)
        found_by_tag = all_request_columns(measured, 1.0, shown)
        metrics = compute_columns(
            measured, metrics=found_by_tag, errors=errors, goodput=limits, span_s=span_s, duration_s=duration_s
        )
        values, counts = (np.concatenate(parts) for parts in zip(*self._gaps, strict=True))
        if gaps := weighted_summary(values, counts):
            found = {**metrics.per_request, "inter_chunk_latency": gaps}
            metrics = replace(metrics, per_request={tag: found[tag] for tag in PER_REQUEST if tag in found})
        return metrics


def _distinct(parts: Sequence[Gaps]) -> Gaps:
    """Return each value once."""
    values, places = np.unique(np.concatenate([gaps for gaps, _ in parts]), return_inverse=True)
    counts = np.bincount(places, weights=np.concatenate([counts for _, counts in parts]), minlength=values.size)
    return values, counts.astype(np.int64)


def _column(things: Sequence[object], name: str, kind: Any = np.float64) -> npt.NDArray[Any]:
    return np.fromiter(map(attrgetter(name), things), dtype=kind, count=len(things))
