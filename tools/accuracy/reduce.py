"""Reduces a folder of measurements to what the repository carries, enough to make every table of docs/accuracy.md again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accuracy.agents import read_agents, save_agents
from accuracy.csv_files import read_csv, write_csv
from accuracy.disaggregated import read_disaggregated
from accuracy.inferencex import read_inferencex, repeats_of, with_records
from accuracy.kernels import TABLES, reduce_table
from accuracy.runs import load_runs, save_runs
from accuracy.speculative import read_speculative
from accuracy.truth import put_right, read_truth

ROWS_EACH = 60  # kernels kept of each GPU, engine, format and kernel source

# Settings of the two vLLM runs, from their meta.json.
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "rtx4090_llama31-8b_tp1": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "rtx_4090",
        "engine": "vllm@0.19",
        "weights": "bf16",
        "kv_cache_dtype": "bf16",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.9,
        "num_gpu_blocks_override": 2588,
    },
    "rtxpro6000_qwen3-30b-a3b_dp2ep2": {
        "model": "Qwen/Qwen3-30B-A3B",
        "gpu": "rtx_pro_6000_server",
        "engine": "vllm@0.19",
        "dp": 2,
        "ep": 2,
        "weights": "bf16",
        "kv_cache_dtype": "bf16",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.9,
        "peer_to_peer": False,  # by the 16 GB/s of the cluster file that LLMServingSim publishes with the run
    },
}


def reduce_truth(source: Path, target: Path) -> None:
    """Write runs.csv.gz, dropped.csv, samples of the op tables in ops/ and a folder for each vLLM run, all in `target`."""
    runs, dropped = read_truth(source / "silicon_dev.csv", source / "runs" / "silicon_annotations_dev.csv")
    records = source / "runs" / "inferencex_dsr1.csv"
    if records.exists():
        runs = with_records(runs, records) + read_inferencex(records)
        (target / "repeats.json").write_text(json.dumps(asdict(repeats_of(records))) + "\n")
    save_runs(target / "runs.csv.gz", runs)
    if (scripted := source / "silicon_dev2.csv").exists():
        save_runs(target / "scripted.csv.gz", map(put_right, load_runs(scripted)))
    if records.exists():
        save_runs(target / "speculative.csv.gz", read_speculative(source / "runs"))
        save_agents(target / "agents.csv.gz", read_agents(source / "runs"))
        save_runs(target / "disaggregated.csv.gz", read_disaggregated(records))
    write_csv(target / "dropped.csv", ["id", "why"], [[d.id, d.why] for d in dropped])
    (target / "ops").mkdir(exist_ok=True)
    for table in TABLES:
        reduce_table(source / "ops", table, target / "ops", ROWS_EACH)
    for name, deployment in DEPLOYMENTS.items():
        _reduce_recorded(source / "vllm_runs", name, deployment, target / name)


def _reduce_recorded(source: Path, name: str, deployment: dict[str, Any], target: Path) -> None:
    target.mkdir(exist_ok=True)
    summary = json.loads((source / name / "summary.json").read_text())
    workload = (source.parent / summary["workload"]).read_text().splitlines()
    keys = [bytes_of(json.loads(line)) for line in workload]
    rows = [
        [
            *(stamp[column] for column in ("input_toks", "output_toks", "client_arrival_s")),
            *longest_prefix(keys, i),
            *(stamp[column] for column in ("scheduled_s", "first_token_s", "last_token_s")),
        ]
        for i, stamp in enumerate(read_csv(source / name / "requests.csv"))
    ]
    header = [
        "prompt_tokens", "output_tokens", "arrival_s", "prefix_of", "prefix_tokens", "admitted_s", "first_token_s",
        "last_token_s",
    ]  # fmt: skip
    write_csv(target / "requests.csv", header, rows)
    series = read_csv(source / name / "timeseries.csv")
    columns = ["t", "running", "waiting", "kv_cache_pct"]
    write_csv(target / "timeseries.csv", columns, [[row[c] for c in columns] for row in series])
    about: dict[str, Any] = {
        "source": "github.com/casys-kaist/LLMServingSim bench/examples, commit 5daddb2 (MIT)",
        "engine": summary["engine"],
        "deployment": deployment,
    }
    (target / "run.json").write_text(json.dumps(about, indent=1) + "\n")


def bytes_of(entry: dict[str, Any]) -> list[int]:
    """Return prompt and answer of a workload line."""
    return [*entry["input_tok_ids"], *entry["output_tok_ids"]]


def longest_prefix(keys: list[list[int]], i: int) -> tuple[int, int]:
    """Return which earlier key shares the longest prefix with key `i`, and its length; (-1, 0) when none shares a token."""
    best, length = -1, 0
    for j in range(i):
        n = _common(keys[i], keys[j])
        if n > length:
            best, length = j, n
    return best, length


def _common(a: list[int], b: list[int]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
