"""The Anthropic Messages API: what histories, tools and parameters become, and what its events and bodies say."""

import json
from typing import Any

from llmirage_client.targets.endpoints.messages import DEFAULT_MAX_TOKENS, MessagesEndpoint, MessagesReply
from llmirage_client.targets.endpoints.protocol import TurnRequest

THOUGHT = {"type": "thinking", "thinking": "hm hm", "signature": "s1g"}
TEXT = {"type": "text", "text": "Hello there"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": 1}}


def block_delta(index: int, kind: str, key: str, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: text}}


def stream(*events: dict[str, Any]) -> MessagesReply:
    """Each event a second after the one before, framed as the API does."""
    segments = [
        (float(number), f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
        for number, event in enumerate(events)
    ]
    reply = MessagesReply()
    reply.read_stream(segments)
    return reply


STREAM: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg_1", "usage": {
        "input_tokens": 4, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 2, "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    block_delta(0, "thinking_delta", "thinking", "hm "),
    block_delta(0, "thinking_delta", "thinking", "hm"),
    block_delta(0, "signature_delta", "signature", "s1g"),
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    block_delta(1, "text_delta", "text", "Hello"),
    block_delta(1, "text_delta", "text", " the"),
    block_delta(1, "text_delta", "text", "re"),
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "look",
                                                                  "input": {}}},
    block_delta(2, "input_json_delta", "partial_json", '{"q"'),
    block_delta(2, "input_json_delta", "partial_json", ": 1}"),
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]  # fmt: skip
MESSAGE = {
    "role": "assistant",
    "content": "Hello there",
    "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}],
}
USAGE = {
    "prompt_tokens": 22,
    "completion_tokens": 9,
    "total_tokens": 31,
    "prompt_tokens_details": {"cached_tokens": 16},
    "cache_creation_input_tokens": 2,
}


def test_thoughts_text_and_calls_are_told_apart_and_stamped() -> None:
    reply = stream(*STREAM)
    assert reply.error is None
    assert reply.ended
    assert (reply.reasoning, reply.text) == ("hm hm", "Hello there")
    assert reply.token_s == [3.0, 4.0, 8.0, 9.0, 10.0, 12.0, 13.0, 14.0]
    assert reply.first_output_s == 8.0
    assert reply.message() == MESSAGE
    assert reply.items == [{"role": "assistant", "content": [THOUGHT, TEXT, USE]}]
    assert (reply.finish_reason, reply.usage, reply.response_id) == ("tool_calls", USAGE, "msg_1")


def test_a_whole_message_is_read_like_a_streamed_one() -> None:
    usage = {"input_tokens": 4, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 2, "output_tokens": 9}
    value = {"id": "msg_1", "type": "message", "role": "assistant", "content": [THOUGHT, TEXT, USE],
             "stop_reason": "tool_use", "usage": usage}  # fmt: skip
    reply = MessagesReply()
    reply.read_body(5.0, json.dumps(value).encode())
    assert (reply.message(), reply.usage, reply.finish_reason) == (MESSAGE, USAGE, "tool_calls")
    assert reply.items == [{"role": "assistant", "content": [THOUGHT, TEXT, USE]}]
    assert (reply.token_s, reply.first_output_s) == ([5.0], 5.0)


def test_texts_of_interleaved_blocks_stay_apart() -> None:
    start = [{"type": "content_block_start", "index": i, "content_block": {"type": "text", "text": ""}} for i in (0, 1)]
    deltas = [block_delta(i % 2, "text_delta", "text", str(i)) for i in range(6)]
    reply = stream(*start, *deltas, {"type": "message_stop"})
    assert reply.text == "012345"
    assert reply.items == [
        {"role": "assistant", "content": [{"type": "text", "text": "024"}, {"type": "text", "text": "135"}]}
    ]


def test_stop_reasons_and_errors_have_chats_names() -> None:
    def stopped(reason: str) -> MessagesReply:
        return stream({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}})

    reasons = ["end_turn", "stop_sequence", "max_tokens", "tool_use", "refusal"]
    assert [stopped(reason).finish_reason for reason in reasons] == ["stop", "stop", "length", "tool_calls", "refusal"]
    error = stream({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).error
    assert error is not None
    assert (error.type, error.message) == ("stream_error", "Overloaded")


def test_a_cut_stream_keeps_what_came_and_a_cut_call_stays_an_object() -> None:
    reply = stream(*STREAM[:14])
    assert (reply.text, reply.ended, reply.finish_reason) == ("Hello there", False, None)
    assert reply.items is not None
    assert reply.items[0]["content"][2]["input"] == {"partial_json": '{"q"'}


def test_messages_become_turns_with_the_results_of_one_turn_together() -> None:
    called = [
        {"id": i, "type": "function", "function": {"name": "look", "arguments": a}} for i, a in (("a", '{"q":1}'), ("b", ""))
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Really."}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                                     {"type": "image_url", "image_url": "https://x/y.png"}]},
        {"role": "assistant", "content": "I look.", "tool_calls": called},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "43"}]},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    endpoint = MessagesEndpoint()
    items = endpoint.items(messages)
    assert endpoint.body(TurnRequest(items, "m", True, max_tokens=7)) == {
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Really."}],
        "messages": [
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"q": 1}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "42"},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "43"}]},
            ]},
            {"role": "user", "content": "And?"},
        ],
        "model": "m",
        "stream": True,
        "max_tokens": 7,
    }  # fmt: skip


def test_one_system_message_is_a_text_and_a_limit_is_always_there() -> None:
    endpoint = MessagesEndpoint()
    items = endpoint.items([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}])
    body = endpoint.body(TurnRequest(items, "m", False, tools=[{"name": "look"}]))
    assert (body["system"], body["max_tokens"], body["tools"]) == ("Be brief.", DEFAULT_MAX_TOKENS, [{"name": "look"}])


def test_tools_and_parameters_of_chat_get_their_names_here() -> None:
    endpoint = MessagesEndpoint()
    function = {"name": "look", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert endpoint.tools([{"type": "function", "function": function}, {"type": "web_search_20250305", "name": "w"}]) == [
        {"name": "look", "description": "d", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "w"},
    ]
    schema = {"type": "object"}
    assert endpoint.extra(
        {
            "temperature": 0.5,
            "max_completion_tokens": 9,
            "stop": "END",
            "user": "u",
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
            "top_k": 3,
            "min_tokens": 9,
            "ignore_eos": True,
        }
    ) == {
        "temperature": 0.5,
        "max_tokens": 9,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "top_k": 3,
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
    }
    choices = [endpoint.extra({"tool_choice": choice})["tool_choice"]["type"] for choice in ("auto", "required", "none")]
    assert choices == ["auto", "any", "none"]
