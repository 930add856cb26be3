"""Simulations: the runner of `llmirage run` on the cluster of `llmirage serve`, in virtual time.

    simulation = simulate(ClusterConfig(model="Qwen/Qwen3-8B", instances=4), workload, RunOptions(request_rate_per_s=8.0))
    simulation.summary["ttft_ms"]["p99"]

Further calls in one process cost only the run: deployments, catalogues and tokenizers are made once.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from llmirage_client.load.any_runner import AnyRunner, WarmUpError
from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import long_schedule
from llmirage_client.load.saturation import judge_scenario, repeats_in_run
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.slo import judge_failures, verdicts_of
from llmirage_client.simulate.bill import bill_of
from llmirage_client.simulate.cluster_series import ClusterSeries, SeriesSampler
from llmirage_client.simulate.event_queue import ClusterSender, EventQueue, TokenPrompts
from llmirage_client.simulate.saturation import (
    InstanceQueue,
    LoadRates,
    idle_models,
    in_step,
    mean_in_progress,
    queues_of,
    rates_json,
    rates_of_run,
    start_burst,
    steady_duration_s,
)
from llmirage_client.simulate.summary import summary_of
from llmirage_client.simulate.token_rows import TokenRow, TokenRows
from llmirage_client.simulate.token_streams import TokenStreams
from llmirage_client.simulate.token_times import FinishedRows
from llmirage_client.simulator.cluster_settings import effect_notes
from llmirage_client.simulator.deployments import Band, assumed, band_of_cluster, has_fixed_times, left_out
from llmirage_client.simulator.engine import (
    ClusterConfig,
    ClusterRun,
    QueueWait,
    ServedPool,
    StepSpan,
    described,
    new_cluster,
    plan_of,
)
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import rounded
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

if TYPE_CHECKING:
    from llmirage_client.simulate.api_run import ApiRun


Via = Literal["engine", "api"]


class SimulationError(ValueError):
    """An impossible simulation; the message is for the user."""


WINDOW_OVER = "all requests that count are over"


@dataclass(slots=True)
class Window:
    """A window of `count` requests from number `first` on, in the order of sending; the run ends with the last of them.

    early_stop: called with each of them as it ends. A sentence ends the run at once; a number says that this many are
        enough, and ends it as if these had been all: `count` is then that number.
    """

    first: int
    count: int
    early_stop: Callable[[TokenRow], str | int | None] = lambda row: None

    def watch(self, rows: TokenRows | None, cancel: Callable[[str], None]) -> None:
        """Start watching, before the run; `cancel` ends it. Raises TypeError for a run that keeps no rows."""
        if rows is None:
            raise TypeError("a window is for workloads in token counts, via the engine")
        left = self.count

        def over(row: TokenRow) -> None:
            nonlocal left
            if not row.measured:
                return
            left -= 1
            verdict = self.early_stop(row)
            if isinstance(verdict, int):
                self.count = verdict
            if verdict is not None or left == 0:
                cancel(verdict if isinstance(verdict, str) else WINDOW_OVER)

        rows.counted = range(self.first, self.first + self.count)
        rows.on_row = over

    def finish(self, rows: TokenRows | None) -> None:
        """Exclude the requests beyond the last that counts, after the run."""
        for row in rows.rows if rows is not None else ():
            row.measured = row.measured and row.request.id < self.first + self.count


class Simulation:
    """The result of a simulation.

    summary: plain figures by name, see simulate.summary.
    stopped: the reason for which it ended before the workload did.
    columns: one row a request.
    repeats: of conversations, or None; size and sweep must not conclude from doubtful ones.
    result: with the records of single requests, which are made on demand.
    verdicts: of the run's own objectives (--slo). submission: of the rules of its scenario.
    queues: of the cluster, and of each instance.
    seeds: of each figure, its mean and spread over several seeds, where there were several.
    rates: of a load with one request rate, or None.
    series: the cluster over time; totals: of its measured time; steps: of each instance, where they were to be traced.
    """

    def __init__(
        self,
        config: ClusterConfig,
        result: RunResult,
        columns: Columns,
        metrics: Metrics,
        series: ClusterSeries,
        queues: Sequence[InstanceQueue],
        rates: LoadRates | None,
        steps: list[list[StepSpan]],
        rows: TokenRows | None,
    ) -> None:
        self.config = config
        self.columns = columns
        self.metrics = metrics
        self.stopped = result.cancel_reason
        self.series = series
        self.steps = steps
        start_s = float(columns.start_s[columns.measured].min(initial=math.inf))
        end_s = start_s + metrics.whole_run.get("benchmark_duration", math.nan)
        self.totals = series.between(*((start_s, end_s) if math.isfinite(end_s) else (0.0, float(series.time_s[-1]))))
        self.bill = bill_of(plan_of(config), metrics, self.totals)
        self.queues = queues
        self.rates = rates
        self.summary = summary_of(metrics, self.totals, self.bill, queues)
        self.repeats = result.repeats
        self.summary |= rates_json(rates)
        self.summary["repeats"] = None if result.repeats is None else result.repeats.as_dict()
        self.verdicts = verdicts_of(result.options, metrics)
        self.submission = result.submission
        self._result = result
        self._rows = rows
        self.seeds: dict[str, dict[str, float]] = {}

    @property
    def passed(self) -> bool:
        """True if it came to its end, objectives are met, and no request failed.

        Objectives and scenarios may say how many requests may fail.
        """
        failed = self.summary["failed_requests"] and not judge_failures(self.verdicts)
        if self.submission is not None:
            failed = self.submission.failed
        return self.stopped is None and not failed and all(verdict.met for verdict in self.verdicts)

    @property
    def saturation(self) -> str | None:
        """The reason for which the cluster does not keep up with the load, or None."""
        return self.queues[0].overloaded

    @cached_property
    def band(self) -> Band | None:
        """Band of its figures in which measured servers lie; None where times are the user's own."""
        latency, prompts = self.summary["latency_ms"], self.metrics.per_request.get("input_sequence_length")
        in_flight = self.summary["request_per_s"] * latency["mean"] * 1e-3 if latency else 0.0
        instances = max(1.0, self.summary["instances_ready"])
        return band_of_cluster(self.config, in_flight / instances, None if prompts is None else prompts.avg)

    @property
    def notes(self) -> list[str]:
        """Notes of the result, for which no records are made."""
        return self._result.notes

    @property
    def result_without_records(self) -> RunResult:
        """The result for files that take single requests from columns; its records may be missing."""
        return self._result

    @cached_property
    def result(self) -> RunResult:
        if self._rows is not None:
            self._result.records = self._rows.made_records()
        return self._result


def simulate(
    config: ClusterConfig,
    workload: Workload,
    options: RunOptions,
    *,
    via: Via = "engine",
    max_time_s: float | None = None,
    shown: Mapping[str, Any] | None = None,
    trace: bool = False,
    window: Window | None = None,
    early_stop: Callable[[TokenRow], str | None] | None = None,
    stoppable: Callable[[Callable[[str], None]], None] = lambda stop: None,
    on_progress: Callable[[int, float, Sequence[TokenRow]], None] | None = None,
    with_records: bool = True,
) -> Simulation:
    """Run the workload to its end, or to `max_time_s` of the cluster's time.

    via: "engine" asks the cluster alone; "api" goes through the server's whole protocol.
    shown: the settings as the user knows them, for reports.
    trace: keep every step of every instance.
    window: the requests that count, of workloads in token counts via the engine.
    early_stop: called with each request that ends, where there are rows; a sentence ends the run.
    stoppable: is given a function that stops the run, with a reason, and may be called from a signal handler.
    on_progress: called now and then with the number of finished requests, the cluster's time, and the last of those, as far
        as they are rows.
    with_records: `result` will be asked for; else the requests of a long run are dropped as it goes on.

    Raises ConfigError for an impossible cluster, and SimulationError for an impossible run or a load that never lets time
    pass.
    """
    unused = left_out(config)
    config = dataclasses.replace(config, speed=1.0, rate_limit=None, token_limit=None, api_key=(), faults=None)
    pools = plan_of(config)
    options = dataclasses.replace(
        options, speed=1.0, endpoint_kind="llmirage", model=options.model or pools[0].names[0], seed=options.seed or 0
    )
    if options.scenario is not None:  # replies have the recorded length anyway
        extra = {name: value for name, value in options.extra_inputs.items() if name != "ignore_eos"}
        options = dataclasses.replace(options, extra_inputs=extra)
    if options.lanes is not None:  # a simulation is to be repeatable
        lanes = dataclasses.replace(options.lanes, run_id=f"seed {options.seed}")
        options = dataclasses.replace(options, lanes=lanes)
    if max_time_s is not None:
        max_time_s = float(max_time_s)  # an int would be the time at which requests end
    check(workload)
    begun_s = time.process_time()
    run = _new_run(config, workload, options, pools, via)
    sampler = SeriesSampler(run.cluster, pools)
    steps = run.cluster.trace_steps() if trace else []
    if on_progress is not None:
        over = () if run.rows is None else run.rows.rows
        sampler.on_observe = lambda now: on_progress(run.requests_over, now, over)
    stoppable(run.interrupt)
    if early_stop is not None and run.rows is not None:
        run.rows.on_row = lambda row: run.cancel(reason) if (reason := early_stop(row)) else None
    finished = None if run.rows is None else FinishedRows(run.rows, forgets=not with_records and window is None)
    result = _run(run, sampler, max_time_s, window)
    long = None if max_time_s is not None else long_schedule(workload, options)
    result = dataclasses.replace(
        result,
        long_schedule=long,
        notes=[
            *([long] if long else []),
            *(f"Assumed, as not given: {text}." for text in assumed(config)),
            *([unused] if unused else []),
            *effect_notes([config]),
            *([_FIXED] if has_fixed_times(config) else []),
            *result.notes,
        ],
        url=f"simulation (via {via})",
        model=options.model,
        options=shown or {},
        deployment=described(config, pools),
        client_cpu_s=time.process_time() - begun_s,
    )
    series, rows = sampler.series(), run.rows
    columns = columns_of(result.records) if finished is None else finished.columns()
    rates = rates_of_run(workload, options, columns, kept_on=window is not None)
    if finished is None:
        metrics = compute(result)
    elif window is None:
        metrics = finished.metrics(columns, shown or {}, span_s=(result.start_s, result.end_s))
    else:
        users = mean_in_progress(columns)
        if options.concurrency is not None and not columns.agent_depth.any():
            users = min(users, options.concurrency)
        metrics = finished.metrics(columns, shown or {}, duration_s=steady_duration_s(columns, users, rates))

    def names() -> list[str]:
        return rows.names() if rows is not None else [record.conversation_id for record in result.records]

    result.repeats = repeats_in_run(workload, options, run.roots_taken, columns, names)
    judge_scenario(result, options, metrics, columns)
    if result.repeats is not None:
        result.notes[:0] = result.repeats.notes
    if window is None:
        found = [idle_models(pools, series), start_burst(columns, options)]
        result.notes += [note for note in found if note is not None]
    if (alike := in_step(workload, options.concurrency)) is not None:
        result.notes.append(alike)
    if rates is not None and rates.shortfall is not None:
        result.notes.append(f"Less than the offered rate: {rates.shortfall}.")
    queues = queues_of(run.waits, options.concurrency or 0, pools)
    priorities = set() if finished is None else finished.priorities
    if len(priorities) > 1 and any(pool.limits.schedule_policy != "priority" for pool in pools):
        result.notes.append("Priorities have no effect: schedule_policy is not priority (--set schedule_policy=priority).")
    return Simulation(config, result, columns, metrics, series, queues, rates, steps, rows)


def _new_run(
    config: ClusterConfig, workload: Workload, options: RunOptions, pools: Sequence[ServedPool], via: Via
) -> EngineRun | ApiRun:
    """Return the run: on the cluster alone where that answers the question, or through the API in this process."""
    if via == "engine" and (alone := engine_run(config, workload, options, pools)) is not None:
        return alone
    from llmirage_client.simulate.api_run import ApiRun  # with the server's API and httpx, which lengths do not need

    return ApiRun(config, workload, options, streamed=via == "api")


def _run(run: EngineRun | ApiRun, sampler: SeriesSampler, max_time_s: float | None, window: Window | None) -> RunResult:
    """Run to the end, or to that of the window, which is no cancellation. Raises SimulationError."""
    if window is not None:
        window.watch(run.rows, run.cancel)
    try:
        with few_collections():
            result = run.run(sampler, max_time_s, f"--max-time: {max_time_s or 0:g} s of the cluster's time are over")
    except (VirtualDeadlockError, StandstillError, WarmUpError) as error:
        raise SimulationError(str(error)) from None
    if result.end_s > _LONGEST_S:
        raise SimulationError(
            f"the run takes {rounded(result.end_s, 3)} s of the cluster's time, beyond {_LONGEST_S:g} s (32 years), after "
            "which times are not exact to a microsecond; --max-time ends it before"
        )
    if window is not None:
        window.finish(run.rows)
        if result.cancel_reason == WINDOW_OVER:
            result = dataclasses.replace(result, cancelled=False, cancel_reason=None)
    return result


_LONGEST_S = 1e9
_FIXED = "Fixed times (ttft_ms, itl_ms): no request waits for another, whatever the load."


def check(workload: Workload) -> None:
    """Raise SimulationError for a workload without requests."""
    if not any(session.turns for session in workload.sample):
        raise SimulationError(f"{workload.path} has no request: there is nothing to simulate")


_OF_ENGINE = {"priority"}  # fields of a body that the cluster itself reads


class EngineRun(AnyRunner):
    """A run on the cluster alone. rows: its requests."""

    def __init__(
        self,
        config: ClusterConfig,
        workload: Workload,
        options: RunOptions,
        prompts: TokenPrompts | None = None,
        by_endpoint: bool = False,
    ) -> None:
        """Create the cluster. prompts None: of token counts. by_endpoint: see ClusterSender. Raises ConfigError."""
        super().__init__(workload, options)
        self.cluster = new_cluster(config)
        self._config = config
        self.rows = TokenRows(self._identifiers, self._branching, lengths_known=prompts is None)
        self._prompts = prompts or TokenStreams(options.session_prefix == "extend", variation_of(workload, options))
        self._by_endpoint = by_endpoint
        self._api = "completions" if prompts is None else "chat"
        self._queue: EventQueue | None = None
        self.waits: list[QueueWait] = []  # of requests that are over, in that order

    @property
    def requests_over(self) -> int:
        return self.rows.forgotten + len(self.rows.rows)

    def interrupt(self, reason: str) -> None:
        """Cancel from a signal handler: as soon as the present callback has returned."""
        if self._queue is None:
            self.cancel(reason)
        else:
            self._queue.interrupt(partial(self.cancel, reason))

    def run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        """Run the workload. Raises VirtualDeadlockError and StandstillError. reason: of the cancellation at max_time_s."""
        cluster = ClusterRun(self.cluster, observer)
        self.waits = cluster.waits
        self._queue = queue = EventQueue(cluster)
        sender = ClusterSender(
            queue, self.rows, self._prompts, self._options, self._identifiers, self._config, self._by_endpoint
        )
        if max_time_s is not None:
            queue.call_at(max_time_s, partial(self.cancel, reason))
        for name, options, rng in self._phases():
            start_s, start_unix_s = queue.time_s, time.time()
            phase = self._begin(name, options, rng, queue)
            sender.begin_phase(phase)
            phase.begin(queue.stop)
            queue.run()
        queue.close()
        observer.finish(queue.time_s)
        return self._result(phase, (start_s, start_unix_s, queue.time_s), [], {self._api}, [])


def engine_run(
    config: ClusterConfig, workload: Workload, options: RunOptions, pools: Sequence[ServedPool]
) -> EngineRun | None:
    """Return a run for requests in token counts, token ids or hash blocks; None: only the server's endpoints can read them.

    These workloads' prompts are known as token ids without writing their text. Ids and blocks have to reach the cluster with
    nothing added, and any instance may serve them. Raises ConfigError, and TokenizerError where blocks cannot be written in
    the vocabulary.
    """
    as_they_are = options.streaming and not options.extra_inputs and len({pool.model for pool in pools}) == 1
    kind = _kind(workload)
    if kind == "counts":
        return EngineRun(config, workload, options)
    if kind == "ids" and as_they_are and options.endpoint_type in (None, "completions"):
        return EngineRun(config, workload, options, by_endpoint=True)
    plain = config.replies == "prose" and config.tokenizer == options.tokenizer
    if kind == "messages" and as_they_are and plain and options.endpoint_type in (None, "chat"):
        from llmirage_client.simulate.block_prompts import block_prompts

        prompts = block_prompts(workload, options)
        return None if prompts is None else EngineRun(config, workload, options, prompts, by_endpoint=True)
    return None


def _kind(workload: Workload) -> str:
    """Return the kind of prompts.

    counts: of tokens alone; ids: also token ids; messages: none of either; mixed: only the endpoints can read it.
    """
    kind = "counts"
    for session in workload.sessions.values():
        if session.mode != "tokens":
            return "mixed" if any(turn.tokens for turn in session.turns) else "messages"
        for turn in session.turns:
            if turn.tokens is None or (turn.tokens.input_ids is not None and (turn.extra.keys() - _OF_ENGINE or turn.model)):
                return "mixed"
            if turn.tokens.input_ids is not None:
                kind = "ids"
    return kind


# Garbage collection: none in the middle of a simulation, and between simulations only now and then.
_MOST_LEFT = 150_000  # objects that simulations may leave: 200 MB where prompts are long
_left = 0  # an upper bound of those present
_owned = False
_spares_the_end = False
_lock = threading.Lock()
_running = 0  # simulations, in as many threads
_usual = (700, 10, 10)
_known: int | None = None  # other frozen objects; None: not counted yet, which takes milliseconds


def own_process() -> None:
    """Declare that the process is there for simulations alone."""
    global _owned
    _owned = True


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Suspend most collections: most objects of a run stay until its end, and walking them again and again is in vain."""
    global _running, _spares_the_end, _usual
    with _lock:
        if not _spares_the_end:
            _spares_the_end = True
            atexit.register(gc.freeze)  # Python ends with a collection, which would walk all results: a tenth of a run's CPU
        if _running == 0:
            if _owned:
                _collect_if_many()
            _usual = gc.get_threshold()
            gc.set_threshold(1_000_000, 50, 1000)
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                if _owned:
                    _freeze()
                gc.set_threshold(*_usual)


def _freeze() -> None:
    """Freeze the objects left, which the next collection, or that at the end of the process, would walk once more."""
    global _left
    _left += gc.get_count()[0]
    gc.freeze()


def _collect_if_many() -> None:
    """Collect the clusters of earlier runs, which were frozen."""
    global _left, _known
    if _left > _MOST_LEFT and _known is not None:
        _left = gc.get_freeze_count() - _known  # the others are gone without a collection
    if _left > _MOST_LEFT:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _left, _known = 0, gc.get_freeze_count()
