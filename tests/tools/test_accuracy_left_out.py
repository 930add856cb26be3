"""The host side fitted without a group: what decides about it, and that nothing of the group itself does."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "benchmarks")]

from accuracy import left_out  # noqa: E402
from accuracy.closed_loop import Prediction  # noqa: E402
from accuracy.left_out import SAMPLE, START, VALUES, Simulated, changes_of, fitted, others_of, profiles_of, sample_of  # noqa: E402
from accuracy.runs import MeasuredRun, load_runs  # noqa: E402

RUNS = load_runs(ROOT / "tests" / "data" / "silicon" / "runs.csv.gz")
PROFILES = profiles_of(RUNS)


def named(profile: tuple[str, str], group: str) -> set[tuple[str, str]]:
    """Model and GPU, and whether the version is of the profile, of the groups that decide."""
    own = {run.id for runs in PROFILES[profile].values() for run in runs}
    return {
        (f"{run.family} {run.gpu}", "own" if run.id in own else "near")
        for runs in others_of(PROFILES, profile, group)
        for run in runs
    }


def test_two_other_groups_decide_without_other_versions() -> None:
    assert named(("vllm", ""), "MiniMax-M2.5 b300_sxm") == {
        ("MiniMax-M2.5 h100_sxm", "own"),
        ("gpt-oss-120b h100_sxm", "own"),
    }


def test_other_versions_join_where_one_group_is_left() -> None:
    assert named(("vllm", "0.13"), "Llama-3.1-70B b200_sxm") == {
        ("gpt-oss-120b h100_sxm", "own"),
        ("gpt-oss-120b h100_sxm", "near"),
        ("MiniMax-M2.5 h100_sxm", "near"),
        ("MiniMax-M2.5 b300_sxm", "near"),
    }


@pytest.mark.parametrize("profile", PROFILES, ids=" ".join)
def test_no_run_of_a_group_decides_about_it_in_any_version(profile: tuple[str, str]) -> None:
    for group in PROFILES[profile]:
        deciding = [run for runs in others_of(PROFILES, profile, group) for run in sample_of(runs)]
        assert deciding
        assert {run.engine for run in deciding} == {profile[0]}
        assert group not in {f"{run.family} {run.gpu}" for run in deciding}


def test_what_runs_said_of_an_amd_gpu_is_left_out_with_it() -> None:
    run = next(run for run in RUNS if run.gpu == "mi300x" and run.engine_version == "0.5.2")
    step = list(VALUES).index("host_step_ms")
    start = START["sglang"]
    kept, gpu = changes_of(run, start)
    assert kept["host_step_ms"] == start[step] + 5  # what images of that version add on gfx942
    assert gpu == {}
    alone, gpu = changes_of(run, start, left_out=True)
    assert alone["host_step_ms"] == start[step]
    assert gpu == {"reached": None}
    published = next(run for run in RUNS if run.gpu == "mi300x" and run.engine_version == "0.5.5")
    assert changes_of(published, start, left_out=True)[0]["host_step_ms"] == start[step] + 11.7


def test_launching_a_layer_is_one_constant_on_amd_and_another_elsewhere() -> None:
    constants = tuple(range(len(VALUES)))
    on_amd, elsewhere = (next(run for run in RUNS if run.gpu == gpu) for gpu in ("mi355x", "b200_sxm"))
    names = list(VALUES)
    assert changes_of(on_amd, constants)[0]["eager_layer_us"] == names.index("eager_layer_us_rocm")
    assert changes_of(elsewhere, constants)[0]["eager_layer_us"] == names.index("eager_layer_us")
    assert "eager_layer_us_rocm" not in changes_of(elsewhere, constants)[0]


def test_the_least_loss_wins_and_nothing_is_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (500, START[RUNS[0].engine][1], 15, 1.3, 1, 8, 45, 3)
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
