"""Warnings when the client itself was too slow for its measurements to be valid."""

from __future__ import annotations

from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import ClientCost, RunResult


def client_warnings(result: RunResult, metrics: Metrics) -> list[str]:
    """Warnings about the client, or each of its workers, empty when it kept up; see measure.client_cost for when not."""
    if result.workers:
        return [
            warning
            for worker in result.workers
            if worker.cost is not None
            for warning in _warnings(f"Worker {worker.number} on {worker.host}", worker.cost, result.speed)
        ]
    return [] if metrics.client is None else _warnings("This client", metrics.client, result.speed)


def _warnings(who: str, cost: ClientCost, speed: float) -> list[str]:
    warnings = []
    if cost.late:
        timers, sends = cost.timers_late_p95_ms or 0.0, cost.sends_late_p95_ms or 0.0
        late = (
            f"5 % of its requests left {sends:.0f} ms or more after they were due"
            if sends > timers
            else f"5 % of its timers fired {timers:.0f} ms or more after they were due"
        )
        warnings.append(
            f"{who} was late: {late}, so measured times may be too long by about that much. "
            "Use a less busy machine, a lower load" + (" or a lower --speed on the server." if speed > 1 else ".")
        )
    if cost.busy:
        warnings.append(
            f"{who} used {100 * (cost.cpu_share or 0.0):.0f} % of a CPU core, its limit: the endpoint "
            "may be faster than measured. Lower the load, or use more workers (--executor, docs/scaling.md)."
        )
    return warnings
