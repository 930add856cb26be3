"""vLLM's /tokenize and /detokenize count as prompts are counted."""

from typing import Any

import pytest

from llmirage_shared.tokenizer_loader import embedded

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TEXT = "Hello there, général Kenobi! 日本"


def test_a_text_has_the_tokens_that_a_completion_is_charged_for(api: Any) -> None:
    told = api.post("/tokenize", {"model": MODEL, "prompt": TEXT}).json()
    assert set(told) == {"count", "max_model_len", "tokens", "token_strs"}
    assert told["tokens"] == embedded().encode(TEXT).tolist()
    assert told["token_strs"] is None
    assert told["count"] == len(told["tokens"]) == api.complete(TEXT).json()["usage"]["prompt_tokens"]
    assert told["max_model_len"] == api.request("GET", f"/v1/models/{MODEL}").json()["max_model_len"]


def test_messages_go_through_the_chat_template_with_their_tools(api: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    chat = api.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": 5}).json()
    told = api.post("/tokenize", {"messages": messages, "tools": tools}).json()
    assert told["count"] == chat["usage"]["prompt_tokens"]


def test_tokens_go_back_to_the_text_and_can_be_spelled(api: Any) -> None:
    told = api.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json()
    assert len(told["token_strs"]) == told["count"]
    assert told["token_strs"][0] == "Hello"
    assert api.post("/detokenize", {"model": MODEL, "tokens": told["tokens"]}).json() == {"prompt": TEXT}
    assert api.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}
    assert api.post("/detokenize", {"tokens": [2**31 - 1]}).json() == {"prompt": ""}
    assert api.post("/tokenize", {"prompt": ""}).json()["count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": 5}, "prompt", "invalid_type"),
        ("/tokenize", {"messages": []}, "messages", "empty_array"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": "x"}, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]", "integer_below_min_value"),
        ("/detokenize", {"tokens": [1, 2.5]}, "tokens[1]", "invalid_type"),
    ],
)  # fmt: skip
def test_refusals(api: Any, path: str, body: dict[str, Any], param: str, code: str) -> None:
    response = api.post(path, body)
    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)


def test_unknown_models_are_not_found(make_api: Any) -> None:
    api = make_api(accept_models="served")
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert api.post(path, body | {"model": "nope"}).status_code == 404


def test_what_is_counted_or_shown_is_limited(api: Any) -> None:
    text = "0123456789 " * 200_000
    for path, body, param in (
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/detokenize", {"tokens": [5] * 300_001}, "tokens"),
        ("/v1/responses/input_tokens", {"model": "m", "input": text}, "input"),
        ("/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": text}]}, None),
    ):
        refused = api.post(path, body)
        assert refused.status_code == 400, path
        assert "300000" in refused.json()["error"]["message"]
        assert refused.json()["error"].get("param") == param
    shown = api.post("/tokenize", {"prompt": text[:200_000], "return_token_strs": True}).json()
    assert len(shown["tokens"]) == len(shown["token_strs"]) == shown["count"] > 20_000
