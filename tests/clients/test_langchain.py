"""langchain-openai against the server, with a graph-style agent loop, over chat completions and the Responses API."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

langchain = pytest.importorskip("langchain_openai")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    zip_code: Annotated[str, Field(pattern=r"^\d{5}$")]
    country: Literal["US", "DE"]


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Person(BaseModel):
    """A person."""

    name: str
    age: Annotated[int, Field(ge=0, le=120)]
    email: str | None = None
    colour: Colour
    born: date
    address: Address
    tags: Annotated[list[str], Field(min_length=2, max_length=4)]
    tree: Node | None = None


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, base_url: str) -> Any:
    return langchain.ChatOpenAI(
        model=MODEL, base_url=base_url, api_key="none", max_retries=0, use_responses_api=request.param == "responses"
    )


@pytest.fixture
def tools() -> list[Any]:
    from langchain_core.tools import tool

    @tool
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    @tool
    def multiply(a: int, b: int) -> int:
        """Multiply two integers."""
        return a * b

    @tool
    def get_weather(location: str) -> str:
        """Get the current weather in a location."""
        return f"It is sunny in {location}."

    return [add, multiply, get_weather]


def called(message: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


def test_text_usage_streams_and_batches(model: Any) -> None:
    message = model.invoke("Hello")
    assert message.text
    assert message.usage_metadata["total_tokens"] == sum(
        message.usage_metadata[f"{way}_tokens"] for way in ("input", "output")
    )
    chunks = list(model.stream("Hello"))
    assert len(chunks) >= 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.text == message.text
    assert all(answer.text for answer in model.batch(["a", "b", "c"]))


def test_tools_are_called_with_what_was_said(model: Any, tools: list[Any]) -> None:
    bound = model.bind_tools(tools)
    assert called(bound.invoke("Could you multiply 3 by 12? Also, add 11 and 49.")) == [
        ("multiply", {"a": 3, "b": 12}),
        ("add", {"a": 11, "b": 49}),
    ]
    assert called(bound.invoke("Please use multiply on 17 and 23")) == [("multiply", {"a": 17, "b": 23})]
    assert called(bound.invoke("Hello there")) == []
    assert called(bound.invoke("What's the weather in San Francisco?")) == [("get_weather", {"location": "San Francisco"})]
    single = model.bind_tools(tools, parallel_tool_calls=False)
    assert called(single.invoke("add 1 and 2, multiply 3 by 4")) == [("add", {"a": 1, "b": 2})]
    assert len(called(model.bind_tools(tools, tool_choice="any").invoke("Hello"))) == 1
    [(name, args)] = called(model.bind_tools(tools, tool_choice="multiply", strict=True).invoke("Hello"))
    assert name == "multiply"
    assert set(args) == {"a", "b"}


def test_streamed_calls_accumulate(model: Any, tools: list[Any]) -> None:
    whole: Any = None
    chunks = 0
    for chunk in model.bind_tools(tools).stream("multiply 3 by 4 and get the weather in Oslo"):
        whole = chunk if whole is None else whole + chunk
        chunks += 1
    assert chunks >= 3
    assert [args for _, args in called(whole)] == [{"a": 3, "b": 4}, {"location": "Oslo"}]


def test_a_graph_style_loop_ends_in_two_turns_and_repeats_itself(model: Any, tools: list[Any]) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage

    by_name = {tool.name: tool for tool in tools}
    answers = []
    for _ in range(2):
        messages: list[Any] = [
            SystemMessage("Be brief."),
            HumanMessage("Add 3 and 4, multiply 2 by 5, and get the weather in Berlin"),
        ]
        turns = 0
        while turns < 6:
            messages.append(model.bind_tools(tools).invoke(messages))
            turns += 1
            if not messages[-1].tool_calls:
                break
            messages += [by_name[call["name"]].invoke(call) for call in messages[-1].tool_calls]
        assert turns == 2
        assert [message.content for message in messages if message.type == "tool"] == ["7", "10", "It is sunny in Berlin."]
        answers.append(messages[-1].text)
    assert answers[0] == answers[1]


def test_a_langgraph_agent_ends(model: Any, tools: list[Any]) -> None:
    graph = pytest.importorskip("langgraph.graph")
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    builder = graph.StateGraph(graph.MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.bind_tools(tools).invoke(state["messages"])]})
    builder.add_node("tools", prebuilt.ToolNode(tools))
    builder.add_edge(graph.START, "model")
    builder.add_conditional_edges("model", prebuilt.tools_condition)
    builder.add_edge("tools", "model")
    said = {"messages": [("user", "Get the weather in Paris, and multiply 3 by 9")]}
    state = builder.compile().invoke(said, {"recursion_limit": 6})
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "tool", "ai"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: Any, method: str) -> None:
    structured = model.with_structured_output(Person, method=method)
    person = structured.invoke("Jason is 25 years old")
    assert isinstance(person, Person)
    assert (person.name, person.age) == ("Jason", 25)
    *_, last = structured.stream("Another person")
    assert isinstance(last, Person)


def test_json_mode_follows_the_schema_in_the_prompt(model: Any) -> None:
    parsers = pytest.importorskip("langchain_core.output_parsers")
    parser = parsers.PydanticOutputParser(pydantic_object=Address)
    said = f"An address.\n{parser.get_format_instructions()}"
    assert isinstance(parser.invoke(model.invoke(said)), Address)
    assert isinstance(model.with_structured_output(Address, method="json_mode").invoke(said), Address)
    keys = model.with_structured_output(None, method="json_mode").invoke(
        "Return JSON with the keys `city` and `population`."
    )
    assert list(keys) == ["city", "population"]


def test_images_cost_tokens(model: Any) -> None:
    from langchain_core.messages import HumanMessage

    text = {"type": "text", "text": "What is this?"}
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    plain, shown = (model.invoke([HumanMessage(parts)]).usage_metadata for parts in ([text], [text, image]))
    assert shown["input_tokens"] > plain["input_tokens"] + 80


def test_errors_and_aborts(model: Any, base_url: str) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        model.invoke("word " * 5000)
    assert long.value.code == "context_length_exceeded"
    stream = model.stream("Hello")
    next(stream)
    stream.close()
    assert model.invoke("Hello").text
    with pytest.raises(openai.NotFoundError):
        langchain.ChatOpenAI(model="nobody", base_url=base_url, api_key="none", max_retries=0).invoke("Hello")


def test_reasoning_and_previous_responses(base_url: str) -> None:
    from langchain_core.messages import HumanMessage

    options: dict[str, Any] = {"model": MODEL, "base_url": base_url, "api_key": "none", "max_retries": 0}
    thinking = langchain.ChatOpenAI(**options, reasoning={"effort": "low", "summary": "auto"})
    assert [block["type"] for block in thinking.invoke("Hello").content_blocks] == ["reasoning", "text"]
    chained = langchain.ChatOpenAI(**options, use_responses_api=True, use_previous_response_id=True)
    first = chained.invoke([HumanMessage("Hello")])
    second = chained.invoke([HumanMessage("Hello"), first, HumanMessage("More")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]


def test_embeddings(base_url: str) -> None:
    embeddings = langchain.OpenAIEmbeddings(
        model=MODEL, base_url=base_url, api_key="none", max_retries=0, check_embedding_ctx_length=False
    )
    one, other = embeddings.embed_documents(["hello", "world"])
    assert len(one) == len(other)
    assert one != other
