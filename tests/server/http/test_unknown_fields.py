"""Fields that nobody documents are refused as the API refuses them; those of serving engines are taken."""

from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
SAID = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": SAID, "max_tokens": 3},
    "/v1/completions": {"model": MODEL, "prompt": "Hello"},
    "/v1/responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 16},
    "/v1/embeddings": {"model": "bge-m3", "input": "Hello"},
    "/v1/messages": {"model": MODEL, "messages": SAID, "max_tokens": 3},
}


@pytest.mark.parametrize("path", list(BODIES)[:-1])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_refused_by_name(api: Any, path: str, stream: bool) -> None:
    more = {"stream": True} if stream and path != "/v1/embeddings" else {}
    answer = api.post(path, BODIES[path] | more | {"tempperature": 1})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"] == {
        "message": "Unknown parameter: 'tempperature'.",
        "type": "invalid_request_error",
        "param": "tempperature",
        "code": "unknown_parameter",
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_the_messages_api_has_words_of_its_own(api: Any, path: str) -> None:
    body = BODIES["/v1/messages"] if path == "/v1/messages" else {"model": MODEL, "messages": SAID}
    answer = api.post(path, body | {"banana": 1})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        {"type": "invalid_request_error", "message": "banana: Extra inputs are not permitted"},
    )


@pytest.mark.parametrize(
    ("path", "field", "param"),
    [
        ("/v1/chat/completions", {"stream": True, "stream_options": {"banana": 1}}, "stream_options.banana"),
        ("/v1/responses", {"reasoning": {"banana": 1}}, "reasoning.banana"),
        ("/v1/responses", {"text": {"banana": 1}}, "text.banana"),
        ("/v1/responses", {"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ("/v1/chat/completions", {"reasoning": {"effort": "low"}}, "reasoning"),
        ("/v1/chat/completions", {"max_output_tokens": 5}, "max_output_tokens"),
        ("/v1/responses", {"max_tokens": 5}, "max_tokens"),
        ("/v1/responses", {"messages": SAID}, "messages"),
    ],
)
def test_inside_of_objects_and_where_another_endpoint_has_it(api: Any, path: str, field: dict[str, Any], param: str) -> None:
    error = api.post(path, BODIES[path] | field).json()["error"]
    assert (error["param"], error["code"]) == (param, "unknown_parameter")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", {"bad_words": ["x"], "cache_salt": "s", "vllm_xargs": {"a": 1}, "mm_processor_kwargs": {}}),
        ("/v1/chat/completions", {"separate_reasoning": True, "lora_path": None, "thinking": {"type": "disabled"}}),
        ("/v1/chat/completions", {"nvext": {}, "n_probs": 0, "cache_prompt": True, "banana": None}),
        ("/v1/completions", {"truncate_prompt_tokens": 10, "use_beam_search": False, "return_tokens_as_token_ids": False}),
        ("/v1/responses", {"vllm_xargs": {}, "top_k": 3, "client_metadata": {}, "context_management": []}),
        ("/v1/embeddings", {"truncate_prompt_tokens": 10, "input_type": "query", "normalize": True}),
        ("/v1/messages", {"inference_geo": "us", "speed": "fast", "diagnostics": {}}),
        ("/generate", {"banana": 1}),
    ],
)
def test_what_engines_and_gateways_document_is_taken(api: Any, path: str, field: dict[str, Any]) -> None:
    body = BODIES.get(path) or {"text": "Hello", "sampling_params": {"max_new_tokens": 3}}
    assert api.post(path, body | field).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_a_server_that_ignores_unknown_fields_takes_all(make_api: Any, path: str) -> None:
    body = BODIES[path] | {"banana": {"split": 1}}
    assert make_api(unknown_fields="ignore").post(path, body).status_code == 200
