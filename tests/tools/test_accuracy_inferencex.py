"""InferenceMAX's records as measured runs: which version of an engine made a record that does not say so."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

from accuracy.inferencex import read_inferencex  # noqa: E402

ROW = {
    "row": "1", "framework": "sglang", "precision": "fp8", "hardware": "mi300x", "topology": "tp8ep1", "disagg": "no",
    "spec_decoding": "none", "flags": "", "overlap_how": "", "image": "", "isl": "1024", "osl": "1024", "concurrency": "4",
    "decode_tp": "8", "decode_ep": "1", "decode_dp_attention": "0", "decode_gpus": "8", "output_tok_s_per_decode_gpu": "20",
    "ttft_mean_ms": "", "tpot_mean_ms": "", "ttft_median_ms": "150", "tpot_median_ms": "20",
}  # fmt: skip


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
def test_a_record_without_an_image_has_the_version_of_its_day(
    tmp_path: Path, row: dict[str, str], version: str, cache: str
) -> None:
    path = tmp_path / "records.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "date"])
        writer.writeheader()
        writer.writerow(ROW | row)
    [run] = read_inferencex(path)
    assert (run.engine_version, run.kv_cache_dtype) == (version, cache)
