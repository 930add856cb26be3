"""A conversation has the same prompt tokens through each API, with its tools and the schema of its answer."""

from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city", "parameters": SCHEMA}
FORM = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "What is the weather in Rome?"}]


def chat_tokens(api: Any, **more: Any) -> int:
    body = api.post("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES, **more}).json()
    return int(body["usage"]["prompt_tokens"])


def response_tokens(api: Any, **more: Any) -> tuple[int, int]:
    asked = {"model": MODEL, "input": MESSAGES, **more}
    body = api.post("/v1/responses", asked).json()
    counted = api.post("/v1/responses/input_tokens", asked).json()
    return body["usage"]["input_tokens"], counted["input_tokens"]


def message_tokens(api: Any, **more: Any) -> tuple[int, int]:
    asked = {"model": MODEL, "messages": MESSAGES, **more}
    used = api.post("/v1/messages", {**asked, "max_tokens": 50}).json()["usage"]
    counted = api.post("/v1/messages/count_tokens", asked).json()
    return used["input_tokens"] + used["cache_read_input_tokens"], counted["input_tokens"]


@pytest.mark.parametrize("strict", [None, False, True])
def test_tools_count_the_same(api: Any, strict: bool | None) -> None:
    tokens = chat_tokens(api, tools=[{"type": "function", "function": {**FUNCTION, "strict": strict}}])
    assert tokens > chat_tokens(api) + 20
    assert response_tokens(api, tools=[{"type": "function", **FUNCTION, "strict": strict}]) == (tokens, tokens)
    tool = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}
    assert message_tokens(api, tools=[tool]) == (tokens, tokens)


def test_the_schema_of_the_answer_counts(api: Any) -> None:
    tokens = chat_tokens(api, response_format=CHAT_FORM)
    assert tokens > chat_tokens(api) + 15
    assert response_tokens(api, text={"format": FORM}) == (tokens, tokens)
    form = {"type": "json_schema", "schema": SCHEMA}
    assert message_tokens(api, output_config={"format": form}) == (tokens, tokens)


def test_turns_with_the_same_schema_share_it_as_a_prefix(make_api: Any) -> None:
    api = make_api(lenient=True)
    asked = {"model": MODEL, "response_format": CHAT_FORM, "seed": 1}
    first = api.post("/v1/chat/completions", {**asked, "messages": MESSAGES}).json()
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    messages = [*MESSAGES, said, {"role": "user", "content": "And in Oslo?"}]
    second = api.post("/v1/chat/completions", {**asked, "messages": messages}).json()
    whole = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= whole - 2


def test_a_picture_first_does_not_hinder_a_schema(api: Any) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]
    plain = api.post("/v1/chat/completions", {"model": MODEL, "messages": messages}).json()
    formed = api.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "response_format": CHAT_FORM})
    assert formed.json()["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 15


def test_a_description_may_begin_with_the_signature(api: Any) -> None:
    described = {"name": "w", "description": "w(city: str) -> str\nGet the weather in a city", "parameters": SCHEMA}
    messages = [{"role": "user", "content": "How is the weather in the city of Rome?"}]
    body = {"model": MODEL, "messages": messages, "tools": [{"type": "function", "function": described}]}
    [call] = api.post("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city":"Rome"}'


def test_an_agent_that_tells_of_results_in_words_hands_in_its_answer(api: Any) -> None:
    final = {"name": "final_answer", "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}}}
    said = "Calling tools:\n[{'id': 'call_1', 'type': 'function', 'function': {'name': 'get_weather', 'arguments': {}}}]"
    observed = [{"role": "assistant", "content": said}, {"role": "user", "content": "Observation:\nsunny"}]
    tools = [{"type": "function", "function": function} for function in (FUNCTION, final)]
    names = []
    for messages in (MESSAGES, [*MESSAGES, *observed]):
        body = {"model": MODEL, "messages": messages, "tools": tools, "tool_choice": "required"}
        [call] = api.post("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
        names.append(call["function"]["name"])
    assert names == ["get_weather", "final_answer"]
