"""Turns the table of measured server runs into `MeasuredRun`s: labels put right, rows dropped, settings added.

The table is silicon_dev.csv, a part of the sample of measured runs in aiconfigurator-core (Apache-2.0): InferenceMAX
runs and NVIDIA's own sweeps. What is dropped, and why, was decided before our own error on any row was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accuracy.csv_files import Row, read_csv
from accuracy.runs import MeasuredRun

# The scripts that made the InferenceMAX runs (Apache-2.0) say how the server was started.
_SCRIPTS = "github.com/SemiAnalysisAI/InferenceX benchmarks/"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not used."""

    id: str
    why: str


DUPLICATE = "the same measurement a second time (TTFT and TPOT agree to nine digits)"
NOT_AGGREGATED = "the run had separate instances for prefill and decode, whatever its label says"
NO_CONCURRENCY = "concurrency is missing"
GPT_OSS_512 = (
    "gpt-oss-120b at concurrency 512: one row beats the memory bound by half (1.5 times the datasheet's bandwidth), two are "
    "at 0.92 of it, and most are faster per token than the same deployment with 8 clients while about 90 sequences run"
)
OUTLIER = (
    "slower per token than the same deployment with at least 1.5 times as many sequences by more than 25 %, or than a "
    "repeat of the very same run by more than half"
)


def read_truth(path: Path, annotations: Path | None = None) -> tuple[list[MeasuredRun], list[Dropped]]:
    """Return the usable runs of silicon_dev.csv and the rows that are dropped.

    annotations: what the records of the runs themselves say of some rows, a finding a line (silicon_annotations_dev.csv).
    """
    rows = read_csv(path)
    findings = _findings(annotations)
    dropped: list[Dropped] = []
    seen: set[tuple[str, ...]] = set()
    runs: list[MeasuredRun] = []
    # Of two copies the one with plausible labels comes first: a label of 64 or 16 ranks is a product, see _parallelism.
    for row in sorted(rows, key=lambda row: _ranks(row) > 8):
        measured = (f"{float(row[name]):.9g}" for name in ("silicon_ttft_ms", "silicon_tpot_ms"))
        same = (row["model_path"], row["system"], *measured)
        if same in seen:
            dropped.append(Dropped(row["id"], DUPLICATE))
            continue
        seen.add(same)
        found = findings.get(row["id"], {})
        if any("disagg" in finding for finding in found):
            dropped.append(Dropped(row["id"], NOT_AGGREGATED))
        elif not row["concurrency"]:
            dropped.append(Dropped(row["id"], NO_CONCURRENCY))
        elif row["model_path"] == "openai/gpt-oss-120b" and row["concurrency"] == "512":
            dropped.append(Dropped(row["id"], GPT_OSS_512))
        else:
            run = _run(row, found.get("tp_or_dp_is_tp_x_ep", ""))
            drafted = "speculative_mtp" in found or _beyond_the_points_without_drafts(run)
            runs.append(with_settings(replace(run, speculation="mtp") if drafted else run))
    outliers = find_outliers(runs)
    dropped += [Dropped(id, OUTLIER) for id in sorted(outliers)]
    return [run for run in runs if run.id not in outliers], dropped


def _findings(annotations: Path | None) -> dict[str, dict[str, str]]:
    """Of each row that has any: what was found, and its details."""
    found: dict[str, dict[str, str]] = {}
    if annotations is not None and annotations.exists():
        for line in read_csv(annotations):
            found.setdefault(line["silicon_id"], {})[line["finding"]] = line["detail"]
    return found


def find_outliers(runs: Iterable[MeasuredRun]) -> set[str]:
    """Return ids of runs that are out of order among the runs of the same deployment and lengths; see OUTLIER."""
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        where = (run.model, run.gpu, run.weights, run.tp, run.dp, run.ep, run.isl, run.osl)
        groups.setdefault((run.engine, run.engine_version, *where), []).append(run)
    outliers = set()
    for group in groups.values():
        for slow in group:
            for other in group:
                busier = _running(other) >= 1.5 * _running(slow) and slow.tpot_ms > 1.25 * other.tpot_ms
                repeat = other.concurrency == slow.concurrency and slow.tpot_ms > 1.5 * other.tpot_ms
                if busier or repeat:
                    outliers.add(slow.id)
    return outliers


def find_drafted(runs: Collection[MeasuredRun]) -> set[str]:
    """Return ids of runs with drafts, known or probable: figures of a server without drafts go without them."""
    return find_suspects(runs) | {run.id for run in runs if run.speculation}


def find_suspects(runs: Iterable[MeasuredRun]) -> set[str]:
    """Return ids of runs that probably drafted tokens (MTP), which no column tells. They stay in the errors of all runs.

    Noticed after a first comparison, so they are not dropped: DeepSeek-R1 on H200 under TensorRT-LLM 1.1.0rc2.post2 is up to
    1.6 times faster per token than the same GPUs without expert parallelism, and of two runs of one B200 deployment and
    version one is 10 to 50 % faster than the other. InferenceMAX has scripts with and without MTP for both.
    """
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    suspects = set()
    for run in runs:
        if run.family != "DeepSeek-R1":
            continue
        if (run.gpu, run.engine_version) == ("h200_sxm", "1.1.0rc2.post2"):
            suspects.add(run.id)
        where = (run.gpu, run.weights, run.tp, run.dp, run.ep, run.engine_version)
        groups.setdefault((*where, run.isl, run.osl, run.concurrency), []).append(run)
    for group in groups.values():
        slowest = max(run.tpot_ms for run in group)
        suspects |= {run.id for run in group if run.gpu == "b200_sxm" and run.tpot_ms < 0.92 * slowest}
    return suspects


# Points of DeepSeek-R1 in fp8 on eight B200 that SGLang 0.5.9 served without drafts: up to so many clients, by length of the
# prompts; with drafts up to 512 (.github/configs/nvidia-master.yaml of SemiAnalysisAI/InferenceX, 2026-01-13 to 2026-04-06).
_WITHOUT_DRAFTS = {1024: 64, 8192: 4}


def _beyond_the_points_without_drafts(run: MeasuredRun) -> bool:
    same = (run.family, run.gpu, run.weights, run.tp, run.engine_version[:5])
    known = same == ("DeepSeek-R1", "b200_sxm", "fp8_block", 8, "0.5.9")
    return known and run.concurrency > _WITHOUT_DRAFTS.get(run.isl, run.concurrency)


def _running(run: MeasuredRun) -> float:
    """Sequences that decoded at once, by Little's law."""
    return run.concurrency * (run.osl - 1) * run.tpot_ms / run.latency_ms


def _ranks(row: Row) -> int:
    return int(row["tp_size"]) * int(row["attention_dp_size"] or 1)


def _parallelism(row: Row) -> tuple[int, int, int]:
    """(tp, dp, ep) of a row, GPUs = tp x dp.

    Part of the table was written by a conversion that multiplied tensor and expert parallelism: tp 64 (or dp 64) with MoE
    8 x 8 is the run that another row calls tp 8 (dp 8) with MoE 1 x 8, to the last digit of both measurements; tp 16 with
    4 x 4 likewise is tp 4 ep 4. Where tp and attention dp are both given, the run's id says tp N ep N, and the same numbers
    (within 1 %) appear under dp 1 on H100; on B300 the script starts vLLM with tp 1, dp N and expert parallelism.
    """
    tp, dp = int(row["tp_size"]), int(row["attention_dp_size"] or 1)
    moe_tp, ep = int(row["moe_tp_size"]), int(row["moe_ep_size"])
    if moe_tp == ep and tp * dp == ep * ep and ep > 2:
        return (ep, 1, ep) if dp == 1 else (1, ep, ep)
    if tp == dp > 1:
        return (tp, 1, tp) if row["system"] == "h100_sxm" else (1, dp, dp)
    return tp, dp, ep


def _is_inference_max(row: Row) -> bool:
    """InferenceMAX draws lengths between 0.8 and 1 of the nominal ones (its RANDOM_RANGE_RATIO); ids begin with the date.

    NVIDIA's own sweeps have fixed lengths: aiconfigurator's runner (src/aiconfigurator/eval/benchmarks) gives genai-perf
    standard deviations of 0 and, like InferenceMAX, ten requests a client, after two that warm up and do not count.
    """
    return row["id"].startswith("2026_") or row["origin"].startswith("db-dump")


def _weights(row: Row) -> str:
    if row["precision"] == "fp4":
        return "mxfp4" if "gpt-oss" in row["model_path"] else "nvfp4"
    if row["precision"] == "fp8":
        # These checkpoints are quantised in blocks of 128 x 128, whatever the column says.
        blocks = any(name in row["model_path"] for name in ("DeepSeek", "MiniMax", "Qwen3-235B"))
        return "fp8_block" if blocks else "fp8"
    return "bf16"


def _true_gpus(detail: str) -> int:
    """Of an annotation "listed 16, run on 4 GPUs"; 0: there is none."""
    return int(detail.partition("run on ")[2].split()[0]) if "run on " in detail else 0


def _version(row: Row) -> str:
    """InferenceMAX wrote versions down from early 2026 on; rows without one are runs of 2025."""
    before = {"vllm": "0.11", "sglang": "0.5.3" if row["precision"] == "fp4" else "0.5.5", "trtllm": "1.1"}
    return row["backend_version"] or before[row["backend"]]


def _run(row: Row, counted: str = "") -> MeasuredRun:
    tp, dp, ep = _parallelism(row)
    gpus = _true_gpus(counted)
    if gpus and gpus != tp * dp * int(row["pp_size"]):  # a product of tensor and expert parallelism that nothing else shows
        tp, dp, ep = (gpus, 1, min(ep, gpus)) if dp == 1 else (1, gpus, gpus)
    return MeasuredRun(
        engine=row["backend"],
        model=row["model_path"],
        gpu=row["system"],
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        concurrency=int(row["concurrency"]),
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
        id=row["id"],
        engine_version=_version(row),
        weights=_weights(row),
        tp=tp,
        pp=int(row["pp_size"]),
        dp=dp,
        ep=ep,
        shortest=0.8 if _is_inference_max(row) else 1.0,
        warmup=0 if _is_inference_max(row) else 2,
    )


def _round_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


Settings = dict[str, Any]
_LLAMA70_B200: Settings = {
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 512,
    "async_scheduling": 1,
    "settings": "70b_fp8_b200_docker.sh",
}


def _minimax_b300(run: MeasuredRun) -> Settings:
    return {
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 2 * run.isl,
        "settings": "single_node/minimaxm2.5_fp8_b300.sh",
    }


def _gpt_oss_h100(run: MeasuredRun) -> Settings:
    return {
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": run.concurrency,
        "moe_backend": "marlin",
        "async_scheduling": 1,
        "settings": "single_node/gptoss_fp4_h100.sh",
    }


def _llama70_h200(run: MeasuredRun) -> Settings:
    # max_num_tokens is the model length: both lengths and 20 (1k/1k) or 200 tokens
    longest = run.isl + run.osl + (20 if run.isl == run.osl else 200)
    return {"kv_cache_dtype": "fp8", "max_num_batched_tokens": longest, "settings": "70b_fp8_h200_trt_slurm.sh"}


def _deepseek_h200(run: MeasuredRun) -> Settings:
    max_num_seqs = run.concurrency // run.dp
    return {
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.75,  # of what is free after the weights, as TensorRT-LLM counts
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": _round_up(max_num_seqs + run.isl + 64, 64),
        "settings": "dsr1_fp8_h200_trt_slurm.sh",
    }


def _deepseek_b200_fp8(run: MeasuredRun) -> Settings:
    eight = run.tp == 8
    found = {
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.82 if eight else 0.95,
        "max_num_batched_tokens": 32768 if eight else 8192,
        "max_num_seqs": 128 if eight else 32,
        "scheduler_recv_interval": 30 if eight and run.concurrency >= 16 else 10,
        "settings": "single_node/dsr1_fp8_b200.sh",
    }
    return found | _deepseek_b200_mtp(run) if run.speculation else found


def _deepseek_b200_mtp(run: MeasuredRun) -> Settings:
    """Return what the script for drafts sets."""
    return {
        "gpu_memory_utilization": 0.82,
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 512,
        "scheduler_recv_interval": 30 if run.concurrency >= 16 else 10,
        "settings": "single_node/dsr1_fp8_b200_mtp.sh",
    }


def _deepseek_b200_fp4(run: MeasuredRun) -> Settings:
    return {
        "ep": run.tp if run.engine_version == "0.5.3" else run.ep,  # --enable-ep-moe, which the labels do not have
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.85,
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 256,
        "scheduler_recv_interval": 30 if run.concurrency >= 16 else 10,
        "settings": "single_node/dsr1_fp4_b200.sh",
    }


def _nvidia_sweep(run: MeasuredRun) -> Settings:
    """What aiconfigurator's generator writes for TensorRT-LLM 1.0.0rc3: src/aiconfigurator/cli/backends/trtllm.py and
    extra_engine_args.1.0.0rc3.yaml.j2 of its first release.
    """
    return {
        "max_num_seqs": run.concurrency,
        "max_num_batched_tokens": _round_up(run.concurrency + run.isl + 1500, 32),
        "gpu_memory_utilization": 0.8,
        "enable_chunked_prefill": 0,
        "async_scheduling": 0,
        "settings": "aiconfigurator@8d61558",
    }


# mem-fraction-static as the generator maps it (backend_config_mapping.yaml), 0.8 as for TensorRT-LLM. Read off Qwen3-32B on
# one GPU, where 16 clients wait for the memory of five requests: 0.8 leaves 7,000 tokens, SGLang's own share 17,000.
_NVIDIA_SGLANG: Settings = {"gpu_memory_utilization": 0.8, "settings": "aiconfigurator@043c66c"}


def _llama8_h100(run: MeasuredRun) -> Settings:
    """The same with a sequence less: one request waits all the time, at 8 clients as at 64 and for every length.

    Found in the runs: TTFT grows with the reply by the time from one finished request to the next.
    """
    return _nvidia_sweep(run) | {"max_num_seqs": run.concurrency - 1}


# SGLang's version from which AMD's scripts asked for an fp8 cache; before, it was in bf16.
_FP8_CACHE = {("mi300x", "fp8_block"): (0, 5, 7), ("mi355x", "fp8_block"): (0, 5, 12), ("mi355x", "mxfp4"): (0, 5, 6)}


def _deepseek_amd(run: MeasuredRun) -> Settings:
    version = tuple(map(int, run.engine_version.split(".")[:3]))
    newer = version >= _FP8_CACHE[run.gpu, run.weights]
    chunk = 131072 if run.gpu == "mi300x" and newer else 196608
    if run.weights == "mxfp4" and run.isl == 8192 and run.concurrency > 32:
        chunk = 32768
    return {
        "kv_cache_dtype": "fp8" if newer else "bf16",
        "gpu_memory_utilization": 0.8,
        "max_num_batched_tokens": chunk,
        "settings": f"single_node/dsr1_fp{4 if run.weights == 'mxfp4' else 8}_{run.gpu}.sh",
    }


# By model, GPU and weights; a function where they depend on the run.
_SETTINGS: dict[tuple[str, str, str], Settings | Callable[[MeasuredRun], Settings]] = {
    ("MiniMax-M2.5", "h100_sxm", "fp8_block"): {
        "max_num_seqs": 256,
        "gpu_memory_utilization": 0.9,
        "settings": "single_node/minimaxm2.5_fp8_h100.sh",
    },
    ("MiniMax-M2.5", "b300_sxm", "fp8_block"): _minimax_b300,
    ("MiniMax-M2.5", "b300_sxm", "nvfp4"): _minimax_b300,
    ("gpt-oss-120b", "h100_sxm", "mxfp4"): _gpt_oss_h100,
    ("Llama-3.1-70B", "b200_sxm", "fp8"): _LLAMA70_B200,
    ("Llama-3.1-70B", "b200_sxm", "nvfp4"): _LLAMA70_B200,
    ("Llama-3.1-70B", "h200_sxm", "fp8"): _llama70_h200,
    ("Llama-3.1-8B-Instruct", "h100_sxm", "bf16"): _llama8_h100,
    ("Qwen3-235B-A22B-FP8", "h100_sxm", "fp8_block"): _nvidia_sweep,
    ("Qwen3-32B", "h100_sxm", "bf16"): _NVIDIA_SGLANG,
    ("DeepSeek-R1", "mi300x", "fp8_block"): _deepseek_amd,
    ("DeepSeek-R1", "mi355x", "fp8_block"): _deepseek_amd,
    ("DeepSeek-R1", "mi355x", "mxfp4"): _deepseek_amd,
    ("DeepSeek-R1", "h200_sxm", "fp8_block"): _deepseek_h200,
    ("DeepSeek-R1", "b200_sxm", "fp8_block"): _deepseek_b200_fp8,
    ("DeepSeek-R1", "b200_sxm", "nvfp4"): _deepseek_b200_fp4,
}


def put_right(run: MeasuredRun) -> MeasuredRun:
    """Return a run of silicon_dev2.csv with the parallelism that its script sets, where the label has another.

    DeepSeek-R1 under TensorRT-LLM 1.1 (InferenceX@ec90f3f): experts are spread from some concurrency on, and attention is
    data-parallel where CUTLASS runs them. gpt-oss on H200 (.github/configs/nvidia-master.yaml at b0c4ed2): EP = TP wherever
    it is more than 1; what is called TP 4 with EP 2 is as fast as TP 2, within 3 % on all 15 points.
    """
    if run.engine != "trtllm":
        return run
    if run.settings.endswith("gptoss_fp4_h200_trt.sh") and (run.tp, run.ep) == (4, 2):
        return replace(run, tp=2)
    if run.settings.endswith("dsr1_fp4_b200_trt.sh") and run.engine_version == "1.1":
        if run.moe_backend == "cutlass":
            return replace(run, tp=1, dp=run.tp * run.dp, ep=run.tp * run.dp)
        spread = run.concurrency > (32 if run.tp == 4 or run.isl > 1024 else 8 if run.osl == 1024 else 16)
        return replace(run, ep=run.tp) if spread else run
    return run


def with_settings(run: MeasuredRun) -> MeasuredRun:
    """Add what the script that made the run says of the engine's settings; without a known script, the engine's defaults."""
    settings = _SETTINGS.get((run.family, run.gpu, run.weights))
    if settings is None:
        return replace(run, kv_cache_dtype="auto")
    run = replace(run, **(settings(run) if callable(settings) else settings))
    return replace(run, settings=run.settings if "@" in run.settings else _SCRIPTS + run.settings)
