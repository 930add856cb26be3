"""The bands of figures: how they come from measured runs, and that they hold on groups which were left out."""

import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from accuracy import __main__ as program
from accuracy.bands import Point, bands, covered, engine_levels, levels_of, points_of, scale_at, scales_of, write_bands
from accuracy.check import lost, sample
from accuracy.closed_loop import Prediction
from accuracy.coverage import width_table
from accuracy.document import FIGURES, SCRIPTED, _scripted, _whole_runs
from accuracy.runs import MeasuredRun, load_runs
from accuracy.saved import load_predictions, save_predictions, shipped

from llmirage_server.perf.bands import QUANTITIES, Quantity, strata

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "silicon"


@cache
def points() -> list[Point]:
    return points_of(shipped(DATA))


@pytest.mark.parametrize("by", ["family", "deployment"])
@pytest.mark.parametrize("quantity", ["ttft", "latency"])
def test_bands_hold_on_what_was_left_out(quantity: Quantity, by: str) -> None:
    """The band of a whole family, or of a single deployment, comes from all others."""
    rows = covered(points(), quantity, by)
    half, most = (sum(row[i] for row in rows) / len(rows) for i in (0, 1))
    assert half == pytest.approx(0.5, abs=0.08)
    assert most == pytest.approx(0.9, abs=0.05)


def test_the_data_are_those_of_the_predictions(tmp_path: Path) -> None:
    write_bands(tmp_path / "bands.json", shipped(DATA))
    assert json.loads((tmp_path / "bands.json").read_text()) == json.loads(FIGURES.read_text())


def test_the_page_shows_the_kept_predictions() -> None:
    kept = [load_predictions(DATA / "predictions.csv.gz", load_runs(DATA / name)) for name in ("runs.csv.gz", SCRIPTED)]
    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert _whole_runs([p.run for p in kept[0]], kept[0]) in page
    assert _scripted(kept[1]) in page
    assert width_table(FIGURES) in page


def point(deployment: str, error: float, gpu: str = "a", concurrency: float = 1.0) -> Point:
    names = tuple(strata("measured", "dense", "vllm", gpu, "fp8", f"m{gpu}"))
    errors: dict[Quantity, float] = dict.fromkeys(QUANTITIES, error)
    return Point(names, f"model {gpu}", deployment, concurrency, 100.0, errors, f"vllm {gpu}")


def test_a_narrow_group_is_drawn_towards_the_wider_one() -> None:
    given = [point("one", 0.1), point("two", -0.1), point("three", 0.4, "b")]
    scales = scales_of(given, "tpot")
    everything = (math.log(0.1) + math.log(0.4)) / 2  # model and GPU count once, however many their deployments
    assert scales[""] == scales["measured dense vllm"] == pytest.approx(math.exp(everything))
    assert scales["measured dense vllm a"] == pytest.approx(math.exp((math.log(0.1) + 3 * everything) / 4))
    assert scales["measured dense vllm b"] == pytest.approx(math.exp((math.log(0.4) + 3 * everything) / 4))
    assert scale_at(scales, (*given[0].strata[:4], "measured dense vllm c")) == scales["measured dense vllm"]


def test_kernels_that_were_not_measured_never_narrow_a_band() -> None:
    measured = [point("one", 0.2), point("two", 0.4, "b")]
    names = tuple(strata("transferred", "dense", "vllm", "c", "fp8", "m"))
    less = replace(point("three", 0.01, "c"), strata=names)
    scales = scales_of([*measured, less], "tpot")
    for name in names[1:4]:
        assert scales[name] == scales[name.replace("transferred", "measured")]
    assert scales[names[4]] == scales["measured dense vllm"]  # its own GPU has no measured kernels
    more = scales_of([*measured, replace(less, errors=dict.fromkeys(QUANTITIES, 0.9))], "tpot")
    assert more[names[4]] > more["measured dense vllm"]


def test_a_band_is_that_of_warm_servers_without_drafts() -> None:
    measured = [
        replace(run(str(i)), model="deepseek-ai/DeepSeek-R1", gpu="b200_sxm", tpot_ms=t) for i, t in enumerate((10, 7))
    ]
    known, cold = replace(run("known"), speculation="mtp"), replace(run("cold"), cold_start=1)
    assert (
        len(points_of([Prediction(each, 100.0, 10.0, 1.0) for each in [*measured, known, cold]])) == 1
    )  # not the faster of two equals


def test_points_are_judged_by_the_bands_of_the_other_groups() -> None:
    given = [point("one", 0.1), point("two", 0.1, "b"), point("three", 0.1, "c")]
    assert covered(given, "tpot") == [[True, True]] * 3
    given.append(point("one", 0.2))
    assert covered(given, "tpot") == [*[[True, True]] * 3, [False, False]]


def test_a_level_takes_the_small_number_of_deployments_into_account() -> None:
    given = [point(f"deployment {i}", 0.1) for i in range(9)]
    assert levels_of(given, [float(i) for i in range(1, 10)]) == [5.0, 9.0]  # the 5th of nine, and all of them


def test_the_level_of_an_engine_is_drawn_towards_that_of_all() -> None:
    names = [tuple(strata("measured", "dense", e, "a", "fp8", "m")) for e in ("vllm", "sglang")]
    errors: dict[Quantity, float] = dict.fromkeys(QUANTITIES, 0.1)
    given = [Point(names[i // 5], f"group {i}", f"deployment {i}", 1.0, 100.0, errors) for i in range(10)]
    levels = engine_levels(given, [1.0] * 5 + [4.0] * 5)
    assert levels[""] == [4.0, 4.0]  # the 6th of ten, and the 10th
    assert levels["vllm"] == pytest.approx([4 ** (1.5 / 6.5)] * 2)  # five groups of its own, and one and a half of all
    assert levels["sglang"] == pytest.approx([4.0, 4.0])


def test_more_clients_than_measured_widen_a_band_as_they_did_in_measurements() -> None:
    def growth(*errors: float) -> list[float]:
        """Of two deployments with these errors at 1, 2, 4, ... clients."""
        loads = [2.0**i for i in range(len(errors))]
        given = [point(of, error, of, load) for of in ("one", "two") for load, error in zip(loads, errors, strict=True)]
        found: list[float] = bands(given)["beyond"]["ttft"]
        return found

    assert growth(0.1, 0.3) == pytest.approx([3.0] * 4)
    assert growth(0.05, 0.1, 0.3) == pytest.approx([3.0, 6.0, 6.0, 6.0])
    assert growth(0.3, 0.1) == [1.0] * 4  # never narrower


def run(id: str, engine: str = "vllm") -> MeasuredRun:
    return MeasuredRun(engine, "meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 1000, 100, 4, 100.0, 10.0, id=id)


def predicted(id: str, share: float, engine: str = "vllm") -> Prediction:
    return Prediction(run(id, engine), 100.0 * share, 10.0 * share, 1.0)


def test_a_group_that_lost_accuracy_is_named() -> None:
    before = [predicted(str(i), 1.05) for i in range(4)] + [predicted(f"s{i}", 1.3, "sglang") for i in range(3)]
    assert lost(before, before) == []
    little = [predicted(str(i), 1.069) for i in range(4)] + [predicted(f"s{i}", 1.329, "sglang") for i in range(3)]
    assert lost(before, little) == []  # less than 2 points; less than a tenth
    worse = [predicted(str(i), 1.08) for i in range(4)] + before[4:]
    problems = lost(before, worse)
    assert [problem.partition(":")[0] for problem in problems if "latency" in problem] == [
        "all",
        "dense models",
        "vllm",
        "Llama-3.1-8B-Instruct h100_sxm vllm",
    ]
    assert problems[0] == "all: median error of latency 8.0 %, was 5.0 % (7 runs)"
    refused = [*before[1:], Prediction(before[0].run, problem="does not fit")]
    assert lost(before, refused) == ["0: refused now: does not fit"]


def test_a_sample_has_runs_of_every_group() -> None:
    runs = load_runs(DATA / "runs.csv.gz")
    chosen = sample(runs, 2)
    groups = {(run.family, run.gpu, run.engine) for run in runs}
    assert {(run.family, run.gpu, run.engine) for run in chosen} == groups
    assert len(chosen) == 2 * len(groups)


def test_predictions_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv.gz"
    save_predictions(path, [predicted("a", 1.0), Prediction(run("b"), problem="does not fit")])
    assert load_predictions(path, [run("a"), run("b")]) == [predicted("a", 1.0)]


def test_a_check_fails_where_accuracy_was_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "predict_all", lambda runs, processes: load_predictions(DATA / "predictions.csv.gz", runs))
    monkeypatch.setattr(sys, "argv", ["accuracy", "--check", "--each", "3"])
    assert program.main() == 0

    def slower(runs: list[MeasuredRun], processes: int) -> list[Prediction]:
        return [Prediction(run, 1e5 * run.ttft_ms, 1e5 * run.tpot_ms) for run in runs]

    monkeypatch.setattr(program, "predict_all", slower)
    assert program.main() == 1
    assert "accuracy: all: median error of latency" in capsys.readouterr().err
