"""Whatever messages and tools a file has, every API gets a body that is JSON, and what the file has is not changed."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.calls import thread_of
from llmirage_client.load.conversation import Family, Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints import RawReply
from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.endpoints.messages import MessagesReply
from llmirage_client.targets.endpoints.protocol import ReplyReader
from llmirage_client.targets.endpoints.responses import ResponsesReply
from llmirage_client.targets.wire_json import encode, encode_body
from llmirage_client.workload.session import Session, Turn, Workload
from llmirage_shared.prompt_encoder import ChatTemplateError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
PARTS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "input_audio", "file", "refusal", "x"])},
        optional={
            "text": st.text(max_size=4),
            "image_url": st.text(max_size=4) | st.dictionaries(st.sampled_from(["url", "detail"]), st.text(max_size=4)),
            "file": JSON,
        },
    ),
    max_size=2,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(max_size=3)},
        optional={
            "type": st.sampled_from(["function", "custom"]),
            "function": st.fixed_dictionaries(
                {"name": st.text(max_size=3)}, optional={"arguments": st.text(max_size=4) | JSON}
            ),
            "custom": st.fixed_dictionaries({"name": st.text(max_size=3), "input": st.text(max_size=4)}),
        },
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])},
        optional={
            "content": st.none() | st.text(max_size=5) | PARTS,
            "tool_calls": CALLS | st.none(),
            "tool_call_id": st.text(max_size=3),
            "name": st.text(max_size=3),
            "function_call": st.none()
            | st.fixed_dictionaries({"name": st.text(max_size=3), "arguments": st.text(max_size=3)}),
            "refusal": st.none() | st.text(max_size=3),
        },
    ),
    max_size=4,
)
EXTRA = st.dictionaries(
    st.sampled_from(["tool_choice", "response_format", "stop", "parallel_tool_calls", "reasoning_effort", "user", "stream"]),
    JSON | st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": JSON}),
)


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("tool_results", ["matched", "fitted"])
@given(first=MESSAGES, second=MESSAGES, extra=EXTRA, calls=CALLS)
def test_every_history_becomes_a_body(
    api: Any, tool_results: Any, first: list[Any], second: list[Any], extra: dict[str, Any], calls: list[Any]
) -> None:
    turns = (
        Turn(messages=tuple(first), extra=extra),
        Turn(messages=tuple(second), extra=extra, tools=[{"type": "function"}]),
    )
    before = copy.deepcopy(turns)
    session = Session("s", turns)
    conversation = Family(Workload("dag_jsonl", "x", {"s": session}, ("s",)), Identifiers(1)).root(session)
    planner = CallPlanner(RunOptions(model="m", endpoint_type=api, tool_results=tool_results))
    try:
        bodies = [planner.plan(conversation, 0).call.body]
        reply = Exchange(0.0, message={"role": "assistant", "content": "re", "tool_calls": calls})
        thread_of(conversation).add_reply(reply, session.mode)
        bodies.append(planner.plan(conversation, 1).call.body)
    except ChatTemplateError:
        assert api == "completions"
        return
    assert turns == before
    for body in bodies:
        assert json.loads(encode_body(body)) == json.loads(encode(body))


KEYS = st.sampled_from([
    "type", "choices", "delta", "message", "content", "text", "index", "finish_reason", "usage", "tool_calls", "function",
    "name", "arguments", "custom", "input", "id", "error", "code", "response", "status", "output", "item", "summary",
    "incomplete_details", "reason", "input_tokens", "output_tokens", "input_tokens_details", "content_block", "thinking",
    "partial_json", "stop_reason", "cache_read_input_tokens", "reasoning_content", "refusal", "function_call", "object",
])  # fmt: skip
WORDS = st.sampled_from([
    "response.output_text.delta", "response.reasoning_text.delta", "response.output_item.added", "response.output_item.done",
    "response.completed", "response.incomplete", "response.failed", "response.created", "error", "function_call", "message",
    "response.function_call_arguments.delta", "reasoning", "custom_tool_call", "content_block_start", "content_block_delta",
    "message_start", "message_delta", "message_stop", "text_delta", "thinking_delta", "input_json_delta", "tool_use", "text",
    "completed", "incomplete", "failed", "response", "x",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
EVENTS = st.dictionaries(KEYS, VALUES, max_size=6)


@pytest.mark.parametrize("reader", [ChatReply, ResponsesReply, MessagesReply, RawReply])
@given(events=st.lists(EVENTS, max_size=4), body=EVENTS)
def test_no_reply_breaks_its_reader(reader: type[ReplyReader], events: list[Any], body: Any) -> None:
    streamed = reader()
    streamed.read_stream([(float(i), b"data: " + json.dumps(event).encode() + b"\n\n") for i, event in enumerate(events)])
    whole = reader()
    whole.read_body(1.0, json.dumps(body).encode())
    for reply in (streamed, whole):
        assert isinstance(reply.text, str)
        assert isinstance(reply.reasoning, str)
        assert reply.token_s == sorted(reply.token_s)
        json.dumps([reply.message(), reply.items, reply.usage, reply.finish_reason])
        assert reply.finish_reason is None or isinstance(reply.finish_reason, str)
