"""`llmirage.size`, `sweep` and `calibrate`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmirage._commands import parsed
from llmirage._notebook import Progress, progress_stream
from llmirage._results import Result, columns_of_rows, workload_of
from llmirage_client.calibrate.table import as_json, calibration_blocks
from llmirage_client.operations import calibrate as calibration
from llmirage_client.operations import size as sizing
from llmirage_client.operations import sweep as sweeping
from llmirage_client.operations.calibrate import CalibrateSettings, EngineFit
from llmirage_client.operations.size import SizeSettings
from llmirage_client.report.html.page import PageHead, Section, notes, page, table
from llmirage_client.report.screen import Block
from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulator.cluster_flags import SHAPE_SETTINGS
from llmirage_client.simulator.cluster_settings import ClusterSettings
from llmirage_client.size.max_rate_report import MaxRateReport
from llmirage_client.size.page import page_of
from llmirage_client.size.report import SizeReport, answer_line
from llmirage_client.sweep.page import page_of as sweep_page
from llmirage_client.sweep.sweep import Row, Sweep
from llmirage_client.sweep.table import blocks, columns_of, records
from llmirage_shared.settings import instance_of

if TYPE_CHECKING:
    from typing import Unpack

    from llmirage._options import CalibrateOptions, SizeOptions, SweepOptions
    from llmirage._workload import LoadedWorkload


class SizeResult(Result):
    """The cheapest deployment under objectives: `result.answer` (None: there is none), `result.runners_up`.

    With max_rate what deployments carry: `result.carried`.
    """

    def __init__(self, report: SizeReport | MaxRateReport) -> None:
        self._report = report

    @property
    def answered(self) -> bool:
        """Whether a deployment meets the objectives."""
        return self._report.answered

    def _data(self) -> Mapping[str, Any]:
        return self._report.json()

    def _columns(self) -> Mapping[str, Any]:
        """One row a deployment, the best first."""
        data = self._report.json()
        rows = data["carried"] if "carried" in data else [*filter(None, [data["answer"]]), *data["runners_up"]]
        return columns_of_rows(rows)

    def _page(self, *, brief: bool = False) -> str:
        return page_of(self._report)

    def _blocks(self, width: int) -> Iterable[Block]:
        return self._report.blocks()

    def _line(self) -> str:
        report = self._report
        if isinstance(report, SizeReport):
            return "no deployment" if report.sizing.answer is None else answer_line(report.sizing.answer)
        return (
            ", ".join(f"{report.name(one)} {trial.amount:,.4g} {report.unit}" for one, trial in report.carried) or "nothing"
        )


class SweepResult(Result):
    """The points of a study and what came of them: `result.points`, one mapping for each."""

    def __init__(self, done: Sweep, folder: Path | None) -> None:
        self._sweep = done
        self._folder = folder

    @property
    def passed(self) -> bool:
        """Whether every point was done or refused, and one at least was done."""
        statuses = {row.status for row in self._sweep.rows}
        return "ok" in statuses and not statuses & {"failed", "stopped"}

    def _data(self) -> Mapping[str, Any]:
        done = self._sweep
        return {"name": done.study.name, "points": records(done), "wall_s": done.wall_s, "cpu_s": done.cpu_s}

    def _columns(self) -> Mapping[str, Any]:
        """One row a point."""
        return columns_of(self._sweep)

    def _page(self, *, brief: bool = False) -> str:
        return sweep_page(self._sweep)

    def _blocks(self, width: int) -> Iterable[Block]:
        return blocks(self._sweep, self._folder, [])

    def _line(self) -> str:
        done = sum(row.status == "ok" for row in self._sweep.rows)
        return f"{self._sweep.study.name}, {done:,} of {len(self._sweep.rows):,} points done"


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
            [name, *("-" if v is None else f"{v:.4g}" if isinstance(v, float) else v for v in one.values())]
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

    def _blocks(self, width: int) -> Iterable[Block]:
        return calibration_blocks(self._found.calibration, self._found.deployment, len(self._found.runs))

    def _line(self) -> str:
        return f"{self._found.calibration.requests:,} requests, {self._found.deployment}"


def size(
    workload: str | os.PathLike[str] | LoadedWorkload | None = None,
    *,
    progress: Progress = None,
    **settings: Unpack[SizeOptions],
) -> SizeResult:
    """Find the cheapest deployment that meets latency objectives under given traffic.

    Settings are those of `llmirage size`, by the names of its options. workload, progress: see `simulate`.
    Raises ConfigError with all problems.
    """
    given = parsed("size", (), settings)
    chosen = instance_of(SizeSettings, given, cluster=ClusterSettings.of(given, but=SHAPE_SETTINGS))
    made = partial(SimulationProgress, stream=progress_stream(progress))
    return SizeResult(sizing.size(workload_of(workload), chosen, progress=made))


def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any], *, progress: Progress = None, **settings: Unpack[SweepOptions]
) -> SweepResult:
    """Simulate every point of a study and compare them.

    study: a YAML file, bundled:NAME, or a mapping as such a file has it. Settings are those of `llmirage sweep`, by the
    names of its options; without artifact_dir nothing is kept on disk. progress: see `simulate`.
    Raises ConfigError with all problems.
    """
    read = sweeping.load_study(study if isinstance(study, Mapping) else os.fspath(study))
    chosen = instance_of(SweepSettings, parsed("sweep", [read.name], settings))
    stream = progress_stream(progress)

    def on_point(row: Row, done: int, total: int) -> None:
        stream.write(f"{done:,} of {total:,} points, {row.point.name}: {row.status}\n")

    if chosen.artifact_dir is not None:
        folder = Path(chosen.artifact_dir)
        return SweepResult(sweeping.sweep(read, folder, chosen, on_point), folder)
    with tempfile.TemporaryDirectory(prefix="llmirage-") as passing:
        return SweepResult(sweeping.sweep(read, Path(passing), chosen, on_point), None)


def calibrate(*runs: str | os.PathLike[str], **settings: Unpack[CalibrateOptions]) -> CalibrationResult:
    """Fit an engine profile to measured runs of one deployment: folders of `run` or AIPerf, or files of other tools.

    Settings are those of `llmirage calibrate`, by the names of its options: they describe the measured deployment.
    Raises ConfigError with all problems.
    """
    given = parsed("calibrate", runs, settings)
    chosen = instance_of(CalibrateSettings, given, cluster=ClusterSettings.of(given))
    return CalibrationResult(calibration.calibrate(given["runs"], chosen))
