"""Our engine beside measured servers: the harness itself, and errors that must not grow."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accuracy import closed_loop
from accuracy.__main__ import main
from accuracy.closed_loop import Prediction, predict
from accuracy.constants import constants_table
from accuracy.document import write_document
from accuracy.errors import Spread, grouped
from accuracy.kernels import kernel_errors
from accuracy.replay import Recorded, load_recorded, measured, replay, tokens_of
from accuracy.runs import MeasuredRun, RunsError, load_runs
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import make_router

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "silicon"


def measured_run(**changes: object) -> MeasuredRun:
    run = MeasuredRun("vllm", "meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 8, 5, 2, 2.0, 1.0)
    return replace(run, **changes)  # type: ignore[arg-type]


def serve(run: MeasuredRun, max_num_seqs: int) -> Prediction:
    limits = EngineLimits(kv_tokens=1000, max_num_seqs=max_num_seqs, max_num_batched_tokens=100, enable_prefix_caching=False)
    return closed_loop._serve(run, Cluster([Instance(0, ConstantStep(1e-3), limits)], make_router("round_robin", 0)))


def test_with_room_for_all_every_token_takes_one_step() -> None:
    prediction = serve(measured_run(), max_num_seqs=2)
    assert (prediction.ttft_ms, prediction.tpot_ms) == pytest.approx((1.0, 1.0))
    assert prediction.error("ttft") == pytest.approx(-0.5)
    assert prediction.latency_ms == pytest.approx(5.0)


def test_a_client_without_a_slot_waits_for_a_whole_answer() -> None:
    # two requests of five steps in turn; all but the very first find the other one served
    prediction = serve(measured_run(requests=4), max_num_seqs=1)
    assert (prediction.ttft_ms, prediction.tpot_ms) == pytest.approx(((1 + 6 + 6 + 6) / 4, 1.0))


def test_a_shortened_run_counts_its_burst_as_the_whole_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = serve(measured_run(), max_num_seqs=1)
    monkeypatch.setattr(closed_loop, "ROUNDS", 4)
    assert serve(measured_run(requests=20), max_num_seqs=1).ttft_ms == pytest.approx(whole.ttft_ms)


def test_a_run_begins_with_a_burst_whatever_warmed_the_server_up() -> None:
    cold, warm = (serve(measured_run(warmup=requests), max_num_seqs=1) for requests in (0, 2))
    assert (warm.ttft_ms, warm.output_tokens_per_s) == (cold.ttft_ms, cold.output_tokens_per_s)


def test_lengths_are_the_same_each_time_and_within_their_bounds() -> None:
    run = measured_run(isl=1000, osl=100, shortest=0.8)
    drawn = closed_loop.lengths(run, 200)
    assert drawn == closed_loop.lengths(run, 200)
    assert {800 <= n <= 1000 and 80 <= m <= 100 for n, m in drawn} == {True}
    assert closed_loop.lengths(measured_run(isl=1000, osl=100), 2) == [(1000, 100)] * 2


@pytest.mark.parametrize(
    ("setting", "limit"), [({"enable_chunked_prefill": 0}, {"enable_chunked_prefill": False}), ({}, {})]
)
def test_settings_of_a_run_become_limits_of_its_scheduler(setting: dict[str, object], limit: dict[str, object]) -> None:
    assert closed_loop._scheduling(measured_run(**setting), "known settings") == limit
    assert closed_loop._scheduling(measured_run(**setting), "default settings") == {}


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ({"async_scheduling": 0}, {"async_scheduling": False}),
        ({"allreduce_fusion": 1, "async_scheduling": 1}, {"fuses_norms": True, "async_scheduling": True}),
        ({}, {}),
    ],
)
def test_settings_of_a_run_become_fields_of_its_engine(setting: dict[str, object], fields: dict[str, object]) -> None:
    assert closed_loop._kernels(measured_run(**setting)) == fields


def test_what_the_engine_refuses_is_a_prediction_with_its_reason() -> None:
    prediction = predict(measured_run(model="meta-llama/Llama-3.1-70B", weights="bf16"))
    assert "does not fit" in prediction.problem


def test_figures_of_errors() -> None:
    spread = Spread.of([-0.1, 0.2, 0.3, 0.05, -0.02])
    assert (spread.n, spread.median, spread.bias) == (5, pytest.approx(10.0), pytest.approx(5.0))
    assert spread.p90 == pytest.approx(26.0)
    assert str(spread) == "10.0 / 26.0"
    assert list(grouped([3, 1, 2], lambda n: (str(n % 2),))) == [("0",), ("1",)]


def test_tokens_share_the_recorded_prefixes_and_nothing_else() -> None:
    first = Recorded(4, 2, 0.0, -1, 0, 0.0, 0.0, 0.0)
    second = Recorded(5, 1, 0.0, 0, 3, 0.0, 0.0, 0.0)
    a, b = tokens_of([first, second])
    assert (len(a), len(b)) == (6, 6)
    assert list(a[:3]) == list(b[:3])
    assert not np.intersect1d(a[3:], b[3:]).size


def test_the_rtx_4090_run_is_replayed_within_four_percent() -> None:
    run = load_recorded(DATA / "rtx4090_llama31-8b_tp1")
    real, ours = measured(run), replay(run)
    for metric in ("tpot_s", "latency_s", "tokens_per_s"):
        assert getattr(ours, metric) == pytest.approx(getattr(real, metric), rel=0.04), metric
    assert ours.kv_mean == pytest.approx(real.kv_mean, rel=0.1)
    assert ours.running.mean() == pytest.approx(real.running.mean(), rel=0.1)
    assert ours.held_up == pytest.approx(real.held_up, rel=0.1)
    again = replay(run)
    assert (again.tpot_s, again.preemptions) == (ours.tpot_s, ours.preemptions)


def test_our_own_memory_estimate_serves_the_rtx_4090_run_as_well() -> None:
    run = load_recorded(DATA / "rtx4090_llama31-8b_tp1")
    assert replay(run, num_gpu_blocks_override=None).latency_s == pytest.approx(measured(run).latency_s, rel=0.05)


def test_the_data_parallel_run_is_replayed_within_four_percent() -> None:
    run = load_recorded(DATA / "rtxpro6000_qwen3-30b-a3b_dp2ep2")
    real, ours = measured(run), replay(run)
    assert ours.tpot_s == pytest.approx(real.tpot_s, rel=0.04)
    assert ours.latency_s == pytest.approx(real.latency_s, rel=0.04)
    assert ours.tokens_per_s == pytest.approx(real.tokens_per_s, rel=0.03)
    assert ours.ttft_s == pytest.approx(real.ttft_s, rel=0.1)


# A few quick runs of each kind, and how far off their median may be; the figures of today are in docs/accuracy.md.
GUARDS = [
    ("Llama-3.1-70B", "h200_sxm", "fp8", 8.0),
    ("Llama-3.1-70B", "b200_sxm", "fp8", 12.0),
    ("Llama-3.1-70B", "b200_sxm", "nvfp4", 14.0),
    ("Qwen3-32B", "h100_sxm", "bf16", 8.0),
    ("Qwen3-235B-A22B-FP8", "h100_sxm", "fp8_block", 16.0),
    ("MiniMax-M2.5", "b300_sxm", "fp8_block", 16.0),
    ("gpt-oss-120b", "h100_sxm", "mxfp4", 22.0),
]


@pytest.mark.parametrize(("family", "gpu", "weights", "most"), GUARDS)
def test_request_latency_stays_near_measured_silicon(family: str, gpu: str, weights: str, most: float) -> None:
    runs = [run for run in load_runs(DATA / "runs.csv.gz") if (run.family, run.gpu, run.weights) == (family, gpu, weights)]
    quick = sorted((r for r in runs if r.concurrency <= 32 and r.osl <= 1024), key=lambda r: r.id)
    predictions = [predict(run) for run in quick[:: max(1, len(quick) // 6)][:6]]
    assert not [p.problem for p in predictions if p.problem]
    assert Spread.of(p.error("latency") for p in predictions).median <= most


def test_kernels_stay_near_their_tables() -> None:
    most = {"gemm": 10.0, "attention_decode": 10.0, "attention_prefill": 14.0, "moe": 14.0, "all_reduce": 8.0}
    medians: dict[str, list[float]] = {}
    for errors in kernel_errors(DATA / "ops"):
        medians.setdefault(errors.op, []).append(errors.spread.median)
    for op, bound in most.items():
        assert float(np.median(medians[op])) <= bound, op


def test_own_runs_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.csv"
    file.write_text(
        "id,engine,model,gpu,isl,osl,concurrency,ttft_ms,tpot_ms,requests\n"
        "mine,vllm,meta-llama/Llama-3.1-8B-Instruct,h100,256,32,2,30,8,4\n"
        "other,vllm,meta-llama/Llama-3.1-8B-Instruc,h100,256,32,2,30,8,4\n"
    )
    monkeypatch.setattr(sys, "argv", ["accuracy", "--runs", str(file), "--processes", "1"])
    assert main() == 0
    out, err = capsys.readouterr()
    assert "| mine | 30.0 / " in out
    assert "other: no prediction: model: unknown model" in err


def test_a_bad_file_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["accuracy", "--runs", str(tmp_path / "none.csv")])
    assert main() == 2
    assert capsys.readouterr().err.endswith("cannot be read: No such file or directory\n")


def test_the_page_is_not_written_without_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunsError, match=r"aiconfigurator-core, which is not installed: pip install -e '\.\[silicon\]'"):
        write_document(tmp_path / "accuracy.md", tmp_path, tmp_path, processes=1, sample=6)
    assert not list(tmp_path.iterdir())


def test_a_constant_rests_on_the_runs_that_change_without_it() -> None:
    runs = [run for run in load_runs(DATA / "first_tokens.csv") if run.family in ("Qwen3-8B", "gpt-oss-120b")]
    lines = [line.split(" | ") for line in constants_table(runs, 1).splitlines()]
    support = {(line[0].strip("| "), line[1]): tuple(map(int, line[3:6])) for line in lines[2:]}
    assert support["sglang", "launch_us"] == (3, 2, 2)  # first tokens of short prompts wait for launching
    assert support["vllm", "dp_sync_ms"] == (0, 0, 0)  # none of them has attention ranks
    assert ("vllm", "output_token_us") not in support  # it is neutral there
