"""A workload on a simulated cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import expected_requests
from llmirage_client.measure.slo import verdicts_json
from llmirage_client.operations.workload import for_api, load_of, readable, resolved_scenario
from llmirage_client.settings.load import TrafficSettings
from llmirage_client.settings.output import ReportSettings
from llmirage_client.settings.run import SEVERAL, first, run_options, shown_settings, with_distinct_conversations
from llmirage_client.settings.scenario import default_seed
from llmirage_client.settings.simulation import SimulationSettings
from llmirage_client.simulate import simulation as simulations
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.simulation import Simulation, SimulationError, Window
from llmirage_client.simulator.cluster_settings import ClusterSettings, cluster_config
from llmirage_client.simulator.deployments import assumed, bands_json
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.traffic import NOT_STEADY, RequestSource, file_source, gradual_start_s, steady_load
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError, InputRefused

_REQUESTS = 1000  # measured in a steady state, if nothing else is asked for
_WARM_UPS = ("warmup_request_count", "num_warmup_sessions", "warmup_duration")


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(ReportSettings, TrafficSettings, SimulationSettings):
    """Settings of `llmirage simulate`."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)


def simulate(
    workload: str | Workload | None,
    settings: SimulateSettings,
    *,
    progress: Callable[..., SimulationProgress] = SimulationProgress,
    stoppable: Callable[[Callable[[str], None]], None] = lambda stop: None,
    with_steps: bool = False,
    with_records: bool = True,
) -> Simulation:
    """Simulate a workload on a cluster.

    progress: makes the progress that is shown. stoppable: see simulation.simulate. with_steps: keep every step, for a
    trace. with_records: see simulation.simulate. Raises ConfigError.
    """
    if several := [name for name in SEVERAL if len(getattr(settings, name) or ()) > 1]:
        flags = (f"--{name.replace('_', '-')}" for name in several)
        raise ConfigError(f"{flag} has several values; use `llmirage sweep` to compare them" for flag in flags)
    if settings.random_seed is None:  # a scenario may draw one, but simulations are to be repeatable
        settings = replace(settings, random_seed=default_seed(settings.scenario))
    config = cluster_config(settings.cluster, settings.random_seed or 0, settings.tokenizer)
    with readable():
        scenario = resolved_scenario(workload, settings)
        settings = scenario.settings
        on_demand = settings.via == "engine" and not settings.steady_state
        loaded = load_of(workload, settings, first(settings.num_conversations) or settings.agents, on_demand=on_demand)
    options = with_distinct_conversations(loaded, run_options(loaded, settings, **scenario.fields))
    loaded, window = for_api(loaded, settings), None
    if settings.steady_state:
        loaded, options, window = _steady(config, loaded, options, settings)
    begins_gradually = False
    if options.of_warm_up() is not None and settings.concurrency_ramp_duration is None:
        ramp_s = gradual_start_s(config, loaded, options)
        begins_gradually = ramp_s > 0
        options = replace(
            options, concurrency_ramp_s=ramp_s, warmup_concurrency_ramp_s=options.warmup_concurrency_ramp_s or 0.0
        )
    cluster = {"cluster_file": settings.cluster.cluster_file, **settings.cluster.overrides}
    shown = {name: value for name, value in (cluster | shown_settings(settings)).items() if value not in (None, (), False)}
    shown["random_seed"] = settings.random_seed  # 0, too
    if options.agents:
        shown["concurrency"] = options.concurrency
    try:
        with readable(), progress(lambda: _expected(loaded, options), settings.max_time) as shown_progress:
            simulation = simulations.simulate(
                config,
                loaded,
                options,
                via=settings.via,
                max_time_s=settings.max_time,
                shown=shown,
                trace=with_steps,
                window=window,
                stoppable=stoppable,
                on_progress=shown_progress.update,
                with_records=with_records,
            )
    except (SimulationError, ConfigError) as error:
        raise InputRefused([str(error)], "simulate") from None
    if note := _measured(settings, options):
        simulation.notes.append(note)
    if begins_gradually:
        simulation.notes.append(
            f"After the warm-up, users begin one by one over {options.concurrency_ramp_s:,.1f} s, about a turn and the "
            "think time after it (--concurrency-ramp-duration)."
        )
    if settings.seeds > 1 and simulation.stopped is None:
        seeds = range(settings.random_seed or 0, (settings.random_seed or 0) + settings.seeds)
        others = [
            simulate(workload, replace(settings, random_seed=seed, seeds=1), progress=progress, stoppable=stoppable)
            for seed in seeds[1:]
        ]
        simulation.seeds = spread_over([one.summary for one in (simulation, *others)])
    return simulation


_SPREAD = ("ttft_ms", "tpot_ms", "latency_ms", "output_tok_per_s", "request_per_s", "cached_token_share", "goodput_per_s")
_SPREAD_STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def spread_over(summaries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean, standard deviation, least and most of the figures that each simulation has."""
    flat = [
        {
            f"{name}.{statistic}" if statistic else name: value
            for name in _SPREAD
            for statistic, value in (summary[name].items() if isinstance(summary[name], dict) else [("", summary[name])])
            if value is not None and statistic in ("", *_SPREAD_STATISTICS)
        }
        for summary in summaries
    ]
    names = [name for name in flat[0] if all(name in figures for figures in flat)]
    columns = {name: np.array([figures[name] for figures in flat]) for name in names}
    return {
        name: {"mean": float(v.mean()), "sd": float(v.std(ddof=1)), "min": float(v.min()), "max": float(v.max())}
        for name, v in columns.items()
    }


def _steady(
    config: ClusterConfig, workload: Workload, options: RunOptions, settings: SimulateSettings
) -> tuple[Workload, RunOptions, Window]:
    """Return the load in its steady state, and the window that is measured. Raises ConfigError."""
    ended = ("num_conversations", "duration", "benchmark_duration", "concurrency_ramp_duration", *_WARM_UPS)
    if given := [f"--{name.replace('_', '-')}" for name in ended if getattr(settings, name)]:
        raise ConfigError([f"--steady-state starts and ends the load itself: leave out {', '.join(given)}"])
    if settings.via == "api":
        raise ConfigError(["--steady-state needs --via engine"])
    count = settings.requests or options.request_count or _REQUESTS
    source = file_source(workload)
    if settings.isl is not None:
        source = RequestSource(lambda requests: load_of(None, replace(settings, requests=requests), None), None, "")
    steady = steady_load(config, source, options, count)
    if steady is None:
        raise ConfigError([f"--steady-state: {NOT_STEADY}"])
    return steady


def _measured(settings: SimulateSettings, options: RunOptions) -> str | None:
    """Say which requests count, for loads of which a steady state may be the question."""
    if settings.steady_state:
        return "Measured in the steady state: after the cluster has filled up, while the load is on."
    loaded = options.request_rate_per_s is not None or (options.rates is None and (options.concurrency or 1) > 1)
    if not loaded or settings.isl is None or any(getattr(settings, name) for name in _WARM_UPS):
        return None
    return (
        "All requests count, from the first on an empty cluster to the last; --steady-state measures as many after the "
        "cluster has filled up and while the load is on."
    )


def _expected(workload: Workload, options: RunOptions) -> int | None:
    """Return the number of requests of the run, its warm-up included, if it is known."""
    if workload.on_demand:
        return None
    warm_up = options.of_warm_up()
    counts = [expected_requests(workload, phase) for phase in (options, warm_up) if phase is not None]
    return None if None in counts else sum(count or 0 for count in counts)


def simulation_json(simulation: Simulation, *, steady_state: bool) -> dict[str, Any]:
    """Return the figures of --json."""
    slo = {"slo": verdicts_json(simulation.verdicts)} if simulation.verdicts else {}
    notes = [note for note in simulation.notes if not note.startswith("Assumed")]
    spread = {"seeds": simulation.seeds} if simulation.seeds else {}
    bands = {"bands": bands_json(simulation.band, simulation.summary)}
    about = {"notes": notes, "assumed": assumed(simulation.config), "steady_state": steady_state}
    scenario = {} if simulation.submission is None else {"metadata": simulation.submission.metadata()}
    return slo | simulation.summary | spread | bands | scenario | about
