"""Answers and events of every kind, held against OpenAI's own OpenAPI document."""

from typing import Any

import pytest
from openapi_law import OpenApiLaw

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HELLO = [{"role": "user", "content": "Hello, give me JSON"}]
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather", "parameters": PARAMETERS}
CHAT_TOOLS = {"messages": [{"role": "user", "content": "The weather in Paris and Rome?"}],
              "tools": [{"type": "function", "function": FUNCTION}]}  # fmt: skip
TOOLS = {"input": "The weather in Paris and Rome?", "tools": [{"type": "function", **FUNCTION}]}
SCHEMA = {"name": "a", "schema": PARAMETERS}
CHAT: list[dict[str, Any]] = [
    {}, {"n": 3}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 1}, {"reasoning_effort": "low"}, {"stop": "a"},
    {"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    CHAT_TOOLS, {**CHAT_TOOLS, "n": 2, "logprobs": True}, {**CHAT_TOOLS, "max_tokens": 9},
    {**CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    {"functions": [FUNCTION], "function_call": {"name": "get_weather"}},
    {"tools": [{"type": "custom", "custom": {"name": "run"}}], "tool_choice": "required"},
    {"store": True, "metadata": {"a": "b"}, "service_tier": "flex"}, {"return_token_ids": True},
    {"moderation": {"model": "omni-moderation-latest"}, "n": 2}, {"prompt_cache_retention": "1h"},
    {"structured_outputs": {"choice": ["x", "y"]}}, {"model": "nobody"}, {"temperature": 9},
]  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    {}, {"max_output_tokens": 16}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 16},
    {"reasoning": {"effort": "low"}},
    {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    TOOLS, {**TOOLS, "parallel_tool_calls": False}, {**TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}},
    {"tools": [{"type": "custom", "name": "run"}], "tool_choice": "required"}, {"tools": [{"type": "web_search"}]},
    {"text": {"format": {"type": "json_object"}}},
    {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"}},
    {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "truncation": "auto"},
    {"moderation": {"model": "omni-moderation-latest"}, "prompt_cache_options": {"mode": "explicit"}},
    {"tools": [{"type": "image_generation", "partial_images": 2}], "tool_choice": "required"},
    {"prompt_cache_retention": "1h"}, {"safety_identifier": "s" * 65},
    {"background": True}, {"store": False}, {"model": "nobody"}, {"previous_response_id": "resp_0"},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {}, {"echo": True, "logprobs": 2, "max_tokens": 2}, {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"prompt": ["a", "b"], "n": 2}, {"suffix": "x"}, {"max_tokens": -1},
]  # fmt: skip


@pytest.fixture(scope="module")
def law() -> OpenApiLaw:
    return OpenApiLaw()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/v1/chat/completions", {"messages": HELLO, **body}) for body in CHAT),
        *(("/v1/responses", {"input": "Hello, give me JSON", **body}) for body in RESPONSES),
        *(("/v1/completions", {"prompt": "Hello", **body}) for body in COMPLETIONS),
    ],
)
def test_answers_fit_the_document(api: Any, law: OpenApiLaw, path: str, body: dict[str, Any], stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream and path != "/v1/responses" else {}
    answer = api.post(path, {"model": MODEL, "stream": stream, **options, **body})
    content_type = answer.headers["content-type"]
    assert content_type.startswith("text/event-stream") == (stream and answer.status_code == 200)
    assert law.problems("POST", path, answer.status_code, content_type, answer.content) == []


def test_the_law_finds_what_is_wrong(law: OpenApiLaw) -> None:
    def problems(body: bytes, kind: str = "application/json", path: str = "/v1/responses") -> str:
        return "\n".join(law.problems("POST", path, 200, kind, body))

    assert "required property" in problems(b"{}")
    assert "content-type" in problems(b"", "text/html")
    events = "text/event-stream"
    assert "carries type" in problems(b'event: a\ndata: {"type":"b","sequence_number":0}\n\n', events)
    assert "unknown event" in problems(b'event: a\ndata: {"type":"a","sequence_number":0}\n\n', events)
    assert "[DONE]" in problems(b"", events, "/v1/chat/completions")
    skipping = b"".join(
        b'event: response.in_progress\ndata: {"type":"response.in_progress","sequence_number":%d}\n\n' % number
        for number in (0, 2)
    )
    assert "does not follow" in problems(skipping, events)
    assert problems(b"", "text/plain", "/v1/elsewhere") == ""
