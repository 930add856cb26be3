"""InferenceMAX's records as measured runs: which version of an engine made a record that does not say so."""

import csv
from pathlib import Path

import pytest
from accuracy.inferencex import read_inferencex, with_records
from accuracy.runs import MeasuredRun

ROW = {
    "row": "1", "framework": "sglang", "precision": "fp8", "hardware": "mi300x", "topology": "tp8ep1", "disagg": "no",
    "spec_decoding": "none", "flags": "", "overlap_how": "", "image": "", "isl": "1024", "osl": "1024", "concurrency": "4",
    "decode_tp": "8", "decode_ep": "1", "decode_dp_attention": "0", "decode_gpus": "8", "output_tok_s_per_decode_gpu": "20",
    "ttft_mean_ms": "", "tpot_mean_ms": "", "ttft_median_ms": "150", "tpot_median_ms": "20",
}  # fmt: skip


MEANS = {"ttft_mean_ms": "300", "tpot_mean_ms": "21"}


def records(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "records.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "date"])
        writer.writeheader()
        writer.writerows(ROW | row for row in rows)
    return path


@pytest.mark.parametrize(
    ("row", "version", "cache"),
    [
        ({"date": "2025-12-10"}, "0.5.2", "bf16"),
        ({"date": "2026-01-05"}, "0.5.5", "bf16"),
        ({"date": "2026-02-12"}, "0.5.8", "fp8"),
        ({"date": "2026-02-27", "image": "lmsysorg/sglang:v0.5.9-rocm700-mi30x"}, "0.5.9", "fp8"),
        ({"date": "2026-01-27", "hardware": "mi355x"}, "0.5.8", "bf16"),
        ({"date": "2025-12-19", "hardware": "mi355x", "precision": "fp4"}, "0.5.6", "fp8"),
        ({"date": "2026-02-20", "hardware": "b200"}, "0.5.6", "fp8"),
    ],
)
def test_a_record_without_image_has_its_days_version(tmp_path: Path, row: dict[str, str], version: str, cache: str) -> None:
    [run] = read_inferencex(records(tmp_path, row))
    assert (run.engine_version, run.kv_cache_dtype) == (version, cache)


@pytest.mark.parametrize(
    ("row", "ttft_ms"),
    [
        ({"date": "2026-01-21"}, 300),
        ({"date": "2026-01-20"}, 150),  # before the benchmark warmed servers up
        ({"date": "2026-01-21", "flags": "ttft_tail_10x"}, 150),
    ],
)
def test_medians_stand_for_means_that_hold_a_start(tmp_path: Path, row: dict[str, str], ttft_ms: float) -> None:
    [run] = read_inferencex(records(tmp_path, MEANS | row))
    assert run.ttft_ms == ttft_ms
    means = MeasuredRun("sglang", "deepseek-ai/DeepSeek-R1", "mi300x", 1024, 1024, 4, 300.000049, 20.9999951, id="a")
    [listed] = with_records([means], records(tmp_path, MEANS | row))
    assert (listed.ttft_ms, listed.statistic) == (pytest.approx(run.ttft_ms), run.statistic)


def test_a_run_without_a_record_started_cold_where_its_deployment_did(tmp_path: Path) -> None:
    def run(**changes: str) -> MeasuredRun:
        same = {"gpu": "mi300x", "engine_version": "0.5.2", "weights": "fp8_block"} | changes
        return MeasuredRun(
            "sglang", "deepseek-ai/DeepSeek-R1", isl=1024, osl=1024, concurrency=8, ttft_ms=900.0, tpot_ms=22.0, **same
        )  # type: ignore[arg-type]

    cold = {"date": "2025-12-10", "flags": "ttft_tail_10x"}
    path = records(tmp_path, cold, {"date": "2026-02-12", "flags": "ttft_tail_10x"})
    assert [each.cold_start for each in with_records([run(), run(engine_version="0.5.8"), run(gpu="b200_sxm")], path)] == [
        1,
        0,
        0,
    ]
