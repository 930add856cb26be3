"""Measured runs with prefill and decode on different instances: DeepSeek-R1 under Dynamo and SGLang's own router.

InferenceX's records (inferencex_dsr1.csv) say how many workers of which (tp, ep, dp attention) there were: the topology. How
servers were started stands in the recipes of SemiAnalysisAI/InferenceX@843c625 (Apache-2.0), as far as it stands anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from accuracy.csv_files import Row, read_csv
from accuracy.inferencex import engine_of, newest, run_of, since
from accuracy.runs import MeasuredRun
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.config import ClusterConfig, PoolConfig
from llmirage_server.config.assembly import build, kv_link
from llmirage_server.config.planning import ServedPool, plan

Accepted = dict[tuple[bool, int], list[float]]  # tokens of a step, by attention data parallelism and drafts

_FRAMEWORKS = ("dynamo-sglang", "mori-sglang", "dynamo-trt")
_WORKERS = re.compile(r"([PD])(\d+)x\(tp(\d+)ep(\d+)(dpa)?\)")
# Steps of a streamed chunk (`--stream-interval`) by Dynamo's recipes for SGLang, and of MXFP4-v2 with ranks.
_STREAM_INTERVAL = {
    ("b200", "fp4"): 50,
    ("b200", "fp8"): 30,
    ("h200", "fp8"): 10,
    ("gb200", "fp4"): 50,
    ("gb200", "fp8"): 50,
}
_STREAM_INTERVAL_OF_RANKS, _MXFP4_V2 = 100, "2026-05-07"
# `scheduler-recv-interval` of Dynamo's recipes for SGLang; with fp4 and ranks they look before each step
_RECV_INTERVAL = 10
_PREFILL_CHUNK, _PREFILL_KV_TOKENS = 24576, 32768  # `chunked-prefill-size`, `max-total-tokens` of those for nvfp4 on B200
# SGLang's version in MoRI's images, of records without one, by the first day of each in the recipes.
_MORI_VERSIONS = {
    "fp8": (("2026-03-04", "0.5.9"), ("2026-02-12", "0.5.8"), ("", "0.5.6")),
    "fp4": (("2026-05-27", "0.5.12"), ("2026-05-07", "0.5.10"), ("2026-03-04", "0.5.9"), ("", "0.5.7")),
}
_RANK_CHUNKS = (("2026-05-07", 8192), ("2026-03-13", 12288), ("", 16384))  # MORI_MAX_DISPATCH_TOKENS_PREFILL, since that day


@dataclass(frozen=True, slots=True)
class Workers:
    """The instances of one role."""

    role: str
    count: int
    gpus: int  # of each
    ep: int
    dp_attention: bool


def read_disaggregated(path: Path) -> list[MeasuredRun]:
    """Return the disaggregated points of the file, of repeats the newest, without those that stalled."""
    rows = [row for row in read_csv(path) if row["disagg"] == "yes" and row["framework"] in _FRAMEWORKS]
    rows = [row for row in rows if "low_effective_concurrency" not in row["flags"]]
    known: Accepted = {}
    for row in rows:
        known.setdefault((_ranks(row), _drafts(row)), []).extend(_acceptance(row))
    return [_run(row, known) for row in newest(rows)]


def workers_of(run: MeasuredRun) -> list[Workers]:
    """The instances that a topology such as P1x(tp4ep1)+D3x(tp8ep8dpa) names. Raises ValueError."""
    found = [
        Workers("prefill" if role == "P" else "decode", int(count), max(int(tp), int(ep)), int(ep), bool(dp_attention))
        for role, count, tp, ep, dp_attention in _WORKERS.findall(run.topology)
    ]
    if [each.role for each in found] != ["prefill", "decode"]:
        raise ValueError(f"topology {run.topology!r}: give P<n>x(tp<n>ep<n>[dpa])+D<n>x(tp<n>ep<n>[dpa])")
    return found


def cluster_of(run: MeasuredRun) -> Cluster:
    """A cluster as the run had it. Raises DeploymentError and ConfigError."""
    pools = tuple(_pool(run, workers) for workers in workers_of(run))
    config = ClusterConfig(pools=pools, router="random" if run.settings == "mori-sglang" else "least_loaded")
    planned = [_with_interval(pool, run.scheduler_recv_interval) for pool in plan(config)]
    return build(config, planned, kv_link(config, planned), fast_forward=True)


def _with_interval(pool: ServedPool, interval: int) -> ServedPool:
    if pool.limits.scheduler != "sglang":
        return pool
    tokens = max(16384, pool.limits.max_num_batched_tokens)
    return replace(pool, limits=replace(pool.limits, scheduler_recv_interval=interval, max_prefill_tokens=tokens))


def _pool(run: MeasuredRun, workers: Workers) -> PoolConfig:
    drafts: dict[str, Any] = {}
    if run.drafts and workers.role == "decode":
        drafts = {"num_speculative_tokens": run.drafts, "acceptance_length": run.acceptance_length}
    dp = workers.gpus if workers.dp_attention else 1
    prefill: dict[str, Any] = {}
    if workers.role == "prefill":
        prefill = {"max_num_batched_tokens": run.max_num_batched_tokens}
        if run.settings == "dynamo-sglang" and run.weights == "nvfp4":
            prefill |= {"num_gpu_blocks_override": _PREFILL_KV_TOKENS}
    return PoolConfig(
        name=workers.role,
        role=workers.role,  # type: ignore[arg-type]
        instances=workers.count,
        model=run.model,
        gpu=run.gpu,
        engine=f"sglang@{run.engine_version}" if run.engine == "sglang" and run.engine_version else run.engine,
        tensor_parallel_size=workers.gpus // dp,
        data_parallel_size=dp,
        expert_parallel_size=workers.ep,
        weights=run.weights,  # type: ignore[arg-type]
        # recipes of Dynamo with TensorRT-LLM (srt-slurm, in SemiAnalysisAI/InferenceX) ask for CUTEDSL or TRTLLM
        moe_backend="trtllm" if (run.engine, run.weights) == ("trtllm", "nvfp4") else "auto",
        kv_cache_dtype=run.kv_cache_dtype,  # type: ignore[arg-type]
        enable_prefix_caching=False,
        max_num_seqs=run.max_num_seqs if workers.role == "decode" else None,
        stream_interval=run.stream_interval,
        **prefill,
        **drafts,
    )


def _ranks(row: Row) -> bool:
    return row["decode_dp_attention"] == "1"


def _acceptance(row: Row) -> list[float]:
    """Tokens of a step, by those of a chunk; nothing where they were not measured."""
    if row["spec_decoding"] != "mtp" or not row["tokens_per_chunk"] or row["framework"] == "dynamo-trt":
        return []
    return [float(row["tokens_per_chunk"]) / _stream_interval(row)]


def _stream_interval(row: Row) -> int:
    """Steps whose tokens go out together; 1 where nobody says otherwise."""
    if row["framework"] == "mori-sglang":
        newer = row["precision"] == "fp4" and row["date"] >= _MXFP4_V2
        return _STREAM_INTERVAL_OF_RANKS if newer and _ranks(row) else 1
    return _STREAM_INTERVAL[row["hardware"], row["precision"]] if row["framework"] == "dynamo-sglang" else 1


def _recv_interval(row: Row) -> int:
    fp4_ranks = (row["hardware"], row["precision"]) == ("b200", "fp4") and _ranks(row)
    return 1 if row["framework"] != "dynamo-sglang" or fp4_ranks else _RECV_INTERVAL


def _run(row: Row, known: Accepted) -> MeasuredRun:
    drafts = _drafts(row)
    length = None
    if drafts and engine_of(row) == "sglang":  # no run of TensorRT-LLM says: the published lengths stand for them
        [length] = _acceptance(row) or [median(known[_ranks(row), drafts])]
        length = min(length, drafts + 1.0)
    share = int(row["osl"]) / (int(row["isl"]) + int(row["osl"]))
    return run_of(
        row,
        ttft_ms=float(row["ttft_median_ms"]),
        tpot_ms=float(row["tpot_median_ms"]),
        output_tokens_per_s=float(row["total_tok_s_per_gpu"]) * int(row["total_gpus"]) * share,
        statistic="median",
        id=f"inferencex_dsr1 row {row['row']}",
        engine_version=_version(row),
        topology=_topology(row),
        speculation="mtp" if drafts else "",
        drafts=drafts,
        acceptance_length=length,
        kv_cache_dtype="fp8",
        max_num_seqs=_decode_seqs(row),
        max_num_batched_tokens=_prefill_chunk(row),
        scheduler_recv_interval=_recv_interval(row),
        settings=row["framework"],
        stream_interval=_stream_interval(row),
    )


def _topology(row: Row) -> str:
    """As the record has it, but with the GPUs of a worker, where it lists them under another name."""

    def part(side: str, letter: str) -> str:
        count = int(row[f"{side}_workers"])
        gpus = int(row[f"{side}_gpus"]) // count
        tp, ep, ranks = int(row[f"{side}_tp"]), int(row[f"{side}_ep"]), row[f"{side}_dp_attention"] == "1"
        if tp == ep == 1 < gpus:
            ep = gpus
        return f"{letter}{count}x(tp{max(tp, gpus)}ep{ep}{'dpa' if ranks else ''})"

    return f"{part('prefill', 'P')}+{part('decode', 'D')}"


def _version(row: Row) -> str:
    if row["framework"] == "dynamo-trt":
        return ""  # images have Dynamo's version
    if (found := re.search(r"(?:v|sglang-)(\d+\.\d+\.\d+)", row["image"])) is not None:
        return found[1]
    return since(_MORI_VERSIONS[row["precision"]], row) if row["framework"] == "mori-sglang" else ""


def _drafts(row: Row) -> int:
    """Draft tokens of a step, as in the recipes (`mtp` in the names of TensorRT-LLM's, DECODE_MTP_SIZE of MoRI's)."""
    if row["spec_decoding"] != "mtp":
        return 0
    if row["framework"] == "dynamo-trt":
        return 2 if row["isl"] == "8192" else 3
    if row["framework"] == "dynamo-sglang":
        return 3 if row["precision"] == "fp4" and not _ranks(row) else 2
    if row["date"] < "2026-02-12":
        return 2
    if _ranks(row) or row["precision"] == "fp8":
        return 1 if _ranks(row) or int(row["decode_ep"]) > 1 else 2
    if row["date"] < "2026-03-04":
        return 1 if int(row["decode_ep"]) > 1 else 2
    if int(row["concurrency"]) <= 32 or (row["isl"] == "8192" and row["date"] >= "2026-05-31"):
        return 3
    return 2 if row["date"] >= "2026-05-07" else 1


def _prefill_chunk(row: Row) -> int | None:
    """Prompt tokens of a step of a prefill instance, or of a rank of it, where the recipes say."""
    ranks = row["prefill_dp_attention"] == "1"
    if row["framework"] == "mori-sglang" and ranks:
        return since(_RANK_CHUNKS, row)
    if row["framework"] == "dynamo-sglang" and row["precision"] == "fp4" and row["hardware"] == "b200":
        return _PREFILL_CHUNK // (int(row["prefill_tp"]) if ranks else 1)
    return None


def _decode_seqs(row: Row) -> int | None:
    """Most running requests of a decode instance, or of a rank of it, where the recipes say."""
    if row["framework"] == "mori-sglang" and not _ranks(row):
        return 256 if int(row["decode_ep"]) > 1 else 128
    if row["framework"] == "dynamo-sglang" and row["precision"] == "fp4" and not _ranks(row):
        return 512
    return None
