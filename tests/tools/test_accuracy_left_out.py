"""The host side fitted without a group: what decides about it, and that nothing of the group itself does."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from accuracy import left_out
from accuracy.closed_loop import Prediction
from accuracy.left_out import FIELDS, SAMPLE, START, Sampled, fields_of, fitted, group_of, groups_of, name_of, sample_of
from accuracy.runs import MeasuredRun, load_runs

from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.engines.lookup import find_engine

ROOT = Path(__file__).resolve().parents[2]
RUNS = load_runs(ROOT / "tests" / "data" / "silicon" / "runs.csv.gz")


def test_groups_are_of_one_model_and_gpu() -> None:
    groups = groups_of(RUNS)
    nvidia = [run for run in RUNS if not run.gpu.startswith("mi")]
    assert sum(map(len, groups.values())) == len(nvidia)
    for name, runs in groups.items():
        assert {group_of(run) for run in runs} == {name}


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_constant_is_that_of_engine_and_architecture(engine: str, gpu: str) -> None:
    run = MeasuredRun(engine, "Qwen/Qwen3-32B", gpu, 1024, 1024, 4, 100, 10)
    names = [name_of(run, field) for field in FIELDS]
    assert all(name in START for name in names)
    changed = replace(find_engine(engine), **fields_of(run, dict(zip(names, (20.0, 1.2, 7.0), strict=True))))
    found = changed.launch_us_on(find_gpu(gpu)), changed.prefill_in_place_on(find_gpu(gpu)), changed.front_end_ms
    assert found == pytest.approx((20.0, 1.2, 7.0))


def test_the_least_loss_wins_without_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times grow by launching alone; the runs were measured with 40 us, those of the group left out with 80."""

    def grown(run: MeasuredRun, constants: Mapping[str, float]) -> Prediction:
        launch = constants.get("trtllm launch_us", find_engine(run.engine).launch_us)
        wanted = 40.0 if group_of(run) == kept else 80.0
        return Prediction(run, run.ttft_ms, run.tpot_ms * (1 + (launch - wanted) / 1000))

    monkeypatch.setattr(left_out, "_predict", grown)
    kept, other = (name for name, runs in groups_of(RUNS).items() if runs[0].engine == "trtllm" and "h100" in name)
    with ThreadPoolExecutor(1) as pool:
        sampled = Sampled([run for run in RUNS if group_of(run) in (kept, other)], pool)
    found = fitted(sampled, other)
    assert found["trtllm launch_us"] == 40.0
    assert found["vllm launch_us"] == 28.0  # the runs say nothing about it: as published, by the values that are tried


def test_a_group_counts_by_a_sample() -> None:
    runs = [run for run in RUNS if run.engine == "vllm"]
    assert len(sample_of(runs)) == SAMPLE
    assert sample_of(runs[:2]) == sample_of(runs[:2])
    assert len(sample_of(runs[:2])) == 2
