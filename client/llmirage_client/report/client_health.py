"""Says in plain words when the client itself was too slow for its figures to be trusted."""

from __future__ import annotations

from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import RunResult


def client_warnings(result: RunResult, metrics: Metrics) -> list[str]:
    """Warnings about the client, empty when it kept up; see measure.client_cost for when it did not."""
    warnings = []
    cost = metrics.client
    if cost is None:
        return []
    if cost.late:
        timers, sends = cost.timers_late_p95_ms or 0.0, cost.sends_late_p95_ms or 0.0
        late = (
            f"5 % of its requests left {sends:.0f} ms or more after they were due"
            if sends > timers
            else f"5 % of its timers fired {timers:.0f} ms or more after they were due"
        )
        warnings.append(
            f"This client was itself late: {late}, so measured times may be too long by about that much. "
            "Use a less busy machine, a lower load" + (" or a lower --speed on the server." if result.speed > 1 else ".")
        )
    if cost.busy:
        warnings.append(
            f"This client used {100 * (cost.cpu_share or 0.0):.0f} % of a CPU core, about all it can: the endpoint "
            "may be faster than these figures say. Lower the load, or split it over several clients."
        )
    return warnings
