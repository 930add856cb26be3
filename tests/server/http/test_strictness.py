"""What the OpenAI API refuses and serving engines take: refused in dialect openai, else taken."""

from typing import Any

import pytest
from api_errors import CHAT, USER, assert_error

TEXT = {"type": "text", "text": "a"}
RESPONSE = {"model": "m", "input": "Hello", "max_output_tokens": 16}
PARTS = "'input_text', 'input_image', 'output_text', 'refusal', 'input_file', 'computer_screenshot', 'summary_text', and"
EXPECTED = "Expected a base64-encoded data URL with an image MIME type"


def asked(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url: str) -> dict[str, Any]:
    return asked(TEXT, {"type": "image_url", "image_url": {"url": url}})


def called(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    answer = {"role": "tool", "tool_call_id": "c", "content": "x"}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [{**call, "function": function}]}, answer]}


def said(role: str, *parts: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "a"}, {"role": role, "content": list(parts)}]}


def returned(*parts: Any) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": list(parts)}]}


def shown(url: str) -> dict[str, Any]:
    return said("user", {"type": "input_image", "image_url": url})


def named(characters: int) -> dict[str, Any]:
    return {"name": "n" * characters, "parameters": {"type": "object", "properties": {}}}


def answer_form(characters: int) -> dict[str, Any]:
    return {"name": "n" * characters, "schema": {"type": "object", "properties": {}}}


LONG = "string too long. Expected a string with maximum length 64, but got a string with length 65 instead."

CHAT_CASES: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}, "modalities", "invalid_value", "audio"),
    (
        asked({"type": "input_text", "text": "a"}),
        "messages[0].content[0].type",
        "invalid_value",
        "Invalid value: 'input_text'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio', and",
    ),
    (
        called({"type": "function"}),
        "messages[1].tool_calls[0].id",
        "missing_required_parameter",
        "Missing required parameter: 'messages[1].tool_calls[0].id'.",
    ),
    (
        {"tools": [{"type": "function", "function": named(64)}, {"type": "function", "function": named(65)}]},
        "tools[1].function.name",
        "string_above_max_length",
        LONG,
    ),
    (
        {"tools": [{"type": "custom", "custom": {"name": "n" * 65}}]},
        "tools[0].custom.name",
        "string_above_max_length",
        LONG,
    ),
    ({"functions": [named(65)]}, "functions[0].name", "string_above_max_length", LONG),
    (
        {"response_format": {"type": "json_schema", "json_schema": answer_form(65)}},
        "response_format.json_schema.name",
        "string_above_max_length",
        LONG,
    ),
    (called({"id": "c"}), "messages[1].tool_calls[0].type", "missing_required_parameter", "tool_calls[0].type"),
    ({"max_completion_tokens": 2}, "max_tokens", "invalid_parameter_combination", "at the same time is not supported"),
    (
        image("data:image/png;base64,!!"),
        "messages[0].content[1].image_url.url",
        "invalid_value",
        f"Invalid image URL: 'messages[0].content[1].image_url.url'. {EXPECTED} (e.g. 'data:image/png;base64,",
    ),
    (image("iVBORw0KGgo"), "messages[0].content[1].image_url.url", "invalid_value", "without the 'data:' prefix."),
    (
        image("data:image/png;base64,"),
        "messages[0].content[1].image_url.url",
        "invalid_value",
        "empty base64-encoded bytes.",
    ),
]
RESPONSE_CASES: list[tuple[dict[str, Any], str, str | None, str]] = [
    (
        said("user", TEXT),
        "input[1].content[0].type",
        "invalid_value",
        f"Invalid value: 'text'. Supported values are: {PARTS}",
    ),
    (
        said("user", {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}),
        "input[1].content[0].type",
        "invalid_value",
        "'input_audio'",
    ),
    (
        said("assistant", {"type": "input_text", "text": "a"}),
        "input[1].content[0]",
        "invalid_value",
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    (
        said("user", {"type": "output_text", "text": "a"}),
        "input[1].content[0]",
        "invalid_value",
        "Invalid value: 'output_text'. Supported values are: 'input_text', 'input_image', and 'input_file'.",
    ),
    (returned({"type": "output_text", "text": "a"}), "input[1].output[0]", "invalid_value", "'output_text'"),
    (
        {"tools": [{"type": "function", **named(64)}, {"type": "function", **named(65)}]},
        "tools[1].name",
        "string_above_max_length",
        LONG,
    ),
    (
        {"text": {"format": {"type": "json_schema", **answer_form(65)}}},
        "text.format.name",
        "string_above_max_length",
        LONG,
    ),
    (
        {"tools": [{"type": "file_search"}]},
        "tools[0].vector_store_ids",
        "missing_required_parameter",
        "'tools[0].vector_store_ids'",
    ),
    ({"tools": [{"type": "code_interpreter"}]}, "tools[0].container", "missing_required_parameter", "'tools[0].container'"),
    (
        shown("data:image/png;base64,a b"),
        "input[1].content[0].image_url",
        "invalid_value",
        f"Invalid 'input[1].content[0].image_url'. {EXPECTED}",
    ),
    (
        shown("data:text/markdown;base64,YQ=="),
        "input[1].content[0].image_url",
        "invalid_value",
        "MIME type 'text/markdown'.",
    ),
    (shown("data:image/png,YQ=="), "input[1].content[0].image_url", "invalid_value", "without the ';base64' separator."),
    (
        {"max_output_tokens": 15},
        "max_output_tokens",
        "integer_below_min_value",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 15 instead.",
    ),
]
CASES = [
    *[("/v1/chat/completions", CHAT, *case) for case in CHAT_CASES],
    *[("/v1/responses", RESPONSE, *case) for case in RESPONSE_CASES],
]


PARTS_OF_ITEMS = [case for case in RESPONSE_CASES if "content" in case[1] or "output[" in case[1]]


@pytest.mark.parametrize(("changes", "param", "code", "message"), RESPONSE_CASES)
@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/responses/compact"])
def test_readers_of_prompts_refuse_too(make_api: Any, path: str, changes: Any, param: Any, code: Any, message: Any) -> None:
    body = RESPONSE | changes
    if path.endswith("input_tokens") and body.pop("max_output_tokens") < 16:
        return  # a field that it has not
    assert_error(make_api().post(path, body), 400, param, code, message)
    for settings in ({"lenient": True}, {"engine": "vllm"}):
        assert make_api(**settings).post(path, body).status_code == 200


@pytest.mark.parametrize(("changes", "param", "code", "message"), PARTS_OF_ITEMS)
def test_conversation_items_are_refused_likewise(make_api: Any, changes: Any, param: str, code: Any, message: str) -> None:
    api = make_api()
    made = api.post("/v1/conversations", {}).json()["id"]
    for path in ("/v1/conversations", f"/v1/conversations/{made}/items"):
        named = (param.replace("input[", "items["), code, message.replace("input[", "items["))
        assert_error(api.post(path, {"items": changes["input"]}), 400, *named)
    for settings in ({"lenient": True}, {"engine": "vllm"}):
        other = make_api(**settings)
        assert other.post("/v1/conversations", {"items": changes["input"]}).status_code == 200


@pytest.mark.parametrize(("path", "body", "changes", "param", "code", "message"), CASES)
def test_openai_refuses(api: Any, path: str, body: Any, changes: Any, param: str, code: str, message: str) -> None:
    assert_error(api.post(path, body | changes), 400, param, code, message)


@pytest.mark.parametrize(("path", "body", "changes"), [case[:3] for case in CASES])
@pytest.mark.parametrize("settings", [{"lenient": True}, {"engine": "vllm"}])
def test_engines_and_lenient_servers_take_it(make_api: Any, path: str, body: Any, changes: Any, settings: Any) -> None:
    answer = make_api(**settings).post(path, body | changes)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body", "changes"), [case[:3] for case in CASES])
def test_a_request_for_an_engine_is_taken(api: Any, path: str, body: Any, changes: Any) -> None:
    assert api.post(path, body | changes | {"ignore_eos": True}).status_code == 200


@pytest.mark.parametrize("settings", [{}, {"lenient": True}, {"engine": "vllm"}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("key", ["AI", "-1", "1.5", ""])
def test_a_bias_is_of_a_token(make_api: Any, settings: Any, path: str, key: str) -> None:
    body = {**CHAT, "prompt": "a", "logit_bias": {key: 1}}
    body.pop("messages" if path == "/v1/completions" else "prompt")
    answer = make_api(**settings).post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "logit_bias")
    assert error["message"] == f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative integers."


@pytest.mark.parametrize("tokens", [0, -1])
def test_the_least_limit_is_that_of_the_api(api: Any, make_api: Any, tokens: int) -> None:
    for each, least in ((api, 16), (make_api(lenient=True), 1)):
        answer = each.post("/v1/responses", RESPONSE | {"max_output_tokens": tokens})
        told = f"Expected a value >= {least}, but got {tokens} instead."
        assert_error(answer, 400, "max_output_tokens", "integer_below_min_value", told)


def test_a_tool_in_chats_form_lacks_its_name(api: Any, make_api: Any) -> None:
    body = RESPONSE | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    for each in (api, make_api(lenient=True)):
        answer = each.post("/v1/responses", body)
        assert_error(
            answer, 400, "tools[0].name", "missing_required_parameter", "Missing required parameter: 'tools[0].name'."
        )


def test_valid_images_are_taken(api: Any) -> None:
    for url in ("https://example.com/a.png", "data:image/png;base64,aGk=", "data:image/jpeg;base64,aGkh\r\naGk="):
        assert api.post("/v1/chat/completions", CHAT | image(url)).status_code == 200
        assert api.post("/v1/responses", RESPONSE | shown(url)).status_code == 200
