"""Replies that think, call tools and obey schemas."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llmirage_server.replies.arguments import arguments_for, calls_wanted, places
from llmirage_server.replies.choose import make_reply_source
from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.logprobs import token_logprob
from llmirage_server.replies.reply import ANY_OBJECT, Grammar, Reply, ReplyRequest, Tool, ToolChoice
from llmirage_server.replies.structured.grammar import GrammarError, text_for
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.tool_choice import choose_tools
from llmirage_shared.tokenizer_loader import embedded

PLACE = {"type": "object", "properties": {"location": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
         "required": ["location"], "additionalProperties": False}  # fmt: skip
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
MAIL = {"type": "object", "properties": {"to": {"type": "string", "format": "email"}, "subject": {"type": "string"}},
        "required": ["to", "subject"]}  # fmt: skip
WEATHER = Tool("function", "get_weather", "Get the current weather for a location", PLACE)
ADD = Tool("function", "add_numbers", "Add two numbers", NUMBERS)
SEND = Tool("function", "send_email", "Send an email to somebody", MAIL)
CLOCK = Tool("function", "get_current_time", "Returns the current time")
SQL = Tool("custom", "run_sql", "Runs SQL", None, Grammar("regex", r"SELECT [a-z]{3,5} FROM [a-z]{3,5};"))
TOOLS = (WEATHER, ADD, SEND, CLOCK, SQL)
IDS = np.arange(20, dtype=np.int32)


@pytest.fixture(scope="module")
def source() -> ComposedReplies:
    return ComposedReplies(embedded(), make_reply_source("prose", embedded()))


def ask(said: str, **more: Any) -> ReplyRequest:
    return ReplyRequest(**{"prompt_ids": IDS, "max_tokens": None, "limit_tokens": 4000, **more, "last_user_text": said})


@pytest.mark.parametrize(
    ("said", "called"),
    [
        ("What's the weather in Paris?", ["get_weather"]),
        ("How hot is it in Rome?", ["get_weather"]),
        ("What is 3 plus 4?", ["add_numbers"]),
        ("2+2?", ["add_numbers"]),
        ("Send a mail to bob@example.org", ["send_email"]),
        ("What time is it in Tokyo and what's the weather there?", ["get_current_time", "get_weather"]),
        ("Please use run_sql.", ["run_sql"]),
        ("Hello, who are you?", []),
        ("Tell me a joke", []),
        ("Write a poem about the sea", []),
    ],
)
def test_auto_calls_what_the_prompt_asks_for(said: str, called: list[str]) -> None:
    assert [tool.name for tool in choose_tools(ask(said, tools=TOOLS))] == called


def test_the_choice_binds() -> None:
    weather = "What's the weather in Paris?"
    assert choose_tools(ask(weather, tools=TOOLS, tool_choice=ToolChoice("none"))) == []
    assert choose_tools(ask(weather, tools=TOOLS, called=("get_weather",))) == []
    assert choose_tools(ask(weather, tools=TOOLS, ignore_eos=True)) == []
    assert choose_tools(ask("Hi", tools=TOOLS, tool_choice=ToolChoice("required", ("send_email",)))) == [SEND]
    assert choose_tools(ask("Hi", tools=TOOLS, tool_choice=ToolChoice("auto", ("send_email",)))) == []
    required = ask(weather, tools=TOOLS, tool_choice=ToolChoice("required"), called=("get_weather",))
    assert len(choose_tools(required)) == 1
    assert choose_tools(required) != [WEATHER]
    both = "What time is it in Tokyo and what's the weather there?"
    assert len(choose_tools(ask(both, tools=TOOLS, parallel_tool_calls=False))) == 1


def test_a_loop_of_tool_calls_ends() -> None:
    called: tuple[str, ...] = ()
    for _ in range(len(TOOLS) + 1):
        chosen = choose_tools(ask("the weather, the time and the sum of 1 + 2", tools=TOOLS, called=called))
        if not chosen:
            break
        called += tuple(tool.name for tool in chosen)
    assert len(called) == len(set(called)) >= 3


def test_arguments_come_from_what_was_said() -> None:
    assert arguments_for(PLACE, "What's the weather in San Francisco, CA in celsius?", 1) == {
        "location": "San Francisco, CA", "unit": "celsius"}  # fmt: skip
    assert arguments_for(NUMBERS, "What is 17 times 3.5?", 1) == {"a": 17, "b": 3.5}
    assert arguments_for(MAIL, 'Mail bob@example.org with "Hello there"', 1) == {
        "to": "bob@example.org", "subject": "Hello there"}  # fmt: skip
    assert arguments_for(None, "anything", 1) == {}
    assert places("Compare Paris with the weather in Rome, London and New York") == ["Rome", "London", "New York"]
    assert calls_wanted(PLACE, "the weather in Paris and London") == 2
    assert calls_wanted(NUMBERS, "the sum in Paris and London") == 1


@given(st.text(max_size=80), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_arguments_are_valid_whatever_was_said(said: str, seed: int) -> None:
    for schema in (PLACE, NUMBERS, MAIL):
        Draft202012Validator(schema).validate(arguments_for(schema, said, seed))


def check(reply: Reply) -> None:
    assert len(reply.ids) == len(reply.pieces) >= 1
    at = 0
    for part in reply.parts:
        assert at <= part.start <= part.end <= len(reply.ids)
        assert all(not piece for piece in reply.pieces[at : part.start])
        at = part.end


def test_parallel_calls_one_for_each_thing_named(source: ComposedReplies) -> None:
    reply = source.reply(ask("What's the weather in Paris and London?", tools=TOOLS))
    check(reply)
    assert reply.finish_reason == "tool_calls"
    assert [(p.kind, p.name) for p in reply.parts] == [("function_call", "get_weather")] * 2
    assert [json.loads(reply.said(part))["location"] for part in reply.parts] == ["Paris", "London"]
    assert reply.text == ""


def test_a_custom_tool_gets_input_of_its_grammar(source: ComposedReplies) -> None:
    reply = source.reply(ask("x", tools=TOOLS, tool_choice=ToolChoice("required", ("run_sql",)), reasoning_tokens=20))
    check(reply)
    thought, call = reply.parts
    assert (thought.kind, call.kind) == ("reasoning", "custom_call")
    assert reply.reasoning_tokens == thought.end - thought.start >= 20
    assert re.fullmatch(r"SELECT [a-z]{3,5} FROM [a-z]{3,5};", reply.said(call))


def test_an_answer_obeys_its_schema_or_is_cut_by_length(source: ComposedReplies) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["city", "n"],
    }
    reply = source.reply(ask("x", json_schema=schema))
    check(reply)
    assert reply.finish_reason == "stop"
    Draft202012Validator(schema).validate(json.loads(reply.text))
    cut = source.reply(ask("x", json_schema=schema, max_tokens=4))
    assert (cut.finish_reason, len(cut.ids)) == ("length", 4)
    assert reply.text.startswith(cut.text)
    stopped = source.reply(ask("x", json_schema=schema, stop=(":",)))
    assert (stopped.finish_reason, stopped.stop_reason, stopped.text) == ("stop", ":", reply.text.partition(":")[0])
    named = source.reply(ask('Give me JSON with keys "name" and "age"', json_schema=ANY_OBJECT))
    assert set(json.loads(named.text)) == {"name", "age"}


def test_thinking_counts_and_comes_first(source: ComposedReplies) -> None:
    reply = source.reply(ask("x", reasoning_tokens=30, max_tokens=100))
    check(reply)
    assert [part.kind for part in reply.parts] == ["reasoning", "text"]
    assert len(reply.ids) == 100
    assert reply.finish_reason == "length"
    only = source.reply(ask("x", reasoning_tokens=30, max_tokens=10))
    assert [part.kind for part in only.parts] == ["reasoning"]
    assert only.text == ""


def test_a_choice_is_one_of_the_list(source: ComposedReplies) -> None:
    texts = {source.reply(ask("x", seed=s, grammar=Grammar("choice", choices=("yes", "no")))).text for s in range(20)}
    assert texts == {"yes", "no"}


def test_what_cannot_be_is_refused(source: ComposedReplies) -> None:
    with pytest.raises(SchemaError):
        source.reply(ask("x", json_schema={"type": "nothing"}))
    with pytest.raises(GrammarError):
        source.reply(ask("x", grammar=Grammar("lark", "start: start")))


LARK = """
start: expr
expr: term (("+" | "-") term)*   // a sum
    | "0"
?term: NUMBER | "(" expr ")" -> group
NUMBER: /[0-9]{1,3}/
%ignore " "
"""
GBNF = 'root ::= "yes" | "no" ws list\nlist ::= item ("," ws item)*\nitem ::= [a-z]+\nws ::= " "?  # optional\n'
SELECT = 'start: "SELECT " COLS " FROM " CNAME ";"\nCOLS: "*" | CNAME ("," CNAME)~1..2\n%import common.CNAME\n'


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (LARK, r"[0-9()+-]+"),
        (GBNF, r"yes|no ?[a-z]+(, ?[a-z]+)*"),
        (SELECT, r"SELECT (\*|\w+(,\w+){1,2}) FROM \w+;"),
        ('start: "a".."c" {2,3}\n', "[a-c]{2,3}"),
        ('start: "\\u0041" ["b"]', "Ab?"),
    ],
)
def test_texts_follow_their_grammar(definition: str, expected: str) -> None:
    texts = [text_for(definition, seed) for seed in range(30)]
    assert all(re.fullmatch(expected, text) for text in texts)
    assert texts == [text_for(definition, seed) for seed in range(30)]


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("", "no rules"),
        ("start: other", "no rule 'other'"),
        ("start: start", "never comes to an end"),
        ('start: ("a"', "never closed"),
        ("start: \x00", "cannot be read"),
        ("%declare X\nstart: X", "not supported"),
        ('start "a"', "expected ':'"),
    ],
)
def test_a_grammar_that_is_none_is_refused(definition: str, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        text_for(definition, 1)


@given(st.integers(0, 31_999), st.integers(0, 10_000), st.integers(0, 20))
def test_log_probabilities_belong_together(token: int, position: int, top: int) -> None:
    found = token_logprob(token, position, 32_000, top)
    assert found == token_logprob(token, position, 32_000, top)
    assert found.logprob <= 0
    assert len(found.top) == top
    assert len({i for i, _ in found.top}) == top
    assert [p for _, p in found.top] == sorted((p for _, p in found.top), reverse=True) or found.top[-1][0] == token
    assert sum(math.exp(p) for _, p in found.top) <= 1 + 1e-6
    assert not top or (token, found.logprob) in found.top
    assert found.logprob == token_logprob(token, position, 32_000).logprob


@pytest.mark.parametrize(
    ("said", "name", "age"),
    [
        ("Extract Jason is 25 years old", "Jason", 25),
        ("John Doe is 30 years old and lives in Berlin.", "John Doe", 30),
        ("look up the user Mary, she is 41", "Mary", 41),
    ],
)
def test_what_the_user_names_is_in_the_answer(source: ComposedReplies, said: str, name: str, age: int) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
              "required": ["name", "age"]}  # fmt: skip
    assert json.loads(source.reply(ask(said, json_schema=schema)).text) == {"name": name, "age": age}


def test_a_value_in_a_code_block(source: ComposedReplies) -> None:
    text = source.reply(ask("x", json_schema={"const": 1}, fenced=True)).text
    assert text == "```json\n1\n```"


def test_a_decimal_is_a_number_and_an_object_without_required_keys_is_not_empty() -> None:
    decimal = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    assert all(isinstance(value_for(decimal, seed), int | float) for seed in range(30))
    schema = {"type": "object", "properties": {"tasks": {"type": "array", "items": {"type": "integer"}}}}
    assert all(value_for(schema, seed)["tasks"] for seed in range(30))


@pytest.mark.parametrize(
    ("tool", "said", "numbers"),
    [
        ("multiply", "what is 3 * 12? Also, what is 11 + 49?", [3, 12]),
        ("add", "what is 3 * 12? Also, what is 11 + 49?", [11, 49]),
        ("add_numbers", "Add 2 and 3, then multiply 7 by 8", [2, 3]),
        ("multiply", "Add 2 and 3, then multiply 7 by 8", [7, 8]),
        ("divide", "20 divided by 4", [20, 4]),
        ("power", "2 and 10", [2, 10]),
    ],
)
def test_numbers_go_to_the_operation_they_belong_to(
    source: ComposedReplies, tool: str, said: str, numbers: list[int]
) -> None:
    reply = source.reply(ask(said, tools=(Tool("function", tool, "", NUMBERS),), tool_choice=ToolChoice("required")))
    assert list(json.loads(reply.said(reply.parts[0])).values()) == numbers


def test_a_place_in_lower_case() -> None:
    assert arguments_for(PLACE, "what's the weather in oslo?", 0)["location"] == "oslo"
    assert arguments_for(PLACE, "what's the weather in the morning?", 0)["location"] != "the"


def test_a_short_follow_up_asks_for_what_was_called_before() -> None:
    def chosen(said: str, *before: str) -> list[str]:
        return [tool.name for tool in choose_tools(ask(said, tools=TOOLS, called_before=before))]

    assert chosen("And in London?", "get_weather") == ["get_weather"]
    assert chosen("What about London?", "get_weather") == ["get_weather"]
    assert chosen("And in London?") == []
    assert chosen("Thanks", "get_weather") == []


def test_what_is_named_goes_where_it_belongs() -> None:
    def heard(said: str, **properties: Any) -> dict[str, Any]:
        return arguments_for({"type": "object", "properties": properties, "required": list(properties)}, said, 0)

    text, whole = {"type": "string"}, {"type": "integer"}
    assert heard("Book a flight from New York to London", origin=text, destination=text) == {
        "origin": "New York",
        "destination": "London",
    }
    assert calls_wanted({"properties": {"origin": text, "destination": text}}, "a flight from New York to London") == 1
    assert heard("Send a mail to bob@example.org", to=text)["to"] == "bob@example.org"
    assert heard("Read the file config.yaml", path=text)["path"] == "config.yaml"
    assert heard("Roll two dice", n=whole)["n"] == 2
    assert heard("What is my horoscope? I am an Aquarius.", sign=text)["sign"] == "Aquarius"
    assert heard("Alice and Bob meet", participants={"type": "array", "items": text})["participants"] == ["Alice", "Bob"]
