"""Measured runs with speculative decoding: what is read of their records, and how they are played."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from accuracy.closed_loop import predict
from accuracy.runs import MeasuredRun, load_runs
from accuracy.speculative import read_speculative

ROOT = Path(__file__).resolve().parents[2]
GPT_OSS = {
    "run": "ns3_c4",
    "model": "openai/gpt-oss-120b",
    "hardware": "h200_sxm",
    "engine": "vllm 0.22.0",
    "spec": "eagle3",
    "num_spec": 3,
    "max_num_seqs": 256,
    "isl": 8000,
    "osl": 1000,
    "concurrency": 4,
    "ttft_mean_ms": 419.4,
    "tpot_mean_ms": 6.11,
    "accepted_per_draft": 1.001,
}
DEEPSEEK = {
    "row": 1,
    "date": "2026-02-06",
    "framework": "sglang",
    "hardware": "b200",
    "precision": "fp8",
    "topology": "tp8ep1",
    "spec_decoding": "mtp",
    "disagg": "no",
    "image": "",
    "decode_tp": 8,
    "decode_ep": 1,
    "decode_dp_attention": 0,
    "isl": 1024,
    "osl": 1024,
    "concurrency": 64,
    "ttft_mean_ms": "",
    "ttft_median_ms": 780,
    "tpot_mean_ms": "",
    "tpot_median_ms": 20.0,
    "tokens_per_chunk": "",
}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read(folder: Path, *deepseek: dict[str, object]) -> list[MeasuredRun]:
    write(folder / "gptoss120b_h200_runs.csv", [GPT_OSS])
    write(folder / "inferencex_dsr1.csv", [DEEPSEEK | row for row in deepseek])
    return read_speculative(folder)


def test_a_record_that_counts_drafts_says_how_many_are_accepted(tmp_path: Path) -> None:
    run = read(tmp_path, {"tokens_per_chunk": 60})[0]
    assert (run.speculation, run.drafts, run.acceptance_length) == ("eagle3", 3, pytest.approx(2.001))


def test_tokens_of_a_chunk_say_it_where_nothing_else_does(tmp_path: Path) -> None:
    _, first, other = read(tmp_path, {"tokens_per_chunk": 60.0}, {"row": 2, "concurrency": 4})
    assert (first.acceptance_length, first.drafts) == (2.0, 2)  # 30 steps to a chunk
    assert other.acceptance_length == 2.0  # that of the engine's others
    assert (first.ttft_ms, first.tpot_ms) == (780, 20)


def test_of_repeats_the_newest_counts_and_others_are_not_read(tmp_path: Path) -> None:
    newer = {"row": 2, "date": "2026-05-22", "tpot_median_ms": 18.0, "tokens_per_chunk": 60}
    runs = read(tmp_path, newer, {}, {"row": 3, "spec_decoding": "none"}, {"row": 4, "disagg": "yes"})
    assert [(run.id, run.tpot_ms) for run in runs[1:]] == [("inferencex_2", 18.0)]


def test_attention_data_parallelism_and_the_scripts_settings(tmp_path: Path) -> None:
    row = {"framework": "trt", "hardware": "h200", "decode_ep": 8, "decode_dp_attention": 1, "tokens_per_chunk": 18}
    _, run = read(tmp_path, row | {"concurrency": 256})
    assert (run.tp, run.dp, run.ep, run.drafts, run.acceptance_length) == (1, 8, 8, 1, 1.8)
    assert (run.max_num_seqs, run.max_num_batched_tokens) == (32, 1152)  # 2 x 32 + 1024 + 64, in steps of 64


def test_a_played_run_decodes_as_fast_as_its_drafts_are_accepted() -> None:
    run = next(run for run in load_runs(ROOT / "tests/data/silicon/speculative.csv.gz") if run.id == "eagle3_ns3_c1")
    run = replace(run, isl=500, osl=200)
    few, many = (predict(replace(run, acceptance_length=length)).tpot_ms for length in (1.5, 3.0))
    assert few / many == pytest.approx(2.0, rel=0.05)
