"""The openai package's clients for Azure against the server: everything that they can call, and a session of ten turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from sdks import openai
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
VERSION = "2024-10-21"
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def endpoint(server_url: str) -> str:
    return server_url.removesuffix("/v1")


@pytest.fixture
def client(endpoint: str) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(azure_endpoint=endpoint, api_key="none", api_version=VERSION, max_retries=0)


@pytest.fixture(params=["endpoint", "deployment", "base_url", "v1", "token"])
def each_client(request: pytest.FixtureRequest, endpoint: str) -> openai.OpenAI:
    """Every way to make a client."""
    more: Any = {"api_version": VERSION, "max_retries": 0}
    ways: dict[str, Callable[[], openai.OpenAI]] = {
        "endpoint": lambda: openai.AzureOpenAI(azure_endpoint=endpoint, api_key="none", **more),
        "deployment": lambda: openai.AzureOpenAI(azure_endpoint=endpoint, azure_deployment=MODEL, api_key="none", **more),
        "base_url": lambda: openai.AzureOpenAI(base_url=f"{endpoint}/openai", api_key="none", **more),
        "v1": lambda: openai.OpenAI(base_url=f"{endpoint}/openai/v1", api_key="none", max_retries=0),
        "token": lambda: openai.AzureOpenAI(azure_endpoint=endpoint, azure_ad_token_provider=lambda: "token", **more),
    }
    return ways[request.param]()


def test_every_client_gets_a_chat_completion_and_a_stream(each_client: openai.OpenAI) -> None:
    whole = each_client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert (whole.model, whole.choices[0].finish_reason) == (MODEL, "length")
    chunks = list(
        each_client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices == []
    assert chunks[0].model_extra is not None
    assert chunks[0].model_extra["prompt_filter_results"]
    assert (
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        == whole.choices[0].message.content
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_every_client_reaches_what_has_no_deployment(each_client: openai.OpenAI) -> None:
    response = each_client.responses.create(model=MODEL, input="Hello")
    assert response.output_text
    assert [model.id for model in each_client.models.list()] == [MODEL]
    assert each_client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=8).data[1].embedding


def test_the_stream_helper_and_structured_output(client: openai.AzureOpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    parsed = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Person).choices[0].message.parsed
    assert isinstance(parsed, Person)
    with client.chat.completions.stream(model=MODEL, messages=HELLO, response_format=Person) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


def test_completions(client: openai.AzureOpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=3).choices[0].text
    chunks = list(client.completions.create(model=MODEL, prompt="Once", max_tokens=3, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices)


def test_responses(client: openai.AzureOpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello", metadata={"a": "b"})
    following = client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id)
    assert following.previous_response_id == first.id
    assert client.responses.retrieve(first.id).output_text == first.output_text
    assert len(client.responses.input_items.list(first.id).data) == 1
    assert isinstance(client.responses.parse(model=MODEL, input="Who?", text_format=Person).output_parsed, Person)
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().status == "completed"
    assert "response.output_text.delta" in kinds
    background = client.responses.create(model=MODEL, input="Hello", background=True)
    assert client.responses.cancel(background.id).id == background.id
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    conversation = client.conversations.create()
    assert client.responses.create(model=MODEL, input="Hello", conversation=conversation.id).conversation


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_files_and_batches(client: openai.AzureOpenAI, prefix: str) -> None:
    """Azure's own form of the paths in batches, and OpenAI's."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
    line = {"custom_id": "a", "method": "POST", "url": f"{prefix}/chat/completions", "body": body}
    file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
    assert client.files.retrieve(file.id).filename == "lines.jsonl"
    endpoint: Any = f"{prefix}/chat/completions"
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    for _ in range(200):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed"):
            break
    assert batch.status == "completed", batch.errors
    assert batch.output_file_id is not None
    [answer] = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert answer["response"]["body"]["usage"]["completion_tokens"] == 3
    assert batch.id in [each.id for each in client.batches.list()]
    client.files.delete(file.id)


def test_errors_are_those_of_the_client(client: openai.AzureOpenAI, endpoint: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=HELLO)
    assert missing.value.code == "DeploymentNotFound"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    undated = openai.AzureOpenAI(azure_endpoint=endpoint, api_key="none", api_version="", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="Resource not found") as nothing:
        undated.chat.completions.create(model=MODEL, messages=HELLO)
    assert nothing.value.code == "404"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.audio.speech.create(model="tts", voice="alloy", input="Hello"),
        lambda client: client.audio.transcriptions.create(model="whisper", file=("a.wav", b"RIFF")),
        lambda client: client.images.generate(model="dall-e-3", prompt="A cat"),
        lambda client: client.beta.assistants.list(),
        lambda client: client.vector_stores.list(),
        lambda client: client.fine_tuning.jobs.list(),
    ],
)
def test_what_is_not_simulated_is_not_found(client: openai.AzureOpenAI, call: Callable[[openai.AzureOpenAI], Any]) -> None:
    with pytest.raises(openai.NotFoundError, match="not simulated by llmirage") as missing:
        call(client)
    assert missing.value.code == "404"


@pytest.fixture(scope="module")
def guarded_url() -> Iterator[str]:
    with serving("--ttft", "1", "--itl", "0", "--api-key", "secret", "--set", "rate_limit=1") as url:
        yield url.removesuffix("/v1")


def test_keys_and_rate_limits(guarded_url: str) -> None:
    wrong = openai.AzureOpenAI(azure_endpoint=guarded_url, api_key="wrong", api_version=VERSION, max_retries=0)
    with pytest.raises(openai.AuthenticationError) as denied:
        wrong.chat.completions.create(model=MODEL, messages=HELLO)
    assert denied.value.code == "401"
    right = openai.AzureOpenAI(azure_endpoint=guarded_url, api_key="secret", api_version=VERSION, max_retries=0)
    assert right.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2).choices
    with pytest.raises(openai.RateLimitError) as limited:
        right.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
    assert limited.value.code == "429"
    assert limited.value.response.headers["retry-after"]


def test_the_asynchronous_client(wait: Callable[..., Any], endpoint: str) -> None:
    client = openai.AsyncAzureOpenAI(azure_endpoint=endpoint, api_key="none", api_version=VERSION, max_retries=0)

    async def both() -> tuple[str | None, str]:
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
        said = ""
        async for chunk in await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True):
            said += "".join(choice.delta.content or "" for choice in chunk.choices)
        return whole.choices[0].message.content, said

    whole, said = wait(both())
    assert whole == said


CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Quito", "Delhi", "Bern", "Riga")


@pytest.mark.parametrize("streamed", [False, True])
def test_ten_turns_with_a_tool(endpoint: str, streamed: bool) -> None:
    """An unscripted session: in each turn a question, a call, its result, and an answer that ends by itself."""
    client = openai.AzureOpenAI(azure_endpoint=endpoint, api_key="none", api_version=VERSION, max_retries=0)
    messages: list[Any] = [{"role": "system", "content": "You answer with the help of tools."}]

    def ask() -> Any:
        if not streamed:
            return client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0]
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER]) as stream:
            return stream.get_final_completion().choices[0]

    for city in CITIES:
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        choice = ask()
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})
        messages.append({"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]})
        messages[-1]["tool_calls"][0]["function"] = {"name": call.function.name, "arguments": call.function.arguments}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"18 degrees in {city}"})
        answer = ask()
        assert answer.finish_reason == "stop"
        assert f"18 degrees in {city}" in answer.message.content
        messages.append({"role": "assistant", "content": answer.message.content})
    assert len(messages) == 1 + 4 * len(CITIES)
