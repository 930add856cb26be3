"""The order of keys in a request's body, and where delays count from when a turn waits for children."""

from __future__ import annotations

from typing import Any

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
