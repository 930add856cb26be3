"""The two full vLLM runs, request by request: the same prompts, arrivals and settings through our engine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accuracy import engine
from accuracy.csv_files import read_as, read_csv
from llmirage_server.cluster.request import Request
from llmirage_server.perf.deployment import Deployment

TICK_S = 1.0  # how often the measured run wrote down its state


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of the measured run. The prefix says which tokens it shares with an earlier one."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float  # when the client sent it
    prefix_of: int  # the earlier request with the longest common prefix (of prompt and answer); -1: none
    prefix_tokens: int
    admitted_s: float  # when the scheduler first took it
    first_token_s: float
    last_token_s: float


@dataclass(frozen=True)
class RecordedRun:
    """A measured run: its settings, requests and state over time."""

    name: str
    settings: dict[str, Any]  # of Deployment.create
    requests: list[Recorded]
    running: npt.NDArray[np.float64]  # at TICK_S, 2 TICK_S ...
    waiting: npt.NDArray[np.float64]
    kv_share: npt.NDArray[np.float64]  # of the KV cache in use; all zero: was not recorded


@dataclass
class Metrics:
    """What is compared. Times in seconds, means over the requests; occupancy is sampled every TICK_S."""

    ttft_s: float
    tpot_s: float
    latency_s: float
    tokens_per_s: float
    ttft_p90_s: float
    tpot_p90_s: float
    latency_p90_s: float
    tpot_p99_s: float
    held_up: int  # requests that took 1.3 times as long per token as the median one: only preemption does that to a sequence
    preempted: int  # net: sequences that left the batch unfinished, counted between the samples
    kv_mean: float
    kv: npt.NDArray[np.float64] = field(repr=False)
    running: npt.NDArray[np.float64] = field(repr=False)
    preemptions: int | None = None  # all of them; the measured run did not count
    cpu_s: float = 0.0


def load_recorded(folder: Path) -> RecordedRun:
    """Read a run as `reduce` writes it: run.json, requests.csv, timeseries.csv."""
    rows = read_csv(folder / "timeseries.csv")
    about = json.loads((folder / "run.json").read_text())
    return RecordedRun(
        name=folder.name,
        settings=about["deployment"],
        requests=read_as(Recorded, folder / "requests.csv"),
        running=np.array([float(r["running"]) for r in rows]),
        waiting=np.array([float(r["waiting"]) for r in rows]),
        kv_share=np.array([float(r["kv_cache_pct"]) / 100 for r in rows]),
    )


def tokens_of(requests: list[Recorded]) -> list[npt.NDArray[np.int32]]:
    """Prompt and answer of each request as token ids that share exactly the prefixes that the real ones shared."""
    ids: list[npt.NDArray[np.int32]] = []
    fresh = 1
    for request in requests:
        length = request.prompt_tokens + request.output_tokens
        own = length - request.prefix_tokens
        shared = ids[request.prefix_of][: request.prefix_tokens] if request.prefix_tokens else np.zeros(0, np.int32)
        ids.append(np.concatenate([shared, np.arange(fresh, fresh + own, dtype=np.int32)]))
        fresh += own
    return ids


def measured(run: RecordedRun) -> Metrics:
    """Return the metrics of the recorded run itself."""
    times = [(r.arrival_s, r.admitted_s, r.first_token_s, r.last_token_s, r.output_tokens) for r in run.requests]
    return _metrics(times, run.running, run.kv_share)


def replay(run: RecordedRun, **changes: Any) -> Metrics:
    """Serve the requests at their arrivals. `changes` override the settings of the recorded deployment."""
    started = time.process_time()
    deployment = Deployment.create(**(run.settings | changes))
    cluster = engine.cluster_of(deployment, prefix_caching=True)
    requests = [
        Request(i, tokens[: recorded.prompt_tokens], tokens[recorded.prompt_tokens :])
        for i, (recorded, tokens) in enumerate(zip(run.requests, tokens_of(run.requests), strict=True))
    ]
    order = sorted(range(len(requests)), key=lambda i: run.requests[i].arrival_s)
    running: list[int] = []
    kv: list[float] = []
    coming, unfinished, tick = 0, len(requests), TICK_S
    while unfinished:
        arrival = run.requests[order[coming]].arrival_s if coming < len(order) else float("inf")
        now = min(arrival, tick, cluster.next_event_time())
        for end in cluster.advance(now):
            unfinished -= sum(1 for request in end.emitted if request.produced == len(request.output))
        if now == tick:
            snapshots = cluster.snapshot()
            running.append(sum(s.running for s in snapshots))
            kv.append(sum(s.kv_used_tokens for s in snapshots) / sum(s.kv_total_tokens for s in snapshots))
            tick += TICK_S
        if now == arrival:
            cluster.submit(requests[order[coming]], now)
            coming += 1
    times = [(r.arrival_s, r.admitted_s, r.first_token_s, r.finished_s, len(r.output)) for r in requests]
    metrics = _metrics(times, np.array(running, float), np.array(kv))
    metrics.preemptions = sum(request.preemptions for request in requests)
    metrics.cpu_s = time.process_time() - started
    return metrics


def _metrics(
    times: list[tuple[float, float, float, float, int]], running: npt.NDArray[np.float64], kv: npt.NDArray[np.float64]
) -> Metrics:
    arrivals, admitted, firsts, lasts, outputs = (np.array(column) for column in zip(*times, strict=True))
    ttft, latency, tpot = firsts - arrivals, lasts - arrivals, (lasts - firsts) / np.maximum(1, outputs - 1)
    return Metrics(
        ttft_s=float(ttft.mean()),
        tpot_s=float(tpot[outputs > 1].mean()),
        latency_s=float(latency.mean()),
        tokens_per_s=float(outputs.sum() / (lasts.max() - arrivals.min())),
        ttft_p90_s=float(np.percentile(ttft, 90)),
        tpot_p90_s=float(np.percentile(tpot[outputs > 1], 90)),
        latency_p90_s=float(np.percentile(latency, 90)),
        tpot_p99_s=float(np.percentile(tpot[outputs > 1], 99)),
        held_up=int((tpot > 1.3 * np.median(tpot)).sum()),
        preempted=_left_unfinished(running, admitted, lasts),
        kv_mean=float(kv.mean()),
        kv=kv,
        running=running,
    )


def _left_unfinished(running: npt.NDArray[np.float64], admitted: Any, lasts: Any) -> int:
    """Sequences by which the batch shrank from sample to sample beyond those that finished and despite those that began.

    A lower bound of preemptions, and the only one that a run without their counter gives; taken of both runs alike.
    """
    lost = 0
    for i, (before, after) in enumerate(pairwise(running)):
        start, end = (i + 1) * TICK_S, (i + 2) * TICK_S
        finished = int(((lasts > start) & (lasts <= end)).sum())
        began = int(((admitted > start) & (admitted <= end)).sum())
        lost += max(0, int(before) + began - finished - int(after))
    return lost
