"""The Responses API: what histories, tools and parameters become, and what its events and bodies say."""

import json
from typing import Any

import pytest

from llmirage_client.targets.endpoints.protocol import TurnRequest
from llmirage_client.targets.endpoints.responses import ResponsesEndpoint, ResponsesReply

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
           "content": [{"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}]}  # fmt: skip
CALL = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "look",
        "arguments": '{"q":1}'}  # fmt: skip
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm hm"}]}
USAGE = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 7,
         "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 27}  # fmt: skip


def response(status: str, output: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "status": status,
        "output": output,
        "usage": USAGE,
        "error": None,
        **fields,
    }


def delta(kind: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "x", "output_index": 0, "delta": text, **fields}


def stream(*events: dict[str, Any], compact: bool = True) -> ResponsesReply:
    """Each event a second after the one before, framed as the API does."""
    segments = []
    for number, event in enumerate(events):
        data = json.dumps({**event, "sequence_number": number}, separators=(",", ":") if compact else None)
        segments.append((float(number), f"event: {event['type']}\ndata: {data}\n\n".encode()))
    reply = ResponsesReply()
    reply.read_stream(segments)
    return reply


def whole(value: dict[str, Any]) -> ResponsesReply:
    reply = ResponsesReply()
    reply.read_body(5.0, json.dumps(value).encode())
    return reply


@pytest.mark.parametrize("compact", [True, False])
def test_thoughts_text_and_calls_are_told_apart_and_stamped(compact: bool) -> None:
    reply = stream(
        {"type": "response.created", "response": response("in_progress", [], usage=None)},
        {"type": "response.in_progress", "response": response("in_progress", [], usage=None)},
        {"type": "response.output_item.added", "item": {**THOUGHT, "summary": []}},
        delta("reasoning_summary_text", "hm ", summary_index=0),
        delta("reasoning_summary_text", "hm", summary_index=0),
        {"type": "response.output_item.done", "item": THOUGHT},
        {"type": "response.output_item.added", "item": {**MESSAGE, "content": []}},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
        delta("output_text", "Hello", content_index=0, logprobs=[]),
        delta("output_text", " there", content_index=0, logprobs=[]),
        delta("output_text", "", content_index=0, logprobs=[]),
        {"type": "response.output_text.done", "text": "Hello there"},
        {"type": "response.output_item.done", "item": MESSAGE},
        {"type": "response.output_item.added", "item": {**CALL, "arguments": ""}},
        delta("function_call_arguments", '{"q"'),
        delta("function_call_arguments", ":1}"),
        {"type": "response.function_call_arguments.done", "arguments": '{"q":1}', "name": "look"},
        {"type": "response.output_item.done", "item": CALL},
        {"type": "response.completed", "response": response("completed", [THOUGHT, MESSAGE, CALL])},
        compact=compact,
    )
    assert reply.error is None
    assert reply.ended
    assert (reply.reasoning, reply.text) == ("hm hm", "Hello there")
    assert reply.token_s == [3.0, 4.0, 8.0, 9.0, 13.0, 14.0, 15.0]
    assert reply.first_output_s == 8.0
    assert reply.message() == {
        "role": "assistant",
        "content": "Hello there",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}],
    }
    assert reply.items == [THOUGHT, MESSAGE, CALL]
    assert (reply.response_id, reply.finish_reason) == ("resp_1", "tool_calls")
    assert reply.usage == {
        "prompt_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens": 7,
        "completion_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 27,
    }


@pytest.mark.parametrize("text", ['a "delta":"b" c', 'x\\"delta\\":\\"y', "é\n\u2028", '","delta":"', "}", ""])
def test_no_text_is_taken_for_structure(text: str) -> None:
    reply = stream(*[delta("output_text", text, logprobs=[], obfuscation="aX9") for _ in range(4)])
    assert reply.text == text * 4


def test_a_second_delta_key_is_read_by_the_parser() -> None:
    odd = {"type": "response.output_text.delta", "obfuscation": {"delta": "no"}, "delta": "yes"}
    assert stream(odd, odd, odd).text == "yes" * 3


def test_a_whole_response_is_read_like_a_streamed_one() -> None:
    reply = whole(response("completed", [THOUGHT, MESSAGE, CALL]))
    assert (reply.reasoning, reply.text, reply.finish_reason) == ("hm hm", "Hello there", "tool_calls")
    assert (reply.token_s, reply.first_output_s, reply.response_id) == ([5.0], 5.0, "resp_1")
    assert reply.items == [THOUGHT, MESSAGE, CALL]


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)  # fmt: skip
def test_an_incomplete_response_says_why(reason: str, finish: str) -> None:
    value = response("incomplete", [MESSAGE], incomplete_details={"reason": reason})
    assert whole(value).finish_reason == finish
    streamed = stream(delta("output_text", "Hello there"), {"type": "response.incomplete", "response": value})
    assert (streamed.finish_reason, streamed.ended, streamed.error) == (finish, True, None)


def test_failures_in_all_their_forms() -> None:
    failed = response("failed", [], error={"code": "server_error", "message": "out of order"})
    error = stream(delta("output_text", "He"), {"type": "response.failed", "response": failed}).error
    assert error is not None
    assert (error.type, error.message) == ("server_error", "out of order")
    error = stream({"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None}).error
    assert error is not None
    assert (error.type, error.message) == ("stream_error", "slow down")
    error = whole(failed).error
    assert error is not None
    assert error.message == "out of order"
    error = whole(response("queued", [])).error
    assert error is not None
    assert error.message == "the response is queued"


def test_items_that_only_the_events_or_only_the_end_have_are_kept() -> None:
    done = [{"type": "response.output_item.done", "item": item} for item in (MESSAGE, CALL)]
    reply = stream(*done, {"type": "response.completed", "response": response("completed", [THOUGHT, MESSAGE])})
    assert reply.items == [THOUGHT, MESSAGE, CALL]
    assert stream(*done, {"type": "response.completed", "response": response("completed", [])}).items == [MESSAGE, CALL]


def test_a_cut_stream_keeps_what_came() -> None:
    reply = stream(delta("output_text", "Hel"), delta("output_text", "lo"))
    assert (reply.text, reply.ended, reply.finish_reason) == ("Hello", False, None)


def test_messages_become_items() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    custom = {"id": "c2", "type": "custom", "custom": {"name": "write", "input": "abc"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": "I look.", "tool_calls": [called, custom], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "1"},
        {"type": "item_reference", "id": "msg_9"},
    ]
    assert list(ResponsesEndpoint().items(messages)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "u"}]},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "write", "input": "abc"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Done"}]},
        {"type": "function_call", "call_id": "call_old", "name": "old", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_old", "output": "1"},
        {"type": "item_reference", "id": "msg_9"},
    ]


def test_parameters_of_chat_get_their_names_here() -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    assert ResponsesEndpoint().extra(
        {
            "temperature": 0.5,
            "max_completion_tokens": 9,
            "reasoning_effort": "low",
            "verbosity": "high",
            "response_format": {"type": "json_schema", "json_schema": schema},
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "stream_options": {"include_usage": True},
            "truncation": "auto",
        }
    ) == {
        "temperature": 0.5,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "tool_choice": {"type": "function", "name": "look"},
        "truncation": "auto",
        "text": {"verbosity": "high", "format": {"type": "json_schema", **schema}},
    }


def test_tools_lie_flat() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}
    assert ResponsesEndpoint().tools(
        [
            {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
            {"type": "custom", "custom": {"name": "write", "format": grammar}},
            {"type": "web_search"},
        ]
    ) == [
        {"type": "function", "name": "look", "parameters": {"type": "object"}},
        {"type": "custom", "name": "write", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search"},
    ]


def test_the_body_says_only_what_is_asked() -> None:
    endpoint = ResponsesEndpoint()
    assert endpoint.body(TurnRequest([{"role": "user", "content": "a"}], "m", True)) == {
        "input": [{"role": "user", "content": "a"}],
        "model": "m",
        "stream": True,
    }
    assert endpoint.body(
        TurnRequest([], "m", False, tools=[], max_tokens=5, previous_response_id="r", conversation_id="c")
    ) == {
        "input": [],
        "model": "m",
        "stream": False,
        "previous_response_id": "r",
        "conversation": "c",
        "tools": [],
        "max_output_tokens": 5,
    }
