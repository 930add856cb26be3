"""Settings of simulations, of sweeps over many, and of calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmirage_shared.settings import again, cannot_be_file, cannot_be_folder, switch, under

SIMULATION = "Simulation"
_simulation = under(SIMULATION)


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """Settings of a simulation."""

    via: Literal["engine", "api"] = _simulation(
        "engine",
        "Simulate the engine alone, or the server's whole API in this process: slower, with the same times.",
        usual=True,
    )
    max_time: float | None = _simulation(
        None, "Stop after S seconds of cluster time.", metavar="S", above=0, infinite=True, study=True, usual=True
    )
    steady_state: bool = _simulation(
        False,
        "Measure --requests requests after the cluster has filled up and while the load is on, of conversations that do not "
        "know of each other; needs a request rate or a concurrency, and requests in token counts.",
        study=True,
        flag=True,
    )
    seeds: int = _simulation(
        1, "Simulate with N seeds, --random-seed and those after it, and show the spread of the figures.", least=1, flag=True
    )


class SimulationOutput:
    """Output of `llmirage simulate`."""

    trace: str | None = _simulation(
        None,
        "Write every step and request as a Chrome trace for https://ui.perfetto.dev.",
        metavar="FILE",
        check=cannot_be_file,
        flag=True,
    )
    records: bool | None = _simulation(
        None,
        "Write the records of single requests, too, for `llmirage report` and `compare`: kilobytes each.",
        unset="of up to 10,000 requests",
    )
    json: bool = switch(SIMULATION, "Print only the summary, as JSON; write files only with --artifact-dir.", usual=True)


@dataclass(frozen=True, kw_only=True)
class RouteScoreSettings:
    """Settings of a comparison of routers."""

    routers: str | None = _simulation(
        None, "Routers to compare with, between commas.", metavar="NAMES", unset="all of llmirage's", usual=True
    )
    workload: str | None = _simulation(
        None, "The run's workload: a file, or bundled:NAME.", metavar="FILE", unset="as the run's files name it", usual=True
    )


class RouteScoreOutput:
    """Output of `llmirage route-score`."""

    json: bool = switch(SIMULATION, "Print a JSON object instead of a table.", usual=True)


WORK, OUTPUT = "Execution", "Output"
_work, _output = under(WORK), under(OUTPUT)


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Settings of the execution of a study."""

    workers: int | None = _work(None, "Number of worker processes.", least=1, unset="one per core")
    executor: Literal["processes", "ray"] = _work(
        "processes", "Where points run: processes on this machine, or tasks of a Ray cluster (pip install 'llmirage[ray]')."
    )
    ray_address: str | None = _work(
        None, "Address of the Ray cluster.", metavar="ADDRESS", unset="a running cluster, else a local one"
    )
    max_time: float | None = again(
        SimulationSettings,
        "max_time",
        None,
        "Stop a point after S seconds of cluster time.",
        group=WORK,
        unset="no limit, or the study's max_time",
    )
    fresh: bool = switch(WORK, "Recompute every point, even those already in the results.")
    artifact_dir: str | None = _output(
        None,
        "Folder for results.",
        aliases=("output",),
        metavar="DIR",
        check=cannot_be_folder,
        unset="artifacts/sweep-NAME-OF-THE-FILE",
    )
    keep_runs: bool = switch(OUTPUT, "Write the files of every point's run, for `llmirage report`.")


class SweepOutput:
    """Output of `llmirage sweep`."""

    open: bool = switch(OUTPUT, "Open the page of the results in the browser.")
    json: bool = switch(OUTPUT, "Print only the results, as JSON lines.")


CALIBRATION = "Calibration"
_calibration = under(CALIBRATION)


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Settings of a fit to measured runs."""

    engine_log: str | None = _calibration(
        None,
        "Take flags and the size of the KV cache from the log that vLLM or SGLang wrote at its start.",
        metavar="FILE",
        usual=True,
    )
    fit: tuple[str, ...] = _calibration(
        (),
        "Fit this factor; may be repeated.",
        choices=("decode", "prefill", "host", "front-end"),
        unset="all that the runs determine",
        usual=True,
    )


class CalibrationOutput:
    """Output of `llmirage calibrate`."""

    output: str = _calibration(
        "calibrated.yaml",
        "Engine file to write, to be given as --engine.",
        short="o",
        metavar="FILE",
        check=cannot_be_file,
        usual=True,
    )
    json: bool = switch(CALIBRATION, "Print a JSON object instead of tables.", usual=True)
