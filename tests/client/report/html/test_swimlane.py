"""Lanes: which conversations, in which order, with which lines between them."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from drawn import Document
from made_runs import family, many, record, run

from llmirage_client.measure.record import Record, RequestError
from llmirage_client.report.html import swimlane as trees
from llmirage_client.report.html.run_page import run_page
from llmirage_client.report.html.run_view import view_run
from llmirage_client.report.html.swimlane import MOST_REQUESTS, select, swimlane, trees_of


def drawn(records: list[Record], **settings: Any) -> tuple[dict[str, Any], str]:
    """The data of the chart, and the section as text."""
    section = swimlane(view_run(run(records, **settings)))
    document = Document("".join(section.blocks))
    chart = next(attributes for _, attributes in document.elements if attributes.get("id") == "swimlane")
    data = json.loads(chart["data-lanes"] or "")
    assert isinstance(data, dict)
    return data, document.text


def lanes(data: dict[str, Any]) -> list[tuple[str, int]]:
    """Names with how far above their parents are, from top to bottom."""
    return list(zip(data["name"].split("\n"), data["up"], strict=True))


def starts_s(data: dict[str, Any]) -> list[float]:
    return [round(units * data["unit_s"], 6) for units in itertools.accumulate(data["start"])]


def test_children_stand_below_their_parent_in_order_of_their_start() -> None:
    data, _ = drawn(family())
    assert lanes(data) == [("lead", 0), ("scout-a", 1), ("scout-b", 2), ("draft", 3)]
    assert data["requests"] == [3, 1, 2, 1]


def test_forks_spawns_and_joins_are_known() -> None:
    data, said = drawn(family())
    assert data["kind"] == "0221"
    assert data["turn_of_parent"] == [0, 1, 1, 2]
    assert data["joins"] == [[1, 1, 2]]  # the second request, of both scouts
    for entry in ("fork", "spawn", "join: a turn that waited for a child", "waiting for children"):
        assert entry in said, entry
    assert "child, fork or spawn" not in said


def test_a_run_without_branches_has_no_legend_of_them() -> None:
    _, said = drawn([record("a"), record("b", start_s=2.0)])
    assert "waiting for the first token" in said
    for entry in ("fork", "spawn", "join", "failed:", "cancelled "):
        assert f" {entry} " not in said.split("conversations")[-1], entry


def test_times_and_tokens_of_a_request_are_what_was_measured() -> None:
    data, _ = drawn([record("talk", 3, 1.5, ttft_s=0.1, tpot_s=0.01, tokens=11, prompt=100, cached=50)])
    unit = data["unit_s"]
    assert (data["first"][0] * unit, data["took"][0] * unit) == (pytest.approx(0.1), pytest.approx(0.2))
    assert [data[name] for name in ("turn", "tokens_in", "tokens_out", "cached", "status")] == [[3], [100], [11], [50], "0"]
    assert (data["id_of"], data["id"]) == ([0], "talk/3")


def test_requests_of_a_lane_are_in_order_and_count_from_the_first_of_the_run() -> None:
    data, _ = drawn([record("a", 1, 5.0), record("a", 0, 2.0), record("b", 0, 3.0)])
    assert starts_s(data) == [0.0, 3.0, 1.0]
    assert data["turn"] == [0, 1, 0]


def test_failed_and_cancelled_requests_are_told_apart() -> None:
    records = [
        record("a", error=RequestError(500, "boom", "it broke")),
        record("b", 0, 1.0, cancelled=True),
        record("c", 0, 2.0),
    ]
    data, said = drawn(records)
    assert data["status"] == "120"
    assert (data["errors"], data["error"]) == (["boom: it broke"], {"0": 0})
    assert " failed " in said
    assert " cancelled " in said


def test_equal_errors_are_kept_once() -> None:
    data, _ = drawn([record(f"a{n}", error=RequestError(500, "boom", "it broke")) for n in range(50)])
    assert data["errors"] == ["boom: it broke"]


def test_an_orchestrator_that_sends_nothing_has_a_lane() -> None:
    root = {"root": "boss", "parent": "boss", "mode": "spawn", "depth": 1}
    data, _ = drawn([record("a", 0, 0.0, **root), record("b", 0, 1.0, **root)])  # type: ignore[arg-type]
    assert lanes(data) == [("orchestrator", 0), ("a", 1), ("b", 2)]
    assert data["requests"] == [0, 1, 1]


def test_children_of_an_unknown_kind_are_drawn_as_such() -> None:
    data, said = drawn([record("a"), record("b", start_s=1.0, parent="a", root="a", depth=1)])
    assert data["kind"] == "03"
    assert "child, fork or spawn" in said


def test_a_loop_of_parents_in_a_broken_file_ends() -> None:
    records = [record("a", parent="b", root="a"), record("b", parent="a", root="a"), record("c")]
    assert lanes(drawn(records)[0]) == [("c", 0)]


def test_a_large_run_shows_the_most_interesting_trees_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_LANES", 72)
    records = many(300, 3) + family() + [record("poor", 0, 3.0, error=RequestError(500, "boom", "it broke"))]
    view = view_run(run(records))
    selection = select(view, trees_of(view))
    assert selection.of == 302
    assert 60 <= sum(len(t.nodes) for t in selection.trees) <= 72
    chosen = {t.root for t in selection.trees}
    assert {"lead", "poor"} <= chosen
    slowest = view.records[int(np.nanargmax(view.value("time_to_first_token")))].correlation_id
    assert slowest in chosen
    data, said = drawn(records)
    assert f"{302 - len(selection.trees)} are not" in said
    assert data["up"].count(0) == len(selection.trees)


def test_a_tree_too_large_to_draw_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_LANES", 72)
    root = {"root": "boss", "parent": "boss", "mode": "spawn", "parent_turn": 0, "depth": 1}
    records = [record("boss"), *(record(f"child-{n:03}", 0, 1.0 + n, **root) for n in range(200))]  # type: ignore[arg-type]
    data, said = drawn(records)
    assert "129 conversations of the first tree are not drawn" in said
    assert len(lanes(data)) == 72


def test_a_conversation_too_long_to_draw_is_cut() -> None:
    data, _ = drawn([record("talk", n, float(n), tokens=2) for n in range(MOST_REQUESTS + 100)])
    assert len(data["start"]) == MOST_REQUESTS


def test_ids_of_a_large_run_are_those_of_failures_and_of_the_longest() -> None:
    records = many(1000, 4, tokens=2)
    data, _ = drawn([*records, record("late", 0, 0.0, ttft_s=99.0)])
    ids = set(data["id"].split("\n"))
    assert len(ids) == len(data["id_of"]) == 1000
    assert {r.request_id for r in records if not r.ok} | {"late/0"} <= ids


def test_trees_far_apart_are_compared_from_a_start_of_their_own() -> None:
    together = [record("a", start_s=0.0), record("b", start_s=0.1)]
    records = [record(name, turn, at + turn) for at, name in ((0.0, "a"), (100.0, "b"), (200.0, "c")) for turn in (0, 1)]
    assert '<option value="run" selected>' in run_page([("run", run(together))])
    assert '<option value="tree" selected>' in run_page([("run", run(records))])


def test_only_what_was_sent_to_an_endpoint_has_a_time_of_day() -> None:
    data, said = drawn([record("a", start_s=2.5)], start_unix_s=1_700_000_000.0)
    assert data["unix_s"] == 1_700_000_002.5
    assert "time of day" in said
    data, said = drawn([record("a", start_s=2.5)], url="")
    assert data["unix_s"] is None
    assert "time of day" not in said


def test_long_runs_have_times_in_coarser_units() -> None:
    short, _ = drawn([record("a", start_s=0.0), record("b", start_s=2.0)])
    long, _ = drawn([record("a", start_s=0.0), record("b", start_s=5000.0)])
    assert (short["unit_s"], long["unit_s"]) == (1e-6, 1e-3)
    assert starts_s(long) == [0.0, 5000.0]
