"""The deployment that the runs of a calibration measured, by their own files, against the cluster it is made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmirage_client.calibrate.measured_run import MeasuredRun
from llmirage_client.simulator.cluster_settings import SIMULATED, ClusterSettings
from llmirage_client.simulator.deployments import gpu_key, model_key
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_shared.settings import ConfigError

_KEYS: Mapping[str, Callable[[str], str]] = {"model": model_key, "gpu": gpu_key}


def with_measured(cluster: ClusterSettings, runs: Sequence[MeasuredRun]) -> ClusterSettings:
    """Return the cluster with the settings of the deployment that all runs measured, where the user gave none.

    Raises ConfigError when nothing says model or GPU: a calibration to a default would be one to another deployment.
    """
    if cluster.cluster_file is not None:
        return cluster
    several = [run.place for run in runs if len(run.deployment) > 1]
    if several:
        raise ConfigError([f"{several[0]} measured a cluster of several pools: give its --cluster FILE"])
    filled = dict(cluster.overrides)
    for name in dict.fromkeys(name for run in runs for pool in run.deployment for name in pool):
        if name not in filled and name in SIMULATED and len(found := _measured(runs, name)) == 1:
            filled[name] = found.pop()
    missing = [name for name in _KEYS if name not in filled]
    if missing:
        flags = " and ".join(f"--{name}" for name in missing)
        words = " and ".join("GPU" if name == "gpu" else name for name in missing)
        raise ConfigError([f"the runs do not say which {words} was measured: give {flags}, or --cluster FILE"])
    accepted = ("acceptance_rate", "acceptance_length", "acceptance_rates")
    if (drafts := filled.get("num_speculative_tokens")) and not any(name in filled for name in accepted):
        raise ConfigError([f"the engine drafted {drafts} tokens a step: give --acceptance-rate, which no file says"])
    return replace(cluster, overrides=filled)


def mismatches(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return one sentence for each setting in which a run measured another deployment than the cluster.

    Raises ConfigError.
    """
    cluster = [pool.described for pool in plan_of(config)]
    known = ClusterSettings.known()
    found = []
    for run in runs:
        for name in cluster[0]:
            there = sorted({str(pool[name]) for pool in cluster})
            measured = sorted(str(value) for value in _measured([run], name))
            if measured and measured != there:
                flag = known[name].as_option if name in known else name
                found.append(
                    f"{run.place} measured {_words(name, measured)}, and the cluster to be calibrated has "
                    f"{_words(name, there)}: give the {flag} that was measured, or its --cluster FILE"
                )
    return found


def unchecked(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a note for each run on the settings of the cluster that it does not tell. Raises ConfigError."""
    names = [name for name in plan_of(config)[0].described if name != "instances"]
    notes = []
    for run in runs:
        silent = [name for name in names if not any(name in pool for pool in run.deployment)]
        if silent:
            notes.append(
                f"{run.place} does not tell {', '.join(silent)}: whether these are the cluster's could not be checked"
            )
    return notes


def unknown_names(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return notes on models whose name in a run says nothing, so that they could not be compared."""
    return [
        f"{run.place} calls its model {pool['model']}, which the catalogue does not know: whether it is the "
        "cluster's model could not be checked"
        for run in runs
        for pool in run.deployment
        if "model" in pool and _key(pool, "model") is None
    ]


def _words(name: str, values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if name in _KEYS else f"{name} {text}"


def _measured(runs: Sequence[MeasuredRun], name: str) -> set[Any]:
    return {key for run in runs for pool in run.deployment if (key := _key(pool, name)) is not None}


def _key(pool: Mapping[str, Any], name: str) -> Any:
    """Return the catalogue's key for a value of the run; None if the run or the catalogue lacks it."""
    if name not in _KEYS:
        return pool.get(name)
    try:
        return _KEYS[name](pool[name]) if name in pool else None
    except ConfigError:
        return None
