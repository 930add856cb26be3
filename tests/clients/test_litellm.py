"""litellm against the server: as an OpenAI, a vLLM, an Anthropic, an Azure and an OpenRouter endpoint."""

from typing import Any

import pytest
from pydantic import BaseModel

litellm = pytest.importorskip("litellm")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a location",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def endpoint(base_url: str) -> dict[str, Any]:
    litellm.suppress_debug_info = True
    return {"api_base": base_url, "api_key": "none", "num_retries": 0}


def ask(endpoint: dict[str, Any], messages: Any = HELLO, **options: Any) -> Any:
    return litellm.completion(messages=messages, **{"model": f"openai/{MODEL}", **endpoint, **options})


def test_text_streamed_and_whole(endpoint: dict[str, Any]) -> None:
    whole = ask(endpoint)
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(ask(endpoint, stream=True, stream_options={"include_usage": True}))
    assert len(chunks) >= 3
    built = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.completion_tokens == whole.usage.completion_tokens


def test_a_tool_loop_ends(endpoint: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "What's the weather in Paris?"}]
    first = ask(endpoint, messages, tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    calls = first.message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"location":"Paris"}']
    chunks = list(ask(endpoint, messages, tools=[WEATHER], stream=True))
    streamed = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    messages += [first.message, *({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in calls)]
    assert ask(endpoint, messages, tools=[WEATHER]).choices[0].finish_reason == "stop"


def test_structured_output(endpoint: dict[str, Any]) -> None:
    content = ask(endpoint, response_format=Person).choices[0].message.content
    assert isinstance(Person.model_validate_json(content), Person)


def test_errors_are_litellms_own(endpoint: dict[str, Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(endpoint, [{"role": "user", "content": "word " * 5000}])
    with pytest.raises(litellm.NotFoundError):
        ask(endpoint, model="openai/nobody")
    with pytest.raises(litellm.BadRequestError):
        ask(endpoint, temperature=9)


def test_an_abort(endpoint: dict[str, Any]) -> None:
    stream = ask(endpoint, stream=True)
    next(iter(stream))
    del stream
    assert ask(endpoint).choices[0].message.content


def test_as_a_vllm_endpoint_with_reasoning(endpoint: dict[str, Any]) -> None:
    message = ask(endpoint, model=f"hosted_vllm/{MODEL}", reasoning_effort="low").choices[0].message
    assert message.reasoning_content
    assert message.content


def test_as_an_anthropic_endpoint(endpoint: dict[str, Any]) -> None:
    answer = ask(endpoint, model=f"anthropic/{MODEL}", api_base=endpoint["api_base"].removesuffix("/v1"), max_tokens=900)
    assert answer.choices[0].message.content


def test_responses_completions_and_embeddings(endpoint: dict[str, Any]) -> None:
    options = {key: value for key, value in endpoint.items() if key != "num_retries"}
    response = litellm.responses(model=f"openai/{MODEL}", input="Hello", **options)
    assert response.status == "completed"
    events = [event.type for event in litellm.responses(model=f"openai/{MODEL}", input="Hello", stream=True, **options)]
    assert events.count("response.output_text.delta") >= 3
    assert events[-1] == "response.completed"
    text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once", max_tokens=5, **options)
    assert text.choices[0].text
    assert len(litellm.embedding(model=f"openai/{MODEL}", input=["a", "b"], **options).data) == 2


def test_the_router_and_async(wait: Any, endpoint: dict[str, Any]) -> None:
    options = {key: value for key, value in endpoint.items() if key != "num_retries"}
    router = litellm.Router(model_list=[{"model_name": "m", "litellm_params": {"model": f"openai/{MODEL}", **options}}])
    assert wait(router.acompletion(model="m", messages=HELLO)).choices[0].finish_reason == "stop"
    assert len(wait(litellm.acompletion(model=f"openai/{MODEL}", messages=HELLO, n=3, max_tokens=4, **options)).choices) == 3


@pytest.fixture(params=["azure", "openrouter"])
def vendor(request: pytest.FixtureRequest, endpoint: dict[str, Any], server_url: str) -> dict[str, Any]:
    """The options of a call to a vendor's path."""
    url = server_url.removesuffix("/v1")
    own = {
        "azure": {"model": f"azure/{MODEL}", "api_base": url, "api_version": "2024-10-21"},
        "openrouter": {"model": f"openrouter/{MODEL}", "api_base": f"{url}/api/v1"},
    }[request.param]
    return {**endpoint, **own}


def test_a_vendors_text_streamed_and_whole(vendor: dict[str, Any]) -> None:
    whole = ask(vendor)
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(ask(vendor, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.completion_tokens == whole.usage.completion_tokens


def test_a_vendors_tools_and_structured_output(vendor: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "What's the weather in Paris?"}]
    first = ask(vendor, messages, tools=[WEATHER]).choices[0]
    assert [call.function.arguments for call in first.message.tool_calls] == ['{"location":"Paris"}']
    messages += [first.message]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in first.message.tool_calls]
    assert "18 degrees" in ask(vendor, messages, tools=[WEATHER]).choices[0].message.content
    assert Person.model_validate_json(ask(vendor, response_format=Person).choices[0].message.content)


def test_a_vendors_errors_are_litellms_own(vendor: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError):
        ask({**vendor, "model": vendor["model"].partition("/")[0] + "/nobody"})
    with pytest.raises(litellm.BadRequestError):
        ask(vendor, temperature=9)


def test_azures_embeddings_and_responses(endpoint: dict[str, Any], server_url: str) -> None:
    own = {"api_base": server_url.removesuffix("/v1"), "api_key": "none", "api_version": "2024-10-21"}
    assert len(litellm.embedding(model=f"azure/{MODEL}", input=["a", "b"], **own).data) == 2
    assert litellm.responses(model=f"azure/{MODEL}", input="Hello", **own).status == "completed"


def test_openrouters_fallback_and_reasoning(server_url: str) -> None:
    options = {"api_base": f"{server_url.removesuffix('/v1')}/api/v1", "api_key": "none"}
    answer = litellm.completion(
        model="openrouter/nobody",
        messages=HELLO,
        models=["no-one", MODEL],
        provider={"order": ["OpenAI"]},
        transforms=["middle-out"],
        reasoning={"effort": "low"},
        **options,
    )
    assert answer.model.endswith(MODEL)
    assert answer.choices[0].message.reasoning_content
