"""NVIDIA's published maximum throughput of TensorRT-LLM: all requests of a run are there at once, all of one length.

The tables are those of perf-overview.md of 1.0 (docs/source/performance, commit 00f3768) and 1.2
(docs/source/developer-guide, 03e27c7), Apache-2.0. Batch limits are those that trtllm-bench chooses
(tensorrt_llm/bench/build/tuning.py). It has no HTTP and streams nothing, so no version has the front end of a server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accuracy import engine
from llmirage_server.cluster.request import Request
from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.memory import weights_bytes_per_rank
from llmirage_server.perf.parallelism import ONE_GPU

KV_FRACTION = 0.95  # of free memory; "in many cases", says the page, else the default of 0.90
MOST_REQUESTS = 4096  # sequences that trtllm-bench plans for
MOST_TOKENS = 32768  # of a step that it plans for
BENCH_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}  # of an element, as trtllm-bench counts
ENGINE = Path(__file__).with_name("max_throughput.yaml")


@dataclass(frozen=True, slots=True)
class PublishedThroughput:
    """One cell of the tables; the field names are the columns of the CSV file."""

    version: str
    model: str
    gpu: str
    weights: str
    tp: int
    pp: int
    dp: int
    ep: int
    isl: int
    osl: int
    requests: int
    output_tokens_per_s: float  # of all GPUs together

    @property
    def dense(self) -> bool:
        return self.ep == 1 and "Llama-3" in self.model

    @property
    def family(self) -> str:
        return self.model.rpartition("/")[2]

    @property
    def split(self) -> str:
        sizes = [("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep)]
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1 or name == "tp")


@dataclass(frozen=True, slots=True)
class Reached:
    """What our engine reaches; `problem` says why it says nothing."""

    run: PublishedThroughput
    output_tokens_per_s: float = float("nan")
    problem: str = ""

    @property
    def error(self) -> float:
        return self.output_tokens_per_s / self.run.output_tokens_per_s - 1


def reach(run: PublishedThroughput) -> Reached:
    """Serve the run by our engine."""
    try:
        seqs, tokens = bench_limits(run)
        deployment = _deployment(run, max_num_seqs=seqs, max_num_batched_tokens=max(tokens, run.isl + seqs))
        cluster = engine.cluster_of(deployment, prefix_caching=False, fast_forward=True)
    except (DeploymentError, ValueError) as error:
        return Reached(run, problem=str(error))
    prompt, output = np.zeros(run.isl, np.int32), np.zeros(run.osl, np.int32)
    requests = [Request(i, prompt, output) for i in range(run.requests)]
    for request in requests:
        cluster.submit(request, 0.0)
    while (now := cluster.next_event_time()) < math.inf:
        cluster.advance(now)
    return Reached(run, run.requests * run.osl / max(request.finished_s for request in requests))


def bench_limits(run: PublishedThroughput) -> tuple[int, int]:
    """max_batch_size and max_num_tokens that trtllm-bench chooses: a little more than it estimates the memory to hold."""
    plain = _deployment(run)
    gpus = run.tp * run.dp * run.pp
    per_token = plain.kv_bytes_per_token
    cache = (plain.gpu.memory_bytes * gpus - _bench_weights(run, plain)) * KV_FRACTION
    held = cache / per_token / (run.isl + run.osl)
    batch = min(held, MOST_REQUESTS) / run.pp
    tokens = min(batch * (1 + run.isl / run.osl), MOST_TOKENS)
    unit = 32 if batch < 256 else 128 if batch < 1024 else 256
    coarse = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return max(64, unit * math.ceil(batch / unit)), max(2048, coarse * math.ceil(tokens / coarse))


def _bench_weights(run: PublishedThroughput, plain: Deployment) -> float:
    """Bytes of all weights as trtllm-bench counts them: elements of the checkpoint's tensors, at one size for all of them.

    Each weight counts once, whatever ranks copy it; packed fp4 counts by its bytes. Formats without a size: as held.
    """
    if run.weights not in BENCH_BYTES:
        return plain.memory.weights_bytes * run.tp * run.dp * run.pp
    dtype, weights = WEIGHT_DTYPES[run.weights], plain.model.parameters
    held = weights_bytes_per_rank(plain.model, dtype, ONE_GPU)
    bf16 = (held - dtype.weight_bytes * weights) / (2 - dtype.weight_bytes)
    return BENCH_BYTES[run.weights] * (held - bf16)


def _kv_cache(run: PublishedThroughput) -> str:
    """The options of 1.2 ask for fp8 under DeepSeek-R1 and, on Blackwell, gpt-oss; other checkpoints say themselves."""
    asked = run.family == "DeepSeek-R1" or ("gpt-oss" in run.family and find_gpu(run.gpu).has_fp4)
    return "fp8" if asked else "auto"


def _deployment(run: PublishedThroughput, **limits: int) -> Deployment:
    return Deployment.create(
        run.model,
        run.gpu,
        engine=str(ENGINE),
        tp=run.tp,
        pp=run.pp,
        dp=run.dp,
        ep=run.ep,
        weights=run.weights,
        kv_cache_dtype=_kv_cache(run),
        gpu_memory_utilization=KV_FRACTION,
        **limits,
    )
