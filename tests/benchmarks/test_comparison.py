"""What `make bench` says of measurements and a baseline: by figures worked out by hand."""

import json
from pathlib import Path

import pytest
from bench.comparison import Figure, compare, figure_of, read_baseline, table, tolerance, write_baseline
from bench.measurement import Repetition


def figure(ratio: float, spread: float = 0.01) -> Figure:
    return Figure(ratio, spread, ratio / 2)


def verdicts(found: dict[str, Figure], baseline: dict[str, Figure], whole: bool = True) -> dict[str, str]:
    return {each.name: each.verdict for each in compare(found, baseline, whole)}


def test_a_figure_is_the_median_and_half_the_distance_of_the_quartiles() -> None:
    repetitions = [Repetition(cost_us * 1e-6, ratio) for cost_us, ratio in [(5, 90), (9, 110), (7, 100), (6, 96), (8, 104)]]
    assert figure_of(repetitions) == Figure(100, pytest.approx(0.04), pytest.approx(7.0))


def test_one_repetition_has_no_spread() -> None:
    assert figure_of([Repetition(1e-6, 2.0)]) == Figure(2.0, 0.0, pytest.approx(1.0))


def test_an_equal_ratio_passes() -> None:
    (same,) = compare({"a": figure(100)}, {"a": figure(100)}, whole=True)
    assert (same.verdict, same.fails, same.change) == ("same", False, 0.0)


@pytest.mark.parametrize(("ratio", "verdict"), [(109.9, "same"), (110.1, "slower"), (91.0, "same"), (90.0, "faster")])
def test_ten_percent_are_allowed_where_the_spread_is_small(ratio: float, verdict: str) -> None:
    (found,) = compare({"a": figure(ratio)}, {"a": figure(100)}, whole=True)
    assert found.verdict == verdict
    assert found.fails == (verdict == "slower")


@pytest.mark.parametrize(("now", "then"), [(0.05, 0.01), (0.01, 0.05)])
def test_four_times_the_larger_spread_is_allowed(now: float, then: float) -> None:
    assert tolerance(figure(1, now), figure(1, then)) == pytest.approx(0.20)
    assert verdicts({"a": figure(119, now)}, {"a": figure(100, then)}) == {"a": "same"}
    assert verdicts({"a": figure(121, now)}, {"a": figure(100, then)}) == {"a": "slower"}


def test_a_measurement_without_a_baseline_is_new_and_fails() -> None:
    (new,) = compare({"a": figure(1)}, {}, whole=True)
    assert (new.verdict, new.fails) == ("new", True)


def test_what_is_only_in_the_baseline_is_missing_and_fails_when_all_was_measured() -> None:
    baseline = {"a": figure(1), "b": figure(1)}
    assert verdicts({"a": figure(1)}, baseline) == {"a": "same", "b": "missing"}
    assert all(each.fails == (each.name == "b") for each in compare({"a": figure(1)}, baseline, whole=True))
    assert verdicts({"a": figure(1)}, baseline, whole=False) == {"a": "same"}


def test_builds_have_figures_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, "sources", "a machine", {"a": figure(100)}, whole=True)
    write_baseline(path, "compiled", "another", {"a": figure(50)}, whole=True)
    sources, compiled = read_baseline(path, "sources"), read_baseline(path, "compiled")
    assert sources is not None
    assert compiled is not None
    assert (sources.machine, sources.figures) == ("a machine", {"a": figure(100)})
    assert (compiled.machine, compiled.figures) == ("another", {"a": figure(50)})
    assert read_baseline(path, "of another Python") is None
    assert read_baseline(tmp_path / "none.json", "sources") is None


def test_some_figures_are_updated_beside_the_others_and_all_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, "sources", "here", {"a": figure(1), "b": figure(2)}, whole=True)
    write_baseline(path, "sources", "here", {"b": figure(3)}, whole=False)
    assert json.loads(path.read_text())["sources"]["figures"].keys() == {"a", "b"}
    kept = read_baseline(path, "sources")
    assert kept is not None
    assert kept.figures["b"] == figure(3)
    write_baseline(path, "sources", "here", {"b": figure(4)}, whole=True)
    assert json.loads(path.read_text())["sources"]["figures"].keys() == {"b"}


def test_the_table_names_cost_ratio_baseline_and_change() -> None:
    found = {"job": Figure(120, 0.01, 71.0), "other": Figure(8.0, 0.002, 4_200.0)}
    head, job, other, gone = table(compare(found, {"job": figure(100), "gone": figure(5)}, whole=True), {"job": "request"})
    assert head.split() == ["measurement", "CPU", "time", "here", "ratio", "spread", "baseline", "change", "allowed"]
    assert job.split() == ["job", "71", "us", "a", "request", "120", "1.0%", "100", "+20.0%", "+10%", "slower"]
    assert other.split() == ["other", "4.2", "ms", "a", "unit", "8", "0.2%", "-", "-", "-", "new"]
    assert gone.split() == ["gone", "-", "-", "-", "5", "-", "-", "missing"]
