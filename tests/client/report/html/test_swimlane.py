"""Lanes: which conversations, in which order, with which lines between them."""

from __future__ import annotations

import re

import numpy as np
from drawn import Drawn, svgs
from made_runs import family, many, record, run

from llmirage_client.measure.record import Record, RequestError
from llmirage_client.report.html.run_view import view_run
from llmirage_client.report.html.swimlane import swimlane
from llmirage_client.report.html.trees import MOST_LANES, MOST_REQUESTS, select, trees_of


def drawn(records: list[Record]) -> tuple[Drawn, str]:
    blocks = "".join(swimlane(view_run(run(records))).blocks)
    return next(svg for svg in svgs(blocks) if svg.root.attrib["class"] == "chart wide"), blocks


def lanes(picture: Drawn) -> list[str]:
    """Labels at the left, from top to bottom."""
    labels = [t for t in picture.texts if t.css == "a" and t.anchor == "start"]
    return [t.content for t in sorted(labels, key=lambda t: t.box.top) if t.box.top > 60]


def links(picture: Drawn, css: str) -> int:
    return sum("k" in e.attrib["class"].split() and bool(list(e)) for e in picture.of_class(css))


def test_children_stand_below_their_parent_in_order_of_their_start() -> None:
    assert lanes(drawn(family())[0]) == ["lead", "scout-a", "scout-b", "draft"]


def test_forks_spawns_and_joins_are_drawn() -> None:
    picture, _ = drawn(family())
    assert (links(picture, "spawn"), links(picture, "fork"), links(picture, "join")) == (2, 1, 2)
    tips = picture.tips()
    assert "spawn: lead to scout-a" in tips
    assert "fork: lead to draft" in tips
    assert "join: turn 1 of lead waited for scout-b" in tips


def test_a_gap_is_a_wait_for_children_or_a_pause() -> None:
    picture, _ = drawn(family())
    waits = [e for e in picture.of_class("waits") if "L" in e.attrib["d"]]
    idle = [e for e in picture.of_class("idle") if "L" in e.attrib["d"]]
    # One each, and one each in the legend; scout-b pauses too.
    assert (len(waits), len(idle)) == (2, 3)


def test_a_request_is_prefill_up_to_its_first_token_and_decode_from_there() -> None:
    picture, _ = drawn([record(ttft_s=1.0, tpot_s=0.1, tokens=11), record("b", start_s=2.0, ttft_s=0.5)])
    widths = [
        float(re.search(r"h([\d.]+)", picture.of_class(css)[1].attrib["d"])[1])  # type: ignore[index]
        for css in ("prefill", "decode")
    ]
    assert abs(widths[0] - widths[1]) < 0.3


def test_a_bar_tells_its_request() -> None:
    picture, _ = drawn([record("talk", 3, ttft_s=0.1, tpot_s=0.01, tokens=11, prompt=100, cached=50)])
    tip = next(t for t in picture.tips() if t.startswith("talk, turn 3"))
    assert tip.split("\n") == [
        "talk, turn 3",
        "sent at 0.00 s",
        "TTFT 100.0 ms, TPOT 10.00 ms, latency 200.0 ms",
        "100 tokens in, 50 % cached",
        "11 tokens out",
        "talk/3",
    ]


def test_failed_and_cancelled_requests_have_bars_of_their_own() -> None:
    records = [record("a", error=RequestError(500, "boom", "it broke")), record("b", cancelled=True), record("c")]
    picture, _ = drawn(records)
    assert len(picture.of_class("failed")) == len(picture.of_class("cancelled")) == 2  # one in the legend
    assert any("failed: boom: it broke" in tip for tip in picture.tips())


def test_an_orchestrator_that_sends_nothing_has_a_lane() -> None:
    root = {"root": "boss", "parent": "boss", "mode": "spawn", "depth": 1}
    picture, _ = drawn([record("a", 0, 0.0, **root), record("b", 0, 1.0, **root)])  # type: ignore[arg-type]
    assert lanes(picture) == ["orchestrator", "a", "b"]
    assert links(picture, "spawn") == 2


def test_children_of_an_unknown_kind_are_drawn_as_such() -> None:
    records = [record("a"), record("b", start_s=1.0, parent="a", root="a", depth=1)]
    assert links(drawn(records)[0], "child") == 1


def test_a_loop_of_parents_in_a_broken_file_ends() -> None:
    records = [record("a", parent="b", root="a"), record("b", parent="a", root="a"), record("c")]
    assert lanes(drawn(records)[0]) == ["c"]


def test_a_large_run_shows_the_most_interesting_trees_and_says_how_many_it_does_not() -> None:
    records = many(300, 3) + family() + [record("poor", 0, 3.0, error=RequestError(500, "boom", "it broke"))]
    view = view_run(run(records))
    selection = select(view, trees_of(view))
    assert selection.of == 302
    assert sum(len(t.nodes) for t in selection.trees) <= MOST_LANES
    chosen = {t.root for t in selection.trees}
    assert {"lead", "poor"} <= chosen
    slowest = view.records[int(np.nanargmax(view.value("time_to_first_token")))].correlation_id
    assert slowest in chosen
    picture, blocks = drawn(records)
    assert f"{302 - len(selection.trees)} are not" in blocks
    assert len(lanes(picture)) >= len(selection.trees)


def test_a_tree_too_large_to_draw_is_cut_and_says_so() -> None:
    root = {"root": "boss", "parent": "boss", "mode": "spawn", "parent_turn": 0, "depth": 1}
    records = [record("boss"), *(record(f"child-{n:03}", 0, 1.0 + n, **root) for n in range(200))]  # type: ignore[arg-type]
    picture, blocks = drawn(records)
    assert f"{201 - MOST_LANES} conversations of the first tree are not drawn" in blocks
    assert lanes(picture).count("boss") == 1


def test_a_conversation_too_long_to_draw_is_cut() -> None:
    picture, _ = drawn([record("talk", n, float(n)) for n in range(2000)])
    assert len(picture.of_class("r")) == MOST_REQUESTS


def test_trees_far_apart_are_compared_from_a_start_of_their_own() -> None:
    together, _ = drawn([record("a", start_s=0.0), record("b", start_s=0.1)])
    apart, blocks = drawn(
        [record(name, turn, at + turn) for at, name in ((0.0, "a"), (100.0, "b"), (200.0, "c")) for turn in (0, 1)]
    )
    assert "Time since the first request of the run (s)" in together.contents
    assert "Time since the tree's first request (s)" in apart.contents
    assert "Every tree begins at 0" in blocks


def test_lanes_of_many_ids_do_not_touch() -> None:
    picture, _ = drawn(
        [record(f"some/very-long-conversation-name-{n}-of-a-data-set-{n}", t, n + t) for n in range(60) for t in (0, 1)]
    )
    assert picture.touching() == []
    assert picture.outside() == []


def test_conversations_of_one_request_have_lanes_as_long_as_they_are_few() -> None:
    few, _ = drawn([record(f"talk-{n}", 0, n * 10.0) for n in range(5)])
    assert "Time since the first request of the run (s)" in few.contents
    section = swimlane(view_run(run([record(f"talk-{n}", 0, n * 10.0) for n in range(50)])))
    assert svgs("".join(section.blocks)) == []
    assert "there are no lanes to draw" in section.blocks[0]
