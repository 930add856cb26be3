"""Measured runs with separate prefill and decode instances: what is read of their records, and how they are played."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from accuracy.closed_loop import predict
from accuracy.disaggregated import cluster_of, read_disaggregated, workers_of
from accuracy.runs import MeasuredRun, load_runs

ROOT = Path(__file__).resolve().parents[2]
ROW: dict[str, object] = {
    "row": 1,
    "date": "2026-03-01",
    "framework": "mori-sglang",
    "hardware": "mi355x",
    "precision": "fp8",
    "spec_decoding": "none",
    "disagg": "yes",
    "flags": "",
    "image": "lmsysorg/sglang-rocm:v0.5.12",
    "topology": "P1x(tp8ep1)+D2x(tp8ep1)",
    "prefill_tp": 8,
    "prefill_ep": 1,
    "prefill_dp_attention": 0,
    "prefill_workers": 1,
    "prefill_gpus": 8,
    "decode_tp": 8,
    "decode_ep": 1,
    "decode_dp_attention": 0,
    "decode_workers": 2,
    "decode_gpus": 16,
    "total_gpus": 24,
    "isl": 1024,
    "osl": 1024,
    "concurrency": 64,
    "ttft_median_ms": 304.6,
    "tpot_median_ms": 16.1,
    "total_tok_s_per_gpu": 308.0,
    "tokens_per_chunk": "",
}


def read(folder: Path, *rows: dict[str, object]) -> list[MeasuredRun]:
    path = folder / "inferencex_dsr1.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(ROW | row for row in rows)
    return read_disaggregated(path)


def test_of_repeats_the_newest_counts_and_stalled_and_aggregated_ones_do_not(tmp_path: Path) -> None:
    newer = {"date": "2026-04-01", "tpot_median_ms": 15.0}
    others = {"flags": "low_effective_concurrency", "concurrency": 1}, {"disagg": "no", "concurrency": 2}
    [run] = read(tmp_path, newer, {}, *others)
    assert (run.tpot_ms, run.ttft_ms, run.statistic, run.engine, run.gpu) == (15.0, 304.6, "median", "sglang", "mi355x")
    assert run.output_tokens_per_s == pytest.approx(308.0 * 24 / 2)
    assert (run.topology, run.drafts, run.max_num_seqs) == ("P1x(tp8ep1)+D2x(tp8ep1)", 0, 128)


def test_a_worker_has_the_gpus_that_the_record_gives_it(tmp_path: Path) -> None:
    wide = {"decode_tp": 1, "decode_ep": 1, "decode_dp_attention": 1, "decode_workers": 1, "decode_gpus": 24}
    [run] = read(tmp_path, wide)
    assert run.topology == "P1x(tp8ep1)+D1x(tp24ep24dpa)"
    prefill, decode = workers_of(run)
    assert (prefill.count, prefill.gpus, prefill.ep, prefill.dp_attention) == (1, 8, 1, False)
    assert (decode.count, decode.gpus, decode.ep, decode.dp_attention) == (1, 24, 24, True)


def test_drafts_are_accepted_as_measured_or_as_in_such_runs(tmp_path: Path) -> None:
    drafting = {"spec_decoding": "mtp"}
    runs = read(
        tmp_path,
        drafting | {"tokens_per_chunk": 2.0},
        drafting | {"concurrency": 32, "tokens_per_chunk": 2.4},
        drafting | {"concurrency": 16},
        drafting | {"concurrency": 8, "framework": "dynamo-trt", "hardware": "h200"},
    )
    assert [(run.drafts, run.acceptance_length) for run in runs] == [(2, 2.0), (2, 2.4), (2, 2.2), (3, None)]


@pytest.mark.parametrize(
    ("date", "precision", "more", "drafts"),
    [
        ("2026-02-11", "fp8", {"decode_ep": 8}, 2),
        ("2026-02-16", "fp8", {}, 2),
        ("2026-02-16", "fp8", {"decode_ep": 8, "decode_dp_attention": 1}, 1),
        ("2026-02-13", "fp4", {"decode_ep": 8}, 1),
        ("2026-03-13", "fp4", {"concurrency": 32}, 3),
        ("2026-03-13", "fp4", {"concurrency": 64}, 1),
        ("2026-05-27", "fp4", {"concurrency": 64}, 2),
        ("2026-05-31", "fp4", {"concurrency": 64, "isl": 8192}, 3),
    ],
)
def test_drafts_follow_the_days_recipe(
    tmp_path: Path, date: str, precision: str, more: dict[str, object], drafts: int
) -> None:
    drafting = {"date": date, "precision": precision, "spec_decoding": "mtp", "tokens_per_chunk": 1.5}
    [run] = read(tmp_path, drafting | more)
    assert run.drafts == drafts


def test_the_version_is_that_of_the_image_or_of_the_day(tmp_path: Path) -> None:
    images = ["rocm/sgl-dev:sglang-0.5.6.post1-rocm700-mi35x-mori-0113", "lmsysorg/sglang:v0.5.12.post1", ""]
    rows = [{"image": image, "concurrency": i + 1, "date": "2026-02-13"} for i, image in enumerate(images)]
    other = {"framework": "dynamo-trt", "hardware": "h200", "image": "nvcr.io/tensorrtllm-runtime:0.8.1", "concurrency": 9}
    assert [run.engine_version for run in read(tmp_path, *rows, other)] == ["0.5.6", "0.5.12", "0.5.8", ""]


def test_prefill_chunks_are_those_of_a_rank(tmp_path: Path) -> None:
    ranks = {"prefill_ep": 8, "prefill_dp_attention": 1}
    b200 = {"framework": "dynamo-sglang", "hardware": "b200", "precision": "fp4"}
    rows = [{}, ranks, ranks | {"date": "2026-05-28"}, b200, b200 | ranks]
    runs = read(tmp_path, *({"concurrency": i + 1} | row for i, row in enumerate(rows)))
    chunks = {run.concurrency: run.max_num_batched_tokens for run in runs}
    assert [chunks[i + 1] for i in range(len(rows))] == [None, 16384, 8192, 24576, 24576 // 8]


def test_tokens_go_out_together_and_requests_are_looked_for_as_the_recipes_say(tmp_path: Path) -> None:
    ranks = {"prefill_dp_attention": 1, "decode_dp_attention": 1}
    newer = {"precision": "fp4", "date": "2026-05-27"}
    dynamo = {"framework": "dynamo-sglang", "hardware": "b200", "precision": "fp4"}
    h200 = dynamo | {"hardware": "h200", "precision": "fp8"}
    rows = [{}, ranks, newer, newer | ranks, dynamo, dynamo | ranks, h200]
    runs = read(tmp_path, *({"concurrency": i + 1} | row for i, row in enumerate(rows)))
    found = {run.concurrency: (run.stream_interval, run.scheduler_recv_interval) for run in runs}
    assert [found[i + 1] for i in range(len(rows))] == [(1, 1), (1, 1), (1, 1), (100, 1), (50, 10), (50, 1), (10, 10)]


def test_clients_of_mori_meet_instances_at_random(tmp_path: Path) -> None:
    """The recipe's router: --prefill-policy random --decode-policy random."""
    [run] = read(tmp_path, {"date": "2026-02-16", "concurrency": 8})
    evenly = predict(replace(run, settings=""))
    assert predict(run).tpot_ms > 1.02 * evenly.tpot_ms  # who shares its instance with more waits for more experts


def test_a_run_is_played_on_its_topology() -> None:
    run = next(run for run in load_runs(ROOT / "tests/data/silicon/disaggregated.csv.gz") if run.concurrency == 4)
    cluster = cluster_of(run)
    prefill, decode = workers_of(run)
    assert len(cluster.snapshot()) == prefill.count + decode.count
    found = predict(run)
    assert not found.problem
    assert abs(found.error("latency")) < 0.5
    assert abs(found.error("throughput")) < 1.0


def test_a_topology_that_nobody_can_read_is_said(tmp_path: Path) -> None:
    run = replace(read(tmp_path, {})[0], topology="1P2D")
    assert "topology '1P2D': give P<n>x(tp<n>ep<n>[dpa])+D<n>x(tp<n>ep<n>[dpa])" in predict(run).problem
