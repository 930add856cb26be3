"""Whatever a client sends, it gets an error object it can act on, and never a 5xx."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmirage_server.api.exchange import MAX_BODY_BYTES

USER = {"role": "user", "content": "Hello"}
CHAT = {"model": "Qwen/Qwen3-30B-A3B", "messages": [USER], "max_tokens": 2}
TEXT = {"model": "Qwen/Qwen3-30B-A3B", "prompt": "Hello", "max_tokens": 2}

F = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

# (changes to a good chat body, param, code, part of the message)
CHAT_CASES: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"model": 5}, "model", "invalid_type", "expected a string, but got an integer instead"),
    ({"messages": "hi"}, "messages", "invalid_type", "expected an array of objects, but got a string instead"),
    ({"messages": None}, "messages", "invalid_type", "but got null instead"),
    ({"messages": []}, "messages", "empty_array", "minimum length 1"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_type", "expected an object"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role", "missing_required_parameter", "'messages[1].role'"),
    (
        {"messages": [{"role": "robot", "content": "x"}]},
        "messages[0].role",
        "invalid_value",
        "'robot'. Supported values are",
    ),
    ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "invalid_type", "a string"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type", "null"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type", "an integer"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]", "invalid_type", "an object"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type", "missing_required_parameter", "type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "messages[0].content[0].type",
        "invalid_value",
        "smell",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "missing_required_parameter",
        "text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].image_url",
        "missing_required_parameter",
        "image_url",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": {}}]},
        "messages[0].tool_calls",
        "invalid_type",
        "an array of objects",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "missing_required_parameter",
        "arguments",
    ),
    ({"n": 0}, "n", "integer_below_min_value", "Expected a value >= 1, but got 0 instead"),
    ({"n": 129}, "n", "integer_above_max_value", "Expected a value <= 128"),
    ({"n": True}, "n", "invalid_type", "a boolean"),
    ({"n": 10**30}, "n", "integer_above_max_value", "<= 128"),
    ({"temperature": 3.5}, "temperature", "decimal_above_max_value", "Expected a value <= 2, but got 3.5 instead"),
    ({"temperature": "hot"}, "temperature", "invalid_type", "expected a decimal, but got a string"),
    ({"top_p": -0.1}, "top_p", "decimal_below_min_value", ">= 0"),
    ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value", "<= 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value", ">= -2"),
    ({"logit_bias": []}, "logit_bias", "invalid_type", "an object"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value", ">= 1"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type", "an integer"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "integer_below_min_value", ">= 1"),
    ({"min_tokens": -1}, "min_tokens", "integer_below_min_value", ">= 0"),
    ({"min_tokens": 3}, "min_tokens", "invalid_value", "<= max_tokens (2)"),
    ({"seed": 2**63}, "seed", "integer_above_max_value", "<="),
    ({"seed": 1.5}, "seed", "invalid_type", "an integer"),
    ({"stop": 5}, "stop", "invalid_type", "one of a string or array of strings, but got an integer"),
    ({"stop": ["a"] * 5}, "stop", "array_above_max_length", "maximum length 4"),
    ({"stop": ["a", 1]}, "stop[1]", "invalid_type", "a string"),
    ({"stop": [""]}, "stop[0]", "invalid_value", "empty"),
    ({"stream": "yes"}, "stream", "invalid_type", "a boolean"),
    (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        "invalid_value",
        "only allowed when 'stream' is enabled",
    ),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type", "a boolean"),
    ({"user": 5}, "user", "invalid_type", "a string"),
    ({"tools": {}}, "tools", "invalid_type", "an array"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter", "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter", "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing_required_parameter", "name"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value", "only allowed when 'logprobs' is enabled"),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value", "<= 20"),
    ({"response_format": {"type": "json_object"}}, "messages", "invalid_value", "must contain the word 'json'"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value", "'yaml'"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter", "type"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "only allowed when 'tools' are specified"),
    ({"tool_choice": "maybe"}, "tool_choice", "invalid_value", "'maybe'"),
    ({"tool_choice": 5}, "tool_choice", "invalid_type", "one of a string or object"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [F]},
        "tool_choice",
        "invalid_value",
        "'g' not found",
    ),
    ({"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages.[1].role", None, "preceeding"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]}, "messages.[1].role", None, "did not have"),
    (
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "", "tool_call_id": "x"},
            ]
        },
        "messages.[2].tool_call_id",
        None,
        "'tool_call_id' of 'x' not found in 'tool_calls' of previous message.",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].tool_calls", "empty_array", "minimum length 1"),
    (
        {"messages": [{"role": "user", "content": {}}]},
        "messages[0].content",
        "invalid_type",
        "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an object instead.",
    ),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty_array", "minimum length 1"),
    (
        {"messages": [USER, {"role": "assistant"}]},
        "messages.[1].content",
        None,
        "Invalid value for 'content': expected a string, got null.",
    ),
    ({"verbosity": "x"}, "verbosity", "invalid_value", "Supported values are: 'low', 'medium', and 'high'."),
    ({"tools": [{"type": "x"}]}, "tools[0].type", "invalid_value", "Supported values are: 'function' and 'custom'."),
    ({"tools": []}, "tools", "empty_array", "Expected an array with minimum length 1, but got an empty array instead."),
    (
        {"tools": [F] * 129},
        "tools",
        "array_above_max_length",
        "array too long. Expected an array with maximum length 128, but got an array with length 129 instead.",
    ),
    (
        {"max_tokens": 3, "max_completion_tokens": 4},
        "max_tokens",
        "invalid_parameter_combination",
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    ),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "object_above_max_properties", "at most 16 properties"),
    ({"metadata": {"a": "b" * 513}}, "metadata.a", "string_above_max_length", "maximum length 512"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", "expected a string, but got an integer"),
    (
        {"reasoning_effort": "huge"},
        "reasoning_effort",
        "invalid_value",
        "Invalid value: 'huge'. Supported values are: 'none'",
    ),
    ({"parallel_tool_calls": True}, "parallel_tool_calls", "invalid_value", "only allowed when 'tools'"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objec"}}}]},
        "tools[0].function.parameters",
        "invalid_function_parameters",
        "Invalid schema for function 'f'",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}]},
        "tools[0].function.parameters",
        "invalid_function_parameters",
        "'additionalProperties' is required to be supplied and to be false",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#/x"}}}},
        "response_format",
        None,
        "points to nothing",
    ),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs", None, "not a regular expression"),
    ({"guided_grammar": "start: start"}, "structured_outputs", None, "never comes to an end"),
]

TEXT_CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prompt": 5}, "prompt", "invalid_type", "token ids"),
    ({"prompt": ""}, "prompt", "invalid_value", "empty"),
    ({"prompt": []}, "prompt", "empty_array", "minimum length 1"),
    ({"prompt": [[]]}, "prompt[0]", "empty_array", "minimum length 1"),
    ({"prompt": ["a", 5]}, "prompt[1]", "invalid_type", "expected a string, but got an integer"),
    ({"prompt": [[1], "a"]}, "prompt[1]", "invalid_type", "expected an array of token ids, but got a string"),
    ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type", "a token id"),
    ({"prompt": [1, True]}, "prompt[1]", "invalid_type", "a boolean"),
    ({"prompt": [1, 2.5]}, "prompt[1]", "invalid_type", "a decimal number"),
    ({"prompt": [[1], [2, None]]}, "prompt[1][1]", "invalid_type", "null"),
    ({"prompt": [1, -5]}, "prompt[1]", "integer_below_min_value", ">= 0"),
    ({"prompt": [1, 10**30]}, "prompt[1]", "integer_above_max_value", "<="),
    ({"logprobs": 6}, "logprobs", "integer_above_max_value", "<= 5"),
    ({"suffix": 1}, "suffix", "invalid_type", "a string"),
    ({"best_of": 2, "n": 3}, "best_of", "invalid_value", "at least n (3)"),
    ({"best_of": 3, "stream": True}, "best_of", "invalid_value", "'stream' is true"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value", ">= 1"),
    ({"echo": "yes"}, "echo", "invalid_type", "a boolean"),
]


def assert_error(response: Any, status: int, param: str | None, code: str | None, message: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert message in error["message"]


@pytest.mark.parametrize(("changes", "param", "code", "message"), CHAT_CASES)
def test_chat_refuses(api: Any, changes: dict[str, Any], param: str, code: str | None, message: str) -> None:
    assert_error(api.post("/v1/chat/completions", CHAT | changes), 400, param, code, message)


@pytest.mark.parametrize(("changes", "param", "code", "message"), TEXT_CASES)
def test_completions_refuse(api: Any, changes: dict[str, Any], param: str, code: str, message: str) -> None:
    assert_error(api.post("/v1/completions", TEXT | changes), 400, param, code, message)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"hello",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"n": %s}' % (b"9" * 5000),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(api: Any, path: str, body: bytes) -> None:
    assert_error(api.post(path, body), 400, None, None, "We could not parse the JSON body of your request.")


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_chat_field_is_named(api: Any, missing: str) -> None:
    body = {key: value for key, value in CHAT.items() if key != missing}
    response = api.post("/v1/chat/completions", body)
    assert_error(response, 400, missing, "missing_required_parameter", f"Missing required parameter: '{missing}'.")
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_missing_prompt_is_named(api: Any) -> None:
    response = api.post("/v1/completions", {"model": "Qwen/Qwen3-30B-A3B"})
    assert_error(response, 400, "prompt", "missing_required_parameter", "Missing required parameter: 'prompt'.")


def test_an_unknown_model_is_a_404(api: Any) -> None:
    response = api.post("/v1/chat/completions", CHAT | {"model": "gpt-99"})
    assert_error(
        response, 404, "model", "model_not_found", "The model `gpt-99` does not exist or you do not have access to it."
    )
    assert_error(api.request("GET", "/v1/models/gpt-99"), 404, "model", "model_not_found", "`gpt-99`")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(make_api: Any) -> None:
    api = make_api(max_model_len=100)
    response = api.post("/v1/completions", TEXT | {"prompt": list(range(100))})
    expected = "This model's maximum context length is 100 tokens. However, your prompt resulted in 100 tokens."
    assert_error(response, 400, "prompt", "context_length_exceeded", expected)
    response = api.chat("word " * 200, stream=True)
    expected = "This model's maximum context length is 100 tokens. However, your messages resulted in"
    assert_error(response, 400, "messages", "context_length_exceeded", expected)


def test_a_prompt_that_leaves_too_little_for_max_tokens_is_refused_with_the_sum(make_api: Any) -> None:
    response = make_api(max_model_len=100).post("/v1/completions", TEXT | {"prompt": list(range(90)), "max_tokens": 11})
    expected = "you requested 101 tokens (90 in the prompt, 11 in the completion)"
    assert_error(response, 400, "prompt", "context_length_exceeded", expected)


def test_a_request_that_just_fits_is_answered(make_api: Any) -> None:
    response = make_api(max_model_len=100).post("/v1/completions", TEXT | {"prompt": list(range(90)), "max_tokens": 10})
    assert response.json()["usage"]["total_tokens"] == 100


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("POST", "/v1/images/generations"), ("DELETE", "/v1"), ("GET", "/v1/models/")]
)
def test_an_unknown_url_is_a_404_in_the_same_shape(api: Any, method: str, path: str) -> None:
    if path == "/v1/models/":
        assert_error(api.request(method, path), 404, "model", "model_not_found", "``")
    else:
        assert_error(api.request(method, path), 404, None, "unknown_url", f"Invalid URL ({method} {path})")


@pytest.mark.parametrize(
    ("method", "path", "allow"), [("GET", "/v1/completions", "POST"), ("POST", "/v1/models", "GET, HEAD")]
)
def test_a_wrong_method_is_a_405_that_says_which_is_right(api: Any, method: str, path: str, allow: str) -> None:
    response = api.request(method, path)
    assert_error(response, 405, None, "method_not_supported", f"Not allowed to {method}")
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "😀", "<|end_of_turn|>", "\u2028", " ", ""])
@pytest.mark.parametrize("stream", [False, True])
def test_odd_text_is_answered(make_api: Any, api: Any, text: str, stream: bool) -> None:
    assert api.chat(text, max_tokens=3, stream=stream).status_code == 200
    echo = make_api(replies="echo")
    assert echo.chat(text, max_tokens=3, stream=stream).status_code == 200


def test_odd_names_are_only_unknown_models(api: Any) -> None:
    for name in ("\ud800", "\x00", "", "a" * 10_000):
        assert_error(
            api.post("/v1/chat/completions", CHAT | {"model": name}), 404, "model", "model_not_found", "does not exist"
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({key for changes, *_ in CHAT_CASES + TEXT_CASES for key in changes} | {"metadata", "ignore_eos"})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["chat/completions", "completions"]), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3)
)
def test_no_body_of_odd_values_is_a_server_error(api: Any, path: str, changes: dict[str, Any]) -> None:
    good = CHAT if path.startswith("chat") else TEXT
    response = api.post(f"/v1/{path}", json.dumps(good | changes).encode())
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("text", ["x", "", "³", "--5", "1.0", "9" * 5000, "%20", "١"])
@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "limit"), ("/v1/responses/resp_x", "starting_after")], ids=["page", "stream"]
)
def test_numbers_in_urls_are_read_with_care(api: Any, path: str, name: str, text: str) -> None:
    response = api.request("GET", path, params={name: text})
    assert_error(response, 400, name, "invalid_type", "expected an integer")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": {"name": "a!"}}]}, "tools[0].custom.name"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ("/v1/responses", {"tools": [{"type": "function", "name": "a.b"}]}, "tools[0].name"),
        ("/v1/responses", {"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "?", "schema": {}}}}, "text.format.name"),
        ("/v1/responses", {"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_names_that_are_none(api: Any, path: str, body: dict[str, Any], param: str) -> None:
    asked = {"messages": [USER]} if "chat" in path else {"input": "Hello"}
    answer = api.post(path, {"model": "Qwen/Qwen3-30B-A3B", **asked, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "invalid_value")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "identity"])
def test_a_packed_body_is_unpacked(api: Any, encoding: str) -> None:
    body = json.dumps(CHAT).encode()
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body), "identity": body}
    answer = api.post("/v1/chat/completions", packed[encoding.lower()], headers={"content-encoding": encoding})
    assert answer.status_code == 200, answer.text


def test_a_body_that_cannot_be_unpacked_is_refused(api: Any) -> None:
    body = json.dumps(CHAT).encode()
    path = "/v1/chat/completions"
    assert_error(api.post(path, body, headers={"content-encoding": "br"}), 415, None, "unsupported_content_encoding", "'br'")
    assert_error(api.post(path, body, headers={"content-encoding": "gzip"}), 400, None, None, "content-encoding")
    bomb = gzip.compress(bytes(MAX_BODY_BYTES + 10))
    assert_error(api.post(path, bomb, headers={"content-encoding": "gzip"}), 413, None, "request_too_large", "too large")


def test_a_number_that_no_float_holds_is_no_json(api: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/responses/input_tokens", "/v1/conversations"):
        assert_error(api.post(path, b'{"a": 1e999}'), 400, None, None, "1e999 is too large a number")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/conversations", {"banana": 1}),
        ("/v1/moderations", {"input": "x", "banana": 1}),
        ("/v1/responses/input_tokens", {"input": "x", "banana": 1}),
    ],
)
def test_small_endpoints_refuse_unknown_fields_too(api: Any, path: str, body: dict[str, Any]) -> None:
    assert_error(api.post(path, body), 400, "banana", "unknown_parameter", "Unknown parameter: 'banana'.")
