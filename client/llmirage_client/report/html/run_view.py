"""A run as its charts see it: rows by their start, times from the start of the run, and series over that time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from llmirage_client.measure.arrays import Floats, ratio
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.report.html.charts import round_up


@dataclass(frozen=True, slots=True)
class RunView:
    """One run. Only its measured requests, in order of their start.

    values: request_columns of the rows, NaN where a request has no such metric. origin_s: the first start, on the run's
    clock. records: of the rows; empty where a run has none (a simulation that kept columns only).
    """

    name: str
    result: RunResult
    metrics: Metrics
    columns: Columns
    values: dict[str, Floats]
    origin_s: float
    records: list[Record]

    def since_start_s(self, times: Floats) -> Floats:
        """Return cluster time since the first request."""
        return (times - self.origin_s) * self.result.speed

    def value(self, tag: str) -> Floats:
        """Return a metric of every row; all NaN when no request has it."""
        found = self.values.get(tag)
        return np.full(len(self.columns), np.nan) if found is None else found

    def has(self, tag: str) -> bool:
        return tag in self.values

    @property
    def start_s(self) -> Floats:
        return self.since_start_s(self.columns.start_s)

    @property
    def end_s(self) -> Floats:
        return self.since_start_s(self.columns.end_s)

    @property
    def cached_share(self) -> Floats:
        """The share of each request's prompt tokens that the server found in its cache; NaN where unknown."""
        prompt, cached = self.value("usage_prompt_tokens"), self.value("usage_prompt_cache_read_tokens")
        return ratio(np.minimum(cached, prompt), prompt)


def view_run(result: RunResult, name: str = "") -> RunView:
    """Return the view of a run. name: of the run among several."""
    records = sorted((r for r in result.records if r.phase == "profiling"), key=lambda r: r.exchange.start_s)
    columns = columns_of(records)
    return RunView(
        name=name or result.model or "run",
        result=result,
        metrics=compute(result),
        columns=columns,
        values=request_columns(columns, result.speed),
        origin_s=float(columns.start_s[0]) if records else result.start_s,
        records=records,
    )


def names_of(paths: list[str]) -> list[str]:
    """Return the last part of each path, with as many parts before it as it takes to tell them apart."""
    parts = [PurePath(p).parts or (p,) for p in paths]
    kept = 1
    while kept < 4 and len({p[-kept:] for p in parts}) < len(set(parts)):
        kept += 1
    return ["/".join(p[-kept:]) for p in parts]


_POINTS = 120
_WINDOWS = 30  # of a run: a window is that part of it
_FEWEST = {50: 5, 90: 10, 99: 100}  # requests in a window for its percentile to mean something


@dataclass(frozen=True, slots=True)
class Rolling:
    """percentiles[p][i]: of the values within half a window of at_s[i]; NaN where they are too few."""

    at_s: Floats
    window_s: float
    percentiles: dict[int, Floats]


def rolling(times_s: Floats, values: Floats) -> Rolling:
    """Return percentiles over a window that moves along. A percentile that no window has enough values for is left out."""
    known = np.isfinite(values)
    times, kept = times_s[known], values[known]
    order = np.argsort(times, kind="stable")
    times, kept = times[order], kept[order]
    if times.size < 2 or times[-1] <= times[0]:
        return Rolling(times, 0.0, {})
    span = float(times[-1] - times[0])
    window = span / min(_WINDOWS, max(3.0, times.size / 20))
    at = np.linspace(times[0], times[-1], _POINTS)
    first = np.searchsorted(times, at - window / 2, side="left")
    last = np.searchsorted(times, at + window / 2, side="right")
    found = {p: np.full(at.size, np.nan) for p in _FEWEST}
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        wanted = [p for p, fewest in _FEWEST.items() if b - a >= fewest]
        if wanted:
            for p, value in zip(wanted, np.percentile(kept[a:b], wanted), strict=True):
                found[p][i] = value
    return Rolling(at, window, {p: v for p, v in found.items() if np.isfinite(v).any()})


def bins(end_s: float, most: int = _POINTS) -> Floats:
    """Return edges of equal bins with a width people would choose, from 0 to past end_s."""
    if end_s <= 0:
        return np.array([0.0, 1.0])
    width = round_up(end_s / most)
    return np.arange(0.0, end_s + width, width)


def output_rate(view: RunView, edges: Floats) -> Floats:
    """Return output tokens per second in each bin, by arrival.

    A reply's tokens are shared evenly among its content events.
    """
    columns, osl = view.columns, view.value("output_sequence_length")
    if columns.stamps_s is None:
        seen = np.isfinite(osl) & np.isfinite(columns.last_s)
        stamps, tokens = columns.last_s[seen], osl[seen]
    else:
        share = np.divide(osl, columns.events, out=np.zeros(osl.size), where=(columns.events > 0) & np.isfinite(osl))
        stamps, tokens = columns.stamps_s, np.repeat(share, columns.events)
    counted, _ = np.histogram(view.since_start_s(stamps), edges, weights=tokens)
    return counted / np.diff(edges)


def mean_active(starts_s: Floats, ends_s: Floats, edges: Floats) -> Floats:
    """Return the mean number of open intervals in each bin. Intervals with a NaN do not count."""
    known = np.isfinite(starts_s) & np.isfinite(ends_s)

    def reached(moments: Floats) -> Floats:
        """Return the sum over all moments before t of t less the moment, at every edge."""
        ordered = np.sort(moments)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, edges)
        reach: Floats = edges * before - sums[before]
        return reach

    return np.maximum(np.diff(reached(starts_s[known]) - reached(ends_s[known])) / np.diff(edges), 0.0)
