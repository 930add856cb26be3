"""Turns of one conversation: when they go out, what is carried along, under which ids; replies take 1 s or "@seconds"."""

from typing import Any

import pytest

from llmirage_client.load.history import Message, ToolResults, fit_results
from llmirage_client.load.options import RunOptions
from llmirage_client.load.turn_calls import SyntheticTurns
from llmirage_client.workload.format import skip
from llmirage_client.workload.session import Branch, Session, SyntheticUser, Tenant, Turn
from llmirage_shared.tokenizer_loader import embedded


def test_each_turn_goes_out_when_the_reply_before_it_is_there(bench: Any) -> None:
    session = Session("s", (bench.turn("a@2"), bench.turn("b@0.5"), bench.turn("c")))
    result, target = bench.run(bench.workload(session))
    assert target.times() == [("a", 0.0), ("b", 2.0), ("c", 2.5)]
    assert [(r.turn_index, r.issued_s) for r in result.records] == [(0, 0.0), (1, 2.0), (2, 2.5)]
    assert result.end_s - result.start_s == 3.5


def test_live_replies_are_threaded_into_the_history(bench: Any) -> None:
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b"), bench.turn("c")))))
    assert target.histories()["c"] == ["a", "re a", "b", "re b", "c"]


@pytest.mark.parametrize(
    ("delays_s", "options", "starts_s"),
    [
        ((0.25, 2.0), {}, [0.25, 3.25]),
        ((0.5, 0.5, 0.5), {}, [0.5, 2.0, 3.5]),
        ((0.25, 60.0), {"inter_turn_delay_cap_s": 0.5}, [0.25, 1.75]),
        ((8.0, 60.0), {"inter_turn_delay_cap_s": 40.0, "speed": 8.0}, [1.0, 7.0]),
        ((0.0, 1.0, 9.0), {"inter_turn_delay_factor": 2.0, "inter_turn_delay_cap_s": 5.0}, [0.0, 3.0, 9.0]),
    ],
    ids=["from the reply before", "all alike", "capped", "at a speed", "stretched and then capped"],
)
def test_delays_count_also_on_the_first_turn(bench: Any, delays_s: Any, options: Any, starts_s: list[float]) -> None:
    turns = tuple(bench.turn(str(number), delay_s=delay_s) for number, delay_s in enumerate(delays_s))
    result, target = bench.run(bench.workload(Session("s", turns)), **options)
    assert [start_s for _, start_s in target.times()] == [record.issued_s for record in result.records] == starts_s
    assert result.speed == options.get("speed", 1.0)


def test_a_reply_without_content_leaves_no_message_behind(bench: Any) -> None:
    silent = bench.FakeTarget(answer=lambda _: None)
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"), bench.turn("b")))), silent)
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


def content(options: RunOptions, message: SyntheticUser) -> str:
    return str(SyntheticTurns(options).written(Turn(), message).messages[-1]["content"])


@pytest.mark.parametrize("tokens", [1, 2, 17, 1000])
@pytest.mark.parametrize("prefix_tokens", [0, 1, 40])
def test_a_message_has_exactly_its_tokens(tokens: int, prefix_tokens: int) -> None:
    for key in range(8):
        text = content(RunOptions(seed=2), SyntheticUser(tokens, key, prefix_tokens))
        assert len(embedded().encode(text)) == prefix_tokens + tokens


def test_the_same_key_and_seed_give_the_same_text_and_prefixes_are_shared() -> None:
    options = RunOptions(seed=2)
    assert content(options, SyntheticUser(30, 5)) == content(options, SyntheticUser(30, 5))
    assert content(options, SyntheticUser(30, 5)) != content(options, SyntheticUser(30, 6))
    assert content(options, SyntheticUser(30, 5)) != content(RunOptions(seed=3), SyntheticUser(30, 5))
    one, other = (embedded().encode(content(options, SyntheticUser(30, key, 20))).tolist() for key in (5, 6))
    assert one[:19] == other[:19]  # the last of the prefix may be one with what follows
    assert one[21:] != other[21:]


def test_a_turn_s_own_messages_go_before_the_synthetic_one_and_replies_follow(bench: Any) -> None:
    system = {"role": "system", "content": "s"}
    turns = (Turn(messages=(system,), synthetic=SyntheticUser(3, 1)), Turn(synthetic=SyntheticUser(4, 2)))
    _, target = bench.run(bench.workload(Session("a", turns)))
    roles = [[message["role"] for message in sent.call.body["messages"]] for sent in target.sent]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]


def test_a_failure_ends_only_a_conversation_that_says_so(bench: Any) -> None:
    turns = (bench.turn("FAIL 1"), bench.turn("2"))
    strict = Session("strict", turns, ends_on_failure=True)
    result, target = bench.run(bench.workload(strict, Session("lenient", turns)), concurrency=1)
    assert [label for label, _ in target.times()] == ["FAIL 1", "FAIL 1", "2"]
    assert len(result.records) == 3


def test_an_offset_leaves_conversations_out_unless_more_are_wanted(bench: Any) -> None:
    whole = bench.workload(*(Session(name, (bench.turn(name),)) for name in "abc"))
    sent = [label for label, _ in bench.run(skip(whole, 1))[1].times()]
    assert sent == ["b", "c"]
    sent = [label for label, _ in bench.run(skip(whole, 1), num_conversations=5)[1].times()]
    assert sent == ["b", "c", "a", "b", "c"]


def said(*ids: str, live: bool = True) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return Message({"role": "assistant", "content": None, "tool_calls": calls} if ids else
                   {"role": "assistant", "content": "no call"}, live=live)  # fmt: skip


def result(id_: str, content: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


USER = {"role": "user", "content": "u"}


def fit(last: Message | None, policy: ToolResults, *messages: dict[str, Any]) -> list[Any]:
    return fit_results([] if last is None else [USER, last], messages, policy)


@pytest.mark.parametrize("policy", ["matched", "fitted"])
def test_as_many_results_as_calls_get_their_ids_in_order(policy: ToolResults) -> None:
    assert fit(said("x", "y"), policy, USER, result("1", "a"), result("2", "b")) == [
        USER, result("x", "a"), result("y", "b"),
    ]  # fmt: skip
    item = {"type": "function_call_output", "call_id": "1", "output": "o"}
    assert fit(said("x"), policy, item) == [{**item, "call_id": "x"}]


@pytest.mark.parametrize("policy", ["authored", "matched", "fitted"])
def test_what_fits_already_stays(policy: ToolResults) -> None:
    assert fit(said("x", "y"), policy, result("y"), result("x")) == [result("y"), result("x")]
    assert fit(said("1", live=False), policy, result("other")) == [result("other")]
    assert fit(None, policy, result("1")) == [result("1")]
    assert fit(said(), policy, USER) == [USER]


def test_other_numbers_stay_unless_they_are_to_fit() -> None:
    assert fit(said("x", "y"), "matched", result("1"), USER) == [result("1"), USER]
    assert fit(said("x"), "authored", result("1")) == [result("1")]
    assert fit(said(), "matched", result("1")) == [result("1")]


def test_fitted_results_come_first_one_for_each_call() -> None:
    assert fit(said("x", "y"), "fitted", USER, result("1", "a")) == [result("x", "a"), result("y", "done"), USER]
    assert fit(said("x"), "fitted", USER) == [result("x", "done"), USER]
    assert fit(said("x"), "fitted", result("1", "a"), result("2", "b")) == [result("x", "a"), {**USER, "content": "b"}]
    assert fit(said(), "fitted", result("1", "a")) == [{**USER, "content": "a"}]


def test_results_of_the_turns_own_calls_are_never_touched() -> None:
    own = {"role": "assistant", "content": None, "tool_calls": [{"id": "z", "type": "function"}]}
    assert fit(said(), "fitted", USER, own, result("z")) == [USER, own, result("z")]
    assert fit(said("x"), "fitted", result("1"), own, result("z"), USER) == [result("x"), own, result("z"), USER]
    assert fit_results([USER], [own, result("z")], "fitted") == [own, result("z")]


def test_after_a_failed_request_there_is_no_call_to_answer() -> None:
    assert fit_results([USER], [result("1", "a")], "fitted") == [{**USER, "content": "a"}]
    assert fit_results([USER], [result("1", "a")], "matched") == [result("1", "a")]


def test_gateways_are_told_the_session_its_parent_the_tenant_and_the_class(bench: Any) -> None:
    root = Session(
        "r", (bench.turn("a", branches=(Branch("b", "spawn", ("c",)),)),), tenant=Tenant("Käse, Söhne", "interactive")
    )
    workload = bench.workload(root, Session("c", (bench.turn("b"),)), roots=("r",))
    objectives = {"interactive": {"TTFT": 499.5, "TPOT": 20}, "batch": {"TTFT": 9}}
    _, target = bench.run(workload, session_headers=("dynamo", "smg"), class_objectives=objectives)
    own, child = (sent.call.headers for sent in target.sent)
    ids = own["X-Correlation-ID"], child["X-Correlation-ID"]
    for headers, name in ((own, ids[0]), (child, ids[1])):
        assert headers["X-Dynamo-Session-ID"] == headers["X-SMG-Routing-Key"] == name
        assert headers["X-Gateway-Inference-Objective"] == "interactive"
        assert (headers["X-SLO-TTFT-MS"], headers["X-SLO-TPOT-MS"]) == ("500", "20")
        assert headers["X-Gateway-Inference-Fairness-ID"] == "K%C3%A4se, S%C3%B6hne"
    assert "X-Dynamo-Parent-Session-ID" not in own
    assert child["X-Dynamo-Parent-Session-ID"] == ids[0]
    _, target = bench.run(bench.workload(Session("s", (bench.turn("a"),))))
    assert not [name for name in target.sent[0].call.headers if name.startswith(("X-Dynamo", "X-SMG", "X-Gateway", "X-SLO"))]
