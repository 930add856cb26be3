"""One point of a study, worked out: from settings to a row of figures. Everything here can travel between processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import judge, parse_slo
from llmirage_client.report.files import write_artifacts
from llmirage_client.settings.run import as_key, run_options, with_distinct_conversations
from llmirage_client.simulate.report import report_series
from llmirage_client.simulate.saturation import idle_models, in_step, start_burst
from llmirage_client.simulate.simulation import Simulation, SimulationError, Window, simulate
from llmirage_client.simulate.summary import SHOWN_STATISTICS
from llmirage_client.simulator.engine import ClusterConfig, ConfigError, plan_of
from llmirage_client.size.traffic import (
    NOT_STEADY,
    RequestSource,
    file_source,
    fills_foreseeably,
    gradual_start_s,
    steady_load,
)
from llmirage_client.sweep.file import Study, StudyPoint, load_settings
from llmirage_client.workload import registry
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.synthetic_load import synthetic_load

SERIES_SAMPLES = 120
_REQUESTS = 1000
_RAMP = "concurrency_ramp_duration"
_OWN_START_OR_END = (
    _RAMP, "num_conversations", "request_count", "duration", "warmup_request_count", "fixed_schedule", "request_rate_of",
)  # fmt: skip
_FIRST_FIGURES = (
    "gpus", "instances_ready", "instances_most", "requests", "failed_requests", "duration_s", "request_per_s",
    "offered_per_s", "delivered_per_s", "shortfall_allowed", "output_tok_per_s", "total_tok_per_s",
    "output_tok_per_s_per_gpu",
)  # fmt: skip
_LAST_FIGURES = ("cached_token_share", "preemptions", "utilisation", "gpu_hours", "energy_kwh_at_tdp", "saturated", "queue")
_FILES = ("model", "draft_model", "gpu", "engine", "tokenizer", "workload")  # settings that may name files


@dataclass(frozen=True, slots=True)
class Task:
    """runs: folder for the files of the whole run; None: none are written."""

    config: ClusterConfig
    load: dict[str, Any]
    max_time_s: float | None = None
    runs: str | None = None


def work(task: Task) -> dict[str, Any]:
    """Return status, reason, figures and series of the point; what cannot be is told there, not raised."""
    begun_s = time.process_time()
    row = _row(task)
    return row | {"cpu_s": round(time.process_time() - begun_s, 3)}


def _row(task: Task) -> dict[str, Any]:
    try:
        workload, window = _workload(task.load), None
        options = _options(workload, task.load)
        if task.load.get("steady_state"):
            workload, options, window = _steady(task, workload, options)
        max_time_s = task.load.get("max_time", task.max_time_s)
        shown = {key: value for key, value in task.load.items() if key != "slo"} | {"fixed_schedule": options.fixed_schedule}
        if window is None and _RAMP not in task.load and (ramp_s := gradual_start_s(task.config, workload, options)):
            options = dataclasses.replace(options, concurrency_ramp_s=ramp_s)
            shown[_RAMP] = round(ramp_s, 3)
        simulation = simulate(task.config, workload, options, max_time_s=max_time_s, shown=shown, window=window)
    except (ConfigError, SimulationError, WorkloadError) as error:
        return {"status": "refused", "reason": _one_line(error)}
    except Exception as error:  # one point must not end the study
        return {"status": "failed", "reason": f"{type(error).__name__}: {_one_line(error)}"}
    repeats = simulation.repeats
    burst = None if window is not None else start_burst(simulation.columns, options)
    found = idle_models(plan_of(task.config), simulation.series), burst, in_step(workload, options.concurrency)
    about = " ".join([*(() if repeats is None else repeats.notes), *filter(None, found)])
    figures = figures_of(simulation, task.load.get("slo")) | {"steady_state": window is not None}
    row: dict[str, Any] = {"status": "ok", "reason": about, "figures": figures}
    short = None
    if simulation.rates is not None:
        sustained = simulation.queues[0].state == "draining"  # a burst is over, and its waits are in the figures
        short = simulation.rates.shortfall or (None if sustained else simulation.saturation)
    if short is not None:
        row["reason"] = " ".join(filter(None, (about, f"{short}.")))
        if "slo_met" in row["figures"]:
            missed = row["figures"]["slo_missed"]
            row["figures"] |= {"slo_met": False, "slo_missed": "; ".join(filter(None, (missed, short)))}
    if simulation.stopped:
        row |= {"status": "stopped", "reason": simulation.stopped}
    elif not simulation.summary["requests"]:
        errors = simulation.metrics.errors
        row |= {"status": "failed", "reason": errors[0].error.message if errors else "no request was answered"}
    if task.runs is not None:
        write_artifacts(simulation.result, Path(task.runs), metrics=simulation.metrics)
        report_series(simulation.series).write(Path(task.runs))
    return row | {"series": series_of(simulation)}


def figures_of(simulation: Simulation, slo: str | None = None) -> dict[str, Any]:
    """Return plain numbers by name; None where there is none."""
    summary = simulation.summary
    figures: dict[str, Any] = {name: summary[name] for name in _FIRST_FIGURES}
    tpot = summary["tpot_ms"]
    figures["user_tok_per_s"] = 1e3 / tpot["mean"] if tpot and tpot["mean"] else None
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms"):
        for statistic in SHOWN_STATISTICS:
            figures[f"{name.removesuffix('_ms')}_{statistic}_ms"] = summary[name][statistic] if summary[name] else None
    usd = summary["usd_per_m_output_tokens"]
    figures["usd_per_m_output_tokens"] = sum(usd) / 2 if usd else None
    figures |= {name: summary[name] for name in _LAST_FIGURES}
    if simulation.band is not None:
        factors = {name: simulation.band.factor(name, 90) for name in simulation.band.factors}
        figures |= {f"{name}_factor_90": None if factor is None else round(factor, 3) for name, factor in factors.items()}
        figures["band_caution"] = simulation.band.caution
    if slo:
        verdicts = judge(parse_slo(slo), simulation.metrics)
        figures["slo_met"] = all(verdict.met for verdict in verdicts)
        figures["slo_missed"] = "; ".join(str(verdict) for verdict in verdicts if not verdict.met)
    return figures


def series_of(simulation: Simulation) -> dict[str, list[float]]:
    """Return the whole cluster over time, at SERIES_SAMPLES moments at most."""
    series = simulation.series
    picks = np.unique(np.linspace(0, series.time_s.size - 1, SERIES_SAMPLES).astype(int))
    return {
        "time_s": _short(series.time_s[picks]),
        "running": _short(series.running.sum(axis=0)[picks]),
        "waiting": _short(series.waiting.sum(axis=0)[picks]),
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _workload(load: dict[str, Any]) -> Workload:
    """Return the workload of a load. Raises WorkloadError and SimulationError."""
    if "workload" in load:
        if odd := [key for key in ("isl", "osl", "turns", "think_time", "shared_prefix") if key in load]:
            raise SimulationError(f"{odd[0]} is for a load without a file: give either it or a workload")
        return _loaded(load["workload"], load.get("format"), load.get("seed", 0))
    missing = [key for key in ("isl", "osl") if key not in load]
    if missing:
        raise SimulationError(f"{' and '.join(missing)} missing: a load is a workload, or lengths by isl and osl")
    if "turns" not in load and load.get("think_time", 0) not in (0, "0"):
        raise SimulationError("think_time is the pause between requests of a session: give turns, which is 1")
    return synthetic_load(
        load["isl"],
        load["osl"],
        load.get("requests") or load.get("request_count") or _REQUESTS,
        turns=load.get("turns", 1),
        wait_s=load.get("think_time", 0),
        shared_prefix_tokens=load.get("shared_prefix", 0),
        seed=load.get("seed", 0),
    )


def measured_steadily(study: Study) -> Study:
    """Return the study with `steady_state` on for loads of lengths with no warm-up or end of their own.

    Off in all where instances come and go, as what happens then, and when, is the question; and where the roofline does not
    know of one of the clusters how long it takes to fill.
    """
    configs = [point.config for point in study.points if point.config is not None]
    if any(pool.scales or config.events for config in configs for pool in config.all_pools):
        return study
    try:
        if not all(fills_foreseeably(config) for config in configs if config.pools or config.fixed_times):
            return study
    except ConfigError:  # the point will say so
        return study
    return dataclasses.replace(study, points=tuple(map(_steadily, study.points)))


def _steadily(point: StudyPoint) -> StudyPoint:
    load = point.load
    loaded = "request_rate" in load or load.get("concurrency", 1) > 1 or "agents" in load
    if "steady_state" in load or "isl" not in load or not loaded or any(key in load for key in _OWN_START_OR_END):
        return point
    return dataclasses.replace(point, load=load | {"steady_state": True})


def _steady(task: Task, workload: Workload, options: RunOptions) -> tuple[Workload, RunOptions, Window]:
    """Return the workload and options of a steady-state point. Raises SimulationError and ConfigError."""
    load = task.load
    source = file_source(workload)
    if "isl" in load:
        source = RequestSource(lambda requests: _workload(load | {"requests": requests}), None, "")
    steady = steady_load(task.config, source, options, load.get("requests") or load.get("request_count") or _REQUESTS)
    if steady is None:
        raise SimulationError(NOT_STEADY)
    return steady


@lru_cache(maxsize=4)
def _loaded(path: str, format_name: str | None, seed: int) -> Workload:
    return registry.load(path, format_name, {}, {"seed": seed})


def _options(workload: Workload, load: dict[str, Any]) -> RunOptions:
    """Return the options of a point's run. Raises ConfigError."""
    return with_distinct_conversations(workload, run_options(workload, load_settings(load), as_key))


def _one_line(error: BaseException) -> str:
    problems = error.problems if isinstance(error, ConfigError) else [str(error)]
    return " ".join("; ".join(map(str, problems)).split())


def key_of(point: StudyPoint, max_time_s: float | None, version: str) -> str:
    """Return a key that is equal for points with equal results: settings, files that they name, program version."""
    config = {} if point.config is None else dataclasses.asdict(point.config)
    named = {
        key: value for key, value in (*_values(config), *point.load.items()) if key in _FILES and isinstance(value, str)
    }
    contents = {key: _digest(value) for key, value in sorted(named.items())}
    whole = [version, config, point.load, max_time_s, contents]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:20]


def _values(tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key, value
            yield from _values(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _values(value)


def _digest(name: str) -> str | None:
    path = Path(name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError:
        return None


def problems_of(points: Iterable[StudyPoint]) -> list[str]:
    """Return the problems of the points' loads, each once: unreadable files, missing lengths."""
    problems: dict[str, None] = {}
    seen: set[str] = set()
    for point in points:
        about = json.dumps(point.load, sort_keys=True, default=str)
        if about in seen:
            continue
        seen.add(about)
        try:
            _options(_workload(point.load | {"requests": 1, "request_count": None}), point.load)
        except (WorkloadError, SimulationError, ConfigError) as error:
            problems[str(error)] = None
    return list(problems)
