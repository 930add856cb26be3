"""Turns of one conversation: when they go out, what is carried along, under which ids; replies take 1 s or "@seconds"."""

from typing import Any

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


def test_every_conversation_has_its_own_correlation_id_and_every_request_its_own(bench: Any) -> None:
    sessions = [Session(name, (bench.turn(f"{name}1"), bench.turn(f"{name}2"))) for name in "ab"]
    result, target = bench.run(bench.workload(*sessions))
    headers = [sent.call.headers for sent in target.sent]
    assert len({h["X-Request-ID"] for h in headers}) == 4
    assert headers[0]["X-Correlation-ID"] == headers[1]["X-Correlation-ID"] != headers[2]["X-Correlation-ID"]
    assert all(h["X-Session-Affinity"] == h["X-Correlation-ID"] for h in headers)
    assert [r.correlation_id for r in result.records] == [h["X-Correlation-ID"] for h in headers]
    assert [r.request_id for r in result.records] == [h["X-Request-ID"] for h in headers]


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


def test_a_text_that_stands_alone_is_a_prompt_of_completions_as_it_is(bench: Any) -> None:
    def prompts(session: Session) -> list[Any]:
        _, target = bench.run(bench.workload(session), endpoint_type="completions")
        return [sent.call.body["prompt"] for sent in target.sent]

    assert prompts(Session("s", (bench.turn("a"),))) == ["a"]
    assert prompts(Session("s", (bench.turn("a"), bench.turn("b")), mode="isolated")) == ["a", "b"]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompts(Session("s", (Turn(({"role": "user", "content": parts},)),))) == [["a", "b"]]
    system = {"role": "system", "content": "be brief"}
    for conversation in (Session("s", (bench.turn("a"), bench.turn("b"))), Session("s", (Turn((system, bench.user("a"))),))):
        assert all("<|assistant|>" in prompt for prompt in prompts(conversation))  # the template of the package
