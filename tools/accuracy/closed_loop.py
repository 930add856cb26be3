"""A measured closed-loop run, once more through the whole engine: deployment, step model, scheduler, KV cache; no HTTP."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np

from accuracy import disaggregated, engine
from accuracy.runs import MeasuredRun, request_latency_ms
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request
from llmirage_server.config import ConfigError
from llmirage_server.perf import DeploymentError
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.speculation import Speculative, SpeculativeMethod, rate_of_length

Variant = Literal["known settings", "default settings", "silicon", "transferred"]

# Each measured GPU of the runs, and the one whose constants stand in for its own in the variant `transferred`: the most
# alike of another chip or memory.
STAND_INS = {"h100_sxm": "h200_sxm", "h200_sxm": "h100_sxm", "b200_sxm": "h200_sxm"}
ROUNDS = 10  # requests of one client in a run that does not say how many it had, and most that are served
# attention_dp_config of InferenceX's scripts for TensorRT-LLM
_BALANCED = {
    "attention_dp_enable_balance": True,
    "attention_dp_timeout_iters": 60,
    "attention_dp_batching_wait_iters": 0,
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What our engine says of one run; `problem` says why it says nothing."""

    run: MeasuredRun
    ttft_ms: float = float("nan")
    tpot_ms: float = float("nan")
    output_tokens_per_s: float = float("nan")
    preemptions: int = 0
    problem: str = ""

    @property
    def latency_ms(self) -> float:
        return request_latency_ms(self.ttft_ms, self.tpot_ms, self.run.osl)

    def error(self, metric: str) -> float:
        """Relative error of `ttft`, `tpot`, `latency` or `throughput`: 0.1 is 10 % too much, for the times too slow.

        Where throughput was not measured, the one that Little's law gives for the clients and their latency stands for it.
        Of a run that started cold, only TPOT is judged: the others are NaN.
        """
        if self.run.cold_start and metric != "tpot":
            return math.nan
        if metric == "throughput":
            if not self.run.output_tokens_per_s:
                return self.run.latency_ms / self.latency_ms - 1
            return self.output_tokens_per_s / self.run.output_tokens_per_s - 1
        predicted, measured = getattr(self, f"{metric}_ms"), getattr(self.run, f"{metric}_ms")
        return float(predicted / measured - 1)


def predict(
    run: MeasuredRun,
    variant: Variant = "known settings",
    host: Mapping[str, float] = MappingProxyType({}),
    gpu: Mapping[str, Any] = MappingProxyType({}),
) -> Prediction:
    """Serve the run by our engine: with the settings it is known to have had or the engine's defaults.

    silicon: with kernel times from measured tables; transferred: as if nobody had measured its GPU. host: other values of
    fields of the engine's profile. gpu: of fields of the GPU.
    """
    try:
        if run.topology:
            return _serve(run, disaggregated.cluster_of(run))
        deployment = _deployment(run, variant)
        kernels = {} if variant == "default settings" else _kernels(run)
        changed = replace(deployment.engine, **kernels, **host)
        deployment = replace(deployment, engine=changed, gpu=replace(deployment.gpu, **gpu))
        cluster = engine.cluster_of(deployment, prefix_caching=False, fast_forward=True, **_scheduling(run, variant))
        return _serve(run, cluster)
    except (ConfigError, DeploymentError, ValueError) as error:
        return Prediction(run, problem=str(error))


def predict_all(runs: Iterable[MeasuredRun], variant: Variant = "known settings", processes: int = 2) -> list[Prediction]:
    """Predict many runs, in their order, on several cores."""
    runs = list(runs)
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(predict, runs, [variant] * len(runs), chunksize=4))


def _deployment(run: MeasuredRun, variant: Variant) -> Deployment:
    options: dict[str, Any] = {
        "engine": engine_of(run),
        "tp": run.tp,
        "pp": run.pp,
        "dp": run.dp,
        "ep": run.ep,
        "weights": run.weights,
        "kv_cache_dtype": run.kv_cache_dtype,
        "perf_model": "silicon" if variant == "silicon" else "roofline",
        "speculative": speculation_of(run),
    }
    if variant != "default settings":
        options |= {
            "max_num_batched_tokens": run.max_num_batched_tokens,
            "max_num_seqs": run.max_num_seqs,
            "gpu_memory_utilization": run.gpu_memory_utilization,
            "moe_backend": run.moe_backend,
        }
    deployment = _create(run.model, run.gpu, tuple(options.items()))
    if variant != "transferred":
        return deployment
    gpu = deployment.gpu
    return replace(deployment, gpu=replace(gpu, key=f"{gpu.key}_unmeasured", constants_of=STAND_INS[gpu.key]))


def _kernels(run: MeasuredRun) -> dict[str, Any]:
    """Return fields of the engine's profile that the run's script changes."""
    found: dict[str, Any] = {}
    if run.mxfp4_activations:
        found["mxfp4_activations"] = run.mxfp4_activations
    if run.allreduce_fusion:
        found["fuses_norms"] = True
    if run.async_scheduling is not None:
        found["async_scheduling"] = bool(run.async_scheduling)
    return found


def engine_of(run: MeasuredRun) -> str:
    """Its engine, with the version where it is a number."""
    return f"{run.engine}@{run.engine_version}" if run.engine_version[:1].isdigit() else run.engine


def _scheduling(run: MeasuredRun, variant: Variant) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (speculative := speculation_of(run)) is not None:
        found |= {"num_speculative_tokens": run.drafts, "acceptance_rate": speculative.acceptance_rate}
    if variant == "default settings":
        return found
    if run.engine == "sglang":
        found["scheduler_recv_interval"] = run.scheduler_recv_interval
        found["enable_mixed_chunk"] = bool(run.enable_mixed_chunk)
        if run.max_prefill_tokens is not None:
            found["max_prefill_tokens"] = run.max_prefill_tokens
    if run.batch_wait_timeout_iters:
        found |= {"batch_wait_timeout_iters": run.batch_wait_timeout_iters, "batch_wait_max_tokens_ratio": 0.9}
    if run.engine == "trtllm" and run.dp > 1 and "InferenceX" in run.settings:
        found |= _BALANCED
    # TensorRT-LLM cuts prompts where it is told to, which none of these scripts does
    if not run.enable_chunked_prefill or (run.engine == "trtllm" and "InferenceX" in run.settings):
        found["enable_chunked_prefill"] = False
    return found


def speculation_of(run: MeasuredRun) -> Speculative | None:
    """How it drafted; None where it did not, or nobody knows how much."""
    if not run.drafts:
        return None
    length = run.acceptance_length or 1.0
    method = cast(SpeculativeMethod, run.speculation)
    return Speculative(run.drafts, method, acceptance_rate=rate_of_length(length, run.drafts))


@lru_cache(maxsize=64)
def _create(model: str, gpu: str, options: tuple[tuple[str, Any], ...]) -> Deployment:
    return Deployment.create(model, gpu, **dict(options))


def lengths(run: MeasuredRun, requests: int) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request: uniform between `shortest` and 1 of the nominal lengths, by a fixed seed."""
    rng = random.Random(0)
    low = run.shortest
    return [
        (rng.randint(max(1, int(run.isl * low)), run.isl), rng.randint(max(2, int(run.osl * low)), max(2, run.osl)))
        for _ in range(requests)
    ]


def _serve(run: MeasuredRun, cluster: Cluster) -> Prediction:
    """Serve the run, all clients starting at once; or, where it has many rounds, a shorter one of which all phases count as
    they do in the whole run: the burst at the start, the requests between, and those of the end, when the batch shrinks.

    Requests that warm up are left out: the clients of these sweeps wait for all of them before they start to measure
    (perf_analyzer's LoadManager::WaitForWarmupAndCleanup, AIPerf's phases), so that a run begins with a burst either way.
    """
    clients = run.concurrency
    total = run.requests or ROUNDS * clients
    served = min(total, ROUNDS * clients)
    prompt, output = np.zeros(run.isl, np.int32), np.zeros(max(2, run.osl), np.int32)
    requests = [Request(i, prompt[:n], output[:m]) for i, (n, m) in enumerate(lengths(run, served))]
    waiting = iter(requests[clients:])
    for request in requests[:clients]:
        cluster.submit(request, 0.0)
    while (now := cluster.next_event_time()) < float("inf"):
        for end in cluster.advance(now):
            for request in end.emitted:
                if request.produced == len(request.output) and (following := next(waiting, None)) is not None:
                    cluster.submit(following, end.time_s)
    first, last = requests[:clients], requests[clients:][-clients:]
    between = requests[clients : len(requests) - len(last)]
    phases = [(first, len(first)), (between, total - len(first) - len(last)), (last, len(last))]
    middle = median if run.statistic == "median" else mean
    ttft = middle([([r.first_token_s - r.arrival_s for r in phase], weight) for phase, weight in phases if phase])
    tpot = middle([([_tpot_s(r) for r in phase], weight) for phase, weight in phases if phase])
    # The requests that were not served would have taken as long, client by client, as those between.
    lasting = max(r.finished_s for r in requests) - min(r.arrival_s for r in requests)
    if between:
        lasting += (total - len(requests)) / clients * sum(r.finished_s - r.arrival_s for r in between) / len(between)
    tokens = total * sum(len(r.output) for r in requests) / len(requests)
    return Prediction(run, ttft * 1e3, tpot * 1e3, tokens / lasting, sum(r.preemptions for r in requests))


def _tpot_s(request: Request) -> float:
    return (request.finished_s - request.first_token_s) / (len(request.output) - 1)


Phases = list[tuple[list[float], int]]  # of a run, each with the number of requests it stands for


def mean(phases: Phases) -> float:
    return sum(weight * sum(values) / len(values) for values, weight in phases) / sum(weight for _, weight in phases)


def median(phases: Phases) -> float:
    ordered = sorted((value, weight / len(values)) for values, weight in phases for value in values)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    raise ValueError("no requests")
