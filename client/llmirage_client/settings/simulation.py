"""Settings of simulations, of sweeps over many, of calibrations and of sizing."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any, Literal

from llmirage_client.settings import ArrivalPattern
from llmirage_client.settings.load import SCENARIO, LoadSettings
from llmirage_shared.settings import again, at_call, cannot_be_file, cannot_be_folder, is_no_file, switch, under

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


GOAL, SHAPES, TRAFFIC = "Objective", "Candidate deployments", "Traffic"
_goal, _shapes, _of_day = under(GOAL), under(SHAPES), under(TRAFFIC)
_traffic = partial(again, LoadSettings, group=TRAFFIC)


def _names(value: Any) -> tuple[str, ...]:
    """Words between commas."""
    names = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
    if not all(names):
        raise ValueError(f"{value!r} has an empty name (two commas?)")
    return names


_several_names = partial(_shapes, None, read=_names, metavar="NAME[,NAME...]")
_sizes = partial(_shapes, None, several=True, least=1, metavar="N[,N...]")


@dataclass(frozen=True, kw_only=True)
class SizingSettings:
    """Settings of the objective, the candidate deployments and the traffic."""

    slo: str = _goal(
        MISSING,
        'Objectives, such as "ttft_p99<500ms, tpot_p95<30ms".',
        metavar="OBJECTIVES",
        study=True,
        usual=True,
        joined=True,
    )
    max_rate: bool = switch(
        GOAL,
        "Find the highest traffic that --instances of each candidate sustain, instead of the number of instances.",
        usual=True,
    )
    disaggregated: bool = switch(
        GOAL, "Also find separate prefill and decode instances, their shapes and numbers.", usual=True
    )
    goal: Literal["cost", "gpus"] | None = _goal(
        None, "Minimize cost, or the number of GPUs.", unset="cost if the price of every GPU is known", flag=True
    )
    price: str | None = _goal(
        None,
        "YAML file of prices, with lines such as `h100_sxm: 2.10`: USD per GPU hour.",
        metavar="FILE",
        check=is_no_file,
        unset="the catalogue's",
        flag=True,
    )
    gpus: tuple[str, ...] | None = _several_names(
        "GPUs: names from `llmirage catalog gpus`, or YAML files.",
        aliases=("gpu",),
        unset="that of --cluster, else the default of `llmirage serve`",
        usual=True,
        names=at_call("llmirage_server.perf.engines.lookup:gpu_names"),
    )
    engines: tuple[str, ...] | None = _several_names(
        "Serving engines.",
        aliases=("engine",),
        usual=True,
        names=at_call("llmirage_server.perf.engines.lookup:engine_names"),
    )
    weights: tuple[str, ...] | None = _several_names(
        "Weight formats: auto (as the model is published), bf16, fp8, fp8_block, int8, int4, mxfp4 or nvfp4.",
        metavar="FORMAT[,FORMAT...]",
        usual=True,
    )
    tps: tuple[int, ...] | None = _sizes(
        "Tensor-parallel sizes.",
        aliases=("tp", "tensor_parallel_size"),
        unset="1, 2, 4 and 8, as far as they fit",
        usual=True,
    )
    pps: tuple[int, ...] | None = _sizes(
        "Pipeline-parallel sizes.",
        aliases=("pp", "pipeline_parallel_size"),
        unset="1; 2 or 4 if nothing else fits",
        flag=True,
    )
    dps: tuple[int, ...] | None = _sizes(
        "Attention data-parallel sizes, for mixture-of-experts models.",
        aliases=("dp", "data_parallel_size"),
        unset="those that suit the other sizes",
        flag=True,
    )
    eps: tuple[int, ...] | None = _sizes(
        "Expert-parallel sizes.", aliases=("ep", "expert_parallel_size"), unset="1, and all GPUs of an instance", flag=True
    )
    instances: int | None = _shapes(
        None,
        "Number of instances, with --max-rate.",
        least=1,
        unset="that of --cluster, else the default of `llmirage serve`",
        flag=True,
    )
    max_gpus: int = _shapes(1024, "Most GPUs of an answer.", least=1, flag=True)
    runners_up: int = _shapes(2, "Number of further deployments to show beside the answer.", least=0)
    request_rate: float | None = _traffic(
        "request_rate", None, "Turns of root conversations per second.", metavar="R", usual=True
    )
    day: str | None = _of_day(
        None,
        "Hourly rates, for GPU-hours of static and autoscaled deployments: a table (CSV, YAML, JSON), a trace, or "
        "office-hours, two-regions or batch-at-night with --request-rate at its highest.",
        metavar="FILE|SHAPE",
        usual=True,
    )
    concurrency: int | None = _traffic(
        "concurrency", None, "Root conversations in progress at a time, instead of a rate.", usual=True
    )
    arrival_pattern: ArrivalPattern | None = _traffic(
        "arrival_pattern",
        None,
        "Distribution of the gaps between arrivals at a rate.",
        unset="poisson; gamma with arrival_smoothness",
        carried=True,
    )
    arrival_smoothness: float | None = _traffic(
        "arrival_smoothness",
        None,
        "Shape of the gamma distribution: below 1 bursty, 1 is poisson, above 1 more regular.",
        aliases=("burstiness",),
        carried=True,
    )
    benchmark_duration: float | None = _traffic(
        "benchmark_duration",
        None,
        "Duration of the scenario's profile.",
        group=SCENARIO,
        metavar="S",
        unset="the scenario's",
        carried=True,
    )
    random_seed: int | None = _traffic("random_seed", None, "Seed of the simulations.", unset="0; 42 for agentx", flag=True)

    explain: bool = _output(
        False, "Tell all that is left out, with the arithmetic of the memory that does not suffice.", flag=True
    )
    max_time: float | None = again(
        SimulationSettings, "max_time", None, "Stop a simulation after S seconds of cluster time.", group=OUTPUT
    )


class SizingOutput:
    """Output of `llmirage size`."""

    json: bool = switch(OUTPUT, "Print only the answer, as JSON.", usual=True)
    html: str | None = _output(None, "Write the answer as an HTML page.", metavar="FILE", check=cannot_be_file, usual=True)
    open: bool = switch(
        OUTPUT, "Write the page, by default into a folder of artifacts, and open it in the browser.", usual=True
    )
