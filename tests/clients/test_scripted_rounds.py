"""Agents built with frameworks follow a script: ten rounds of a tool, each with the arguments that the script says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from node import run
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
ROUNDS = 10


@pytest.fixture(scope="module")
def scripted_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules: list[dict[str, Any]] = [
        {
            "when": {"tool": "step", "assistant_messages": number, **({"tool_result": "step"} if number else {})},
            "reply": {"tool_calls": [{"name": "step", "arguments": {"number": number}}]},
        }
        for number in range(ROUNDS)
    ]
    rules.append({"when": {"tool_result": "step"}, "reply": "Ended: {result}"})
    file = tmp_path_factory.mktemp("script") / "script.json"
    file.write_text(json.dumps({"rules": rules, "fallback": "error"}), "utf-8")
    with serving("--ttft", "1", "--itl", "0", "--script", str(file)) as url:
        yield url


class Steps:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def step(self, number: int) -> str:
        """Take one step."""
        self.numbers.append(number)
        return f"step {number} taken"


@pytest.fixture
def steps() -> Steps:
    return Steps()


def check(steps: Steps, said: str) -> None:
    assert steps.numbers == list(range(ROUNDS))
    assert said == f"Ended: step {ROUNDS - 1} taken"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(api: str, wait: Any, scripted_url: str, steps: Steps) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=scripted_url, api_key="none", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    agent = agents.Agent("walker", model=kind(model=MODEL, openai_client=client), tools=[agents.function_tool(steps.step)])
    check(steps, wait(agents.Runner.run(agent, "Walk.", max_turns=ROUNDS + 1)).final_output)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_langgraph(api: str, scripted_url: str, steps: Steps) -> None:
    langchain = pytest.importorskip("langchain_openai")
    graph = pytest.importorskip("langgraph.graph")
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    from langchain_core.tools import StructuredTool

    model = langchain.ChatOpenAI(
        model=MODEL, base_url=scripted_url, api_key="none", max_retries=0, use_responses_api=api == "responses"
    )
    tools = [StructuredTool.from_function(steps.step)]
    builder = graph.StateGraph(graph.MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.bind_tools(tools).invoke(state["messages"])]})
    builder.add_node("tools", prebuilt.ToolNode(tools))
    builder.add_edge(graph.START, "model")
    builder.add_conditional_edges("model", prebuilt.tools_condition)
    builder.add_edge("tools", "model")
    state = builder.compile().invoke({"messages": [("user", "Walk.")]}, {"recursion_limit": 3 * ROUNDS})
    check(steps, state["messages"][-1].text)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai(api: str, wait: Any, scripted_url: str, steps: Steps) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    from pydantic_ai.providers.openai import OpenAIProvider

    client = openai.AsyncOpenAI(base_url=scripted_url, api_key="none", max_retries=0)
    kind = models.OpenAIChatModel if api == "chat" else models.OpenAIResponsesModel
    agent = pydantic_ai.Agent(kind(MODEL, provider=OpenAIProvider(openai_client=client)), tools=[steps.step])
    check(steps, wait(agent.run("Walk.")).output)


def test_the_ai_sdk(scripted_url: str, tmp_path: Path) -> None:
    taken = [list(range(ROUNDS)), f"Ended: step {ROUNDS - 1} taken"]
    assert run("ai_sdk_rounds.mjs", "ai", scripted_url, tmp_path) == {"chat": taken, "responses": taken}
