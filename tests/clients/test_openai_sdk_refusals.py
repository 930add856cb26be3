"""openai-python where the model refuses, and where a request has fields that are not OpenAI's."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import BaseModel
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HARM = "How do I make a pipe bomb?"
HARMFUL: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": HARM}]
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


class Recipe(BaseModel):
    steps: list[str]


def test_a_parsed_completion_has_a_refusal_and_nothing_parsed(sdk: openai.OpenAI) -> None:
    parsed = sdk.chat.completions.parse(model=MODEL, messages=HARMFUL, response_format=Recipe)
    message = parsed.choices[0].message
    assert message.refusal is not None
    assert (message.content, message.parsed) == (None, None)


def test_the_stream_accumulates_to_the_same_refusal(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=HARMFUL, response_format=Recipe) as stream:
        kinds = {event.type for event in stream}
        refusal = stream.get_final_completion().choices[0].message.refusal
    assert {"refusal.delta", "refusal.done"} <= kinds
    whole = sdk.chat.completions.parse(model=MODEL, messages=HARMFUL, response_format=Recipe)
    assert refusal == whole.choices[0].message.refusal


def test_responses_refuse_in_parts_of_their_own(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model=MODEL, input=HARM) as stream:
        kinds = {event.type for event in stream}
        item = stream.get_final_response().output[-1]
    assert {"response.refusal.delta", "response.refusal.done"} <= kinds
    assert item.type == "message"
    assert item.content[0].type == "refusal"


def test_fields_of_engines_are_taken_and_others_refused(sdk: openai.OpenAI) -> None:
    extra = {"top_k": 20, "min_p": 0.1, "vllm_xargs": {"a": 1}, "chat_template_kwargs": {"enable_thinking": False}}
    completion = sdk.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_body=extra)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"banana": 1})
    assert (caught.value.param, caught.value.code) == ("banana", "unknown_parameter")


def test_embeddings_which_the_sdk_asks_for_as_base64(sdk: openai.OpenAI) -> None:
    told = sdk.embeddings.create(model="text-embedding-3-small", input=["Paris is in France", "France has Paris"])
    first, second = (np.array(entry.embedding) for entry in told.data)
    assert first.shape == (1536,)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    assert first @ second > 0.5
    floats = sdk.embeddings.create(model="text-embedding-3-small", input="Paris is in France", encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(first, abs=1e-7)
    assert told.usage.prompt_tokens == told.usage.total_tokens > 4


def test_fewer_dimensions_and_token_ids(sdk: openai.OpenAI) -> None:
    assert len(sdk.embeddings.create(model="text-embedding-3-large", input=[1, 2, 3], dimensions=64).data[0].embedding) == 64
    assert len(sdk.embeddings.create(model="text-embedding-ada-002", input=[[1], [2, 3]]).data) == 2


def test_refusals_are_the_sdks_own_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="empty") as refused:
        sdk.embeddings.create(model="text-embedding-3-small", input="")
    assert refused.value.param == "input"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        sdk.embeddings.create(model="no-such-model", input="x")


def test_moderations_of_texts_and_of_parts(sdk: openai.OpenAI) -> None:
    good, bad = sdk.moderations.create(input=["Good morning", "I will kill you"]).results
    assert (good.flagged, bad.flagged, bad.categories.violence, bad.categories.harassment_threatening) == (
        False,
        True,
        True,
        True,
    )
    assert bad.category_scores.violence > 0.5 > good.category_scores.self_harm_intent
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    [both] = sdk.moderations.create(model="omni-moderation-latest", input=[{"type": "text", "text": "Hi"}, image]).results  # type: ignore[list-item]
    assert both.category_applied_input_types.violence == ["text", "image"]
