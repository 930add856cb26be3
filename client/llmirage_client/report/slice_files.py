"""profile_export_aiperf_timeslices.json and .csv: the metrics of each slice of a run, in AIPerf's layout."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_client.measure.catalogue import OVER_TIME, PER_REQUEST, WHOLE_RUN, Spec
from llmirage_client.measure.time_slices import Slice


def slices_json(slices: Sequence[Slice], input_config: Mapping[str, Any]) -> dict[str, Any]:
    """timeslice_start_s and _end_s are ours: seconds since the first request, in cluster time."""
    return {
        "timeslices": [
            {
                "timeslice_index": one.index,
                "timeslice_start_s": one.start_s,
                "timeslice_end_s": one.end_s,
                **{spec.tag: {"unit": spec.unit, **figures} for spec, figures in _metrics(one)},
            }
            for one in slices
        ],
        "input_config": input_config,
    }


def slices_csv(slices: Sequence[Slice]) -> str:
    """One row a figure: slice, metric, unit, statistic, value."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("Timeslice", "Metric", "Unit", "Stat", "Value"))
    for one in slices:
        for spec, figures in _metrics(one):
            rows.writerows((one.index, spec.title, spec.unit, name, value) for name, value in figures.items())
    return text.getvalue()


def _metrics(one: Slice) -> Iterator[tuple[Spec, dict[str, float]]]:
    for tag, summary in one.metrics.per_request.items():
        yield PER_REQUEST[tag], summary.as_dict()
    for tag, level in one.metrics.over_time.items():
        yield OVER_TIME[tag], level.as_dict()
    for tag, value in one.metrics.whole_run.items():
        yield WHOLE_RUN[tag], {"avg": value}
