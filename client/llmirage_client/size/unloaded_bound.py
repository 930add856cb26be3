"""Lower bounds of an unloaded instance: an objective that fails here cannot be met by adding instances or removing load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.size.traffic import RequestSizes

_SAMPLE = 128  # requests whose bounds are computed


def missed_unloaded(objectives: Sequence[Objective], sizes: RequestSizes | None, bounds: Bounds) -> list[Verdict]:
    """The objectives that one user alone misses at best. Only upper limits of TTFT, TPOT and latency can be judged so."""
    if sizes is None:
        return []
    rows = np.unique(np.linspace(0, sizes.prompt.size - 1, _SAMPLE).astype(int))
    found: dict[tuple[int, int, int], tuple[float, float] | None] = {}
    values: list[tuple[float, float, float]] = []
    for prompt, new, reply in zip(sizes.prompt[rows], sizes.new[rows], sizes.reply[rows], strict=True):
        key = int(prompt), int(new), int(reply)
        if key not in found:
            ttft, tpot = bounds.ttft_s(key[0], key[1]), bounds.tpot_s(key[0])
            found[key] = None if ttft is None or tpot is None else (ttft * 1e3, tpot * 1e3)
        pair = found[key]
        if pair is None:
            return []
        ttft_ms, tpot_ms = pair
        values.append((ttft_ms, tpot_ms if key[2] > 1 else 0.0, ttft_ms + (key[2] - 1) * tpot_ms))
    columns = dict(zip(("time_to_first_token", "inter_token_latency", "request_latency"), np.array(values).T, strict=True))
    verdicts = [
        Verdict(objective, _statistic(columns[objective.metric.tag], objective.statistic))
        for objective in objectives
        if objective.metric.tag in columns and objective.comparison[0] == "<"
    ]
    return [verdict for verdict in verdicts if not verdict.met]


def _statistic(values: Floats, statistic: str | None) -> float:
    """At or below the same statistic of all requests; 0 for statistics of the spread."""
    if statistic == "avg":
        return float(values.mean())
    if statistic == "max":
        return float(values.max())
    if statistic == "min":
        return float(values.min())
    if statistic is not None and statistic[0] == "p":
        return float(np.percentile(values, float(statistic[1:]), method="lower"))
    return 0.0
