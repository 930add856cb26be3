"""`llmirage.run` and `run_async`: a workload against an endpoint."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmirage._commands import parsed
from llmirage._notebook import Progress, progress_stream
from llmirage._results import Result, workload_of
from llmirage_client.commands.actions.one_run import OneRun, Outcome, RunWatch
from llmirage_client.commands.actions.output import check_unused
from llmirage_client.commands.actions.run import as_json, asked_run
from llmirage_client.load.event_loop import run_on_best_loop
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.report.console import run_blocks
from llmirage_client.report.html.run_page import single_page
from llmirage_client.report.html.run_view import RunView, view_run
from llmirage_client.report.progress import Progress as RunProgress
from llmirage_client.report.screen import Block
from llmirage_shared.settings import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from llmirage._options import RunOptions
    from llmirage._workload import LoadedWorkload


class RunReport(Result):
    """What came of a run against an endpoint. Its figures are attributes: `result.ttft_ms.p99`, `result.requests`."""

    def __init__(self, outcome: Outcome, passing: tempfile.TemporaryDirectory[str] | None) -> None:
        """passing: a folder that goes when nobody needs the result."""
        self._outcome = outcome
        self._passing = passing

    @property
    def passed(self) -> bool:
        """Whether it came to its end, no request failed (unless objectives say how many may), and objectives are met."""
        return self._outcome.status == 0

    @property
    def notes(self) -> list[str]:
        """What one must know to read the figures."""
        return list(self._outcome.result.notes)

    @property
    def folder(self) -> Path:
        """The files of the run: artifact_dir, else a folder that is removed with the result."""
        return self._outcome.files[0].parent

    def __fspath__(self) -> str:
        """The folder: `llmirage.calibrate(result)`."""
        return str(self.folder)

    @cached_property
    def _view(self) -> RunView:
        return view_run(self._outcome.result)

    def _data(self) -> Mapping[str, Any]:
        return as_json(self._outcome)

    def _columns(self) -> Mapping[str, Any]:
        """One row a request, in the order of their start."""
        columns = self._view.columns
        told = {
            "start_s": self._view.start_s,
            "conversation": columns.conversation,
            "turn": columns.turn_index,
            "ok": columns.ok,
        }
        values = request_columns(columns, self._outcome.result.speed)
        return told | {name: one for name, one in values.items() if not np.isnan(one).all()}

    def _page(self, *, brief: bool = False) -> str:
        return single_page(self._view, brief=brief)

    def _blocks(self, width: int) -> Iterable[Block]:
        return run_blocks(self._outcome.result, self._outcome.metrics, (), width)

    def _line(self) -> str:
        found = self._data()
        ttft = found["ttft_ms"]
        parts = [f"{found['requests']:,} requests", f"{found['failed_requests']:,} failed"]
        parts += [f"TTFT p50 {ttft['p50']:.4g} ms"] if ttft else []
        return ", ".join(parts)


def run(
    workload: str | os.PathLike[str] | LoadedWorkload | None = None,
    *,
    progress: Progress = None,
    **settings: Unpack[RunOptions],
) -> RunReport:
    """Run a workload against an endpoint.

    Settings are those of `llmirage run`, by the names of its options; without artifact_dir nothing stays on disk. One load
    a call. workload, progress: see `simulate`. Raises ConfigError with all problems, also for an endpoint that cannot be
    asked.
    """
    asked, passing = _asked(workload, progress, settings)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return RunReport(asked.outcome(run_on_best_loop(asked)), passing)
    with ThreadPoolExecutor(1, "llmirage-run") as pool:  # a notebook has a loop of its own
        return RunReport(asked.outcome(pool.submit(run_on_best_loop, asked).result()), passing)


async def run_async(
    workload: str | os.PathLike[str] | LoadedWorkload | None = None,
    *,
    progress: Progress = None,
    **settings: Unpack[RunOptions],
) -> RunReport:
    """`run` on the caller's event loop; what else happens there is in the measured times. Cancelling it ends the run."""
    asked, passing = _asked(workload, progress, settings)
    return RunReport(asked.outcome(await asked()), passing)


def _asked(
    workload: str | os.PathLike[str] | LoadedWorkload | None, progress: Progress, settings: Mapping[str, Any]
) -> tuple[OneRun, tempfile.TemporaryDirectory[str] | None]:
    """The run, and its folder, if that is not to stay. Raises ConfigError."""
    given = parsed("run", (), settings)
    given.pop("file")
    check_unused(given)
    asked = asked_run(workload_of(workload), given)
    if asked.points:
        raise ConfigError([f"{asked.points[0].variable}: one load a call; call run for each of them"])
    asked = asked.one()
    passing = None if given["artifact_dir"] else tempfile.TemporaryDirectory(prefix="llmirage-", ignore_cleanup_errors=True)
    folder = Path(given["artifact_dir"] if passing is None else passing.name)
    watch = RunWatch(partial(RunProgress, stream=progress_stream(progress)), lambda run: lambda: None, owner=False)
    one = OneRun(asked.workload, asked.options, asked.endpoint, lambda _: folder, asked.shown, asked.spread, watch)
    return one, passing
