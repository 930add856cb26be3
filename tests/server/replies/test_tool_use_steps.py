"""Calls over several turns: what depends on a result waits for it, and a second question is answered."""

from __future__ import annotations

import pytest
from tools_to_use import (
    EMAIL,
    FINAL,
    MANY,
    OFFICE,
    OPERATE,
    READ,
    REPORT,
    SEARCH,
    SUMS,
    TEXT,
    WEATHER,
    WRITE,
    Calls,
    tool,
    turn,
)

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import Tool, ToolChoice

# (tools, what is said, what each turn calls, what its tools give)
STEPS: list[tuple[tuple[Tool, ...], str, list[Calls], list[str]]] = [
    (
        SUMS,
        "add 3 and 4, then multiply the result by 5",
        [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 5})]],
        ["7", "35"],
    ),
    (
        SUMS,
        "Add 3 and 4. Multiply the output by 2. Divide the output by 7.",
        [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 2})], [("divide", {"a": 14, "b": 7})]],
        ["7", "14", "2"],
    ),
    (SUMS, "What is (3 + 4) * 5?", [[("add", {"a": 3, "b": 4})], [("multiply", {"a": 7, "b": 5})]], ['{"result": 7}', "35"]),
    (SUMS, "What is 3 + 4 * 5?", [[("multiply", {"a": 4, "b": 5})], [("add", {"a": 3, "b": 20})]], ["20", "23"]),
    (
        (OPERATE,),
        "Add 3 and 4, then multiply it by 5",
        [[("calculate", {"operation": "add", "x": 3, "y": 4})], [("calculate", {"operation": "multiply", "x": 7, "y": 5})]],
        ["7", "35"],
    ),
    (
        (SEARCH, EMAIL),
        "Search for the latest AI news and email it to bob@example.com",
        [
            [("web_search", {"query": "the latest AI news"})],
            [("send_email", {"to": "bob@example.com", "body": "Robots sing."})],
        ],
        ["Robots sing.", "sent"],
    ),
    (
        (READ, WRITE),
        "Read a.txt, then write a summary to b.txt",
        [[("read_file", {"path": "a.txt"})], [("write_file", {"path": "b.txt"})]],
        ["some words", "ok"],
    ),
    (
        (WEATHER, EMAIL),
        "Check the weather in Paris and then, if it is sunny, send an email to bob@example.com",
        [[("get_weather", {"location": "Paris"})], [("send_email", {"to": "bob@example.com"})]],
        ["sunny", "sent"],
    ),
    (
        (WEATHER, FINAL),
        "What's the weather in Paris?",
        [[("get_weather", {"location": "Paris"})], [("final_result", {"city": "Paris"})]],
        ["20 degrees", "ok"],
    ),
    (
        (WEATHER, REPORT),
        "What's the weather in Paris?",
        [[("get_weather", {"location": "Paris"})], [("WeatherReport", {"city": "Paris"})]],
        ["20 degrees", "ok"],
    ),
]


@pytest.mark.parametrize(("tools", "said", "expected", "results"), STEPS, ids=[row[1][:50] for row in STEPS])
def test_what_depends_on_a_result_waits_for_it(
    source: ComposedReplies, tools: tuple[Tool, ...], said: str, expected: list[Calls], results: list[str]
) -> None:
    called: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    for step, result in zip(expected, results, strict=True):
        calls = turn(source, tools, said, called=called, results=given)
        assert [name for name, _ in calls] == [name for name, _ in step]
        for (_, arguments), (_, wanted) in zip(calls, step, strict=True):
            assert {name: arguments.get(name) for name in wanted} == wanted
        called += tuple(name for name, _ in calls)
        given += (result,) * len(calls)
    assert turn(source, tools, said, called=called, results=given) == []


def test_one_at_a_time_where_calls_must_not_be_parallel(source: ComposedReplies) -> None:
    said = "What's the weather in Paris and in London?"
    first = turn(source, (WEATHER,), said, parallel_tool_calls=False)
    second = turn(source, (WEATHER,), said, parallel_tool_calls=False, called=("get_weather",), results=("sunny",))
    third = turn(source, (WEATHER,), said, parallel_tool_calls=False, called=("get_weather",) * 2, results=("sunny",) * 2)
    assert [arguments["location"] for _, arguments in first + second] == ["Paris", "London"]
    assert third == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("And in London?", [("get_weather", {"location": "London"})]),
        ("What about Rome and Oslo?", [("get_weather", {"location": "Rome"}), ("get_weather", {"location": "Oslo"})]),
        ("weather tokyo", [("get_weather", {"location": "tokyo"})]),
        ("Tokyo?", [("get_weather", {"location": "Tokyo"})]),
        ("And in Fahrenheit?", [("get_weather", {"location": "Paris", "unit": "fahrenheit"})]),
        ("Thanks!", []),
        ("ok, great", []),
    ],
)
def test_a_second_question(source: ComposedReplies, said: str, expected: Calls) -> None:
    before = {"called_before": ("get_weather",), "text_before": "What's the weather in Paris?"}
    calls = turn(source, (WEATHER, SEARCH), said, **before)
    assert [name for name, _ in calls] == [name for name, _ in expected]
    for (_, arguments), (_, wanted) in zip(calls, expected, strict=True):
        assert {name: arguments.get(name) for name in wanted} == wanted


def test_what_nobody_spoke_of_is_left_out(source: ComposedReplies) -> None:
    [(_, arguments)] = turn(source, (WEATHER,), "What's the weather in Paris?")
    assert arguments == {"location": "Paris"}
    nullable = {"anyOf": [{"enum": ["celsius", "fahrenheit"]}, {"type": "null"}]}
    strict = tool("get_weather", "Get the weather.", {"location": TEXT, "unit": nullable})
    [(_, arguments)] = turn(source, (strict,), "What's the weather in Paris?")
    assert arguments == {"location": "Paris", "unit": None}


def test_required_hands_in_the_answer_when_all_else_is_done(source: ComposedReplies) -> None:
    required = ToolChoice("required")
    said = "What's the weather in Paris?"
    assert [name for name, _ in turn(source, (WEATHER, FINAL), said, tool_choice=required)] == ["get_weather"]
    done = {"called": ("get_weather",), "results": ("20 degrees",)}
    assert [name for name, _ in turn(source, (WEATHER, FINAL), said, tool_choice=required, **done)] == ["final_result"]
    assert [name for name, _ in turn(source, (WEATHER, FINAL), "Hello", tool_choice=required)] == ["final_result"]


def test_a_long_document_between_question_and_answer_costs_little(source: ComposedReplies) -> None:
    document = "The ship left the harbor and nobody knew where it would go. " * 5000
    calls = turn(source, MANY, f"What's the weather in Paris?\n{document}")
    assert ("get_weather", {"location": "Paris"}) in calls


@pytest.mark.parametrize(
    "said", ["1+" * 1500 + "1", "(" * 2000, "add 1 and " * 300, "a" * 100_000, "remind me to " * 300, "\x00`" * 900]
)
def test_no_text_is_too_odd(source: ComposedReplies, said: str) -> None:
    turn(source, (*MANY, *SUMS, *OFFICE), said)
    turn(source, (*MANY, *SUMS, *OFFICE), said, tool_choice=ToolChoice("required"))
