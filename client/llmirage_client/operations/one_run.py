"""One run against an endpoint: ask for its models and kind, send the workload, perhaps by workers, and write the files."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from llmirage_client.load.any_runner import WarmUpError
from llmirage_client.load.calls import CONTENT_ERRORS, short_limits, short_prompts
from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import expected_requests, long_schedule, model_shown, scheduled_roots
from llmirage_client.load.runner import Heartbeat, Runner, put_loop_first
from llmirage_client.load.saturation import judge_scenario, repeats_in_run
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.distortion import distortion_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.mismatch import cache_verdict, mismatches_of
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.measure.slo import MISSED, Verdict, judge_failures, verdicts_of
from llmirage_client.operations.preflight import preflight, probe
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.progress import Progress
from llmirage_client.report.records_file import RecordWriter, RunClock, with_bodies
from llmirage_client.targets.endpoint import EndpointSettings, ServerPace, read_cache_hits, read_pace
from llmirage_client.targets.httpx_transport import transport_notes
from llmirage_client.targets.target import EndpointTarget
from llmirage_client.workers.conductor import Conductor, WorkerFailure
from llmirage_client.workers.job import Crew, CrewError, Job, usable_cpus
from llmirage_client.workers.merge import merged
from llmirage_client.workers.ray_cluster import connect, nodes
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_shared.settings import InputRefused

CTRL_C = "Ctrl-C"
INTERRUPTED = 130  # what shells report for Ctrl-C
ExecutorName = Literal["process", "ray"]


class RefusedError(InputRefused):
    """The run cannot start as it was asked for; the message is for the user."""

    def __init__(self, problem: str, status: int = 2) -> None:
        super().__init__([problem])
        self.status = status


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over. options: with what only the endpoint could say. roots_taken: see Runner. simulated: see Preflight.

    files: what was written; empty when that failed, which is then among the result's notes.
    """

    result: RunResult
    metrics: Metrics
    options: RunOptions
    files: list[Path]
    roots_taken: int
    simulated: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        return self.result.cancel_reason == CTRL_C

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return verdicts_of(self.result.options, self.metrics)

    @property
    def status(self) -> int:
        """The exit status. What was cancelled, by the end of --benchmark-duration or on purpose, did not fail."""
        if self.interrupted:
            return INTERRUPTED
        verdicts = self.verdicts
        records = self.result.records
        submission = self.result.submission
        unasked = self.result.options.get("fail_on_mismatch") and self.result.mismatches
        if unasked or not all(verdict.met for verdict in verdicts):
            return MISSED
        if submission is not None:
            return 1 if submission.failed or self.result.cancelled or not self.files else 0
        failed = not judge_failures(verdicts) and any(not record.ok and not record.cancelled for record in records)
        succeeded = any(record.ok for record in records)
        return 0 if succeeded and not failed and self.files and not self.result.cancelled else 1


class Stoppable(Protocol):
    """A load that can be cancelled."""

    def cancel(self, reason: str) -> None: ...


@dataclass(slots=True, frozen=True)
class Spread:
    """workers: None: a CPU each for processes, a machine each for Ray. ray_address: see workers.ray_cluster.connect."""

    executor: ExecutorName
    workers: int | None = None
    ray_address: str | None = None

    def crew(self) -> tuple[Crew, int]:
        """Workers that are still to be hired, and how many of them are wanted. Raises CrewError."""
        if self.executor == "ray":
            from llmirage_client.workers.ray_cluster import RayCrew

            ray = connect(self.ray_address, self.workers or 1)
            return RayCrew(ray), self.workers or nodes(ray)
        from llmirage_client.workers.processes import ProcessCrew

        return ProcessCrew(), self.workers or usable_cpus()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run to be made. shown: the settings as the user knows them.

    spread: over which workers; None: this process sends it.
    """

    workload: Workload
    options: RunOptions
    endpoint: EndpointSettings
    shown: Mapping[str, Any]
    spread: Spread | None


@dataclass(frozen=True, slots=True)
class RunWatch:
    """Who watches a run. progress: makes what shows it. stoppable: lets the user stop it; what it returns undoes that.

    owner: whether the process is there for the run alone.
    """

    progress: Callable[[int | None], Progress]
    stoppable: Callable[[Stoppable], Callable[[], Any]]
    owner: bool


def _written(result: RunResult, metrics: Metrics, records: RecordWriter) -> list[Path]:
    """Write the files, elsewhere if they cannot be where they should, which the result's notes then say."""
    folder = records.path.parent
    try:
        return write_artifacts(result, folder, metrics=metrics, records=records)
    except OSError as error:
        result.notes.append(f"The files could not be written to {folder}: {error}")
    try:
        return write_artifacts(result, tempfile.mkdtemp(prefix="llmirage-"), metrics=metrics, records=records)
    except OSError as error:
        result.notes.append(f"They could not be written to a temporary folder either: {error}")
        return []


class OneRun:
    """From the first question to the endpoint to the last record. options, records, roots_taken are known afterwards.

    So are simulated, see Preflight, pace: what these servers tell of their own pace during the load, and cache_hits: the
    prompt tokens that its caches had, where they are verified.

    folder: where the files go, once the options are complete.
    """

    def __init__(self, plan: RunPlan, folder: Callable[[RunOptions], Path], watch: RunWatch) -> None:
        workload, options, endpoint = plan.workload, plan.options, plan.endpoint
        self.options = options
        self.records: RecordWriter | None = None
        self.roots_taken = 0
        self.pace: ServerPace | None = None
        self.cache_hits: int | None = None
        self.simulated = endpoint.simulated
        self._workload = workload
        self._endpoint = endpoint
        self._folder = folder
        self._shown = plan.shown
        self._spread = plan.spread
        self._watch = watch
        self._zero = (math.nan, math.nan)  # from which the run's files count time, on both clocks of this process
        self._long_schedule = long_schedule(workload, options)
        self._notes = [] if self._long_schedule is None else [self._long_schedule]
        self._deployment = list(endpoint.deployment)
        if any(session.mode == "verbatim" for session in workload.sessions.values()) and (
            options.extra_inputs or options.model
        ):
            self._notes.append(
                "The file's request bodies are sent unchanged: --model and --extra-inputs do not change them."
            )

    async def __call__(self) -> RunResult:
        """Send the run. Raises RefusedError."""
        try:
            target = self._endpoint.target()
        except ValueError as error:
            raise RefusedError(str(error)) from None
        try:
            self.options = await self._know_endpoint(target)
            await self._ask_first()
            self._check_prompts()
            self._open_records(target)
            before = await read_pace(self._endpoint, self.simulated)
            verifies = bool(self._shown.get("verify_cache"))
            hits = await read_cache_hits(self._endpoint) if verifies else None
            result = await (self._send(target) if self._spread is None else self._send_spread(self._spread))
            if before is not None and (after := await read_pace(self._endpoint, self.simulated)) is not None:
                self.pace = after.since(before)
            if hits is not None and (now := await read_cache_hits(self._endpoint)) is not None and now >= hits:
                self.cache_hits = now - hits
            return replace(
                result,
                url=self._endpoint.url,
                model=model_shown(self.options, self._workload),
                options=self._shown,
                deployment=self._deployment,
                long_schedule=self._long_schedule,
                notes=[*self._notes, *result.notes],
            )
        finally:
            await target.close()

    def outcome(self, result: RunResult) -> Outcome:
        """Compute the metrics and write the files."""
        assert self.records is not None
        metrics = compute(result)
        records = result.records
        names = [record.conversation_id for record in records]
        columns = columns_of(records)
        result.repeats = repeats_in_run(
            self._workload, self.options, self.roots_taken, columns, lambda: names, endpoint_new=False
        )
        if self.pace is not None:
            values = request_columns(columns, result.speed)
            result.distortion = distortion_of(self.pace.times, self.pace.speeds, result.speed, columns.ok, values)
        result.mismatches = mismatches_of(records)
        if self._shown.get("verify_cache"):
            sent = [(record, body) for record, _, body in with_bodies(records, result.inputs)]
            result.cache = cache_verdict(sent, self.cache_hits)
        judge_scenario(result, self.options, metrics, columns)
        result.notes[:0] = result.judged_notes
        files = _written(result, metrics, self.records)
        return Outcome(result, metrics, self.options, files, self.roots_taken, self.simulated)

    async def _know_endpoint(self, target: EndpointTarget) -> RunOptions:
        """Fill in what only the endpoint can say. It is asked only if that matters."""
        options = self.options
        sessions = self._workload.sessions.values()
        needs_model = not options.model and any(
            turn.model is None and turn.payload is None for session in sessions for turn in session.turns
        )
        by_tokens = any(
            session.mode == "tokens" or any(turn.min_tokens is not None for turn in session.turns) for session in sessions
        )
        short, least = short_limits(self._workload, options)
        written = options.tokenizer is None and any(turn.synthetic for session in sessions for turn in session.turns)
        if not needs_model and not by_tokens and not written and not short:
            return options
        info = await probe(target)
        if written and info.kind != "llmirage":
            self._notes.append(
                "Messages given by their length have it in the tokenizer of this package; --tokenizer names the endpoint's."
            )
        if needs_model and len(info.models) > 1 and info.kind != "llmirage":
            raise RefusedError(f"{self._endpoint.url} serves several models; set --model: {', '.join(info.models)}")
        if short and info.kind == "other":
            self._notes.append(
                f"Turns with a limit below {least} tokens: {short:,}. They asked for {least}, the least that "
                f"{options.endpoint_type} takes."
            )
        model = options.model
        if needs_model:
            model = info.models[0] if info.models else "default"
            if not info.models:
                reason = info.error or "it is empty"
                self._notes.append(
                    f"No model was given and the endpoint's list of models did not help ({reason}): 'default' it is."
                )
        return replace(options, model=model, endpoint_kind=info.kind)

    async def _ask_first(self) -> None:
        if not self._endpoint.preflight:
            return
        found = await preflight(self._endpoint, self.options.model or "", self.options.endpoint_path)
        if found.problem is not None:
            raise RefusedError(found.problem)
        self._deployment = found.deployment
        self.simulated = found.simulated

    def _check_prompts(self) -> None:
        """Refuse what would fail on the way because no prompt can be written for it."""
        try:
            problems = short_prompts(self._workload, self.options)
        except CONTENT_ERRORS as error:
            raise RefusedError(str(error)) from None
        if problems:
            raise RefusedError(str(WorkloadError(self._workload.path, problems)))

    def _open_records(self, target: EndpointTarget) -> None:
        self._zero = (target.now(), time.time())
        clock = RunClock(*self._zero, self.options.speed)
        try:
            self.records = RecordWriter(self._folder(self.options), clock, self._about())
        except OSError as error:
            raise RefusedError(f"--artifact-dir: {error.filename}: {error.strerror or error}") from None

    def _about(self) -> RunResult:
        """Return the run as far as it is known before its first request."""
        return RunResult(
            records=[],
            branch_stats=None,
            start_s=0.0,
            end_s=0.0,
            start_unix_s=time.time(),
            speed=self.options.speed,
            model=model_shown(self.options, self._workload),
            url=self._endpoint.url,
            endpoint=self.options.endpoint_type or "chat",
            streaming=self.options.streaming,
            workload_format=self._workload.format,
            workload_path=self._workload.path,
            options=self._shown,
            deployment=self._deployment,
            notes=[*self._notes, *self._workload.notes],
        )

    async def _send(self, target: EndpointTarget) -> RunResult:
        assert self.records is not None
        progress = self._progress()
        progress.watch(self.options.speed)
        runner = Runner(self._workload, self.options, target, progress, self._keep_and_show(progress))
        restore_signals = self._watch.stoppable(_Shown(runner, progress))
        progress.start()
        if self._watch.owner:
            put_loop_first()
        try:
            async with Heartbeat(runner.show_progress) as heartbeat:
                result = await runner.run()
                self.roots_taken = runner.roots_taken
        except CONTENT_ERRORS as error:
            raise RefusedError(f"The run was stopped: {error}") from None
        except WarmUpError as error:
            raise RefusedError(f"The warm-up failed: {error}", 1) from None
        finally:
            progress.stop()
            restore_signals()
        notes = [*result.notes, *transport_notes(target.uses())]
        return replace(result, notes=notes, client_cpu_s=heartbeat.cpu_s, client_lag_s=tuple(heartbeat.lag_s))

    def _progress(self) -> Progress:
        progress = self._watch.progress(expected_requests(self._workload, self.options))
        if self._long_schedule is not None:
            progress.tell(self._long_schedule)
        return progress

    def _keep_and_show(self, progress: Progress) -> Callable[[Record], None]:
        assert self.records is not None
        keep = self.records.write

        def over(record: Record) -> None:
            keep(record)
            progress.see(record)

        return over

    async def _send_spread(self, spread: Spread) -> RunResult:
        """Send the run by several workers. Raises RefusedError, WorkerFailure."""
        assert self.records is not None
        progress = self._progress()
        try:
            crew, wanted = await asyncio.to_thread(spread.crew)
            most, why = most_workers(self._workload, self.options)
            count = min(wanted, most)
            job = Job(self._workload, self.options, self._endpoint)
            conductor = Conductor(crew, job, count, self.records, *self._zero, progress, progress.start)
            restore_signals = self._watch.stoppable(conductor)
            try:
                parts = await asyncio.to_thread(conductor.run)
            finally:
                progress.stop()
                restore_signals()
        except CrewError as error:
            raise RefusedError(str(error)) from None
        except WorkerFailure as error:
            if error.refused:
                raise RefusedError(str(error)) from None
            raise
        self.roots_taken = max((part.finished.roots_taken for part in parts if part.finished is not None), default=0)
        start_unix_ns = self.records.clock.start_unix_ns
        result = merged(parts, self._workload, self.options, conductor.start_s, start_unix_ns, conductor.cancel_reason)
        if count < wanted and spread.workers is not None:
            result.notes.append(f"{count} of {wanted} workers were used: {why} gives no more of them something to do.")
        return result


@dataclass(frozen=True, slots=True)
class _Shown:
    """A run that is drawn on a terminal; the user who cancels it has typed there."""

    run: Stoppable
    progress: Progress

    def cancel(self, reason: str) -> None:
        self.progress.interrupt()
        self.run.cancel(reason)


def most_workers(workload: Workload, options: RunOptions) -> tuple[int, str]:
    """Most workers that can have a share in the run, and what limits them."""
    limits: list[tuple[int, str]] = []
    if options.fixed_schedule:
        roots = scheduled_roots(workload, options)
        limits.append((min(roots, options.num_conversations or roots), "the number of conversations"))
    elif options.num_conversations is not None or not options.open_ended:
        limits.append((options.num_conversations or len(workload.roots) - workload.skipped, "the number of conversations"))
    if options.request_count is not None:
        limits.append((options.request_count, "--request-count"))
    if options.user_rate_per_s is not None:
        limits.append((options.num_users, "--num-users"))
    closed = not options.fixed_schedule and options.user_rate_per_s is None and options.rates is None
    slots = (options.concurrency or (1 if closed else None), options.warmup_concurrency)
    limits += [(limit, f"a concurrency of {limit}") for limit in slots if limit is not None]
    least, why = min(limits, default=(2**31, ""))
    return max(least, 1), why
