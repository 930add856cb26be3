"""The order of keys in a request's body, and where delays count from when a turn waits for children."""

from typing import Any

import pytest

from llmirage_client.workload.session import Session


def test_the_body_has_its_keys_in_aiperfs_order(bench: Any) -> None:
    turn = bench.turn("hi", model="own", max_tokens=7, tools=[{}], extra={"top_p": 0.5, "seed": 1})
    _, target = bench.run(bench.workload(Session("r", (turn,))), extra_inputs={"temperature": 0.1})
    assert list(target.sent[0].call.body.items()) == [
        ("messages", [{"role": "user", "content": "hi"}]),
        ("model", "own"),
        ("stream", True),
        ("tools", [{}]),
        ("max_completion_tokens", 7),
        ("temperature", 0.1),
        ("top_p", 0.5),
        ("seed", 1),
        ("stream_options", {"include_usage": True}),
    ]


def test_delays_count_from_the_last_reply_or_the_opened_gate_also_before_first_turns(bench: Any) -> None:
    root = Session(
        "r",
        (
            bench.turn("r0", delay_s=0.25, branches=(bench.spawn("k", join_at=1),)),
            bench.turn("r1", delay_s=0.5),
            bench.turn("r2", delay_s=100.0),
        ),
    )
    kid = Session("k", (bench.turn("k0", delay_s=2.0),))
    _, target = bench.run(bench.workload(root, kid), inter_turn_delay_cap_s=4.0)
    assert target.times() == [("r0", 0.25), ("k0", 3.25), ("r1", 4.75), ("r2", 9.75)]


def test_whole_message_arrays_carry_no_tools_from_turn_to_turn(bench: Any) -> None:
    turns = (bench.turn("r0", tools=[{"type": "function"}]), bench.turn("r1"), bench.turn("r2", tools=[]))
    for mode, wanted in (
        ("isolated", [[{"type": "function"}], None, []]),
        ("accumulate", [[{"type": "function"}]] * 2 + [[]]),
    ):
        _, target = bench.run(bench.workload(Session("r", turns, mode=mode)))
        assert [sent.call.body.get("tools") for sent in target.sent] == wanted


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ({"stream": False}, None),
        ({"stream": False, "stream_options": {"include_usage": True}}, {"include_usage": True}),  # the author's own
        ({"stream_options": {"include_usage": False}}, {"include_usage": False}),
        ({"stream_options": {"x": 1}}, {"include_usage": True, "x": 1}),
        ({"stream_options": None}, {"include_usage": True}),
        ({"stream_options": "odd"}, "odd"),  # for the endpoint to refuse
    ],
)
def test_a_stream_is_asked_for_its_usage_unless_the_author_says_otherwise(bench: Any, extra: Any, wanted: Any) -> None:
    _, target = bench.run(bench.workload(Session("r", (bench.turn("hi", extra=extra),))))
    assert target.sent[0].call.body.get("stream_options") == wanted
