"""The host side fitted without a group: what decides about it, and that nothing of the group itself does."""

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "benchmarks")]

from accuracy import left_out  # noqa: E402
from accuracy.closed_loop import Prediction  # noqa: E402
from accuracy.left_out import BLACKWELL, SAMPLE, Sampled, fields_of, fitted, groups_of, sample_of  # noqa: E402
from accuracy.runs import MeasuredRun, load_runs  # noqa: E402

from llmirage_server.perf.catalogue.lookup import find_gpu  # noqa: E402
from llmirage_server.perf.engines.lookup import find_engine  # noqa: E402

RUNS = load_runs(ROOT / "tests" / "data" / "silicon" / "runs.csv.gz")


def test_groups_are_of_one_engine_model_and_gpu() -> None:
    engines = groups_of(RUNS)
    nvidia = [run for run in RUNS if not run.gpu.startswith("mi")]
    assert sum(len(runs) for groups in engines.values() for runs in groups.values()) == len(nvidia)
    for engine, groups in engines.items():
        assert len(groups) > 1
        for name, runs in groups.items():
            assert {(run.engine, f"{run.family} {run.gpu}") for run in runs} == {(engine, name)}


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_constant_is_that_of_the_architecture(engine: str, gpu: str) -> None:
    run = MeasuredRun(engine, "Qwen/Qwen3-32B", gpu, 1024, 1024, 4, 100, 10)
    here = {"launch_us": 20.0, "prefill_in_place": 1.2}
    there = {"launch_us": 70.0, "prefill_in_place": 1.3}
    constants = here | {name + BLACKWELL: value for name, value in there.items()}
    changed = replace(find_engine(engine), **fields_of(run, constants))
    found = changed.launch_us_on(find_gpu(gpu)), changed.prefill_in_place_on(find_gpu(gpu))
    assert found == pytest.approx(tuple((there if gpu == "b200_sxm" else here).values()))


def test_the_least_loss_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times grow by a tenth of a millisecond for each unit of two constants; the runs were measured with other values."""
    wanted = {"host_step_ms": 1.5, "host_sequence_us": 12.0}

    def grown(run: MeasuredRun, constants: Mapping[str, float]) -> Prediction:
        engine = find_engine(run.engine)
        values = {name: constants.get(name, getattr(engine, name)) for name in wanted}
        more = sum(values[name] - wanted[name] for name in wanted) / 10
        return Prediction(run, run.ttft_ms, run.tpot_ms + more)

    monkeypatch.setattr(left_out, "_predict", grown)
    runs = [run for run in RUNS if run.engine == "trtllm"][:3]
    with ThreadPoolExecutor(1) as pool:
        found = fitted("trtllm", [Sampled(runs, pool)])
    total = sum(found[name] for name in wanted)
    assert total == pytest.approx(sum(wanted.values()), abs=0.6)
    assert found["launch_us"] == pytest.approx(58.3, abs=0.1)  # the runs say nothing about it: as published


def test_a_group_counts_by_a_sample() -> None:
    assert len(sample_of(RUNS)) == SAMPLE
    assert sample_of(RUNS[:2]) == sample_of(RUNS[:2])
    assert len(sample_of(RUNS[:2])) == 2
