"""The `obfuscation` field of streams, as openai's own client meets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
OFF: dict[str, Any] = {"stream_options": {"include_obfuscation": False}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}


@pytest.fixture(scope="module")
def sdk(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
        yield client


def deltas(sdk: Any, **fields: Any) -> list[Any]:
    asked = {"model": MODEL, "input": "What is the weather in Paris?", "stream": True, "max_output_tokens": 40}
    return [event for event in sdk.responses.create(**asked | fields) if event.type.endswith(".delta")]


def chunks(sdk: Any, **fields: Any) -> list[Any]:
    messages = [{"role": "user", "content": "Hello"}]
    return list(sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, stream=True, **fields))


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"stream_options": {"include_usage": True}}])
def test_each_chunk_of_a_chat_has_it_unless_it_is_declined(sdk: Any, fields: dict[str, Any]) -> None:
    sent = chunks(sdk, **fields)
    assert all(len(chunk.obfuscation) < 16 for chunk in sent)
    assert len({chunk.obfuscation for chunk in sent}) > 3
    declined = chunks(sdk, **fields | {"stream_options": {**fields.get("stream_options", {}), "include_obfuscation": False}})
    assert not any("obfuscation" in chunk.to_dict() for chunk in declined)
    assert len(declined) == len(sent)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [WEATHER], "tool_choice": "required"},
        {"tools": [PYTHON], "tool_choice": "required", "max_output_tokens": 400},
        {"reasoning": {"effort": "high"}},
    ],
)
def test_each_delta_of_a_response_has_it_unless_it_is_declined(sdk: Any, fields: dict[str, Any]) -> None:
    sent = deltas(sdk, **fields)
    assert sent
    assert all((len(event.delta) + len(event.obfuscation)) % 16 == 0 for event in sent)
    assert not any("obfuscation" in event.to_dict() for event in deltas(sdk, **fields, **OFF))


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_that_is_fetched_later_has_it_unless_it_is_declined(sdk: Any, background: bool) -> None:
    asked = {"model": MODEL, "input": "Hello", "stream": True, "max_output_tokens": 40, "background": background}
    live = list(sdk.responses.create(**asked))
    again = list(sdk.responses.retrieve(live[-1].response.id, stream=True))
    if background:
        assert [event.to_dict() for event in again] == [event.to_dict() for event in live]
    assert all(event.obfuscation is not None for event in again if event.type.endswith(".delta"))
    bare = list(sdk.responses.retrieve(live[-1].response.id, stream=True, include_obfuscation=False))
    assert not any("obfuscation" in event.to_dict() for event in bare)
    assert [event.sequence_number for event in bare] == [event.sequence_number for event in again]
