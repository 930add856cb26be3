"""Results of several workers merged into one run."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.load.saturation import rate_note
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.metrics import client_cost
from llmirage_client.measure.record import BranchStats, ClientCost, Record, RunResult, WorkerResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.measure.run_folder import record_of
from llmirage_client.targets.httpx_transport import transport_notes
from llmirage_client.workers.conductor import WorkerPart
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural


def merged(
    parts: Sequence[WorkerPart],
    workload: Workload,
    options: RunOptions,
    start_s: float,
    zero_unix_ns: int,
    cancel_reason: str | None,
) -> RunResult:
    """Return the result of the whole run.

    Its clock begins at the moment zero_unix_ns, the measured phase at start_s of it.
    """
    by_worker = [
        [record_of(json.loads(line), zero_unix_ns, options.speed) for lines in part.lines for line in lines.splitlines()]
        for part in parts
    ]
    records = sorted((r for own in by_worker for r in own), key=lambda r: r.exchange.end_s or r.exchange.start_s)
    finished = [part.finished for part in parts if part.finished is not None]
    ends_s = [*(f.end_s for f in finished), *(r.exchange.end_s or r.exchange.start_s for r in records)]
    end_s = max([start_s, *ends_s])
    workers = [
        _worker(number, part, own, end_s - start_s, options)
        for number, (part, own) in enumerate(zip(parts, by_worker, strict=True), 1)
    ]
    rate = rate_note(records, options) if cancel_reason is None else None
    endpoints = {name for f in finished for name in f.endpoint.split(" and ")}
    return RunResult(
        records=records,
        branch_stats=_sum([f.branch_stats for f in finished if f.branch_stats is not None]),
        start_s=start_s,
        end_s=end_s,
        start_unix_s=zero_unix_ns / 1e9 + start_s,
        cancelled=cancel_reason is not None,
        cancel_reason=cancel_reason,
        speed=options.speed,
        model=options.model,
        endpoint=" and ".join(sorted(endpoints)) or options.endpoint_type or "chat",
        streaming=options.streaming,
        workload_format=workload.format,
        workload_path=workload.path,
        inputs=_inputs([pickle.loads(f.inputs) for f in finished]),
        client_cpu_s=sum(f.cpu_s for f in finished),
        client_cost=_whole_cost(workers),
        workers=workers,
        notes=[
            *dict.fromkeys([*workload.notes, *(note for f in finished for note in f.notes)]),
            *([rate] if rate else []),
            *transport_notes(use for f in finished for use in f.transports),
            _spread_note(workers),
        ],
    )


def _worker(number: int, part: WorkerPart, records: Sequence[Record], wall_s: float, options: RunOptions) -> WorkerResult:
    clocks, after, finished = part.clocks, part.clocks_after, part.finished
    cost = None
    if finished is not None:
        columns = columns_of([r for r in records if r.phase == "profiling"])
        cost = client_cost(
            finished.cpu_s,
            wall_s,
            finished.lag_s,
            request_columns(columns, options.speed),
            options.speed,
            waits_for_slots=bool(options.fixed_schedule) and options.concurrency is not None,
        )
    return WorkerResult(
        number=number,
        host=part.host,
        requests=len(records),
        cost=cost,
        clock_offset_s=0.0 if clocks is None else clocks.wall_ahead_s,
        clock_error_s=0.0 if clocks is None else clocks.error_s,
        clock_drift_s=None if clocks is None or after is None else after.ahead_s - clocks.ahead_s,
        late_start_s=0.0 if finished is None else finished.late_start_s,
        lost=part.lost,
    )


def _whole_cost(workers: Sequence[WorkerResult]) -> ClientCost | None:
    """Return CPU of all together, lateness of the latest; a bottleneck if any of them was one."""
    costs = [worker.cost for worker in workers if worker.cost is not None]
    if not costs:
        return None

    def worst(name: str) -> float | None:
        return max((value for cost in costs if (value := getattr(cost, name)) is not None), default=None)

    return ClientCost(
        cpu_s=sum(cost.cpu_s or 0.0 for cost in costs),
        wall_s=max(cost.wall_s for cost in costs),
        timers_late_p95_ms=worst("timers_late_p95_ms"),
        timers_late_max_ms=worst("timers_late_max_ms"),
        sends_late_p95_ms=worst("sends_late_p95_ms"),
        sends_late_max_ms=worst("sends_late_max_ms"),
        late=any(cost.late for cost in costs),
        busy=any(cost.busy for cost in costs),
    )


def _sum(stats: Sequence[BranchStats]) -> BranchStats | None:
    if not stats:
        return None
    return BranchStats(**{f.name: sum(getattr(one, f.name) for one in stats) for f in fields(BranchStats)})


def _inputs(of_workers: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return one list; sessions that ran more than once are numbered through, as in a run of one process."""
    seen: Counter[str] = Counter()
    inputs = []
    for own in of_workers:
        for session in own:
            name, _, repeat = str(session["session_id"]).rpartition("#")
            name = name if name and repeat.isdecimal() else str(session["session_id"])
            seen[name] += 1
            inputs.append({**session, "session_id": name + (f"#{seen[name]}" if seen[name] > 1 else "")})
    return inputs


def _spread_note(workers: Sequence[WorkerResult]) -> str:
    hosts = ", ".join(f"{count} on {host}" for host, count in Counter(worker.host for worker in workers).items())
    drift_s = max((abs(worker.clock_drift_s or 0.0) for worker in workers), default=0.0)
    error_s = max(worker.clock_error_s for worker in workers)
    clocks = ""
    if error_s:
        clocks = (
            f" Their clocks agree within {error_s * 1e3:.1f} ms and moved by at most {drift_s * 1e3:.1f} ms: so far "
            "may times of different workers be off against each other. Latencies are of one clock each."
        )
    late_s = max(worker.late_start_s for worker in workers)
    late = f" One began {late_s * 1e3:.0f} ms after the common start." if late_s > 0.001 else ""
    return f"{plural(len(workers), 'worker')} sent this load ({hosts}).{clocks}{late}"
