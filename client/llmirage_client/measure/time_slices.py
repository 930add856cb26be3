"""A run cut into slices of equal length, each with its own metrics (AIPerf's --slice-duration)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.columns import Columns
from llmirage_client.measure.metrics import Metrics, compute_columns


@dataclass(slots=True, frozen=True)
class Slice:
    """index: from 0, counted from the first start of the run; start_s, end_s: from there, in cluster time."""

    index: int
    start_s: float
    end_s: float
    metrics: Metrics


def time_slices(columns: Columns, slice_s: float, speed: float = 1.0, most: int = 5_000) -> list[Slice]:
    """The metrics of the requests that started in each slice of slice_s seconds of cluster time; an empty slice is left out.

    Raises ValueError when slice_s is not above zero or there would be more than `most` slices.
    """
    if not slice_s > 0:
        raise ValueError("the duration of a slice must be above 0")
    columns = columns.rows(columns.measured)
    if not len(columns):
        return []
    since_s = (columns.start_s - columns.start_s.min()) * speed
    number = np.floor(since_s / slice_s).astype(np.int64)
    found = np.unique(number)
    if found.size > most:
        raise ValueError(f"slices of {slice_s:g} s would be {found.size}; {most} is the most")
    return [
        Slice(int(i), i * slice_s, (i + 1) * slice_s, compute_columns(columns.rows(number == i), speed))
        for i in found.tolist()
    ]
