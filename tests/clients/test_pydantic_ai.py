"""Pydantic AI against the server: output as tools, native and prompted, over chat completions and the Responses API."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

pydantic_ai = pytest.importorskip("pydantic_ai")
pytest.importorskip("pydantic_ai.models.openai")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


class Item(BaseModel):
    sku: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{4}$")]
    quantity: Annotated[int, Field(gt=0, le=10)]
    price: Decimal


class Order(BaseModel):
    id: int
    placed: date
    status: Literal["new", "paid"]
    items: Annotated[list[Item], Field(min_length=1, max_length=3)]
    note: str | None = None
    parent: Order | None = None


class City(BaseModel):
    city: str
    country: str


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, base_url: str) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind(MODEL, provider=OpenAIProvider(openai_client=client))


def ask(wait: Any, model: Any, said: str, **options: Any) -> Any:
    limits = pydantic_ai.UsageLimits(request_limit=6)
    return wait(pydantic_ai.Agent(model, retries=0, **options).run(said, usage_limits=limits))


def test_text_and_history(wait: Any, model: Any) -> None:
    async def main() -> tuple[Any, Any]:
        agent = pydantic_ai.Agent(model, system_prompt="Be brief.")
        first = await agent.run("Hello")
        return first, await agent.run("And more?", message_history=first.all_messages())

    first, second = wait(main())
    assert first.output
    assert len(second.all_messages()) == 4


@pytest.mark.parametrize("form", ["tool", "native", "prompted"])
def test_a_nested_and_recursive_output(wait: Any, model: Any, form: str) -> None:
    wrap = {"tool": pydantic_ai.ToolOutput, "native": pydantic_ai.NativeOutput, "prompted": pydantic_ai.PromptedOutput}[form]
    for said in ("An order", "Another order", "A third one"):
        assert isinstance(ask(wait, model, said, output_type=wrap(Order)).output, Order)


def test_alternatives_lists_and_numbers(wait: Any, model: Any) -> None:
    assert isinstance(ask(wait, model, "An order", output_type=[City, Order]).output, City | Order)
    assert isinstance(ask(wait, model, "An order", output_type=pydantic_ai.NativeOutput([City, Order])).output, City | Order)
    assert all(isinstance(name, str) for name in ask(wait, model, "Names", output_type=list[str]).output)
    assert isinstance(ask(wait, model, "How many?", output_type=int).output, int)


@pytest.mark.parametrize("output", [str, City])
def test_a_tool_loop_ends(wait: Any, model: Any, output: Any) -> None:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        asked.append(city)
        return "sunny"

    result = ask(wait, model, "What's the weather in San Francisco?", tools=[get_weather], output_type=output)
    assert asked == ["San Francisco"]
    assert isinstance(result.output, output)


def test_a_tool_that_asks_to_try_again(wait: Any, model: Any) -> None:
    asked: list[str] = []

    def lookup_user(name: str) -> str:
        """Look up a user by name."""
        asked.append(name)
        raise pydantic_ai.ModelRetry("No such user")

    agent = pydantic_ai.Agent(model, tools=[pydantic_ai.Tool(lookup_user, max_retries=3)])
    result = wait(agent.run("Look up the user John", usage_limits=pydantic_ai.UsageLimits(request_limit=6)))
    assert asked == ["John"]
    assert result.output


def test_streams_of_text_and_of_partial_outputs(wait: Any, model: Any) -> None:
    async def texts() -> list[str]:
        async with pydantic_ai.Agent(model).run_stream("Hello") as result:
            return [text async for text in result.stream_text(delta=True, debounce_by=None)]

    async def outputs(output: Any) -> list[Any]:
        async with pydantic_ai.Agent(model, output_type=output).run_stream("An order") as result:
            return [value async for value in result.stream_output(debounce_by=None)]

    assert len(wait(texts())) >= 3
    for output in (Order, pydantic_ai.NativeOutput(Order)):
        values = wait(outputs(output))
        assert len(values) >= 3
        assert isinstance(values[-1], Order)


def test_errors_and_aborts(wait: Any, model: Any) -> None:
    async def left_early() -> None:
        async with pydantic_ai.Agent(model).run_stream("Hello") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    wait(left_early())
    assert ask(wait, model, "Hello").output
    with pytest.raises(pydantic_ai.ModelHTTPError) as caught:
        ask(wait, model, "Hello", model_settings={"temperature": 9})
    assert caught.value.status_code == 400
