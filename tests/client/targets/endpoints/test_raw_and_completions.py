"""Replies of APIs nobody knows, messages written as one prompt, and bodies that remember their encoding."""

import json
from typing import Any

import pytest

from llmirage_client.targets.endpoints import RawReply
from llmirage_client.targets.endpoints.chat import CompletionsEndpoint
from llmirage_client.targets.endpoints.protocol import TurnRequest
from llmirage_client.targets.wire_json import WireObject, encode, encode_body
from llmirage_shared.prompt_encoder import ChatTemplateError, EmbeddedTemplate


def raw(body: bytes | str, streamed: bool = False) -> RawReply:
    reply = RawReply()
    data = body if isinstance(body, bytes) else body.encode()
    if streamed:
        reply.read_stream([(1.0, data[:9]), (2.0, data[9:])])
    else:
        reply.read_body(1.0, data)
    return reply


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"generated_text": "abc"}', "abc"),
        ('[{"generated_text": "abc"}]', "abc"),
        ('{"outputs": 1, "text": ["x"], "response": "abc"}', "abc"),
        ('{"token": {"text": "abc", "id": 4}}', "abc"),
        ("abc", "abc"),
        ('{"score": 0.5}', ""),
        ("[1, 2]", ""),
        (b"\xff", "\ufffd"),
    ],
)
def test_text_is_found_where_servers_put_it(body: bytes | str, text: str) -> None:
    reply = raw(body)
    assert (reply.text, reply.token_s, reply.error) == (text, [1.0], None)


def test_every_event_counts_and_the_end_of_the_bytes_is_the_end() -> None:
    reply = raw('data: {"token": {"text": "a"}}\n\ndata: {"token": {"text": "b"}}\n\ndata: end', streamed=True)
    assert (reply.text, reply.token_s, reply.ended) == ("abend", [2.0, 2.0, 2.0], True)


def test_replies_of_known_apis_are_read_as_theirs() -> None:
    chat = {"choices": [{"index": 0, "message": {"content": "c"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    assert (raw(json.dumps(chat)).text, raw(json.dumps(chat)).usage) == ("c", {"prompt_tokens": 1})
    response = {"object": "response", "id": "r", "status": "completed", "output": []}
    assert raw(json.dumps(response)).response_id == "r"
    message = {"type": "message", "id": "m", "content": [{"type": "text", "text": "t"}]}
    assert raw(json.dumps(message)).text == "t"
    streamed = raw('data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n', streamed=True)
    assert (streamed.text, streamed.ended) == ("x", True)


def test_an_error_in_the_body_is_an_error() -> None:
    error = raw('{"error": {"message": "no"}}').error
    assert error is not None
    assert (error.type, error.message) == ("server_error", "no")


def test_messages_are_written_by_the_chat_template() -> None:
    endpoint = CompletionsEndpoint()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "look"}}]
    body = endpoint.body(TurnRequest(endpoint.items(messages), "m", True, tools=tools, max_tokens=5))
    assert body == {"prompt": EmbeddedTemplate().render(messages, tools), "model": "m", "stream": True, "max_tokens": 5}
    assert endpoint.extra({"max_completion_tokens": 3, "tool_choice": "auto", "top_p": 1}) == {"max_tokens": 3, "top_p": 1}


def test_a_picture_is_no_text() -> None:
    with pytest.raises(ChatTemplateError, match=r"image_url.*--endpoint-type chat"):
        CompletionsEndpoint().items([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}])


BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": 'a "quote"\n'}], "model": "m", "stream": True},
    {"model": "é", "messages": [{"a": 1}, {"b": [None, 1.5]}], "tools": [{"x": "\ud800"}], "n": 2},
    {"messages": [], "stream": False},
    {"input": [{"content": "\ud83d"}, {"content": "é"}], "model": "m"},
    {},
]


@pytest.mark.parametrize("body", BODIES)
def test_what_was_encoded_before_is_the_same_json(body: dict[str, Any]) -> None:
    cached = {k: [WireObject(item) for item in v] if isinstance(v, list) else v for k, v in body.items()}
    assert json.loads(encode_body(cached)) == json.loads(encode(body)) == body
    assert encode_body(cached) == encode_body(cached)


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_body({"messages": [WireObject({"n": float("nan")})]})
