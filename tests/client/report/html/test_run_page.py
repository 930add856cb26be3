"""Several runs on one page."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from drawn import Chart, Document, charts_of
from made_runs import family, many, record, run

from llmirage_client.measure.comparison import compare
from llmirage_client.measure.record import RequestError
from llmirage_client.measure.slo import parse_slo
from llmirage_client.report.console import difference_cells
from llmirage_client.report.html.run_page import load_of, run_page
from llmirage_client.report.html.run_view import RunView, view_run
from llmirage_client.report.load_points import LoadSweep, read_sweep


def view(name: str, seed: int = 0, **options: Any) -> RunView:
    return view_run(run(many(12, 4, seed=seed), options=options), name)


def sweep(option: str, values: tuple[float, ...]) -> str:
    return run_page([(f"{option}-{v:g}", run(many(12, 4, seed=i), options={option: v})) for i, v in enumerate(values)])


def chart(page: str, title: str) -> Chart:
    return next(found for found in charts_of(page) if found.title.startswith(title))


@pytest.mark.parametrize(("option", "title"), [("concurrency", "Concurrency"), ("request_rate", "Request rate")])
def test_what_was_varied_is_the_axis(option: str, title: str) -> None:
    page = sweep(option, (1, 2, 4))
    assert chart(page, "Output tokens per second").x["title"].startswith(title)
    assert chart(page, "Output tokens per second").series["output tokens"]["x"] == [1, 2, 4]


def test_points_tell_their_run_and_value() -> None:
    runs = [view(f"c{n}", seed=n, concurrency=n) for n in (1, 4)]
    page = run_page([(v.name, v.result) for v in runs])
    tips = chart(page, "Output tokens per second").series["output tokens"]["tips"]
    for v in runs:
        assert f"{v.name}\noutput tokens: {v.metrics.whole_run['output_token_throughput']:,.2f} tokens/s" in tips


def test_loads_that_were_doubled_are_spread_evenly() -> None:
    assert chart(sweep("concurrency", (1, 4, 16, 64)), "Output tokens per second").x["log"]
    assert not chart(sweep("concurrency", (1, 2, 4)), "Output tokens per second").x["log"]


def test_without_an_option_of_the_load_that_differs_there_is_no_curve() -> None:
    few, more = view_run(run(many(2, 4)), "few"), view_run(run(many(40, 4), options={"concurrency": 4}), "more")
    assert load_of([few, more]) is None


@pytest.mark.parametrize("other", [{"url": "http://b/v1"}, {"model": "b"}, {"deployment": [{"gpu": "h200_sxm"}]}])
def test_runs_of_different_systems_are_not_joined_into_a_curve(other: dict[str, Any]) -> None:
    one = run(many(12, 4), options={"concurrency": 1})
    two = dataclasses.replace(run(many(12, 4, seed=1), options={"concurrency": 4}), **other)
    assert load_of([view_run(one, "a"), view_run(dataclasses.replace(two, **{n: getattr(one, n) for n in other}), "b")])
    assert load_of([view_run(one, "a"), view_run(two, "b")]) is None


def test_runs_of_one_load_have_no_curves_and_are_told_apart_as_compare_does() -> None:
    one, two = run(many(12, 4)), run(many(12, 4, seed=1))
    assert load_of([view_run(one, "a"), view_run(two, "b")]) is None
    said = Document(run_page([("a", one), ("b", two)])).text
    assert "Against load" not in said
    assert "Figures" in said
    for difference in compare(one, two).differences:
        assert " ".join(" ".join(difference_cells(difference)).split()) in " ".join(said.split())
    assert "Differences" not in Document(sweep("concurrency", (1, 2, 4))).text


def test_the_table_has_a_row_for_each_run_and_no_figure_that_is_not_known() -> None:
    failed = run([record(error=RequestError(500, "boom", "it broke"))])
    said = Document(run_page([("good", run(family())), ("bad", failed)])).text
    assert "good 7 0" in said
    assert "bad 0 1 0.00 - - -" in said


def test_trouble_of_any_run_is_said_with_its_name() -> None:
    cut = run(family(), cancelled=True, cancel_reason="Ctrl-C")
    said = Document(run_page([("one", cut), ("two", cut), ("three", run(family()))])).text
    assert "one, two: The run was cut short (Ctrl-C)." in said
    assert "All 21 requests of all 3 runs succeeded" in Document(run_page([(n, run(family())) for n in "abc"])).text


def test_distributions_lie_over_each_other() -> None:
    page = sweep("concurrency", (1, 2, 4))
    drawn = [found for found in charts_of(page) if found.title.startswith("Time to first token")][1]
    assert list(drawn.series) == ["concurrency-1", "concurrency-2", "concurrency-4"]
    assert drawn.panels[0]["y"]["title"] == "share of requests (%)"


def test_more_runs_than_colours_are_in_the_table_at_least() -> None:
    page = sweep("concurrency", tuple(range(1, 11)))
    said = Document(page).text
    assert "Drawn are the first 7 of 10 runs" in said
    assert "concurrency-10" in said
    assert len(chart(page, "Output tokens per second").series["output tokens"]["x"]) == 10


SEARCH = {
    "variable": "concurrency",
    "notes": ["a note"],
    "points": [
        {"concurrency": 1, "folder": "c1", "meets_slo": True},
        {"concurrency": 8, "folder": "c8", "meets_slo": False},
    ],
    "search": {"slo": "ttft_p95<400ms, error_rate<1%", "answer": "Concurrency 1 is the highest.", "highest_met": 1},
}


def searched(tmp_path: Path, search: dict[str, Any]) -> LoadSweep | None:
    (tmp_path / "sweep.json").write_text(json.dumps(search))
    return read_sweep(tmp_path)


def test_a_search_shows_its_answer_its_limits_and_what_each_run_met(tmp_path: Path) -> None:
    sweep = searched(tmp_path, SEARCH)
    runs = [(f"c{n}", run(many(12, 4, seed=n), options={"concurrency": n})) for n in (8, 1)]
    page = run_page(runs, sweep=sweep)
    said = Document(page).text
    assert "Concurrency 1 is the highest." in said
    assert "a note" in said
    ttft = chart(page, "Time to first token")
    assert ttft.panels[0]["across"] == [[400, "ttft_p95<400ms"]]
    assert "p95" in ttft.series
    assert chart(page, "Time per output token").panels[0]["across"] == []
    assert re.search(r"c1 met 4\d \d .* c8 missed 4\d \d ", said)  # by load, not as they were named


def test_a_search_that_was_stopped_is_no_good_news(tmp_path: Path) -> None:
    stopped = searched(tmp_path, SEARCH | {"search": SEARCH["search"] | {"interrupted": True}})  # type: ignore[operator]
    assert stopped is not None
    assert not stopped.found
    sweep = searched(tmp_path, SEARCH)
    assert sweep is not None
    assert sweep.found
    assert sweep.objectives == parse_slo("ttft_p95<400ms, error_rate<1%")


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", '{"points": [1]}', '{"search": []}', '{"search": {"slo": "nonsense"}}']
)
def test_a_broken_file_of_a_sweep_does_no_harm(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    sweep = read_sweep(tmp_path)
    assert sweep is None or sweep == LoadSweep()
    same = run(many(12, 4))
    assert "2 runs beside each other" in run_page([("a", same), ("b", same)], sweep=sweep)
