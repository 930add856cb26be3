"""Measured runs with speculative decoding, as `MeasuredRun`s: gpt-oss-120b with EAGLE-3, DeepSeek-R1 with its own layer.

How many drafts were accepted is measured, not ours to predict: the first table counts it, of the second it follows from the
tokens of a streamed chunk. How servers were started stands in the scripts that made the runs (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from accuracy.csv_files import Row, read_csv
from accuracy.inferencex import engine_of, newest, run_of
from accuracy.runs import MeasuredRun

STREAM_INTERVAL = {"sglang": 30, "trtllm": 10}  # steps of a chunk
DRAFTS = {"sglang": 2, "trtllm": 1}  # with attention data parallelism, as all runs of TensorRT-LLM here have it
_SCRIPTS = {
    ("sglang", "fp8"): "single_node/fixed_seq_len/dsr1_fp8_b200_mtp.sh",
    ("sglang", "fp4"): "single_node/fixed_seq_len/dsr1_fp4_b200_mtp.sh",
    ("trtllm", "fp8"): "single_node/fixed_seq_len/dsr1_fp8_h200_trt_mtp.sh",
}


def read_speculative(folder: Path) -> list[MeasuredRun]:
    """Return the runs of gptoss120b_h200_runs.csv and inferencex_dsr1.csv in a folder, of repeats the newest."""
    return [*_gpt_oss(folder / "gptoss120b_h200_runs.csv"), *_deepseek(folder / "inferencex_dsr1.csv")]


def _gpt_oss(path: Path) -> Iterator[MeasuredRun]:
    for row in read_csv(path):
        yield MeasuredRun(
            engine="vllm",
            engine_version=row["engine"].removeprefix("vllm "),
            model=row["model"],
            gpu=row["hardware"],
            isl=int(row["isl"]),
            osl=int(row["osl"]),
            concurrency=int(row["concurrency"]),
            ttft_ms=float(row["ttft_mean_ms"]),
            tpot_ms=float(row["tpot_mean_ms"]),
            id=row["run"],
            speculation=row["spec"],
            drafts=int(row["num_spec"]),
            acceptance_length=1 + float(row["accepted_per_draft"]),
            weights="mxfp4",
            shortest=0.8,
            max_num_batched_tokens=8192,
            max_num_seqs=int(row["max_num_seqs"]),
            moe_backend="marlin",
            settings="GloriaXimingLu/inferencex-profiling@237385b",
        )


def _deepseek(path: Path) -> Iterator[MeasuredRun]:
    rows = [
        row
        for row in read_csv(path)
        if row["spec_decoding"] == "mtp" and row["disagg"] == "no" and row["hardware"] in ("b200", "h200")
    ]
    known: dict[str, list[float]] = {}
    for row in rows:
        known.setdefault(engine_of(row), []).extend(_acceptance(row))
    for row in newest(rows):
        [length] = _acceptance(row) or [median(known[engine_of(row)])]
        yield _with_settings(row, _deepseek_run(row, length))


def _acceptance(row: Row) -> list[float]:
    """Tokens of a step, by those of a chunk; nothing where they were not measured."""
    if not row["tokens_per_chunk"]:
        return []
    return [float(row["tokens_per_chunk"]) / STREAM_INTERVAL[engine_of(row)]]


def _deepseek_run(row: Row, length: float) -> MeasuredRun:
    ranks = int(row["decode_tp"]) if row["decode_dp_attention"] == "1" else 1
    engine = engine_of(row)
    return run_of(
        row,
        engine_version=row["image"].rpartition(":")[2],
        ttft_ms=float(row["ttft_mean_ms"] or row["ttft_median_ms"]),  # older records have medians alone
        tpot_ms=float(row["tpot_mean_ms"] or row["tpot_median_ms"]),
        id=f"inferencex_{row['row']}",
        speculation="mtp",
        drafts=DRAFTS[engine],
        acceptance_length=length,
        kv_cache_dtype="fp8",
        tp=1 if ranks > 1 else int(row["decode_tp"]),
        dp=ranks,
        ep=int(row["decode_ep"]),
        settings=_SCRIPTS[engine, row["precision"]],
    )


def _with_settings(row: Row, run: MeasuredRun) -> MeasuredRun:
    if run.engine == "trtllm":
        seqs = run.concurrency // run.dp
        tokens = -(-((run.drafts + 1) * seqs + run.isl + 64) // 64) * 64
        return replace(run, gpu_memory_utilization=0.75, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    return replace(
        run,
        gpu_memory_utilization=0.82 if row["precision"] == "fp8" else 0.85,
        max_num_seqs=512,  # the script of fp4 says 256 today; with 512 clients no request waited then
        max_num_batched_tokens=16384,
        scheduler_recv_interval=30 if run.concurrency >= 16 else 10,
    )
