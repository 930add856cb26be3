"""Says in plain words when the client itself was too slow for its figures to be trusted."""

from __future__ import annotations

import numpy as np

from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import RunResult

LATE_MS = 10.0
LATE_SHARE = 0.05  # of the median request latency
BUSY_SHARE = 0.85  # of one CPU core
_SHORTEST_JUDGED_S = 1.0


def client_warnings(result: RunResult, metrics: Metrics) -> list[str]:
    """Warnings about the client, empty when it kept up.

    Late: the 95th percentile of its event loop's lateness, in cluster time, is above LATE_MS and above LATE_SHARE of the
    median request latency. Busy: it used more than BUSY_SHARE of one core over a run of at least a second.
    """
    warnings = []
    latency = metrics.per_request.get("request_latency")
    if result.client_lag_s:
        late_ms = float(np.percentile(result.client_lag_s, 95)) * result.speed * 1e3
        if late_ms > max(LATE_MS, LATE_SHARE * latency.p50 if latency else 0.0):
            warnings.append(
                f"This client was itself late: 5 % of its timers fired {late_ms:.0f} ms or more after they were due, so "
                "measured times may be too long by about that much. Use a less busy machine, a lower load"
                + (" or a lower --speed on the server." if result.speed > 1 else ".")
            )
    wall_s = result.end_s - result.start_s
    if wall_s >= _SHORTEST_JUDGED_S and result.client_cpu_s > BUSY_SHARE * wall_s:
        warnings.append(
            f"This client used {100 * result.client_cpu_s / wall_s:.0f} % of a CPU core, about all it can: the endpoint "
            "may be faster than these figures say. Lower the load, or split it over several clients."
        )
    return warnings
