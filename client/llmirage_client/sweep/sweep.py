"""A study simulated: every point once, results on disk at once, and only what is missing when it is started again.

Points are worked out here, in processes of this machine, or on a Ray cluster.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar

from llmirage_client.settings.simulation import SweepSettings
from llmirage_client.simulate.simulation import own_process
from llmirage_client.sweep.file import Study, StudyPoint, read_study, study_path
from llmirage_client.sweep.point import Task, key_of, measured_steadily, problems_of, work
from llmirage_client.workers.job import CrewError, usable_cpus
from llmirage_client.workers.ray_cluster import connect
from llmirage_shared.settings import ConfigError, InputRefused

RESULTS_FILE = "results.jsonl"
_FINAL = ("ok", "refused", "stopped")  # a point that failed is tried again

OnPoint = Callable[["Row", int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A point and what came of it. figures: see sweep_point.figures_of; empty unless there is something to tell."""

    point: StudyPoint
    status: str
    reason: str
    figures: dict[str, Any]
    series: dict[str, list[float]]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """rows: in the order of the points. reused: the number of rows kept from an earlier start."""

    study: Study
    rows: tuple[Row, ...]
    reused: int
    wall_s: float
    cpu_s: float

    @property
    def passed(self) -> bool:
        """True if every point was done or refused, and one at least was done."""
        statuses = {row.status for row in self.rows}
        return "ok" in statuses and not statuses & {"failed", "stopped"}


def load_study(given: str | Mapping[str, Any]) -> Study:
    """Read a study from a file or from data of the same form. Raises ConfigError."""
    try:
        study = read_study(study_path(given) if isinstance(given, str) else given)
    except ConfigError as error:
        raise InputRefused([str(error)], "sweep") from None
    if problems := problems_of(study.points):
        raise InputRefused(["\n".join(problems)], "sweep")
    return study


def sweep(study: Study, folder: Path, settings: SweepSettings, on_point: OnPoint) -> Sweep:
    """Simulate all points that have no result in the folder yet.

    on_point: gets (row, done, total) as points are done. Raises ConfigError, OSError.
    """
    try:
        executor = executor_of(settings)
    except CrewError as error:
        raise InputRefused([str(error)], "sweep") from None
    begun_s = time.perf_counter()
    study = measured_steadily(study)
    folder.mkdir(parents=True, exist_ok=True)
    max_time_s, runs, program = settings.max_time, settings.keep_runs, version("llmirage")
    keys = {point.number: key_of(point, max_time_s, program) for point in study.points}
    path = folder / RESULTS_FILE
    if settings.fresh:
        path.unlink(missing_ok=True)
    known = dict(_known(path))
    rows: dict[int, Row] = {}
    missing: list[StudyPoint] = []
    for point in study.points:
        found = known.get(keys[point.number])
        there = not runs or (folder / run_folder(point)).exists() or point.refused
        if found is not None and there:
            rows[point.number] = _row(point, found)
        else:
            missing.append(point)
    reused = len(rows)
    total = len(study.points)
    with path.open("a+", encoding="utf-8") as file:
        _end_line(path, file)

        def keep(point: StudyPoint, result: dict[str, Any]) -> None:
            line = {"key": keys[point.number], "name": point.name, **result}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            rows[point.number] = _row(point, result)
            on_point(rows[point.number], len(rows), total)

        for point in missing:
            if point.refused:
                keep(point, {"status": "refused", "reason": point.refused})
        possible = [(point, point.config) for point in missing if point.config is not None]
        tasks = [
            Task(config, point.load, max_time_s, str(folder / run_folder(point)) if runs else None)
            for point, config in possible
        ]
        for index, result in executor.map(work, tasks):
            dead = {"status": "failed", "reason": str(result)}
            keep(possible[index][0], dead if isinstance(result, WorkerDied) else result)
    ordered = tuple(rows[point.number] for point in study.points)
    cpu_s = sum(row.cpu_s for row in ordered)
    return Sweep(study, ordered, reused, time.perf_counter() - begun_s, cpu_s)


def _end_line(path: Path, file: TextIO) -> None:
    """End a line that was cut off, so that the next is a line of its own."""
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        file.write("\n")


def run_folder(point: StudyPoint) -> str:
    """Return a name that sorts as the points do."""
    return f"runs/point_{point.number:04d}"


def _row(point: StudyPoint, result: dict[str, Any]) -> Row:
    return Row(
        point,
        result["status"],
        result["reason"],
        result.get("figures", {}),
        result.get("series", {}),
        result.get("cpu_s", 0.0),
    )


def _known(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield results of earlier starts by key; a line that was cut off, by a kill or a full disk, is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            result = json.loads(line)
            if result["status"] in _FINAL:
                yield result["key"], result
        except (ValueError, KeyError, TypeError):
            continue


Item = TypeVar("Item")
Result = TypeVar("Result")

_starting = threading.Lock()
_WARM = ["llmirage_client.sweep.point"]  # imported once, in the server that forks the workers


class WorkerDied(RuntimeError):
    """A process ended before its work was done: killed, or out of memory."""


def executor_of(settings: SweepSettings) -> Processes | RayTasks:
    """Return what works out the points. Raises CrewError if Ray is missing."""
    if settings.executor == "ray":
        return RayTasks(connect(settings.ray_address), settings.workers)
    return Processes(settings.workers or usable_cpus())


class Processes:
    """Processes that are forked from one which has imported everything; spawned where that cannot be.

    A single worker, and a single item, need no process but this one.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            multiprocessing.set_forkserver_preload(_WARM)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result | WorkerDied]]:
        """Yield (index, result) as they come. What a function raises is raised here."""
        if min(len(items), self._workers) < 2:
            yield from enumerate(map(function, items))
            return
        left = dict(enumerate(items))
        while left:  # again without the items that killed their process
            yield from self._round(function, left)

    def _round(self, function: Callable[[Item], Result], left: dict[int, Item]) -> Iterator[tuple[int, Result | WorkerDied]]:
        """Take from `left` what is done. When a process dies, those under way are done again, each in a process alone."""
        workers = min(self._workers, len(left))
        pool = ProcessPoolExecutor(workers, mp_context=self._context, initializer=own_process)
        waiting = iter(list(left.items()))
        running: dict[Future[Result], int] = {}
        suspects: list[int] = []
        try:
            while not suspects:
                for index, item in waiting:
                    with _main_left_out():
                        running[pool.submit(function, item)] = index
                    if len(running) >= workers:
                        break
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    index = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        suspects.append(index)
                        continue
                    del left[index]
                    yield index, result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for index in (*suspects, *running.values()):
            yield index, self._alone(function, left.pop(index))

    def _alone(self, function: Callable[[Item], Result], item: Item) -> Result | WorkerDied:
        with ProcessPoolExecutor(1, mp_context=self._context, initializer=own_process) as pool:
            with _main_left_out():
                future = pool.submit(function, item)
            try:
                return future.result()
            except BrokenProcessPool:
                return WorkerDied("its process died: killed, or out of memory")


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Workers that start do not import the caller's program, of which they need nothing and which may start this sweep."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    with _starting:
        kept: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main["__spec__"] = None
        main.pop("__file__", None)
        try:
            yield
        finally:
            main.update(kept)


class RayTasks:
    """Tasks of a Ray cluster, of one CPU each."""

    def __init__(self, ray: Any, workers: int | None) -> None:
        self._ray = ray
        self._most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result | WorkerDied]]:
        ray = self._ray
        task = ray.remote(num_cpus=1)(function)
        waiting = iter(list(enumerate(items)))
        running: dict[Any, int] = {}
        while True:
            while len(running) < self._most and (pair := next(waiting, None)) is not None:
                running[task.remote(pair[1])] = pair[0]
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1)
            index = running.pop(ready[0])
            try:
                yield index, ray.get(ready[0])
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError):
                yield index, WorkerDied("its Ray worker died: killed, or out of memory")
