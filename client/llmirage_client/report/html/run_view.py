"""A run as its charts see it: rows by their start, times from the start of the run, metrics as defined elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from llmirage_client.measure.arrays import Floats, ratio
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.request_metrics import request_columns


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
        """Cluster time since the first request."""
        return (times - self.origin_s) * self.result.speed

    def value(self, tag: str) -> Floats:
        """A metric of every row; all NaN when no request has it."""
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
        """Of each request's prompt tokens, the share that the server found in its cache; NaN where it did not say."""
        prompt, cached = self.value("usage_prompt_tokens"), self.value("usage_prompt_cache_read_tokens")
        return ratio(np.minimum(cached, prompt), prompt)


def view_run(result: RunResult, name: str = "") -> RunView:
    """name: what the run is called among several."""
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
    """The last part of each path, with as many parts before it as it takes to tell them apart."""
    parts = [PurePath(p).parts or (p,) for p in paths]
    kept = 1
    while kept < 4 and len({p[-kept:] for p in parts}) < len(set(parts)):
        kept += 1
    return ["/".join(p[-kept:]) for p in parts]
