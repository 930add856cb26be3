"""Replies that think, call tools and obey schemas."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llmirage_server.replies.arguments import arguments_for
from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import ANY_OBJECT, Grammar, Reply, ReplyRequest, Tool, ToolChoice
from llmirage_server.replies.structured.grammar import text_for
from llmirage_server.replies.structured.matcher import GrammarError
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.tool_request import calls_now
from llmirage_server.service.logprobs import token_logprob

PLACE = {"type": "object", "properties": {"location": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
         "required": ["location"], "additionalProperties": False}  # fmt: skip
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
MAIL = {"type": "object", "properties": {"to": {"type": "string", "format": "email"}, "subject": {"type": "string"}},
        "required": ["to", "subject"]}  # fmt: skip
WEATHER = Tool("function", "get_weather", "Get the current weather for a location", PLACE)
ADD = Tool("function", "add_numbers", "Add two numbers", NUMBERS)
SEND = Tool("function", "send_email", "Send an email to somebody", MAIL)
ZIP = {"type": "string", "pattern": r"^\d{5}$"}
ADDRESS = {"type": "object", "properties": {"city": {"type": "string", "minLength": 3}, "zip": ZIP},
           "required": ["city", "zip"], "additionalProperties": False}  # fmt: skip
ORDER = Tool("function", "place_order", "Order things", {
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "to": {"$ref": "#/$defs/address"},
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "colour": {"anyOf": [{"enum": ["red", "blue"]}, {"type": "null"}]},
        "on": {"type": "string", "format": "date"},
        "gift": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["to", "items", "colour", "on", "gift", "count"],
    "additionalProperties": False,
})  # fmt: skip
CLOCK = Tool("function", "get_current_time", "Returns the current time")
SQL = Tool("custom", "run_sql", "Runs SQL", None, Grammar("regex", r"SELECT [a-z]{3,5} FROM [a-z]{3,5};"))
TOOLS = (WEATHER, ADD, SEND, CLOCK, SQL)
IDS = np.arange(20, dtype=np.int32)


def ask(said: str, **more: Any) -> ReplyRequest:
    return ReplyRequest(**{"prompt_ids": IDS, "max_tokens": None, "limit_tokens": 4000, **more, "last_user_text": said})


def names(request: ReplyRequest) -> list[str]:
    return [call.tool.name for call in calls_now(request)]


def test_the_choice_binds() -> None:
    weather = "What's the weather in Paris?"
    assert names(ask(weather, tools=TOOLS, tool_choice=ToolChoice("none"))) == []
    assert names(ask(weather, tools=TOOLS, called=("get_weather",))) == []
    assert names(ask(weather, tools=TOOLS, ignore_eos=True)) == []
    assert names(ask("Hi", tools=TOOLS, tool_choice=ToolChoice("required", ("send_email",)))) == ["send_email"]
    assert names(ask("Hi", tools=TOOLS, tool_choice=ToolChoice("auto", ("send_email",)))) == []
    required = ask(weather, tools=TOOLS, tool_choice=ToolChoice("required"), called=("get_weather",))
    assert names(required) == ["run_sql"]
    both = "get_weather and get_current_time, please"
    assert names(ask(both, tools=TOOLS)) == ["get_weather", "get_current_time"]
    assert names(ask(both, tools=TOOLS, parallel_tool_calls=False)) == ["get_weather"]


def test_required_never_answers_in_text_and_a_named_choice_is_one_call() -> None:
    required, called = ToolChoice("required"), tuple(tool.name for tool in TOOLS)
    assert len(names(ask("get_weather", tools=TOOLS, tool_choice=required, called=called))) == 1
    named = ToolChoice("required", ("get_weather",))
    said = "get_weather for Paris, get_weather for London and get_current_time"
    assert names(ask(said, tools=TOOLS, tool_choice=named, called=("get_weather",))) == ["get_weather"]


@given(st.text(max_size=80) | st.text("{}[]<>\"'`:,=/. \n7aA", max_size=40), st.integers(0, 2**32))
def test_arguments_are_valid_whatever_was_said(said: str, seed: int) -> None:
    for tool in (WEATHER, ADD, SEND, ORDER):
        for text in (said, f"{said} {tool.name} {said}"):
            [call] = calls_now(ask(text, tools=(tool,), tool_choice=ToolChoice("required", (tool.name,))))
            Draft202012Validator(tool.parameters).validate(arguments_for(call, seed))


@pytest.mark.parametrize(
    "said", ["1+" * 1500 + "1", "(" * 4000, "<a>" * 30_000, "a" * 100_000, "get weather " * 300, "\x00`" * 900, "a.b/" * 900]
)
def test_no_text_is_too_odd(said: str) -> None:
    for choice in ("auto", "required"):
        for call in calls_now(ask(said, tools=TOOLS, tool_choice=ToolChoice(choice))):
            assert call.tool.kind == "custom" or Draft202012Validator(call.tool.parameters or {}).is_valid(
                arguments_for(call, 0)
            )


def test_what_is_left_out_is_null_its_default_or_absent() -> None:
    unit = {"enum": ["celsius", "fahrenheit", None]}
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "unit": unit, "days": {"type": "integer"},
              "size": {"type": "integer", "default": 4}}, "required": ["city", "unit", "size"]}  # fmt: skip
    nullable = {**schema, "properties": {**schema["properties"], "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    for parameters in ({**schema, "required": ["city", "size"]}, nullable):
        tool = Tool("function", "get_weather", "", parameters)
        [call] = calls_now(ask("get_weather in Paris", tools=(tool,)))
        found = arguments_for(call, 1)
        assert found.pop("unit", None) is None
        assert found == {"city": "Paris", "size": 4}


def test_a_text_gets_into_no_format_that_it_does_not_have() -> None:
    forms = {"when": "date-time", "at": "time", "span": "duration"}
    properties = {name: {"type": "string", "format": form} for name, form in forms.items()} | {"name": {"type": "string"}}
    form = {"type": "object", "properties": properties}
    tool = Tool("function", "book", "", {**form, "required": list(form["properties"])})
    [call] = calls_now(ask("book for Ann Lee at 3pm, 'soon'", tools=(tool,)))
    found = arguments_for(call, 1)
    assert found["at"] == "15:00:00Z"
    assert found["name"] == "soon"
    assert "T" in found["when"]
    assert found["span"] not in ("Ann Lee", "soon", "3pm")


def test_a_list_of_objects_is_a_sample() -> None:
    users = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
    tool = Tool("function", "IterableUser", "", {"type": "object", "properties": {"users": users}})
    [call] = calls_now(ask("Jason is 25", tools=(tool,), tool_choice=ToolChoice("required", ("IterableUser",))))
    assert arguments_for(call, 1)["users"][0]["name"]


def test_an_answer_begins_with_the_results_of_the_tools(source: ComposedReplies) -> None:
    given = {"called": ("get_weather", "get_current_time"), "results": ("18 degrees, sunny", "noon"), "tools": TOOLS}
    begins = "get_weather: 18 degrees, sunny\nget_current_time: noon\n\n"
    reply = source.reply(ask("get_weather, get_current_time", **given))
    check(reply)
    assert reply.text.startswith(begins)
    assert len(reply.text) > len(begins) + 20
    cut = source.reply(ask("x", max_tokens=25, **given))
    assert (len(cut.ids), cut.finish_reason) == (25, "length")
    assert cut.text.startswith(begins)
    short = source.reply(ask("x", max_tokens=3, **given))
    assert (len(short.ids), short.finish_reason) == (3, "length")
    assert begins.startswith(short.text)
    stopped = source.reply(ask("x", stop=(", sunny",), **given))
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("get_weather: 18 degrees", "stop", ", sunny")
    assert [part.kind for part in source.reply(ask("x", reasoning_tokens=30, **given)).parts] == ["reasoning", "text"]
    wanted = ask("x", max_tokens=40, ignore_eos=True, **given)
    assert "18 degrees" not in source.reply(wanted).text


def check(reply: Reply) -> None:
    assert len(reply.ids) == len(reply.pieces) >= 1
    at = 0
    for part in reply.parts:
        assert at <= part.start <= part.end <= len(reply.ids)
        assert all(not piece for piece in reply.pieces[at : part.start])
        at = part.end


def test_a_custom_tool_gets_input_of_its_grammar(source: ComposedReplies) -> None:
    reply = source.reply(ask("x", tools=TOOLS, tool_choice=ToolChoice("required", ("run_sql",)), reasoning_tokens=20))
    check(reply)
    thought, call = reply.parts
    assert (thought.kind, call.kind) == ("reasoning", "custom_call")
    assert reply.reasoning_tokens == thought.end - thought.start > 0
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
    reply = source.reply(ask("x", reasoning_tokens=30, max_tokens=100, ignore_eos=True))
    check(reply)
    assert [part.kind for part in reply.parts] == ["reasoning", "text"]
    assert len(reply.ids) == 100
    assert reply.finish_reason == "length"
    ended = source.reply(ask("x", reasoning_tokens=30, max_tokens=500))
    assert (ended.finish_reason, ended.reasoning_tokens) == ("stop", reply.reasoning_tokens)
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
        ("%declare X\nstart: X", "line 1 of the grammar: %declare"),
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
