"""Turns of one conversation: what goes out, when, and what is carried from turn to turn."""

from __future__ import annotations

from typing import Any

import pytest

from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Session, Turn


def test_each_turn_goes_out_when_the_reply_before_it_is_there(bench: Any) -> None:
    session = Session("s", (bench.turn("a@2"), bench.turn("b@0.5"), bench.turn("c")))
    result, target = bench.run(bench.workload(session))
    assert target.times() == [("a", 0.0), ("b", 2.0), ("c", 2.5)]
    assert [(r.turn_index, r.issued_s) for r in result.records] == [(0, 0.0), (1, 2.0), (2, 2.5)]
    assert result.end_s - result.start_s == 3.5


def test_live_replies_are_threaded_into_the_history(bench: Any) -> None:
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b"), bench.turn("c")))))
    assert target.histories()["c"] == ["a", "re a", "b", "re b", "c"]


def test_replies_written_in_the_file_replace_the_live_ones(bench: Any) -> None:
    second = Turn(messages=({"role": "assistant", "content": "written"}, bench.user("b")))
    session = Session("s", (bench.turn("a"), second), mode="accumulate_authored")
    _, target = bench.run(bench.workload(session))
    assert target.histories()["b"] == ["a", "written", "b"]


def test_isolated_turns_carry_nothing_along(bench: Any) -> None:
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b")), mode="isolated")))
    assert target.histories() == {"a": ["a"], "b": ["b"]}


def test_a_delay_counts_from_the_reply_before_it_also_on_the_first_turn(bench: Any) -> None:
    session = Session("s", (bench.turn("a", delay_s=0.25), bench.turn("b", delay_s=2.0)))
    result, target = bench.run(bench.workload(session))
    assert target.times() == [("a", 0.25), ("b", 3.25)]
    assert [r.issued_s for r in result.records] == [0.25, 3.25]


def test_delays_are_capped(bench: Any) -> None:
    session = Session("s", (bench.turn("a", delay_s=0.25), bench.turn("b", delay_s=60.0)))
    _, target = bench.run(bench.workload(session), inter_turn_delay_cap_s=0.5)
    assert target.times() == [("a", 0.25), ("b", 1.75)]


def test_at_a_speed_delays_and_the_cap_shrink(bench: Any) -> None:
    session = Session("s", (bench.turn("a", delay_s=8.0), bench.turn("b", delay_s=60.0)))
    result, target = bench.run(bench.workload(session), inter_turn_delay_cap_s=40.0, speed=8.0)
    assert target.times() == [("a", 1.0), ("b", 7.0)]
    assert result.speed == 8.0


def test_tools_hold_on_but_model_max_tokens_and_extra_do_not(bench: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    session = Session(
        "s",
        (
            bench.turn("a", tools=tools, model="other", max_tokens=7, extra={"seed": 3}),
            bench.turn("b"),
            bench.turn("c", tools=[]),
            bench.turn("d"),
        ),
    )
    _, target = bench.run(bench.workload(session), model="own")
    bodies = [sent.call.body for sent in target.sent]
    assert [body.get("tools") for body in bodies] == [tools, tools, [], []]
    assert [body["model"] for body in bodies] == ["other", "own", "own", "own"]
    assert [body.get("max_completion_tokens") for body in bodies] == [7, None, None, None]
    assert [body.get("seed") for body in bodies] == [3, None, None, None]


def test_the_turn_wins_over_the_command_line_and_extra_over_the_native_fields(bench: Any) -> None:
    session = Session("s", (bench.turn("a", max_tokens=7, extra={"temperature": 1, "model": "extra"}), bench.turn("b")))
    _, target = bench.run(bench.workload(session), extra_inputs={"temperature": 0, "top_k": 5})
    first, second = (sent.call.body for sent in target.sent)
    assert list(first) == ["messages", "model", "stream", "max_completion_tokens", "temperature", "top_k", "stream_options"]
    assert (first["temperature"], first["top_k"], first["model"]) == (1, 5, "extra")
    assert (second["temperature"], second["top_k"], second["model"]) == (0, 5, "m")


def test_legacy_max_tokens_are_sent_under_their_old_name(bench: Any) -> None:
    session = Session("s", (bench.turn("a", max_tokens=7),))
    _, target = bench.run(bench.workload(session), use_legacy_max_tokens=True)
    assert target.sent[0].call.body["max_tokens"] == 7
    assert "max_completion_tokens" not in target.sent[0].call.body


@pytest.mark.parametrize(
    ("streaming", "extra", "stream", "stream_options"),
    [
        (True, {}, True, {"include_usage": True}),
        (True, {"stream_options": {"include_usage": False}}, True, {"include_usage": False}),
        (True, {"stream_options": {"x": 1}}, True, {"include_usage": True, "x": 1}),
        (True, {"stream": False}, False, None),
        (False, {}, False, None),
        (False, {"stream": True}, True, {"include_usage": True}),
    ],
)
def test_a_stream_is_asked_for_its_usage_unless_the_author_says_otherwise(
    bench: Any, streaming: bool, extra: dict[str, Any], stream: bool, stream_options: Any
) -> None:
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a", extra=extra),))), streaming=streaming)
    call = target.sent[0].call
    assert (call.body["stream"], call.body.get("stream_options"), call.stream) == (stream, stream_options, stream)
    assert call.headers["Accept"] == ("text/event-stream" if stream else "application/json")


def test_a_failed_request_does_not_end_its_conversation_and_leaves_no_reply_behind(bench: Any) -> None:
    session = Session("s", (bench.turn("FAIL a"), bench.turn("b")))
    result, target = bench.run(bench.workload(session))
    assert target.histories()["b"] == ["FAIL a", "b"]
    assert [r.ok for r in result.records] == [False, True]
    assert not result.cancelled


def test_a_reply_without_content_leaves_no_message_behind(bench: Any) -> None:
    class Silent(bench.FakeTarget):  # type: ignore[misc]
        async def send(self, call: Call) -> Any:
            exchange = await super().send(call)
            exchange.message = None
            return exchange

    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b")))), Silent())
    assert target.histories()["b"] == ["a", "b"]


def test_tool_calls_of_a_reply_are_threaded_as_they_came(bench: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    target = bench.FakeTarget(answer=lambda _: message)
    bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b")))), target)
    assert target.sent[1].call.body["messages"][1] == message


def test_bodies_that_went_out_are_not_changed_by_later_turns(bench: Any) -> None:
    result, _ = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b")))))
    (inputs,) = result.inputs
    assert inputs["session_id"] == "s"
    assert [[m["content"] for m in body["messages"]] for body in inputs["payloads"]] == [["a"], ["a", "re a", "b"]]


@pytest.mark.parametrize(
    ("payload", "endpoint_type", "path", "stream"),
    [
        ({"messages": [], "stream": True, "x": 2.0}, None, "/chat/completions", True),
        ({"messages": [{"role": "user", "content": "y"}]}, None, "/chat/completions", False),
        ({"prompt": "hello", "stream": False}, None, "/completions", False),
        ({"prompt": "hello", "messages": []}, None, "/chat/completions", False),
        ({}, None, "/chat/completions", False),
        ({}, "completions", "/completions", False),
        ({"prompt": "hello"}, "chat", "/chat/completions", False),
    ],
)
def test_a_payload_goes_out_verbatim(
    bench: Any, payload: dict[str, Any], endpoint_type: Any, path: str, stream: bool
) -> None:
    session = Session("s", (Turn(payload=payload),), mode="verbatim")
    _, target = bench.run(
        bench.workload(session), endpoint_type=endpoint_type, extra_inputs={"temperature": 1}, streaming=True, model="m"
    )
    call = target.sent[0].call
    assert (call.path, call.body, call.stream) == (path, payload, stream)


def test_every_conversation_has_its_own_correlation_id_and_every_request_its_own(bench: Any) -> None:
    sessions = [Session(name, (bench.turn(f"{name}1"), bench.turn(f"{name}2"))) for name in "ab"]
    result, target = bench.run(bench.workload(*sessions))
    headers = [sent.call.headers for sent in target.sent]
    assert len({h["X-Request-ID"] for h in headers}) == 4
    assert headers[0]["X-Correlation-ID"] == headers[1]["X-Correlation-ID"] != headers[2]["X-Correlation-ID"]
    assert all(h["X-Session-Affinity"] == h["X-Correlation-ID"] for h in headers)
    assert [r.correlation_id for r in result.records] == [h["X-Correlation-ID"] for h in headers]
    assert [r.request_id for r in result.records] == [h["X-Request-ID"] for h in headers]


def test_the_session_header_renames_the_correlation_id(bench: Any) -> None:
    result, target = bench.run(bench.workload(Session("s", (bench.turn("a"),))), session_header="X-Session-ID")
    headers = target.sent[0].call.headers
    assert headers["X-Session-ID"] == result.records[0].correlation_id == headers["X-Session-Affinity"]
    assert "X-Correlation-ID" not in headers


def test_ids_depend_on_the_seed_alone(bench: Any) -> None:
    session = Session("s", (bench.turn("a", branches=(bench.fork("k"),)),))
    child = Session("k", (bench.turn("b"),))

    def ids(reply_s: float, **options: Any) -> list[tuple[str, str]]:
        target = bench.FakeTarget(reply_s)
        result, _ = bench.run(bench.workload(session, child), target, **options)
        return [(r.request_id, r.correlation_id) for r in result.records]

    assert ids(1.0, seed=7) == ids(0.1, seed=7)
    assert not {i for pair in ids(1.0, seed=7) for i in pair} & {i for pair in ids(1.0, seed=8) for i in pair}
    assert ids(1.0, seed=None) != ids(1.0, seed=None)
