"""Whether the client itself was too slow for its figures to be trusted: what it used, and how late it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.record import ClientCost

LATE_MS = 10.0
LATE_SHARE = 0.05  # of the median request latency
BUSY_SHARE = 0.85  # of one CPU core
_SHORTEST_JUDGED_S = 1.0


def client_cost(
    cpu_s: float | None,
    wall_s: float,
    timer_lag_s: Sequence[float],
    send_lag_ms: Floats | None,
    median_latency_ms: float | None,
    speed: float = 1.0,
) -> ClientCost:
    """timer_lag_s: samples in seconds of real time. send_lag_ms: of each request, in cluster time.

    Late: the 95th percentile of either is above LATE_MS and above LATE_SHARE of the median request latency.
    Busy: the client used more than BUSY_SHARE of one core over a run of at least a second.
    """
    timers = _tail(np.asarray(timer_lag_s, dtype=np.float64) * (speed * 1e3))
    sends = _tail(send_lag_ms[~np.isnan(send_lag_ms)]) if send_lag_ms is not None else (None, None)
    limit_ms = max(LATE_MS, LATE_SHARE * (median_latency_ms or 0.0))
    return ClientCost(
        cpu_s=cpu_s,
        wall_s=wall_s,
        timers_late_p95_ms=timers[0],
        timers_late_max_ms=timers[1],
        sends_late_p95_ms=sends[0],
        sends_late_max_ms=sends[1],
        late=any(p95 is not None and p95 > limit_ms for p95 in (timers[0], sends[0])),
        busy=cpu_s is not None and wall_s >= _SHORTEST_JUDGED_S and cpu_s > BUSY_SHARE * wall_s,
    )


def _tail(late_ms: Floats) -> tuple[float, float] | tuple[None, None]:
    if not late_ms.size:
        return None, None
    return float(np.percentile(late_ms, 95)), float(late_ms.max())
