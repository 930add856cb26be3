"""The OpenAI Agents SDK against the server, over chat completions and over the Responses API."""

from collections import Counter
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

agents = pytest.importorskip("agents")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
Api = Literal["chat", "responses"]


class Report(BaseModel):
    city: str
    temperature_c: float
    warnings: list[Literal["rain", "wind", "snow"]]


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, base_url: str) -> Any:
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    if request.param == "chat":
        return agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    return agents.OpenAIResponsesModel(model=MODEL, openai_client=client)


class Tools:
    """Three tools that remember their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

        def get_weather(city: str) -> str:
            """Get the weather for a city."""
            self.calls.append(("get_weather", city))
            return f"The weather in {city} is sunny."

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            self.calls.append(("add", a, b))
            return a + b

        def multiply(a: int, b: int) -> int:
            """Multiply two numbers."""
            self.calls.append(("multiply", a, b))
            return a * b

        self.all = [agents.function_tool(tool) for tool in (get_weather, add, multiply)]


def run(wait: Any, agent: Any, said: str, **options: Any) -> Any:
    return wait(agents.Runner.run(agent, said, **{"max_turns": 6, **options}))


def test_an_agent_answers(wait: Any, model: Any) -> None:
    result = run(wait, agents.Agent(name="Helper", instructions="Be brief.", model=model), "Hello")
    assert result.final_output
    assert len(result.raw_responses) == 1
    assert result.raw_responses[0].usage.output_tokens > 0


def test_a_loop_over_three_tools_ends_and_is_the_same_each_time(wait: Any, model: Any) -> None:
    outputs = []
    for _ in range(2):
        tools = Tools()
        agent = agents.Agent(name="Helper", model=model, tools=tools.all)
        result = run(wait, agent, "Add 2 and 3, multiply 4 by 5, and get the weather in San Francisco, please")
        assert sorted(tools.calls) == [("add", 2, 3), ("get_weather", "San Francisco"), ("multiply", 4, 5)]
        assert len(result.raw_responses) == 2
        outputs.append(result.final_output)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_a_forced_tool_is_called_once(wait: Any, model: Any, choice: str) -> None:
    tools = Tools()
    settings = agents.ModelSettings(tool_choice=choice)
    result = run(wait, agents.Agent(name="Helper", model=model, tools=tools.all[:1], model_settings=settings), "Hello")
    assert len(tools.calls) == 1
    assert result.final_output


def test_the_final_output_has_its_type_after_tools(wait: Any, model: Any) -> None:
    tools = Tools()
    result = run(
        wait, agents.Agent(name="Helper", model=model, tools=tools.all, output_type=Report), "How is the weather in Paris?"
    )
    assert tools.calls == [("get_weather", "Paris")]
    assert isinstance(result.final_output, Report)


def test_a_streamed_run(wait: Any, model: Any) -> None:
    tools = Tools()

    async def main() -> tuple[Any, Counter[str]]:
        result = agents.Runner.run_streamed(agents.Agent(name="Helper", model=model, tools=tools.all), "Weather in Oslo?")
        return result, Counter(
            [event.data.type if event.type == "raw_response_event" else event.type async for event in result.stream_events()]
        )

    result, kinds = wait(main())
    assert tools.calls == [("get_weather", "Oslo")]
    assert result.final_output
    assert kinds["response.function_call_arguments.delta"] >= 3
    assert kinds["response.output_text.delta"] >= 3
    assert kinds["response.completed"] == 2


def test_a_tool_that_fails_does_not_stop_the_loop(wait: Any, model: Any) -> None:
    def find_order(number: str) -> str:
        """Look up the status of an order."""
        raise ValueError("no such order")

    result = run(wait, agents.Agent(name="Helper", model=model, tools=[agents.function_tool(find_order)]), "Find order 17")
    assert len(result.raw_responses) == 2
    assert result.final_output


def test_a_handoff(wait: Any, model: Any) -> None:
    spanish = agents.Agent(name="Spanish agent", handoff_description="Speaks Spanish.", model=model)
    triage = agents.Agent(name="Triage", instructions="Hand off by language.", handoffs=[spanish], model=model)
    assert run(wait, triage, "Hola, transfer me to the Spanish agent").last_agent.name == "Spanish agent"


def test_errors_and_aborts(wait: Any, model: Any, base_url: str) -> None:
    agent = agents.Agent(name="Helper", model=model)
    model.model = "nobody"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        run(wait, agent, "Hello")
    model.model = MODEL

    async def left_early() -> int:
        result = agents.Runner.run_streamed(agent, "Hello")
        seen = 0
        async for _ in result.stream_events():
            seen += 1
            if seen == 5:
                result.cancel()
        return seen

    assert wait(left_early()) >= 5
    assert run(wait, agent, "Hello").final_output


def test_conversations_on_the_server(wait: Any, base_url: str) -> None:
    agents.set_tracing_disabled(True)
    tools = Tools()

    async def main() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = agents.Agent(name="Helper", model=model, tools=tools.all)
        first = await agents.Runner.run(agent, "What's the weather in Rome?")
        second = await agents.Runner.run(agent, "And thanks", previous_response_id=first.last_response_id)
        conversation = (await client.conversations.create()).id
        for said in ("What's the weather in Lima?", "Thanks"):
            last = await agents.Runner.run(agent, said, conversation_id=conversation)
        items = [item.type async for item in client.conversations.items.list(conversation, order="asc")]
        return [second.final_output, last.final_output, items]

    second, last, items = wait(main())
    assert second
    assert last
    assert items == ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert tools.calls == [("get_weather", "Rome"), ("get_weather", "Lima")]
