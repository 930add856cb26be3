"""The official SDK on the Responses API."""

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"],
                   "additionalProperties": False},
    "strict": True,
}  # fmt: skip


class Person(BaseModel):
    name: str
    age: int


def create(sdk: Any, said: Any = "Hello", **options: Any) -> Any:
    return sdk.responses.create(model=MODEL, input=said, **options)


def test_text(sdk: Any) -> None:
    response = create(sdk, max_output_tokens=30, instructions="Be brief.", metadata={"a": "b"})
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 30
    assert response.output[0].status == "incomplete"
    assert response.instructions == "Be brief."
    done = create(sdk, temperature=0.5)
    assert done.status == "completed"
    assert done.output_text
    assert done.temperature == 0.5
    assert sdk.responses.retrieve(done.id).to_dict() == done.to_dict()


def test_the_event_stream_is_numbered_and_ends_with_the_whole(sdk: Any) -> None:
    events = list(create(sdk, stream=True, max_output_tokens=16))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.incomplete"]  # fmt: skip
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert sdk.responses.retrieve(events[-1].response.id).output_text == text
    replayed = list(sdk.responses.retrieve(events[-1].response.id, stream=True))
    assert [event.sequence_number for event in replayed] == list(range(len(replayed)))
    resumed = list(sdk.responses.retrieve(events[-1].response.id, stream=True, starting_after=5))
    assert [event.sequence_number for event in resumed] == list(range(6, len(replayed)))


def test_a_tool_loop_by_previous_response(sdk: Any) -> None:
    first = create(sdk, "What is the weather in Paris?", tools=[WEATHER])
    [call] = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"location": "Paris"}
    output = [{"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}]
    last = create(sdk, output, tools=[WEATHER], previous_response_id=first.id)
    assert last.output_text
    assert last.usage.input_tokens > first.usage.input_tokens
    assert [item.type for item in sdk.responses.input_items.list(last.id)] == ["function_call_output"]
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
        create(sdk, "and now?", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        create(sdk, output)


def test_streamed_calls_accumulate(sdk: Any) -> None:
    with sdk.responses.stream(model=MODEL, input="What is the weather in Paris?", tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") >= 3
    assert json.loads(final.output[0].arguments) == {"location": "Paris"}


def test_structured_output(sdk: Any) -> None:
    parsed = sdk.responses.parse(model=MODEL, input="Somebody", text_format=Person)
    assert isinstance(parsed.output_parsed, Person)


def test_reasoning(sdk: Any) -> None:
    response = create(sdk, reasoning={"effort": "low", "summary": "auto"}, include=["reasoning.encrypted_content"])
    thought, message = response.output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert thought.summary[0].text
    assert thought.encrypted_content
    assert response.usage.output_tokens_details.reasoning_tokens > 10
    again = create(sdk, [{"role": "user", "content": "Hi"}, thought.to_dict(), message.to_dict(),
                         {"role": "user", "content": "More"}], store=False)  # fmt: skip
    assert again.status == "completed"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(again.id)
    kinds = [event.type for event in create(sdk, stream=True, reasoning={"effort": "low", "summary": "auto"})]
    assert "response.reasoning_summary_text.delta" in kinds
    assert "response.reasoning_summary_part.done" in kinds


def test_background(sdk: Any) -> None:
    response = create(sdk, background=True)
    assert response.status == "queued"
    deadline = time.monotonic() + 10
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.02)
        response = sdk.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text
    events = list(create(sdk, background=True, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[1].type == "response.queued"
    assert events[-1].type == "response.completed"
    assert sdk.responses.cancel(response.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        sdk.responses.cancel(create(sdk).id)


def test_what_is_deleted_is_gone(sdk: Any) -> None:
    response = create(sdk)
    sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(sdk, previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


def test_counting_and_compacting(sdk: Any) -> None:
    counted = sdk.responses.input_tokens.count(model=MODEL, input="Hello there")
    assert counted.input_tokens == create(sdk, "Hello there").usage.input_tokens
    compact = sdk.responses.compact(model=MODEL, input=[{"role": "user", "content": "Hello"}])
    assert [item.type for item in compact.output] == ["message", "compaction"]
    assert create(sdk, [item.to_dict() for item in compact.output]).status == "completed"


def test_wrong_input_is_named(sdk: Any) -> None:
    for said, param in (
        ([{"type": "smell"}], "input[0].type"),
        ([{"role": "user"}], "input[0].content"),
        ([{"type": "function_call", "call_id": "x", "name": "f"}], "input[0].arguments"),
        (5, "input"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create(sdk, said)
        assert caught.value.param == param


def test_conversations_keep_what_was_said(sdk: Any) -> None:
    talk = sdk.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Ada."}], metadata={"a": "b"}
    )
    assert sdk.conversations.retrieve(talk.id).metadata == {"a": "b"}
    first = create(sdk, "What is my name?", conversation=talk.id, max_output_tokens=16)
    assert first.conversation.id == talk.id
    items = list(sdk.conversations.items.list(talk.id, order="asc"))
    assert [item.role for item in items] == ["user", "user", "assistant"]
    second = create(sdk, "And again?", conversation=talk.id, max_output_tokens=16)
    assert second.usage.input_tokens > first.usage.input_tokens + 8
    assert len(list(sdk.conversations.items.list(talk.id, limit=2))) == 5
    sdk.conversations.items.delete(items[0].id, conversation_id=talk.id)
    assert sdk.conversations.items.retrieve(items[1].id, conversation_id=talk.id).id == items[1].id
    added = sdk.conversations.items.create(talk.id, items=[{"type": "message", "role": "user", "content": "x"}])
    assert added.data[0].content[0].text == "x"
    sdk.conversations.update(talk.id, metadata={"c": "d"})
    with pytest.raises(openai.BadRequestError, match="Mutually exclusive"):
        create(sdk, conversation=talk.id, previous_response_id=first.id)
    assert sdk.conversations.delete(talk.id).deleted
    with pytest.raises(openai.NotFoundError):
        create(sdk, conversation=talk.id)


def test_stored_chat_completions(sdk: Any) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    kept = sdk.chat.completions.create(**options, store=True, metadata={"k": "v"})
    list(sdk.chat.completions.create(**options, store=True, metadata={"k": "w"}, stream=True))
    assert sdk.chat.completions.retrieve(kept.id).choices[0].message.content == kept.choices[0].message.content
    assert [c.id for c in sdk.chat.completions.list(metadata={"k": "v"})] == [kept.id]
    assert len(list(sdk.chat.completions.list(limit=1))) == 2
    assert sdk.chat.completions.messages.list(kept.id).data[0].content == "Hi"
    assert sdk.chat.completions.update(kept.id, metadata={"k": "z"}).metadata == {"k": "z"}
    assert sdk.chat.completions.delete(kept.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.retrieve(kept.id)
