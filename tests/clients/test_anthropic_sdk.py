"""The official anthropic package against the server."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from sdks import anthropic

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def sdk(base_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def create(sdk: Any, messages: Any = None, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 1500,
        "messages": messages or [{"role": "user", "content": "Hi"}],
    }
    return sdk.messages.create(**(defaults | options))


def test_text_ends_by_itself_or_at_its_limit(sdk: Any) -> None:
    message = create(sdk, system="Be brief.")
    assert message.stop_reason == "end_turn"
    assert message.content[0].text
    cut = create(sdk, max_tokens=5)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    word = message.content[0].text.split()[3]
    stopped = create(sdk, system="Be brief.", stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)


def test_a_stream_is_the_same_message(sdk: Any) -> None:
    whole = create(sdk)
    with sdk.messages.stream(model=MODEL, max_tokens=1500, messages=[{"role": "user", "content": "Hi"}]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_a_tool_loop_ends(sdk: Any) -> None:
    first = create(sdk, ASK, tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    [use] = [block for block in first.content if block.type == "tool_use"]
    assert use.input == {"location": "Paris"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}
    last = create(sdk, [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}],
                  tools=[WEATHER])  # fmt: skip
    assert last.stop_reason == "end_turn"
    with sdk.messages.stream(model=MODEL, max_tokens=1500, messages=ASK, tools=[WEATHER]) as stream:
        assert stream.get_final_message().content[0].input == {"location": "Paris"}
    forced = create(sdk, tools=[WEATHER], tool_choice={"type": "any"})
    assert forced.stop_reason == "tool_use"


def test_thinking(sdk: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = create(sdk, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].signature
    with sdk.messages.stream(
        model=MODEL, max_tokens=1500, messages=[{"role": "user", "content": "Hi"}], thinking=thinking
    ) as s:
        final = s.get_final_message()
    assert final.content[0].thinking == message.content[0].thinking
    assert final.content[0].signature == message.content[0].signature


def test_tokens_are_counted_as_they_are_used(sdk: Any) -> None:
    counted = sdk.messages.count_tokens(model=MODEL, messages=ASK, tools=[WEATHER])
    usage = create(sdk, ASK, tools=[WEATHER]).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_have_the_apis_shape(sdk: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        create(sdk, model="claude-none")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        create(sdk, extra_body={"temperature": 7})
    assert "temperature" in wrong.value.body["error"]["message"]
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    with pytest.raises(anthropic.BadRequestError, match="tool_result"):
        create(sdk, [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": "so?"}], tools=[WEATHER])


def test_structured_output(sdk: Any) -> None:
    class Person(BaseModel):
        name: str
        age: int

    parsed = sdk.messages.parse(model=MODEL, max_tokens=500, messages=[{"role": "user", "content": "Jason is 25"}],
                                output_format=Person)  # fmt: skip
    assert parsed.parsed_output.model_dump() == {"name": "Jason", "age": 25}
    bad = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
    with pytest.raises(anthropic.BadRequestError):
        create(sdk, extra_body={"output_config": bad})


def test_the_tool_runner_ends(sdk: Any) -> None:
    asked = []

    @anthropic.beta_tool
    def get_weather(location: str) -> str:
        """Get the weather in a location."""
        asked.append(location)
        return "sunny"

    runner = sdk.beta.messages.tool_runner(model=MODEL, max_tokens=800, messages=ASK, tools=[get_weather])
    assert runner.until_done().stop_reason == "end_turn"
    assert asked == ["Paris"]


def test_a_thread_is_continued(sdk: Any) -> None:
    first = create(sdk, max_tokens=20, extra_body={"thread": {"type": "create"}})
    thread = {"thread": {"type": "continue", "previous_message_id": first.id}}
    more = create(sdk, [{"role": "user", "content": "More"}], max_tokens=20, extra_body=thread)
    assert more.usage.input_tokens + more.usage.cache_read_input_tokens > 20
    unknown = {"thread": {"type": "continue", "previous_message_id": "msg_0"}}
    with pytest.raises(anthropic.NotFoundError):
        create(sdk, extra_body=unknown)


def test_an_abort_disturbs_nobody(sdk: Any) -> None:
    with sdk.messages.stream(model=MODEL, max_tokens=1500, messages=ASK) as stream:
        next(iter(stream))
    assert create(sdk).content[0].text
