"""`llmirage.run` and `run_async`: a workload against an endpoint, at one load or several."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

import numpy as np

from llmirage._results import Progress, Result, columns_of_rows, progress_stream, workload_of
from llmirage._settings import PathName, settings_from, takes_settings
from llmirage_client.measure.catalogue import frame_name
from llmirage_client.measure.request_metrics import all_request_columns, request_facts
from llmirage_client.operations.execute_points import LoadsRun, NextRun, Steps, carried_out
from llmirage_client.operations.one_run import OneRun, Outcome, RunWatch
from llmirage_client.operations.run import requested_run, run_json, steps_of
from llmirage_client.report.console import run_blocks
from llmirage_client.report.html.run_page import run_page, single_page
from llmirage_client.report.html.run_view import RunView, view_run
from llmirage_client.report.load_points import point_row, points_blocks, points_json, read_sweep
from llmirage_client.report.output_files import check_unused
from llmirage_client.report.progress import Progress as RunProgress
from llmirage_client.report.screen import Block
from llmirage_client.settings import ArrivalPattern, EndpointName
from llmirage_client.settings.run import RunSettings
from llmirage_shared.plural import plural, rounded
from llmirage_shared.settings import ConfigError

if TYPE_CHECKING:
    from llmirage._workload import LoadedWorkload


P = ParamSpec("P")
R = TypeVar("R")


class RunReport(Result):
    """What came of a run against an endpoint. Its figures are attributes: `result.ttft_ms.p99`, `result.requests`."""

    def __init__(self, outcome: Outcome, passing: tempfile.TemporaryDirectory[str] | None) -> None:
        """Hold the outcome. passing: a folder that is deleted with the result."""
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
        """Return the folder, as in `llmirage.calibrate(result)`."""
        return str(self.folder)

    @cached_property
    def _view(self) -> RunView:
        return view_run(self._outcome.result)

    def _data(self) -> Mapping[str, Any]:
        return run_json(self._outcome)

    def _columns(self) -> Mapping[str, Any]:
        """One row a request, in the order of their start."""
        columns = self._view.columns
        facts = request_facts(columns) | {"start_s": self._view.start_s}
        values = all_request_columns(columns, self._outcome.result.speed, self._outcome.result.options)
        return facts | {frame_name(tag): one for tag, one in values.items() if not np.isnan(one).all()}

    def _page(self, *, brief: bool = False) -> str:
        return single_page(self._view, brief=brief)

    def _blocks(self) -> Iterable[Block]:
        return run_blocks(self._outcome.result, self._outcome.metrics, ())

    def _line(self) -> str:
        found = self._data()
        ttft = found["ttft_ms"]
        parts = [plural(found["requests"], "request"), f"{found['failed_requests']:,} failed"]
        parts += [f"TTFT p50 {rounded(ttft['p50'])} ms"] if ttft else []
        return ", ".join(parts)


class RunSweep(Result):
    """What came of a run at several loads, or of a search for the highest that meets objectives (`find_max`).

    Its figures are those of sweep.json: `result.summary["points"]`. A frame has a row for each load.
    """

    def __init__(
        self, done: LoadsRun, outcomes: Sequence[Outcome], passing: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        """outcomes: of each point. passing: see RunReport."""
        self._done = done
        self._points = [RunReport(outcome, passing) for outcome in outcomes]

    @property
    def runs(self) -> list[RunReport]:
        """In the order in which they were made."""
        return list(self._points)

    @property
    def loads(self) -> list[float]:
        """Of each of `runs`: its concurrency or request rate, as `variable` says."""
        return [result.load for result in self._done.results]

    @property
    def best(self) -> RunReport | None:
        """The run at the highest load that met the objectives of `find_max`; None where none did, or without a search."""
        answer = self._done.answer
        return None if answer is None or answer.best is None else self._points[-1 - self.loads[::-1].index(answer.best)]

    @property
    def passed(self) -> bool:
        """As the exit status of the command: no request failed and objectives are met; or the search has an answer."""
        return self._done.status == 0

    @property
    def notes(self) -> list[str]:
        """What one must know to read the figures; each of `runs` has its own."""
        return list(self._done.notes)

    @property
    def folder(self) -> Path:
        """sweep.json, sweep.csv and a folder for each run: artifact_dir, else a folder that is removed with the result."""
        return self._points[0].folder.parent

    def __fspath__(self) -> str:
        return str(self.folder)

    def _data(self) -> Mapping[str, Any]:
        return points_json(self._done.results, self._done.notes, self._done.answer)

    def _columns(self) -> Mapping[str, Any]:
        """One row a load."""
        return columns_of_rows([point_row(result, frame_name) for result in self._done.results])

    def _page(self, *, brief: bool = False) -> str:
        named = [(one.folder.name, one._outcome.result) for one in self._points]
        return run_page(named, sweep=read_sweep(self.folder))

    def _blocks(self) -> Iterable[Block]:
        done = self._done
        return points_blocks(done.title, done.results, done.notes, done.answer, [])

    def _line(self) -> str:
        what = self._done.results[0].variable.replace("_", " ")
        loads = f"{what} {', '.join(f'{load:g}' for load in self.loads)}"
        return loads if self._done.answer is None else f"{loads}; {self._done.answer}"


Made = Generator[NextRun, Outcome, RunReport | RunSweep]


@takes_settings(RunSettings)
def run(
    workload: PathName | LoadedWorkload | None = None,
    *,
    progress: Progress = None,
    url: str | Sequence[str] | None = None,
    model: str | None = None,
    api_key: str | None = None,
    header: str | Sequence[str] | Mapping[str, str] | None = None,
    endpoint_type: EndpointName | None = None,
    endpoint_path: str | None = None,
    streaming: bool | None = None,
    extra_inputs: str | Sequence[str] | Mapping[str, object] | None = None,
    request_timeout_seconds: float | None = None,
    isl: float | str | None = None,
    osl: float | str | None = None,
    isl_stddev: float | None = None,
    osl_stddev: float | None = None,
    requests: int | None = None,
    turns: float | str | None = None,
    think_time: float | str | None = None,
    shared_prefix: int | None = None,
    format: str | None = None,
    tokenizer: str | None = None,
    concurrency: int | Sequence[int] | None = None,
    agents: int | None = None,
    request_rate: float | Sequence[float] | None = None,
    arrival_pattern: ArrivalPattern | None = None,
    arrival_smoothness: float | None = None,
    user_centric_rate: float | None = None,
    num_users: int | None = None,
    fixed_schedule: bool | None = None,
    random_seed: int | None = None,
    vary: bool | None = None,
    request_count: int | Sequence[int] | None = None,
    num_conversations: int | Sequence[int] | None = None,
    duration: float | None = None,
    benchmark_duration: float | None = None,
    warmup_request_count: int | None = None,
    speed: float | None = None,
    slo: str | None = None,
    goodput: str | None = None,
    find_max: str | None = None,
    find_max_upper_bound: float | None = None,
    executor: Literal["process", "ray"] | None = None,
    workers: int | None = None,
    artifact_dir: PathName | None = None,
    overwrite: bool | None = None,
    set: Mapping[str, object] | None = None,
) -> RunReport | RunSweep:
    """Run a workload against an endpoint.

    workload, progress: see `simulate`. Several loads (`concurrency=[1, 2, 4]`) and `find_max` make a RunSweep.
    artifact_dir: the folder of the files; without it nothing stays on disk.
    set: other settings of `llmirage run` by name, such as {"retries": 2}.

    The settings are those of `llmirage run`, with the same units and limits. Raises ConfigError with all problems, also for
    an endpoint that cannot be asked.
    """
    steps = _steps(workload, progress, settings_from(RunSettings, locals(), but=("workload", "progress")))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return carried_out(steps)
    with ThreadPoolExecutor(1, "llmirage-run") as pool:  # a notebook has a loop of its own
        return pool.submit(carried_out, steps).result()


def _with_the_signature_of(
    function: Callable[P, R],
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Give an asynchronous function the parameters of another function, and what `help()` says of them."""

    def decorate(asynchronous: Callable[..., Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        asynchronous.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        if asynchronous.__doc__ and function.__doc__:
            arguments = inspect.cleandoc(function.__doc__).partition("\n\n")[2]
            asynchronous.__doc__ = f"{inspect.cleandoc(asynchronous.__doc__)}\n\n{arguments}"
        return asynchronous

    return decorate


@_with_the_signature_of(run)
async def run_async(
    workload: PathName | LoadedWorkload | None = None, *, progress: Progress = None, **settings: Any
) -> RunReport | RunSweep:
    """Run as `run` does, on the caller's event loop; the measured times include other work of the loop.

    Cancelling it ends the run.
    """
    steps, outcome = _steps(workload, progress, settings_from(RunSettings, settings)), None
    while True:
        try:
            step = next(steps) if outcome is None else steps.send(outcome)
        except StopIteration as end:
            return cast("RunReport | RunSweep", end.value)
        await asyncio.sleep(step.pause_s)
        outcome = step.run.outcome(await step.run())


def _steps(workload: PathName | LoadedWorkload | None, progress: Progress, chosen: RunSettings) -> Made:
    """Return the generator of the runs that are asked for, and of their result. Raises ConfigError."""
    if chosen.audit is not None:
        raise ConfigError(["audit: only the command `llmirage run` has it"])
    check_unused(chosen.artifact_dir, chosen.overwrite)
    requested = requested_run(workload_of(workload), chosen)
    passing = None
    if chosen.artifact_dir is None:
        passing = tempfile.TemporaryDirectory(prefix="llmirage-", ignore_cleanup_errors=True)
        chosen = replace(chosen, artifact_dir=passing.name)
    folder = Path(str(chosen.artifact_dir))
    stream = progress_stream(progress)
    watch = RunWatch(partial(RunProgress, stream=stream), lambda run: lambda: None, owner=False)
    if requested.points or requested.search:
        said = partial(print, file=stream)
        return _several(steps_of(requested, chosen, watch, said, said), passing)
    return _single(requested.one_run(lambda _: folder, watch), passing)


def _single(one: OneRun, passing: tempfile.TemporaryDirectory[str] | None) -> Made:
    return RunReport((yield NextRun(one)), passing)


def _several(steps: Steps, passing: tempfile.TemporaryDirectory[str] | None) -> Made:
    outcomes: list[Outcome] = []
    try:
        step = next(steps)
        while True:
            outcomes.append((yield step))
            step = steps.send(outcomes[-1])
    except StopIteration as end:
        return RunSweep(end.value, outcomes, passing)
