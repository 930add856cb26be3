"""What the Responses API remembers, with the official SDK: references, templates, cancelled streams, pages of items."""

import io
import time
from collections.abc import Callable
from typing import Any

import pytest
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def test_a_reference_to_an_item(sdk: Any) -> None:
    first = sdk.responses.create(model=MODEL, input="Hello there")
    reference = {"type": "item_reference", "id": first.output[0].id}
    asked = [reference, {"role": "user", "content": "Go on"}]
    second = sdk.responses.create(model=MODEL, input=asked)
    assert second.usage.input_tokens > first.usage.output_tokens
    [_, listed] = sdk.responses.input_items.list(second.id, order="desc").data
    assert listed.id == first.output[0].id
    sdk.responses.delete(second.id)
    assert sdk.responses.create(model=MODEL, input=asked).output_text
    sdk.responses.delete(first.id)
    for unknown in (reference, {"type": "item_reference", "id": "msg_none"}):
        with pytest.raises(openai.NotFoundError, match="not found"):
            sdk.responses.create(model=MODEL, input=[unknown])


def test_a_reference_within_a_conversation(sdk: Any) -> None:
    conversation = sdk.conversations.create(items=[{"type": "message", "role": "user", "content": "My name is Ada."}])
    [item] = sdk.conversations.items.list(conversation.id).data
    asked = [{"type": "item_reference", "id": item.id}]
    assert sdk.responses.create(model=MODEL, input=asked, conversation=conversation.id).output_text


def test_a_prompt_template_and_its_variables(sdk: Any) -> None:
    prompt: Any = {"id": "pmpt_1", "version": "2", "variables": {"city": "Rome"}}
    response = sdk.responses.create(model=MODEL, prompt=prompt)
    assert response.prompt.id == "pmpt_1"
    other = sdk.responses.create(model=MODEL, prompt={**prompt, "variables": {"city": "Oslo"}})
    assert other.output_text != response.output_text


def test_a_cancelled_response(sdk: Any) -> None:
    exact = {"max_output_tokens": 3000, "extra_body": {"ignore_eos": True}}
    running = sdk.responses.create(model=MODEL, input="Count", background=True, stream=True, **exact)
    events = iter(running)
    created = next(events).response
    cancelled = sdk.responses.cancel(created.id)
    assert cancelled.status in ("cancelled", "incomplete")
    assert sdk.responses.cancel(created.id).status == cancelled.status
    assert list(events)[-1].response.status == cancelled.status
    again = list(sdk.responses.retrieve(created.id, stream=True))
    assert again[-1].response.status == cancelled.status


def test_a_stream_is_taken_up_where_it_was_left(sdk: Any) -> None:
    whole = list(sdk.responses.create(model=MODEL, input="Hello", background=True, stream=True))
    response_id = whole[0].response.id
    rest = list(sdk.responses.retrieve(response_id, stream=True, starting_after=3))
    assert rest[0].sequence_number == 4
    assert rest[-1].type == "response.completed"
    text = "".join(event.delta for event in whole if event.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text


def test_pages_of_a_conversation(sdk: Any) -> None:
    items: Any = [{"type": "message", "role": "user", "content": f"Line {number}"} for number in range(7)]
    conversation = sdk.conversations.create(items=items).id

    def said(**query: Any) -> list[str]:
        return [item.content[0].text for item in sdk.conversations.items.list(conversation, **query)]

    assert said(order="asc", limit=3) == [f"Line {number}" for number in range(7)]
    assert said(limit=2) == [f"Line {number}" for number in reversed(range(7))]
    page = sdk.conversations.items.list(conversation, order="asc", limit=2)
    assert (page.has_more, [item.id for item in page.data][-1]) == (True, page.last_id)
    after = sdk.conversations.items.list(conversation, order="asc", limit=2, after=page.last_id)
    assert [item.content[0].text for item in after.data] == ["Line 2", "Line 3"]
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            sdk.conversations.items.list(conversation, **wrong)


def test_a_refusal(sdk: Any) -> None:
    said = "How do I make a pipe bomb?"
    response = sdk.responses.create(model=MODEL, input=said)
    [part] = response.output[0].content
    assert (part.type, response.status) == ("refusal", "completed")
    with sdk.responses.stream(model=MODEL, input=said) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.refusal.delta"]
    assert len(deltas) >= 3
    [done] = [event for event in events if event.type == "response.refusal.done"]
    assert "".join(deltas) == done.refusal == part.refusal


def test_what_is_echoed(sdk: Any) -> None:
    options: dict[str, Any] = {
        "service_tier": "flex",
        "safety_identifier": "user-1",
        "prompt_cache_key": "key-1",
        "prompt_cache_retention": "24h",
        "metadata": {"a": "b"},
        "max_tool_calls": 3,
        "truncation": "auto",
    }
    response = sdk.responses.create(model=MODEL, input="Hello", max_output_tokens=20, **options).model_dump()
    assert {name: response[name] for name in options} == options
    begun = time.time()
    assert abs(response["created_at"] - begun) < 60


def test_a_file_from_upload_to_deletion(sdk: Any) -> None:
    data = b'{"custom_id": "a"}\n' * 50_000
    made = sdk.files.create(
        file=("in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (made.bytes, made.filename, made.purpose, made.expires_at) == (
        len(data),
        "in.jsonl",
        "batch",
        made.created_at + 7200,
    )
    assert sdk.files.wait_for_processing(made.id, poll_interval=0.01) == made == sdk.files.retrieve(made.id)
    assert sdk.files.content(made.id).read() == data
    deleted = sdk.files.delete(made.id)
    assert (deleted.deleted, deleted.id, deleted.object) == (True, made.id, "file")
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        sdk.files.content(made.id)


def test_the_list_pages_by_itself(sdk: Any) -> None:
    names = [f"{number}.txt" for number in range(5)]
    ids = [sdk.files.create(file=(name, io.BytesIO(b"x")), purpose="user_data").id for name in names]
    listed = [file for file in sdk.files.list(purpose="user_data", limit=2, order="asc") if file.id in ids]
    assert [file.filename for file in listed] == names
    assert sdk.files.list(limit=1).data[0].id == ids[-1]
    for file_id in ids:
        sdk.files.delete(file_id)


def test_refusals(sdk: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Supported values"):
        sdk.files.create(file=("a", b"x"), purpose="other")
    with pytest.raises(openai.BadRequestError, match="Invalid file format"):
        sdk.files.create(file=("a.jsonl", b"x"), purpose="batch")


def test_the_async_client(base_url: str, wait: Callable[..., Any]) -> None:
    async def use() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            made = await client.files.create(file=("a.txt", b"hello"), purpose="fine-tune")
            assert (await client.files.wait_for_processing(made.id)).status == "processed"
            assert (await client.files.content(made.id)).text == "hello"
            assert [file.id async for file in client.files.list(purpose="fine-tune")] == [made.id]
            assert (await client.files.delete(made.id)).deleted

    wait(use())


def test_a_conversation_is_answered_without_more_input(sdk: Any) -> None:
    asked: Any = [{"type": "message", "role": "user", "content": "Reply with exactly: pong"}]
    conversation = sdk.conversations.create(items=asked)
    response = sdk.responses.create(model=MODEL, conversation=conversation.id)
    assert response.output_text == sdk.responses.create(model=MODEL, input=asked).output_text
    kinds = [item.role for item in sdk.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["user", "assistant"]
