"""Answers and arguments obey their JSON Schema, whatever field gives it, or the request is refused with its name."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
from nasty_schemas import CONTRADICTORY, NASTY, Judges, drawn_schema

from ..conftest import Api

TEXT = (
    'Call take with value: go, a ÄB, "x1" and 7, 19.99, on 2001-02-30, mail bob@x.org, see https://a.example/{b} or /tmp/a. '
    'The a is "aa", ab is "B7", b: no.'
)
MOST_TOKENS = 20_000


class Route(NamedTuple):
    """A way to give a schema: the request, the value in its response, and how errors name the field."""

    path: str
    body: Callable[[Any], dict[str, Any]]
    value: Callable[[Any], Any]
    field: str
    closed: bool = False  # the schema must be one of objects


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": MOST_TOKENS, **fields}


def _content(response: Any) -> Any:
    return json.loads(response["choices"][0]["message"]["content"])


def _named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": "take", "schema": schema, **more}


ROUTES: dict[str, Route] = {
    "response_format": Route(
        "/v1/chat/completions",
        lambda schema: _chat(response_format={"type": "json_schema", "json_schema": _named(schema)}),
        _content, "response_format"),
    "chat tool": Route(
        "/v1/chat/completions",
        lambda schema: _chat(tools=[{"type": "function", "function": {"name": "other"}},
                                    {"type": "function", "function": {"name": "take", "parameters": schema}}]),
        lambda response: json.loads(response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
        "tools[1].function.parameters", True),
    "chat function": Route(
        "/v1/chat/completions",
        lambda schema: _chat(functions=[{"name": "take", "parameters": schema}], function_call={"name": "take"}),
        lambda response: json.loads(response["choices"][0]["message"]["function_call"]["arguments"]),
        "functions[0].parameters", True),
    "guided_json": Route("/v1/chat/completions", lambda schema: _chat(guided_json=schema), _content, "guided_json"),
    "json_schema": Route(
        "/v1/chat/completions", lambda schema: _chat(json_schema=json.dumps(schema)), _content, "json_schema"),
    "structured_outputs": Route(
        "/v1/completions",
        lambda schema: {"model": "m", "prompt": TEXT, "max_tokens": MOST_TOKENS, "structured_outputs": {"json": schema}},
        lambda response: json.loads(response["choices"][0]["text"]), "structured_outputs.json"),
    "json_object": Route(
        "/v1/completions",
        lambda schema: {"model": "m", "prompt": TEXT, "max_tokens": MOST_TOKENS,
                        "response_format": {"type": "json_object", "schema": schema}},
        lambda response: json.loads(response["choices"][0]["text"]), "response_format"),
    "text.format": Route(
        "/v1/responses",
        lambda schema: {"model": "m", "input": TEXT, "text": {"format": {"type": "json_schema", **_named(schema)}}},
        lambda response: json.loads(response["output"][-1]["content"][0]["text"]), "text.format.schema"),
    "responses tool": Route(
        "/v1/responses",
        lambda schema: {"model": "m", "input": TEXT, "tools": [{"type": "function", "name": "take", "parameters": schema}]},
        lambda response: json.loads(response["output"][-1]["arguments"]), "tools[0].parameters", True),
    "responses structured_outputs": Route(
        "/v1/responses",
        lambda schema: {"model": "m", "input": TEXT, "structured_outputs": {"json": schema}},
        lambda response: json.loads(response["output"][-1]["content"][0]["text"]), "structured_outputs.json"),
    "input_schema": Route(
        "/v1/messages",
        lambda schema: _chat(tools=[{"name": "take", "input_schema": schema}], tool_choice={"type": "any"}),
        lambda response: response["content"][-1]["input"], "tools.0.input_schema", True),
    "output_config": Route(
        "/v1/messages",
        lambda schema: _chat(output_config={"format": {"type": "json_schema", "schema": schema}}),
        lambda response: json.loads(response["content"][-1]["text"]), "output_config.format.schema"),
    "output_format": Route(
        "/v1/messages",
        lambda schema: _chat(output_format={"type": "json_schema", "schema": schema}),
        lambda response: json.loads(response["content"][-1]["text"]), "output_format.schema"),
    "sampling_params": Route(
        "/generate",
        lambda schema: {"text": TEXT, "sampling_params": {"json_schema": json.dumps(schema), "max_new_tokens": MOST_TOKENS}},
        lambda response: json.loads(response["text"]), "sampling_params.json_schema"),
}  # fmt: skip
# Those that drawn schemas are sent to, one after the other.
MAIN_ROUTES = ("response_format", "chat tool", "text.format", "input_schema", "sampling_params")


def asked(schema: Any, route: Route) -> Any:
    """The schema as the route takes it: where it must be of objects, that of a property."""
    if not route.closed or (isinstance(schema, dict) and schema.get("type") == "object"):
        return schema
    moved = () if "$id" in schema else ("$defs", "x-types")
    inner = {key: value for key, value in schema.items() if key not in moved}
    more = {key: value for key, value in schema.items() if key in moved}
    return {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False, **more}


def answer(api: Api, schema: Any, name: str) -> httpx.Response:
    return api.post(ROUTES[name].path, ROUTES[name].body(schema))


def error_field(response: httpx.Response) -> str:
    error = response.json()["error"]
    return str(error.get("param") or error["message"].partition(":")[0].removeprefix("Invalid ").strip("'"))


@pytest.mark.parametrize("name", ROUTES)
def test_values_obey_schemas_that_are_hard_to_obey(api: Api, name: str) -> None:
    route = ROUTES[name]
    for place, (about, schema) in enumerate(NASTY.items()):
        if (name in MAIN_ROUTES and (place + MAIN_ROUTES.index(name)) % 2 == 0) or place % 6 == 0:
            given = asked(schema, route)
            response = answer(api, given, name)
            assert response.status_code == 200, (about, response.text)
            assert Judges(given).accept(route.value(response.json())), (about, response.text)


@pytest.mark.parametrize("name", MAIN_ROUTES)
def test_values_obey_drawn_schemas(api: Api, name: str) -> None:
    route = ROUTES[name]
    obeyed = 0
    for seed in range(10_000 + MAIN_ROUTES.index(name), 10_250, len(MAIN_ROUTES)):
        schema = asked(drawn_schema(seed), route)
        response = answer(api, schema, name)
        assert response.status_code in (200, 400), (schema, response.text)
        if response.status_code == 200:
            obeyed += 1
            assert Judges(schema).accept(route.value(response.json())), (schema, response.text)
        else:
            assert error_field(response) == route.field, response.text
    assert obeyed > 40


@pytest.mark.parametrize("name", ROUTES)
def test_a_contradiction_is_refused_with_the_field_that_has_it(api: Api, name: str) -> None:
    cases = list(CONTRADICTORY.items())
    for about, (schema, said) in cases[list(ROUTES).index(name) % 3 :: 3]:  # each on a third of the routes
        response = answer(api, asked(schema, ROUTES[name]), name)
        assert response.status_code == 400, about
        assert error_field(response) == ROUTES[name].field, response.text
        assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ROUTES)
def test_what_is_no_schema_is_refused_with_the_field_that_has_it(api: Api, name: str) -> None:
    response = answer(api, {"type": "object", "properties": {"a": {"type": "strin"}}}, name)
    assert response.status_code == 400
    assert error_field(response) == ROUTES[name].field
    assert "properties.a.type" in response.json()["error"]["message"]


@pytest.mark.parametrize("schema", [r"^(a)\1$", r"^(?<x>a)\k<x>$", "^(?>a)$"])
def test_an_expression_that_is_not_supported_refuses_only_who_needs_it(api: Api, schema: str) -> None:
    unsupported = {"type": "object", "properties": {"a": {"type": "string", "pattern": schema}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": unsupported}} for name in ("take", "other")]
    tools[1]["function"]["parameters"] = {"type": "object", "properties": {"b": {"type": "integer"}}}
    asked_for = {"messages": [{"role": "user", "content": "Call other with b 5"}], "tools": tools}
    response = api.post("/v1/chat/completions", _chat(**asked_for))
    assert json.loads(response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"b": 5}
    plain = _chat(**{**asked_for, "messages": [{"role": "user", "content": "Hello"}]}, tool_choice="none")
    assert api.post("/v1/chat/completions", plain).status_code == 200
    refused = api.post("/v1/chat/completions", _chat(tools=tools, tool_choice="required"))
    assert refused.status_code == 400
    assert error_field(refused) == "tools[0].function.parameters"
    assert "not supported" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "field", "said"),
    [
        ("/v1/chat/completions", {"guided_regex": "["}, "guided_regex", "not a regular expression"),
        ("/v1/chat/completions", {"structured_outputs": {"regex": r"(a)\1"}}, "structured_outputs.regex", "back-references"),
        ("/v1/chat/completions", {"regex": "(?!)"}, "regex", "no text"),
        ("/v1/chat/completions", {"ebnf": "root ::= root"}, "ebnf", "never comes to an end"),
        ("/v1/chat/completions", {"grammar": "root ::= x"}, "grammar", "no rule 'x'"),
        ("/v1/chat/completions", {"guided_json": "{"}, "guided_json", "not valid JSON"),
        ("/v1/completions", {"json_schema": "[" * 50_000}, "json_schema", "not valid JSON"),
        ("/v1/completions", {"structured_outputs": {"json": "nope"}}, "structured_outputs.json", "not valid JSON"),
        ("/v1/chat/completions", {"guided_json": {"$ref": "#/x", "x": {"minLength": "5"}}}, "guided_json", "'5'"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(api: Api, path: str, fields: Any, field: str, said: str) -> None:
    body = _chat(**fields) if "chat" in path else {"model": "m", "prompt": "x", **fields}
    response = api.post(path, body)
    assert response.status_code == 400, response.text
    assert error_field(response) == field
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"regex": "^[0-9]{7}$"}, r"[0-9]{7}"),
        ({"guided_regex": r"\p{Lu}{3}-(?!0)\d"}, r"[A-Z]{3}-[1-9]"),
        ({"ebnf": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"grammar": 'root ::= "a" [0-9]'}, "a[0-9]"),
        ({"guided_json_object": True}, r"\{.*\}"),
    ],
)
def test_forms_of_engines_are_kept(api: Api, fields: Any, text: str) -> None:
    content = api.post("/v1/chat/completions", _chat(**fields)).json()["choices"][0]["message"]["content"]
    assert re.fullmatch(text, content, re.DOTALL), content


def test_a_message_is_short_however_long_the_schema_is(api: Api) -> None:
    name = "n" * 50_000
    for inner in ({"type": "string", "pattern": f"^{name}$", "maxLength": 5}, {"const": name, "maxLength": 3}, False):
        schema = {"type": "object", "properties": {name: inner}, "required": [name]}
        response = answer(api, schema, "guided_json")
        assert response.status_code == 400
        assert len(response.text) < 1_000


def test_a_deep_contradiction_is_told_briefly(api: Api) -> None:
    schema: Any = False
    for _ in range(90):
        schema = {"type": "object", "properties": {"inner": schema}, "required": ["inner"]}
    response = answer(api, schema, "response_format")
    assert response.status_code == 400
    assert len(response.text) < 1_000
