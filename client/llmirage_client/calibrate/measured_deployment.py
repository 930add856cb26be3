"""Which model on which GPU the runs of a calibration measured, by their own files, against the cluster it is made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmirage_client.calibrate.measured_run import MeasuredRun
from llmirage_client.simulator.deployments import gpu_key, model_key
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_shared.settings import ConfigError

_KEYS: Mapping[str, Callable[[str], str]] = {"model": model_key, "gpu": gpu_key}


def with_measured(settings: Mapping[str, Any], runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """The settings with the model and the GPU that the runs name, where the user did not.

    Raises ConfigError when neither says: a calibration to a default would be one to another deployment.
    """
    filled = dict(settings)
    if settings["cluster_file"] is not None:
        return filled
    missing = []
    for name in _KEYS:
        if settings[name] is None:
            found = {key for run in runs if (key := _key(run, name)) is not None}
            filled[name] = found.pop() if len(found) == 1 else None
        if filled[name] is None:
            missing.append(name)
    if missing:
        flags = " and ".join(f"--{name}" for name in missing)
        words = " and ".join("GPU" if name == "gpu" else name for name in missing)
        raise ConfigError([f"the runs do not say which {words} was measured: give {flags}, or --cluster FILE"])
    return filled


def mismatches(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """One sentence for each run that measured another model or another GPU than the cluster has. Raises ConfigError."""
    pools = plan_of(config)
    there = {
        "model": {pool.deployment.model.name for pool in pools},
        "gpu": {pool.deployment.gpu.key for pool in pools},
    }
    return [
        f"{run.place} measured {run.deployment[name]}, and the cluster to be calibrated has {', '.join(sorted(keys))}: "
        f"give the --{name} that was measured, or its --cluster FILE"
        for run in runs
        for name, keys in there.items()
        if (key := _key(run, name)) is not None and key not in keys
    ]


def unknown_names(runs: Sequence[MeasuredRun]) -> list[str]:
    """Notes on models whose name in a run says nothing, so that they could not be compared."""
    return [
        f"{run.place} calls its model {run.deployment['model']}, which the catalogue does not know: whether it is the "
        "cluster's model could not be checked"
        for run in runs
        if "model" in run.deployment and _key(run, "model") is None
    ]


def _key(run: MeasuredRun, name: str) -> str | None:
    """The catalogue's name of what the run measured; None: the run does not say, or the catalogue does not know it."""
    try:
        return _KEYS[name](run.deployment[name]) if name in run.deployment else None
    except ConfigError:
        return None
