"""A sweep over several loads, and the search for the highest load that meets an objective.

Both are generators that yield the run to be carried out next, are told its outcome, and return what came of all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import run_name
from llmirage_client.load.runner import run_on_best_loop
from llmirage_client.load.saturation import falls_behind, gains_nothing, latency_exploded, rate_not_reached
from llmirage_client.measure.load_points import LOOKS, PointResult, PooledVerdict, SearchAnswer, least_requests, point_name
from llmirage_client.measure.slo import MISSED, Objective, judge
from llmirage_client.operations.one_run import INTERRUPTED, OneRun, Outcome, RefusedError, RunPlan, RunWatch
from llmirage_client.report.load_points import forget_points, one_line, write_points
from llmirage_client.report.output_files import new_folder
from llmirage_client.settings import Variable
from llmirage_client.workload.session import Workload
from llmirage_client.workload.summary import requests_by_root
from llmirage_shared.plural import plural

PROBE_REQUESTS = 100  # so that a 99th percentile means something
PROBE_S = 30.0
_PROBE_ROUNDS = 2  # conversations in each slot


@dataclass(slots=True, frozen=True)
class Point:
    """One load. number: its place in the sweep or search, from 1. conversations, requests, duration_s: its own limits."""

    variable: Variable
    load: float
    number: int
    conversations: int | None = None
    requests: int | None = None
    duration_s: float | None = None

    @property
    def name(self) -> str:
        return point_name(self.variable, self.load)

    @property
    def folder(self) -> str:
        return f"{self.variable}{self.load:g}"

    def options(self, base: RunOptions, first_root: int) -> RunOptions:
        """Return the run's options at this point, with conversations from first_root on."""
        given: dict[str, Any] = {
            "concurrency": int(self.load) if self.variable == "concurrency" else None,
            "request_rate_per_s": self.load if self.variable == "request_rate" else None,
            "num_conversations": self.conversations,
            "request_count": self.requests,
            "benchmark_duration_s": self.duration_s,
        }
        return replace(base, first_root=first_root, **{name: value for name, value in given.items() if value is not None})


def by_load(workload: Workload, loads: int) -> tuple[int, ...]:
    """Return how many conversations of a workload made for this many loads belong to each.

    Each load has those of an equal share of its requests (see synthetic_load).
    """
    ends = itertools.accumulate(len(workload.sessions[root].turns) for root in workload.roots)
    each = sum(len(workload.sessions[root].turns) for root in workload.roots) // loads
    shares = Counter((end - 1) // each for end in ends)
    return tuple(shares[load] for load in range(loads))


def shared_out(workload: Workload, loads: tuple[float, ...], variable: Variable) -> int:
    """Return the default number of conversations of each point of a sweep: an equal share of the file.

    If that is fewer than the largest concurrency needs, each point runs as many as that, and the file is repeated.
    """
    roots = len(workload.roots) - workload.skipped
    needed = max(loads) if variable == "concurrency" else 1
    return max(roots // len(loads), int(needed), 1)


def probe(workload: Workload, variable: Variable, load: float, number: int) -> Point:
    """Return a point of a search, of default size.

    At a concurrency: as many conversations as send PROBE_REQUESTS requests and fill every slot twice. At a rate: long enough
    that PROBE_REQUESTS are due, and PROBE_S seconds at least, with new conversations all the while.
    """
    if variable == "request_rate":
        return Point(variable, load, number, duration_s=max(PROBE_S, PROBE_REQUESTS / load))
    by_root = list(requests_by_root(workload).values())
    needed = math.ceil(PROBE_REQUESTS * len(by_root) / sum(by_root))
    return Point(variable, load, number, conversations=max(needed, _PROBE_ROUNDS * int(load)))


@dataclass(slots=True)
class MaxSearch:
    """A search for the highest load that meets a condition: doubling until it is missed, then bisection.

    It asks for loads (`next_load`) and is given the outcome of each (`tell`), until next_load is None.

    start: the first load tried.
    lower, upper: bounds, which may be tried themselves.
    whole: loads are whole numbers.
    precision: when the lowest miss is within this share above the highest hit, the search ends; whole loads also end when
        they are neighbours.
    best: the highest load that met the condition.
    worst: the lowest that did not. missed: the lowest that certainly missed it. open: loads that are too close to tell.
    """

    start: float
    lower: float
    upper: float
    whole: bool
    precision: float
    best: float | None = None
    worst: float | None = None
    missed: float | None = None
    open: list[float] = field(default_factory=list)

    def next_load(self) -> float | None:
        best, worst = self.best, self.worst
        if best is None and worst is None:
            return min(max(self.start, self.lower), self.upper)
        if worst is None:
            assert best is not None
            return min(best * 2, self.upper) if best < self.upper else None
        if best is None:
            return max(worst // 2 if self.whole else _rounded(worst / 2), self.lower) if worst > self.lower else None
        middle = (best + worst) // 2 if self.whole else _rounded((best + worst) / 2)
        close = worst - best <= self.precision * best
        return middle if best < middle < worst and not close else None

    def tell(self, load: float, met: bool | None) -> None:
        """Take in whether the load met the condition; None: too close to tell, which counts as missed."""
        if met:
            self.best = load if self.best is None else max(self.best, load)
            return
        self.worst = load if self.worst is None else min(self.worst, load)
        if met is None:
            self.open.append(load)
        else:
            self.missed = load if self.missed is None else min(self.missed, load)


def _rounded(load: float) -> float:
    """Return the load to three digits, so that a rate can be read and typed again."""
    return float(f"{load:.3g}")


IN_DOUBT = 4  # exit status: the answer of a search rests on prompts that the endpoint had seen before
_DOUBT = (
    "It holds only for prompts that the endpoint has seen before (exit status 4): --vary gives repeats fresh tokens, a "
    "restart empties the cache of the endpoint."
)
_JUDGED = {"met": "meets the SLO after {}", "missed": "misses the SLO after {}", "open": "too close to tell after {}"}


@dataclass(frozen=True, slots=True)
class NextRun:
    """The run to be carried out next, after a pause."""

    run: OneRun
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadsRun:
    """What came of all points. status: the exit status. refused: why a point could not start, which ended it all.

    files: of the table; empty when nothing was run or nothing could be written.
    """

    title: str
    results: Sequence[PointResult]
    notes: Sequence[str]
    answer: SearchAnswer | None
    files: Sequence[Path]
    status: int
    refused: RefusedError | None = None


Steps = Generator[NextRun, Outcome, LoadsRun]


T = TypeVar("T")


def carried_out(steps: Generator[NextRun, Outcome, T]) -> T:
    """Carry out runs one after another; Ctrl-C between two points is told to the steps, as is a refusal."""
    try:
        step = next(steps)
        while True:
            try:
                if step.pause_s:
                    time.sleep(step.pause_s)
                outcome = step.run.outcome(run_on_best_loop(step.run))
            except (RefusedError, KeyboardInterrupt) as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        done: T = end.value
        return done


@dataclass(slots=True, frozen=True)
class Search:
    """A search as the command line asks for it; start, lower and upper are loads of the variable."""

    slo: str
    objectives: tuple[Objective, ...]
    variable: Variable
    start: float
    lower: float
    upper: float
    precision: float


@dataclass(slots=True)
class Loads:
    """What the points of a sweep or a search have in common, and where their conversations begin.

    plan: of any point, without its load. artifact_dir: the folder of all points; pause_s: between them.
    tell: gets lines of what was found, note: of what goes on.
    """

    plan: RunPlan
    artifact_dir: str | None
    watch: RunWatch
    tell: Callable[[str], None]
    note: Callable[[str], None]
    pause_s: float = 0.0
    roots_taken: int = 0
    folder: Path | None = None
    title: str = ""
    problem: str | None = None

    def begin(self, point: Point, total: int | None) -> NextRun:
        """Return the run of one point, with conversations that none before had."""
        shown = {**self.plan.shown, point.variable: point.load}
        if point.conversations is not None:
            shown["num_conversations"] = point.conversations
        if point.requests is not None:
            shown["request_count"] = point.requests
        self.note(f"{point.name} ({point.number}" + (f" of {total})" if total else ")"))
        plan = replace(self.plan, options=point.options(self.plan.options, self.roots_taken), shown=shown)
        run = OneRun(plan, lambda options: self._folder(options, point), self.watch)
        return NextRun(run, self.pause_s if point.number > 1 else 0.0)

    def end(self, point: Point, outcome: Outcome) -> PointResult:
        """Return the outcome; the next point knows what this one has learned of the endpoint."""
        plan, found = self.plan, outcome.result
        endpoint = replace(  # the first point has asked
            plan.endpoint, preflight=False, deployment=tuple(found.deployment), simulated=outcome.simulated
        )
        self.plan = replace(plan, options=replace(plan.options, model=outcome.options.model), endpoint=endpoint)
        self.title = f"{found.model} at {found.url}, workload {plan.workload.path}, seed {plan.options.seed}"
        self.roots_taken = outcome.roots_taken
        result = PointResult(
            variable=point.variable,
            load=point.load,
            number=point.number,
            speed=outcome.options.speed,
            metrics=outcome.metrics,
            status=outcome.status,
            files=outcome.files,
            behind=falls_behind(found.records),
            offered_per_s=_rate_missed(outcome),
            interrupted=outcome.interrupted,
            verdicts=outcome.verdicts,
            repeats=found.repeats,
        )
        self.tell(one_line(result))
        if result.verdicts:
            self.tell(f"  {'meets' if result.meets else 'does not meet'} the SLO: {result.reasons()}")
            result.status = result.status or (0 if result.meets else MISSED)
        for note in [note for note in found.notes if note not in plan.workload.notes]:
            self.note(f"Note: {note}")
        return result

    def _folder(self, options: RunOptions, point: Point) -> Path:
        if self.folder is None:
            given = self.artifact_dir
            kind = f"{point.variable}_points"
            self.folder = Path(given) if given is not None else new_folder(run_name(options, self.plan.workload, kind))
            forget_points(self.folder)
        return self.folder / f"{point.number:02d}_{point.folder}"

    def wrapped(self) -> str | None:
        """Return a warning if the points had more conversations than the workload has."""
        workload, options = self.plan.workload, self.plan.options
        roots = len(workload.roots)
        if self.roots_taken <= roots or options.sampling == "random" or options.vary:
            return None
        return (
            f"{workload.path} has {plural(roots, 'conversation')} and the points ran {self.roots_taken:,}, so some "
            "repeat: the endpoint may have had their prompts in its cache"
        )


def sweep_steps(loads: Loads, points: Sequence[Point], stop_at_saturation: bool) -> Steps:
    """Run the points in their order. The exit status is the highest of all points: 1 when a request failed anywhere."""
    results: list[PointResult] = []
    saturated: str | None = None
    stopped = False
    for point in points:
        try:
            results.append(loads.end(point, (yield loads.begin(point, len(points)))))
        except RefusedError as error:
            return _refused(error, loads, results)
        except KeyboardInterrupt:  # between two points; within one it is the run that stops
            stopped = True
            break
        _save(loads, results)
        if results[-1].interrupted:
            break
        why = _saturation(results)
        if why and saturated is None:
            saturated = f"Saturated from {results[-1].name} on: {why}."
        if why and stop_at_saturation:
            break
    if not results:
        return LoadsRun(loads.title, [], [], None, [], INTERRUPTED)
    notes = [note for note in (saturated, loads.wrapped()) if note]
    if len(results) < len(points):
        notes.append(f"The points after {results[-1].name} were not run.")
    if results[-1].interrupted:
        notes.append(f"{results[-1].name} was cut off.".capitalize())
    return _done(loads, results, notes, None, INTERRUPTED if stopped else max(result.status for result in results))


def search_steps(loads: Loads, search: Search) -> Steps:
    """Run each load until its verdict is certain enough.

    The exit status is 0 with an answer, IN_DOUBT with one that may not hold, 1 when nothing meets.
    """
    states = MaxSearch(search.start, search.lower, search.upper, search.variable == "concurrency", search.precision)
    results: list[PointResult] = []
    stopped = False
    needed = least_requests(search.objectives)
    if needed > 1:
        loads.note(f"Each load is repeated until {search.slo} is certain, with {needed:,} requests or more where it is met")
    while not stopped and (load := states.next_load()) is not None:
        pooled, first = PooledVerdict(search.objectives), _first_look(loads, search.variable, load, len(results) + 1)
        met: bool | None = None
        for _ in range(LOOKS):
            point = _next_look(first, len(results) + 1, pooled, needed)
            try:
                result = loads.end(point, (yield loads.begin(point, None)))
            except RefusedError as error:
                return _refused(error, loads, results)
            except KeyboardInterrupt:
                stopped = True
                break
            result.verdicts = judge(search.objectives, result.metrics)
            results.append(result)
            if stopped := result.interrupted:
                break
            pooled.add(result.metrics)
            met = False if result.contradicted else pooled.met
            result.judged = "open" if met is None else "met" if met else "missed"
            _save(loads, results, answer=_answer(search, states, True))
            loads.tell(f"  {_JUDGED[result.judged].format(f'{pooled.requests:,} requests')}: {result.reasons()}")
            if met is not None:
                break
        if not stopped:
            states.tell(load, met)
    wrapped = loads.wrapped() if results else None
    doubtful = any(result.repeats is not None and result.repeats.doubtful for result in results)
    doubt = _DOUBT if wrapped or doubtful else ""
    status = INTERRUPTED if stopped else 1 if states.best is None else IN_DOUBT if doubt else 0
    return _done(loads, results, [wrapped] if wrapped else [], _answer(search, states, stopped, doubt), status)


def _answer(search: Search, states: MaxSearch, interrupted: bool, doubt: str = "") -> SearchAnswer:
    return SearchAnswer(
        search.slo,
        search.variable,
        states.best,
        states.missed,
        search.lower,
        search.upper,
        interrupted,
        doubt,
        tuple(sorted(states.open)),
    )


def _first_look(loads: Loads, variable: Variable, load: float, number: int) -> Point:
    options = loads.plan.options
    if options.request_count is not None:
        return Point(variable, load, number, requests=options.request_count)
    if options.open_ended:
        return Point(variable, load, number)
    if options.num_conversations is not None:
        return Point(variable, load, number, conversations=options.num_conversations)
    return probe(loads.plan.workload, variable, load, number)


def _next_look(first: Point, number: int, pooled: PooledVerdict, needed: int) -> Point:
    """Return the next run at a load: as many requests as double those so far, or as the verdict needs at least."""
    if not pooled.runs:
        return first
    growth = max(needed / max(pooled.requests, 1), 2.0) - 1
    per_run = pooled.runs[0] / max(pooled.requests, 1)  # the first run's share of all requests
    return replace(
        first,
        number=number,
        conversations=_grown(first.conversations, growth / per_run),
        requests=_grown(first.requests, growth / per_run),
        duration_s=None if first.duration_s is None else first.duration_s * growth / per_run,
    )


def _grown(count: int | None, growth: float) -> int | None:
    return None if count is None else math.ceil(count * growth)


def _saturation(results: Sequence[PointResult]) -> str | None:
    """Why the last point is one at which the endpoint no longer follows the load; None when it does."""
    now = results[-1]
    if now.variable == "request_rate" and now.behind:
        return "latency kept growing"
    if len(results) < 2:
        return None
    before, ratio = results[-2], now.load / results[-2].load
    if now.variable == "concurrency" and gains_nothing(before.metrics, now.metrics, ratio):
        return f"{ratio:g} times the concurrency gave hardly more output"
    if latency_exploded(results[0].metrics, now.metrics):
        return "the median latency is over ten times that of the first point"
    return None


def _rate_missed(outcome: Outcome) -> float | None:
    options = outcome.options
    if options.request_rate_per_s is None or options.request_rate_ramp_s:
        return None
    return rate_not_reached(outcome.result.records, options.request_rate_per_s, options.speed)


def _refused(error: RefusedError, loads: Loads, results: Sequence[PointResult]) -> LoadsRun:
    notes = [f"The points after {results[-1].name} were not run."] if results else []
    return replace(_done(loads, results, notes, None, 2), refused=error)


def _save(
    loads: Loads, results: Sequence[PointResult], notes: Sequence[str] = (), answer: SearchAnswer | None = None
) -> list[Path]:
    """Write the table as far as it is known, so that a killed sweep leaves it. A full disk is told at the end."""
    if loads.folder is None or not results:
        return []
    try:
        return write_points(loads.folder, results, notes, answer)
    except OSError as error:
        loads.problem = f"The table could not be written to {loads.folder}: {error}"
        return []


def _done(
    loads: Loads, results: Sequence[PointResult], notes: Sequence[str], answer: SearchAnswer | None, status: int
) -> LoadsRun:
    notes = [*notes, *dict.fromkeys(note for one in results if (note := one.surplus_note))]
    files = _save(loads, results, notes, answer)
    problem = [] if files or loads.problem is None else [loads.problem]
    return LoadsRun(loads.title, results, [*notes, *problem], answer, files, status)
