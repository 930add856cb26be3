"""`llmirage.size`, `sweep` and `calibrate`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmirage._results import Progress, Result, columns_of_rows, progress_stream, workload_of
from llmirage._settings import PathName, settings_from, takes_settings
from llmirage_client.operations import calibrate as calibration
from llmirage_client.operations import size as sizing
from llmirage_client.operations.calibrate import CalibrateSettings, EngineFit, as_json, calibration_blocks
from llmirage_client.operations.size import SizeSettings
from llmirage_client.report.html.page import PageHead, Section, notes, page, table
from llmirage_client.report.screen import Block
from llmirage_client.settings import ArrivalPattern
from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.size.day import DayReport
from llmirage_client.size.max_rate_report import MaxRateReport
from llmirage_client.size.page import page_of
from llmirage_client.size.report import SizeReport, answer_line
from llmirage_client.sweep import sweep as sweeping
from llmirage_client.sweep.report import blocks, columns_of, records
from llmirage_client.sweep.report import page_of as sweep_page
from llmirage_client.sweep.sweep import Row, Sweep
from llmirage_shared.plural import plural, rounded
from llmirage_shared.settings import ConfigError

if TYPE_CHECKING:
    from llmirage._workload import LoadedWorkload


class SizeResult(Result):
    """The cheapest deployment under objectives: `result.answer` (None: there is none), `result.runners_up`.

    With max_rate what deployments carry: `result.carried`. With day: `result.static`, `result.autoscaled`, `result.hours`.
    """

    def __init__(self, report: SizeReport | MaxRateReport | DayReport) -> None:
        self._report = report

    @property
    def answered(self) -> bool:
        """Whether a deployment meets the objectives."""
        return self._report.answered

    def _data(self) -> Mapping[str, Any]:
        return self._report.json()

    def _columns(self) -> Mapping[str, Any]:
        """One row a deployment, the best first; with day, one an hour."""
        data = self._report.json()
        if "hours" in data:
            return columns_of_rows(data["hours"])
        rows = data["carried"] if "carried" in data else [*filter(None, [data["answer"]]), *data["runners_up"]]
        return columns_of_rows(rows)

    def _page(self, *, brief: bool = False) -> str:
        return page_of(self._report)

    def _blocks(self) -> Iterable[Block]:
        return self._report.blocks()

    def _line(self) -> str:
        report = self._report
        if isinstance(report, DayReport):
            return report.headline
        if isinstance(report, SizeReport):
            return "no deployment" if report.sizing.answer is None else answer_line(report.sizing.answer)
        return (
            ", ".join(f"{report.name(one)} {rounded(trial.amount)} {report.unit}" for one, trial in report.carried)
            or "nothing"
        )


class SweepResult(Result):
    """The points of a study and what came of them: `result.points`, one mapping for each."""

    def __init__(self, done: Sweep, folder: Path | None) -> None:
        self._sweep = done
        self._folder = folder

    @property
    def passed(self) -> bool:
        """Whether every point was done or refused, and one at least was done."""
        return self._sweep.passed

    def _data(self) -> Mapping[str, Any]:
        done = self._sweep
        return {"name": done.study.name, "points": records(done), "wall_s": done.wall_s, "cpu_s": done.cpu_s}

    def _columns(self) -> Mapping[str, Any]:
        """One row a point."""
        return columns_of(self._sweep)

    def _page(self, *, brief: bool = False) -> str:
        return sweep_page(self._sweep)

    def _blocks(self) -> Iterable[Block]:
        return blocks(self._sweep, self._folder, [])

    def _line(self) -> str:
        done = sum(row.status == "ok" for row in self._sweep.rows)
        return f"{self._sweep.study.name}, {done:,} of {plural(len(self._sweep.rows), 'point')} done"


class CalibrationResult(Result):
    """An engine profile fitted to measured runs: `result.factors`, `result.errors_pct`. `save` writes the engine file."""

    def __init__(self, found: EngineFit) -> None:
        self._found = found

    @property
    def engine_file(self) -> str:
        """The engine file's text."""
        return self._found.engine_file

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the engine file, for `engine=path`. Raises OSError."""
        place = Path(path)
        place.write_text(self.engine_file, encoding="utf-8")
        return place

    def _data(self) -> Mapping[str, Any]:
        return as_json(self._found.calibration) | {"deployment": self._found.deployment}

    def _columns(self) -> Mapping[str, Any]:
        """One row a factor."""
        factors = self._data()["factors"]
        return columns_of_rows([{"factor": name, **one} for name, one in factors.items()])

    def _page(self, *, brief: bool = False) -> str:
        data = self._data()
        factors = [
            [name, *("-" if v is None else rounded(v) if isinstance(v, float) else v for v in one.values())]
            for name, one in data["factors"].items()
        ]
        errors = [
            [state, name, f"{one['median']:.1f}", f"{one['p90']:.1f}", f"{one['bias']:+.1f}"]
            for state, found in data["errors_pct"].items()
            for name, one in found.items()
        ]
        sections = [
            Section("Factors", [table(["Factor", "Profile", "Fitted", "+/-", "Why not"], factors, wrap=(4,))]),
            Section(
                "Errors",
                [table(["", "Figure", "Median, %", "p90, %", "Bias, %"], errors, left=2)],
                f"Held out: {data['held_out']}, predicted with factors fitted to the rest.",
            ),
            Section("Notes", [notes(data["notes"])]),
        ]
        return page(
            PageHead("A calibrated engine", {"Deployment": data["deployment"], "Requests": str(data["requests"])}), sections
        )

    def _blocks(self) -> Iterable[Block]:
        return calibration_blocks(self._found.calibration, self._found.deployment, len(self._found.runs))

    def _line(self) -> str:
        return f"{self._found.calibration.requests:,} requests, {self._found.deployment}"


@takes_settings(SizeSettings)
def size(
    workload: PathName | LoadedWorkload | None = None,
    *,
    slo: str,
    progress: Progress = None,
    max_rate: bool | None = None,
    disaggregated: bool | None = None,
    goal: Literal["cost", "gpus"] | None = None,
    price: PathName | None = None,
    gpus: str | Sequence[str] | None = None,
    engines: str | Sequence[str] | None = None,
    weights: str | Sequence[str] | None = None,
    tps: int | Sequence[int] | None = None,
    pps: int | Sequence[int] | None = None,
    dps: int | Sequence[int] | None = None,
    eps: int | Sequence[int] | None = None,
    instances: int | None = None,
    max_gpus: int | None = None,
    runners_up: int | None = None,
    request_rate: float | None = None,
    day: PathName | None = None,
    concurrency: int | None = None,
    arrival_pattern: ArrivalPattern | None = None,
    arrival_smoothness: float | None = None,
    random_seed: int | None = None,
    isl: float | str | None = None,
    osl: float | str | None = None,
    requests: int | None = None,
    turns: float | str | None = None,
    think_time: float | str | None = None,
    shared_prefix: int | None = None,
    max_time: float | None = None,
    cluster: PathName | None = None,
    model: str | None = None,
    perf_model: Literal["roofline", "silicon"] | None = None,
    router: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory_utilization: float | None = None,
    enable_prefix_caching: bool | None = None,
    num_speculative_tokens: int | None = None,
    acceptance_rate: float | None = None,
    format: str | None = None,
    set: Mapping[str, object] | None = None,
) -> SizeResult:
    """Find the cheapest deployment that meets latency objectives under given traffic.

    workload, progress: see `simulate`. slo: such as "ttft_p99<500ms, tpot_p95<30ms".
    gpus, engines, weights, tps, pps, dps, eps: the candidates.
    set: other settings of `llmirage size` by name, such as {"block_size": 32}.

    The settings are those of `llmirage size`, with the same units and limits. Raises ConfigError with all problems.
    """
    settings = settings_from(SizeSettings, locals(), but=("workload", "progress"))
    made = partial(SimulationProgress, stream=progress_stream(progress))
    return SizeResult(sizing.size(workload_of(workload), settings, progress=made))


@takes_settings(SweepSettings)
def sweep(
    study: PathName | Mapping[str, Any],
    *,
    progress: Progress = None,
    workers: int | None = None,
    executor: Literal["processes", "ray"] | None = None,
    ray_address: str | None = None,
    max_time: float | None = None,
    fresh: bool | None = None,
    artifact_dir: PathName | None = None,
    keep_runs: bool | None = None,
) -> SweepResult:
    """Simulate every point of a study and compare them.

    study: a YAML file, bundled:NAME, or a mapping of the same form. progress: see `simulate`.
    artifact_dir: the folder of the results, where an interrupted study continues; without it nothing is kept on disk.

    The settings are those of `llmirage sweep`. Raises ConfigError with all problems.
    """
    settings = settings_from(SweepSettings, locals(), but=("study", "progress"))
    read = sweeping.load_study(study if isinstance(study, Mapping) else os.fspath(study))
    stream = progress_stream(progress)

    def on_point(row: Row, done: int, total: int) -> None:
        stream.write(f"{done:,} of {plural(total, 'point')}, {row.point.name}: {row.status}\n")

    if settings.artifact_dir is not None:
        folder = Path(settings.artifact_dir)
        return SweepResult(sweeping.sweep(read, folder, settings, on_point), folder)
    with tempfile.TemporaryDirectory(prefix="llmirage-") as passing:
        return SweepResult(sweeping.sweep(read, Path(passing), settings, on_point), None)


@takes_settings(CalibrateSettings)
def calibrate(
    *runs: PathName,
    engine_log: PathName | None = None,
    fit: str | Sequence[str] | None = None,
    cluster: PathName | None = None,
    model: str | None = None,
    gpu: str | None = None,
    instances: int | None = None,
    weights: str | None = None,
    perf_model: Literal["roofline", "silicon"] | None = None,
    engine: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    router: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    enable_chunked_prefill: bool | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory_utilization: float | None = None,
    enable_prefix_caching: bool | None = None,
    num_speculative_tokens: int | None = None,
    acceptance_rate: float | None = None,
    set: Mapping[str, object] | None = None,
) -> CalibrationResult:
    """Fit an engine profile to measured runs of one deployment: folders of `run` or AIPerf, or files of other tools.

    fit: factors to fit; None: all that the runs determine. The other settings describe the measured deployment.
    set: other settings of `llmirage calibrate` by name, such as {"block_size": 32}.

    Raises ConfigError with all problems.
    """
    settings = settings_from(CalibrateSettings, locals(), but=("runs",))
    if not runs:
        raise ConfigError(["give at least one measured run"])
    return CalibrationResult(calibration.calibrate([os.fspath(run) for run in runs], settings))
