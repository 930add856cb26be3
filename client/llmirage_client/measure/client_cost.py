"""Whether the client itself was too slow for its figures to be trusted: what it used, and how late it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    metrics: Mapping[str, Floats],
    speed: float = 1.0,
    *,
    waits_for_slots: bool = False,
) -> ClientCost:
    """timer_lag_s: samples in seconds of real time. metrics: request_columns of the measured requests.

    waits_for_slots: a schedule that waits for free slots is late because the endpoint is slow; its requests are not judged.
    Late: the 95th percentile of either lag is above LATE_MS and above LATE_SHARE of the median request latency.
    Busy: the client used more than BUSY_SHARE of one core over a run of at least a second.
    """
    timers = _tail(np.asarray(timer_lag_s, dtype=np.float64) * (speed * 1e3))
    send_lag_ms = None if waits_for_slots else metrics.get("credit_to_start_latency")
    sends = _tail(send_lag_ms[~np.isnan(send_lag_ms)]) if send_lag_ms is not None else (None, None)
    latency_ms = metrics.get("request_latency")
    limit_ms = max(LATE_MS, LATE_SHARE * (0.0 if latency_ms is None else float(np.nanmedian(latency_ms))))
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
