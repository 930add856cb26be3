"""The official SDK with tools, structured output, log probabilities and reasoning."""

import json
import math
from typing import Any

import pytest
from pydantic import BaseModel
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


class Address(BaseModel):
    street: str
    city: str


class Person(BaseModel):
    name: str
    age: int
    address: Address
    tags: list[str]


def test_a_tool_loop_ends(sdk: Any) -> None:
    messages: list[Any] = list(ASK)
    asked = sdk.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    first = asked.choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content is None
    [call] = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"location": "Paris"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}]
    answer = sdk.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    last = answer.choices[0]
    assert last.finish_reason == "stop"
    assert last.message.content
    assert last.message.tool_calls is None


def test_a_streamed_call_accumulates_to_the_same_call(sdk: Any) -> None:
    whole = sdk.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER], seed=3).choices[0].message.tool_calls[0]
    deltas = 0
    with sdk.chat.completions.stream(model=MODEL, messages=ASK, tools=[WEATHER], seed=3) as stream:
        for event in stream:
            deltas += event.type == "tool_calls.function.arguments.delta"
        final = stream.get_final_completion().choices[0]
    assert deltas >= 3
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.name == "get_weather"
    assert final.message.tool_calls[0].function.arguments == whole.function.arguments


def test_forced_and_forbidden_calls(sdk: Any) -> None:
    hello = [{"role": "user", "content": "Hello"}]

    def finish(choice: Any, said: Any = hello) -> tuple[str, bool]:
        reply = sdk.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER], tool_choice=choice).choices[0]
        return reply.finish_reason, bool(reply.message.tool_calls)

    assert finish("auto") == ("stop", False)
    assert finish("none", ASK) == ("stop", False)
    assert finish("required") == ("tool_calls", True)
    assert finish({"type": "function", "function": {"name": "get_weather"}}) == ("stop", True)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    assert finish({"type": "allowed_tools", "allowed_tools": allowed}) == ("tool_calls", True)


def test_parsed_structured_output(sdk: Any) -> None:
    whole = sdk.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person, seed=1)
    person = whole.choices[0].message.parsed
    assert isinstance(person, Person)
    with sdk.chat.completions.stream(model=MODEL, messages=ASK, response_format=Person, seed=1) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == person
    with pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person, max_tokens=3)


def test_log_probabilities_join_to_the_text(sdk: Any) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK,
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 20,
        "seed": 5,
    }
    choice = sdk.chat.completions.create(**options).choices[0]
    content = choice.logprobs.content
    assert bytes(b for entry in content for b in entry.bytes).decode() == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in content)
    assert all(sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001 for entry in content)
    streamed = [entry for chunk in sdk.chat.completions.create(stream=True, **options) for c in chunk.choices if c.logprobs
                for entry in c.logprobs.content]  # fmt: skip
    assert streamed == content


def test_reasoning_costs_tokens_and_is_told_apart(sdk: Any) -> None:
    reply = sdk.chat.completions.create(model=MODEL, messages=ASK, reasoning_effort="low", max_completion_tokens=400)
    assert reply.choices[0].message.reasoning_content
    assert 10 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens
    chunks = list(sdk.chat.completions.create(model=MODEL, messages=ASK, reasoning_effort="low", max_completion_tokens=400,
                                              stream=True))  # fmt: skip
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks)
    said = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert thought == reply.choices[0].message.reasoning_content
    assert said == reply.choices[0].message.content


def test_completions_score_a_prompt(sdk: Any) -> None:
    scored = sdk.completions.create(model=MODEL, prompt="Once upon a time", echo=True, logprobs=1, max_tokens=0)
    choice = scored.choices[0]
    assert choice.text == "Once upon a time" == "".join(choice.logprobs.tokens)
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert scored.usage.completion_tokens == 0
    streamed = list(sdk.completions.create(model=MODEL, prompt="Once", logprobs=2, max_tokens=5, stream=True))
    assert sum(len(c.choices[0].logprobs.tokens) for c in streamed if c.choices[0].logprobs) == 5
    assert len(sdk.completions.create(model=MODEL, prompt="Once", n=2, best_of=3, max_tokens=5).choices) == 2
