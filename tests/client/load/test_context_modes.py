"""What goes out in each context mode, over each API, and what forks inherit."""

from typing import Any

import pytest
from chat_messages import user

from llmirage_client.commands.run import run
from llmirage_client.load.conversation import Conversation, Family, Identifiers
from llmirage_client.load.history import CONTEXT_MODES, Message, in_context_mode
from llmirage_client.load.options import RunOptions
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.measure.record import Exchange, RequestError
from llmirage_client.targets.wire_json import encode_body
from llmirage_client.workload.session import Branch, Session, TokenSpec, Turn, Workload
from llmirage_shared.command_line import SettingOption

CALL = {"type": "function_call", "id": "fc", "call_id": "live", "name": "look", "arguments": "{}"}
SEARCH = {"type": "web_search_call", "id": "ws", "status": "completed"}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": []}
TEXT = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "re"}]}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Talk:
    """A conversation of the turns a, b, c, ... whose replies the test makes."""

    def __init__(self, mode: str, *texts: str, **options: Any) -> None:
        turns = tuple(Turn(messages=(user(text),)) for text in texts)
        fork = Branch("f", "fork", ("kid",))
        own = Session("s", (*turns[:-1], Turn(messages=turns[-1].messages, branches=(fork,))))
        kid = Session("kid", (Turn(messages=(user("kid"),)),))
        workload = in_context_mode(Workload("dag_jsonl", "x", {"s": own, "kid": kid}, ("s",)), mode)
        self.family = Family(workload, Identifiers(1))
        self.conversation = self.family.root(workload.sessions["s"])
        self.planner = CallPlanner(RunOptions(model="m", **options))
        self.sent = 0

    def send(self, reply: str | None = None, **fields: Any) -> dict[str, Any]:
        """The body of the next turn; None as a reply is a failure."""
        planned = self.planner.plan(self.conversation, self.sent)
        error = RequestError(500, "http_error", "no") if reply is None else None
        message = None if reply is None else {"role": "assistant", "content": reply}
        self.conversation.turn_index = self.sent
        self.planner.replied(self.conversation, planned, Exchange(start_s=0.0, message=message, error=error, **fields))
        self.sent += 1
        return dict(planned.call.body)

    def body_of(self, conversation: Conversation, index: int = 0) -> dict[str, Any]:
        return dict(self.planner.plan(conversation, index).call.body)

    def fork(self) -> dict[str, Any]:
        return self.body_of(self.family.child(self.conversation, "kid", "fork"))


@pytest.mark.parametrize(
    ("mode", "second", "third"),
    [
        ("deltas_without_responses", [user("a"), assistant("1"), user("b")],
         [user("a"), assistant("1"), user("b"), user("c")]),
        ("deltas_with_responses", [user("a"), user("b")], [user("a"), user("b"), user("c")]),
    ],
)  # fmt: skip
def test_histories_grow_by_the_file_and_by_what_was_said(mode: str, second: list[Any], third: list[Any]) -> None:
    talk = Talk(mode, "a", "b", "c")
    assert talk.send("1")["messages"] == [user("a")]
    assert talk.send(None)["messages"] == second
    assert talk.send("3")["messages"] == third


def test_tool_calls_of_the_file_stay_as_they_are_where_replies_are_dropped() -> None:
    call = {"id": "z", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [user("a")], [{**assistant(""), "tool_calls": [call]}, {"role": "tool", "tool_call_id": "z", "content": "r"}]
    session = Session("s", tuple(Turn(messages=tuple(messages)) for messages in talk), mode="accumulate_authored")
    conversation = Family(Workload("dag_jsonl", "x", {"s": session}, ("s",)), Identifiers(1)).root(session)
    planner = CallPlanner(RunOptions(model="m", endpoint_type="responses"))
    planner.replied(conversation, planner.plan(conversation, 0), Exchange(start_s=0.0, message=assistant("dropped")))
    assert planner.plan(conversation, 1).call.body["input"] == [
        user("a"),
        {"type": "function_call", "call_id": "z", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "z", "output": "r"},
    ]


def test_encodings_are_remembered_until_the_last_turn() -> None:
    talk = Talk("deltas_without_responses", "a", "b")
    encode_body(talk.send("1"))
    assert talk.conversation.thread is not None
    [first, _] = talk.conversation.thread.history
    assert isinstance(first, Message)
    assert first.encoded() is first.encoded()
    kept = first.encoded()
    encode_body(talk.send("2"))
    assert first.encoded() is not kept


def test_message_arrays_carry_nothing_from_turn_to_turn() -> None:
    turns = tuple(Turn(messages=(user(text),)) for text in "ab")
    workload = in_context_mode(
        Workload("dag_jsonl", "x", {"s": Session("s", turns)}, ("s",)), "message_array_with_responses"
    )
    conversation = Family(workload, Identifiers(1)).root(workload.sessions["s"])
    planner = CallPlanner(RunOptions(model="m"))
    for index, text in enumerate("ab"):
        planned = planner.plan(conversation, index)
        assert planned.call.body["messages"] == [user(text)]
        planner.replied(conversation, planned, Exchange(start_s=0.0, message=assistant("1")))


def test_a_server_that_keeps_the_history_gets_what_is_new() -> None:
    talk = Talk("server_state", "a", "b", "c", "d", endpoint_type="responses")
    assert talk.send("1", response_id="r1")["input"] == [user("a")]
    second = talk.send(None)
    assert (second["input"], second["previous_response_id"]) == ([user("b")], "r1")
    third = talk.send("3", response_id="r3")  # what failed never got there
    assert (third["input"], third["previous_response_id"]) == ([user("b"), user("c")], "r1")
    fourth = talk.send("4", response_id="r4")
    assert (fourth["input"], fourth["previous_response_id"]) == ([user("d")], "r3")
    forked = talk.fork()
    assert (forked["input"], forked["previous_response_id"]) == ([user("kid")], "r4")
    spawned = talk.body_of(talk.family.child(talk.conversation, "kid", "spawn"))
    assert (spawned["input"], "previous_response_id" in spawned) == ([user("kid")], False)


def test_a_conversation_on_the_server_gets_what_is_new_and_a_fork_has_its_own() -> None:
    talk = Talk("server_conversation", "a", "b", "c", endpoint_type="responses")
    own_id = talk.conversation.correlation_id
    first = talk.send("1", response_id="r1")
    assert (first["input"], first["conversation"]) == ([user("a")], own_id)
    second = talk.send(None)
    assert (second["input"], second["conversation"], "previous_response_id" in second) == ([user("b")], own_id, False)
    assert talk.send("3")["input"] == [user("b"), user("c")]
    forked = talk.fork()
    assert forked["input"] == [user("a"), assistant("1"), user("b"), user("c"), assistant("3"), user("kid")]
    assert forked["conversation"] != own_id


def test_replies_go_back_as_they_came_but_forks_do_not_get_what_servers_built() -> None:
    talk = Talk("deltas_without_responses", "a", "b", endpoint_type="responses", tool_results="authored")
    talk.send("re", items=[THOUGHT, SEARCH, TEXT, CALL])
    assert talk.send("re", items=[SEARCH])["input"] == [user("a"), THOUGHT, SEARCH, TEXT, CALL, user("b")]
    assert talk.fork()["input"] == [user("a"), TEXT, CALL, user("b"), user("kid")]


def test_forks_over_the_messages_api_do_not_get_thoughts() -> None:
    thinking, text = {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "re"}
    talk = Talk("deltas_without_responses", "a", "b", endpoint_type="messages")
    talk.send("re", items=[{"role": "assistant", "content": [thinking, text]}])
    whole = [user("a"), {"role": "assistant", "content": [thinking, text]}, user("b")]
    assert talk.send("re", items=[{"role": "assistant", "content": [thinking]}])["messages"] == whole
    inherited = [user("a"), {"role": "assistant", "content": [text]}, user("b"), user("kid")]
    assert talk.fork()["messages"] == inherited


def test_a_parent_is_not_changed_by_what_its_fork_lost() -> None:
    talk = Talk("deltas_without_responses", "a", "b", endpoint_type="responses")
    talk.send("re", items=[THOUGHT, TEXT])
    talk.fork()
    assert talk.send("re")["input"] == [user("a"), THOUGHT, TEXT, user("b")]


@pytest.mark.parametrize("endpoint_type", ["chat", "completions", "responses", "messages"])
def test_every_api_gets_its_path_and_its_stream_of_usage(endpoint_type: str) -> None:
    talk = Talk("deltas_without_responses", "a", endpoint_type=endpoint_type)
    call = talk.planner.plan(talk.conversation, 0).call
    paths = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses", "messages": "/messages"}
    assert (call.path, call.from_root, call.api) == (paths[endpoint_type], False, endpoint_type)
    assert ("stream_options" in call.body) is (endpoint_type in ("chat", "completions"))


def test_a_path_of_ones_own_counts_from_the_root() -> None:
    talk = Talk("deltas_without_responses", "a", endpoint_path="/v9/talk")
    planned = talk.planner.plan(talk.conversation, 0).call
    assert (planned.path, planned.from_root) == ("/v9/talk", True)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"messages": []}, "/chat/completions"),
        ({"prompt": "a"}, "/completions"),
        ({"input": "a", "model": "m"}, "/responses"),
        ({}, "/chat/completions"),
    ],
)
def test_whole_bodies_go_where_their_keys_say(payload: dict[str, Any], path: str) -> None:
    session = Session("s", (Turn(payload=payload),), mode="verbatim")
    conversation = Family(Workload("inputs_json", "x", {"s": session}, ("s",)), Identifiers(1)).root(session)
    call = CallPlanner(RunOptions()).plan(conversation, 0).call
    assert (call.path, call.body) == (path, payload)
    raw = CallPlanner(RunOptions(endpoint_type="raw", endpoint_path="/any")).plan(conversation, 0).call
    assert (raw.path, raw.from_root, raw.body) == ("/any", True, payload)


@pytest.mark.parametrize("endpoint_type", ["chat", "responses", "messages", "completions"])
def test_calls_given_in_tokens_go_over_every_api(endpoint_type: Any) -> None:
    turns = (Turn(tokens=TokenSpec(30, 16)), Turn(tokens=TokenSpec(60, 17)))
    session = Session("s", turns, mode="tokens")
    conversation = Family(Workload("agentic_jsonl", "x", {"s": session}, ("s",)), Identifiers(1)).root(session)
    planner = CallPlanner(RunOptions(endpoint_type=endpoint_type, model="m", seed=1))
    planned = planner.plan(conversation, 0)
    first = planned.call
    planner.replied(conversation, planned, Exchange(start_s=0.0, message=assistant("one two three four")))
    second = planner.plan(conversation, 1).call
    limit = {"responses": "max_output_tokens", "chat": "max_completion_tokens"}.get(endpoint_type, "max_tokens")
    assert (first.body[limit], second.body[limit]) == (16, 17)
    if endpoint_type != "completions":
        key = "input" if endpoint_type == "responses" else "messages"
        assert second.body[key][:2] == [*first.body[key], assistant("one two three four")]


def test_modes_are_refused_where_they_make_no_sense(bench: Any) -> None:
    tokens = Workload("agentic_jsonl", "x", {"s": Session("s", (Turn(tokens=TokenSpec(1, 1)),), mode="tokens")}, ("s",))
    with pytest.raises(ValueError, match="agentic_jsonl give whole bodies or token counts"):
        in_context_mode(tokens, "server_state")
    forked = bench.workload(Session("s", (bench.turn("a", branches=(bench.fork("k"),)),)), Session("k", (bench.turn("b"),)))
    with pytest.raises(ValueError, match="message arrays do not have"):
        in_context_mode(forked, "message_array_with_responses")
    assert {session.mode for session in in_context_mode(forked, "server_state").sessions.values()} == {"server_state"}
    offered = next(option for option in run.params if option.name == "context_mode")
    assert isinstance(offered, SettingOption)
    assert list(offered.about.choices) == list(CONTEXT_MODES)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"endpoint_kind": "other"}, {"max_output_tokens": 16}),
        ({"endpoint_kind": "other", "extra_inputs": {"top_k": 1}}, {"max_output_tokens": 3, "top_k": 1}),
        ({"endpoint_kind": "llmirage"}, {"max_output_tokens": 3, "min_tokens": 0}),
        ({"endpoint_kind": "vllm"}, {"max_output_tokens": 3, "min_tokens": 0}),
        ({"endpoint_kind": "llmirage", "endpoint_type": "chat"}, {"max_completion_tokens": 3}),
    ],
)
def test_a_limit_that_responses_refuses_is_raised_or_goes_to_an_engine(options: Any, sent: dict[str, int]) -> None:
    turns = (Turn(messages=(user("a"),), max_tokens=3), Turn(messages=(user("b"),), max_tokens=30))
    session = Session("s", turns)
    conversation = Family(Workload("multi_turn", "x", {"s": session}, ("s",)), Identifiers(1)).root(session)
    planner = CallPlanner(RunOptions(**{"model": "m", "endpoint_type": "responses", **options}))
    names = ("max_output_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "top_k")
    first, second = (planner.plan(conversation, index).call.body for index in (0, 1))
    assert {name: first[name] for name in names if name in first} == sent
    assert "min_tokens" not in second
