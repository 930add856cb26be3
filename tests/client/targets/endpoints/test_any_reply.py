"""Whatever an endpoint sends, its reader takes what it understands and never fails over the rest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.endpoints.messages import MessagesReply
from llmirage_client.targets.endpoints.raw import RawReply
from llmirage_client.targets.endpoints.responses import ResponsesReply
from llmirage_client.targets.reply import ReplyReader

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
