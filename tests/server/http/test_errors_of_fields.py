"""Bodies with a field that is wrong: which field the error names, and how."""

import json
from typing import Any

import pytest
from api_errors import CHAT, TEXT, USER, assert_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex", None, "not a regular expression"),
    ({"guided_grammar": "start: start"}, "guided_grammar", None, "never comes to an end"),
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


@pytest.mark.parametrize(("changes", "param", "code", "message"), CHAT_CASES)
def test_chat_refuses(api: Any, changes: dict[str, Any], param: str, code: str | None, message: str) -> None:
    assert_error(api.post("/v1/chat/completions", CHAT | changes), 400, param, code, message)


@pytest.mark.parametrize(("changes", "param", "code", "message"), TEXT_CASES)
def test_completions_refuse(api: Any, changes: dict[str, Any], param: str, code: str, message: str) -> None:
    assert_error(api.post("/v1/completions", TEXT | changes), 400, param, code, message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({key for changes, *_ in CHAT_CASES + TEXT_CASES for key in changes} | {"metadata", "ignore_eos"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["chat/completions", "completions"]), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3)
)
def test_no_body_of_odd_values_is_a_server_error(api: Any, path: str, changes: dict[str, Any]) -> None:
    good = CHAT if path.startswith("chat") else TEXT
    response = api.post(f"/v1/{path}", json.dumps(good | changes).encode())
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
