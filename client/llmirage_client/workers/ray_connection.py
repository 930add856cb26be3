"""The connection to a Ray cluster. The one place that imports Ray, when a cluster is asked for."""

from __future__ import annotations

import os
from typing import Any

from llmirage_client.workers.job import CrewError


def connect(address: str | None = None, at_least_cpus: int = 1) -> Any:
    """Return the ray module, connected to a cluster. Raises CrewError.

    address: as ray.init has it; "local" starts one on this machine for as long as the process lives, None takes the one of
    RAY_ADDRESS or that runs on this machine, and else starts one.
    """
    try:
        import ray
    except ImportError:
        raise CrewError("--executor ray needs Ray, which is not installed: pip install 'llmirage[ray]'") from None
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or every start warns of a change in GPU settings
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    if address == "local":
        settings["num_cpus"] = max(at_least_cpus, os.cpu_count() or 1)
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # Ray says in many ways that there is no cluster
        where = f"ray_address {address}" if address else "--executor ray"
        raise CrewError(f"{where}: cannot use a Ray cluster: {first_line(error)}") from None
    return ray


def nodes(ray: Any) -> int:
    """Return the number of machines of the cluster."""
    return sum(bool(node.get("Alive")) for node in ray.nodes())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
