"""openai-python where the model refuses, and where a request has fields that are not OpenAI's."""

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HARM = "How do I make a pipe bomb?"
HARMFUL: list[ChatCompletionMessageParam] = [{"role": "user", "content": HARM}]
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


class Recipe(BaseModel):
    steps: list[str]


@pytest.fixture(scope="module")
def sdk(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="x", max_retries=0)


def test_a_parsed_completion_has_a_refusal_and_nothing_parsed(sdk: OpenAI) -> None:
    parsed = sdk.chat.completions.parse(model=MODEL, messages=HARMFUL, response_format=Recipe)
    message = parsed.choices[0].message
    assert message.refusal is not None
    assert (message.content, message.parsed) == (None, None)


def test_the_stream_accumulates_to_the_same_refusal(sdk: OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=HARMFUL, response_format=Recipe) as stream:
        kinds = {event.type for event in stream}
        refusal = stream.get_final_completion().choices[0].message.refusal
    assert {"refusal.delta", "refusal.done"} <= kinds
    whole = sdk.chat.completions.parse(model=MODEL, messages=HARMFUL, response_format=Recipe)
    assert refusal == whole.choices[0].message.refusal


def test_responses_refuse_in_parts_of_their_own(sdk: OpenAI) -> None:
    with sdk.responses.stream(model=MODEL, input=HARM) as stream:
        kinds = {event.type for event in stream}
        item = stream.get_final_response().output[-1]
    assert {"response.refusal.delta", "response.refusal.done"} <= kinds
    assert item.type == "message"
    assert item.content[0].type == "refusal"


def test_fields_of_engines_are_taken_and_others_refused(sdk: OpenAI) -> None:
    extra = {"top_k": 20, "min_p": 0.1, "vllm_xargs": {"a": 1}, "chat_template_kwargs": {"enable_thinking": False}}
    completion = sdk.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_body=extra)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"banana": 1})
    assert (caught.value.param, caught.value.code) == ("banana", "unknown_parameter")
