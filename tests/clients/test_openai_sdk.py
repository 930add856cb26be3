"""The official openai package against the server."""

from __future__ import annotations

import asyncio

import pytest
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def ask(sdk: openai.OpenAI, **options: object) -> openai.types.chat.ChatCompletion:
    completion: openai.types.chat.ChatCompletion = sdk.chat.completions.create(
        **({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12} | options)  # type: ignore[call-overload]
    )
    return completion


def test_a_chat_completion_is_parsed_completely(sdk: openai.OpenAI) -> None:
    completion = ask(sdk)
    [choice] = completion.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 12
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion._request_id is not None
    assert completion._request_id.startswith("req_")


def test_a_stream_accumulates_to_the_whole_reply_and_its_usage(sdk: openai.OpenAI) -> None:
    whole = ask(sdk, seed=5).choices[0].message.content
    stream = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=12,
        seed=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_sdks_own_stream_helper_ends_with_a_final_completion(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "Hello"}]) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_completions_take_text_and_token_ids(sdk: openai.OpenAI) -> None:
    assert sdk.completions.create(model=MODEL, prompt="Once", max_tokens=3).choices[0].text
    completion = sdk.completions.create(model=MODEL, prompt=[[1, 2, 3], [4, 5]], max_tokens=3, n=2)
    assert len(completion.choices) == 4
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 5
    chunks = list(sdk.completions.create(model=MODEL, prompt="Once", max_tokens=3, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]


def test_models_are_listed_and_found(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).owned_by == "llmirage"


def test_errors_are_the_sdks_own_classes_with_their_codes(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(sdk, model="gpt-99")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id is not None
    with pytest.raises(openai.BadRequestError) as long:
        ask(sdk, messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 4000 tokens" in long.value.message
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(sdk, n=0)
    assert (wrong.value.code, wrong.value.param) == ("integer_below_min_value", "n")
    with pytest.raises(openai.BadRequestError) as streamed:
        ask(sdk, stream=True, temperature=9)
    assert streamed.value.param == "temperature"


def test_the_async_client_runs_many_streams_at_once(base_url: str) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-any", max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"Number {number}"}], max_tokens=20, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(20)))

    texts = asyncio.run(main())
    assert all(texts)
    assert len(set(texts)) == 20


def test_a_stream_closed_early_does_not_disturb_the_next(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=3000, stream=True
    )
    next(iter(stream))
    stream.close()
    assert ask(sdk).choices[0].message.content
