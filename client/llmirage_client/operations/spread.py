"""A run that is sent by several workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import scheduled_roots
from llmirage_client.measure.record import RunResult
from llmirage_client.report.progress import Progress
from llmirage_client.report.records_file import RecordWriter
from llmirage_client.workers.conductor import Conductor
from llmirage_client.workers.job import Crew, Job, usable_cpus
from llmirage_client.workers.merge import merged
from llmirage_client.workers.ray_cluster import connect, nodes
from llmirage_client.workload.session import Workload

ExecutorName = Literal["process", "ray"]


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


@dataclass(slots=True, frozen=True)
class Zero:
    """The moment from which the run's files count time, on both clocks of this process."""

    s: float
    unix_s: float

    @classmethod
    def now(cls) -> Zero:
        return cls(time.monotonic(), time.time())


async def send_spread(
    spread: Spread,
    job: Job,
    zero: Zero,
    records: RecordWriter,
    progress: Progress,
    cancel_on_signals: Callable[[Stoppable], Callable[[], Any]],
) -> tuple[RunResult, int]:
    """Return the result, and how far the order of roots has been followed. Raises CrewError, WorkerFailure.

    cancel_on_signals: lets Ctrl-C cancel the run; what it returns undoes that.
    """
    crew, wanted = await asyncio.to_thread(spread.crew)
    most, why = most_workers(job.workload, job.options)
    count = min(wanted, most)
    conductor = Conductor(crew, job, count, records, zero.s, zero.unix_s, progress, progress.start)
    restore_signals = cancel_on_signals(conductor)
    try:
        parts = await asyncio.to_thread(conductor.run)
    finally:
        progress.stop()
        restore_signals()
    result = merged(
        parts, job.workload, job.options, conductor.start_s, records.clock.start_unix_ns, conductor.cancel_reason
    )
    if count < wanted and spread.workers is not None:
        result.notes.append(f"{count} of {wanted} workers were used: {why} gives no more of them something to do.")
    return result, max((p.finished.roots_taken for p in parts if p.finished is not None), default=0)


def most_workers(workload: Workload, options: RunOptions) -> tuple[int, str]:
    """How many workers can have a share in the run, and what limits them."""
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
