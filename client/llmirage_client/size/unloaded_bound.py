"""Lower bounds of an unloaded instance: an objective that fails here cannot be met by adding instances or removing load.

Where all requests have the same lengths the bound is proved. Else a few requests stand for all, and a statistic of all of
them is at least the lower end of what these say: _DEVIATIONS standard errors below their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.size.traffic import RequestSizes

_SAMPLE = 128  # requests whose bounds are computed
_DEVIATIONS = 4.0  # standard errors: a few in 100,000 samples are further off


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
    """At or below the same statistic of all requests; 0 for statistics that a few requests cannot bound."""
    if statistic == "max" or (values == values[0]).all():
        return float(values.max()) if statistic is not None and statistic[0] != "s" else 0.0
    if statistic == "avg":
        return float(values.mean() - _DEVIATIONS * values.std() / math.sqrt(values.size))
    if statistic is not None and statistic[0] == "p":
        share = float(statistic[1:]) / 100
        low = share - _DEVIATIONS * math.sqrt(share * (1 - share) / values.size)
        return float(np.percentile(values, low * 100, method="lower")) if low > 0 else 0.0
    return 0.0
