"""The host side fitted without a group: what decides about it, and that nothing of the group itself does."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "benchmarks")]

from accuracy import left_out  # noqa: E402
from accuracy.closed_loop import Prediction  # noqa: E402
from accuracy.left_out import SAMPLE, START, VALUES, Simulated, changes_of, fitted, groups_of, sample_of  # noqa: E402
from accuracy.runs import MeasuredRun, load_runs  # noqa: E402

RUNS = load_runs(ROOT / "tests" / "data" / "silicon" / "runs.csv.gz")


def test_groups_are_of_one_engine_model_and_gpu() -> None:
    engines = groups_of(RUNS)
    assert sum(len(runs) for groups in engines.values() for runs in groups.values()) == len(RUNS)
    for engine, groups in engines.items():
        assert len(groups) > 1
        for name, runs in groups.items():
            assert {(run.engine, f"{run.family} {run.gpu}") for run in runs} == {(engine, name)}


def test_kernels_of_an_amd_gpu_are_left_out_with_it_and_published_additions_are_not() -> None:
    step = list(VALUES).index("host_step_ms")
    start = START["sglang"]
    for version, more_ms in (("0.5.5", 11.7), ("0.5.12", 0.0)):
        run = next(run for run in RUNS if run.gpu == "mi300x" and run.engine_version == version)
        for left, gpu in ((False, {}), (True, {"reached": None})):
            host, changed = changes_of(run, start, left_out=left)
            assert host["host_step_ms"] == start[step] + more_ms
            assert changed == gpu


def test_the_least_loss_wins_and_nothing_is_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (45, 15, 1.3, 1, 8)
    calls: list[tuple[str, tuple[float, ...]]] = []

    def predicted(run: MeasuredRun, constants: tuple[float, ...]) -> Prediction:
        calls.append((run.id, constants))
        off = sum(abs(a - b) / (1 + b) for a, b in zip(constants, wanted, strict=True))
        return Prediction(run, run.ttft_ms * (1 + off / 20), run.tpot_ms * (1 + off / 20))

    monkeypatch.setattr(left_out, "_predict", predicted)
    with ThreadPoolExecutor(1) as pool:
        assert fitted(RUNS[:3], Simulated(pool)) == wanted
    assert len(calls) == len(set(calls))


def test_a_group_counts_by_a_sample() -> None:
    assert len(sample_of(RUNS)) == SAMPLE
    assert sample_of(RUNS[:2]) == sample_of(RUNS[:2])
    assert len(sample_of(RUNS[:2])) == 2
