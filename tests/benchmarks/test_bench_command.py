"""`make bench` itself: its exit status, what it measures again, which baseline it takes. And that every measurement runs."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as bench
from bench.calibration import _loop
from bench.comparison import Figure, read_baseline, write_baseline
from bench.measurement import LIMITS, MEASUREMENTS, Cost, Limit, Measurement, Work, measures, own_cpu, repetitions
from warm import llmirage

for group in bench.GROUPS:
    __import__(f"bench.{group}")
ALL, ALL_LIMITS = dict(MEASUREMENTS), dict(LIMITS)


class Measured:
    """Processes of measurements that are not started: each costs as many passes as `ratios` says, in turn."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {}
        self.asked: list[str] = []

    def output_of(self, name: str) -> str:
        self.asked.append(name)
        if name in LIMITS:
            return str(LIMITS[name].value())
        ratios = self.ratios[name]
        ratio = ratios.pop(0) if len(ratios) > 1 else ratios[0]
        return json.dumps([{"cost_s": ratio * 1e-6, "ratio": ratio}] * bench.IN_A_ROUND)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """Two measurements, sim_a and sim_b, and no others."""
    faked = Measured()
    monkeypatch.setattr(bench, "output_of", faked.output_of)
    monkeypatch.setattr(bench, "GROUPS", ())
    for registry in (MEASUREMENTS, LIMITS):
        registry.clear()
    for name in ("sim_a", "sim_b"):
        MEASUREMENTS[name] = Measurement(name, "request", f"About {name}.", _never, None)
        faked.ratios[name] = [100.0]
    yield faked
    MEASUREMENTS.update(ALL)
    LIMITS.update(ALL_LIMITS)


def _never() -> Any:
    raise AssertionError("measured in this process")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    write_baseline(
        path, bench.build(), bench.machine(), {"sim_a": Figure(100, 0, 1), "sim_b": Figure(100, 0, 1)}, whole=True
    )
    return path


def run(path: Path, *words: str) -> int:
    sys.argv = ["bench", "--baseline", str(path), *words]
    return bench.main()


@pytest.fixture(autouse=True)
def same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)


def test_equal_costs_pass(measured: Measured, path: Path) -> None:
    assert run(path) == 0
    assert measured.asked == ["sim_a", "sim_b"] * bench.ROUNDS


def test_a_slower_measurement_repeats_and_fails(measured: Measured, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured.ratios["sim_b"] = [130.0]
    assert run(path) == 1
    assert measured.asked == ["sim_a", "sim_b"] * bench.ROUNDS + ["sim_b"] * bench.ROUNDS
    assert "slower than the baseline by more than allowed: sim_b" in capsys.readouterr().out


def test_what_was_slow_only_once_passes(measured: Measured, path: Path) -> None:
    measured.ratios["sim_b"] = [130.0] * 2 + [100.0]
    assert run(path) == 0


def test_a_faster_measurement_passes(measured: Measured, path: Path) -> None:
    measured.ratios["sim_b"] = [50.0]
    assert run(path) == 0


def test_new_and_missing_names_fail_and_are_told(measured: Measured, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MEASUREMENTS["sim_c"] = MEASUREMENTS.pop("sim_b")
    measured.ratios["sim_c"] = [1.0]
    assert run(path) == 1
    said = capsys.readouterr().out
    assert "without a baseline (ARGS=--update measures it): sim_c" in said
    assert "no longer measured (ARGS=--update removes it): sim_b" in said


def test_some_are_chosen_by_how_their_names_begin(measured: Measured, path: Path) -> None:
    assert run(path, "sim_b") == 0
    assert set(measured.asked) == {"sim_b"}


def test_an_unknown_name_is_refused(measured: Measured, path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(path, "sim_x")
    assert not measured.asked


def test_a_build_without_a_baseline_is_refused(
    measured: Measured, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "build", lambda: "another")
    with pytest.raises(SystemExit, match="2"):
        run(path)
    assert "has no figures of this build" in capsys.readouterr().err
    assert not measured.asked


def test_compiled_modules_are_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "compiled_sources", list)
    sources = bench.build()
    monkeypatch.setattr(bench, "compiled_sources", lambda: [("a.py", 1, 1, "")])
    assert bench.build() != sources
    assert bench.build().endswith("compiled")


def test_outdated_compiled_modules_are_refused(measured: Measured, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "complaint", lambda: "compiled modules are out of date")
    with pytest.raises(SystemExit, match="2"):
        run(path)


def test_update_writes_what_was_measured(measured: Measured, path: Path) -> None:
    measured.ratios["sim_b"] = [130.0]
    assert run(path, "--update", "sim_b") == 0
    kept = read_baseline(path, bench.build())
    assert kept is not None
    assert {name: figure.ratio for name, figure in kept.figures.items()} == {"sim_a": 100, "sim_b": 130}


def test_a_baseline_of_another_machine_is_told(
    measured: Measured, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_on = bench.machine()
    monkeypatch.setattr(bench, "machine", lambda: "an abacus")
    assert run(path) == 0
    assert f"the baseline is of {made_on}" in capsys.readouterr().out


@pytest.mark.parametrize(("value", "status"), [(4.9, 0), (5.1, 1)])
def test_a_figure_beyond_its_limit_fails(measured: Measured, path: Path, value: float, status: int) -> None:
    LIMITS["sim_error"] = Limit("sim_error", "%", 5.0, "An error.", lambda: value)
    assert run(path) == status


def test_the_ratio_to_a_measurement_is_shown(measured: Measured, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MEASUREMENTS["sim_b"] = Measurement("sim_b", "request", "", _never, beside="sim_a")
    measured.ratios |= {"sim_a": [50.0], "sim_b": [100.0]}
    run(path)
    assert "sim_b costs 2.00 times sim_a" in capsys.readouterr().out


def test_a_measurement_is_named_after_its_module_and_function() -> None:
    def job() -> Iterator[Work]:
        yield lambda share: Cost(1.0, 1)

    job.__module__ = "bench.sim"
    measures("request")(job)
    assert MEASUREMENTS.pop("sim_job").unit == "request"


def test_the_calibration_loop_costs_one_pass_by_its_own_measure() -> None:
    def job() -> Iterator[Work]:
        def passes(count: int) -> float:
            _loop(count)
            return count

        yield lambda share: own_cpu(lambda: passes(40_000))

    job.__module__ = "bench.sim"
    measures("pass")(job)
    found = sorted(each.ratio for each in repetitions(MEASUREMENTS.pop("sim_job"), 5))
    assert found[2] == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("name", ALL)
def test_every_measurement_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("start"):  # their cost is that of any child
        monkeypatch.setattr("bench.processes.LLMIRAGE", llmirage())
        monkeypatch.setattr("bench.start.LLMIRAGE", llmirage())
    with ALL[name].open() as work:
        cost = work(0.02)
    assert cost.cpu_s > 0
    assert cost.units > 0


def test_the_committed_baseline_has_every_measurement_and_no_other() -> None:
    for build, kept in json.loads(bench.BASELINE.read_text()).items():
        assert kept["figures"].keys() == ALL.keys(), build


def test_every_measurement_says_what_it_is() -> None:
    assert all(each.about for each in (*ALL.values(), *ALL_LIMITS.values()))
    assert all(each.beside is None or each.beside in ALL for each in ALL.values())
