"""Every condition and every kind of reply of a script, in each API that has it, whole and streamed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scripted import CONVERSING, ENDPOINTS, MODEL, Heard, ask, heard

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig

TOOL_ARGUMENTS = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@pytest.fixture
def scripted(make_api: Callable[..., Any]) -> Callable[..., Any]:
    """An API whose script has these rules and refuses what fits none."""

    def make(*rules: Any, **settings: Any) -> Any:
        api = make_api()
        given = {"ttft_ms": 0.0, "itl_ms": 0.0, **settings}
        api.app = create_app(ClusterConfig(**given), script={"rules": list(rules), "fallback": "error"})
        return api

    return make


Asked = dict[str, Any]
# A condition, what is asked that fits it, and what is asked that does not.
CONDITIONS: dict[str, tuple[dict[str, Any], Asked, Asked]] = {
    "user contains": ({"user": "WEATHER"}, {"users": ["the weather?"]}, {"users": ["the wether?"]}),
    "user all of": ({"user": {"contains": ["a b", "C"]}}, {"users": ["c a b"]}, {"users": ["a b"]}),
    "user exact": ({"user": {"exact": "Hello"}}, {"users": ["Hello"]}, {"users": ["hello"]}),
    "user regex": ({"user": {"regex": r"^\d+$"}}, {"users": ["42"]}, {"users": ["42 "]}),
    "only the last user message": ({"user": "one"}, {"users": ["two", "one"]}, {"users": ["one", "two"]}),
    "system": ({"system": "terse"}, {"system": "Be terse."}, {"system": "Be long."}),
    "no system": ({"system": {"regex": "."}}, {"system": "x"}, {}),
    "model": ({"model": "gpt-*"}, {"model": "gpt-5"}, {"model": "o3"}),
    "turn": ({"turn": 2}, {"users": ["a", "b"]}, {"users": ["a", "b", "c"]}),
    "turns": ({"turn": {"from": 2}}, {"users": ["a", "b", "c"]}, {"users": ["a"]}),
    "messages of the assistant": ({"assistant_messages": 1}, {"users": ["a", "b"]}, {"users": ["a"]}),
    "no message of the assistant": ({"assistant_messages": 0}, {}, {"results": [("get_order", "shipped")]}),
    "calls are messages of the assistant": (
        {"assistant_messages": {"from": 1, "to": 1}},
        {"results": [("a", "1"), ("b", "2")]},
        {"users": ["a", "b"], "results": [("a", "1")]},
    ),
    "a declared tool": ({"tool": "get_*"}, {"tools": {"x": {}, "get_order": {}}}, {"tools": {"order": {}}}),
    "no declared tool": ({"tool": "*"}, {"tools": {"x": {}}}, {}),
    "header": ({"header": {"X-Tenant": "ac*"}}, {"headers": {"x-tenant": "acme"}}, {"headers": {"x-tenant": "bc"}}),
    "no header": ({"header": {"X-Tenant": "*"}}, {"headers": {"x-tenant": "acme"}}, {}),
    "metadata": ({"metadata": {"user_id": "u1"}}, {"metadata": {"user_id": "u1"}}, {"metadata": {"user_id": "u2"}}),
    "no result": ({"tool_result": False}, {}, {"results": [("get_order", "shipped")]}),
    "a result": ({"tool_result": True}, {"results": [("get_order", "shipped")]}, {}),
    "a tool's result": (
        {"tool_result": "get_*"},
        {"results": [("get_order", "shipped")]},
        {"results": [("cancel", "done")]},
    ),
    "what a result says": (
        {"tool_result": {"content": {"regex": "^ship"}}},
        {"results": [("get_order", "shipped")]},
        {"results": [("get_order", "lost")]},
    ),
    "one of two results": (
        {"tool_result": {"name": "a", "content": "1"}},
        {"results": [("a", "1"), ("b", "2")]},
        {"results": [("a", "2"), ("b", "1")]},
    ),
}
# Those without messages have no system prompt, one turn and no tools; and the native API of SGLang names no model.
OF_PROMPTS = {name for name in CONDITIONS if name.startswith("user")} | {"header", "no header"}
HAVE = {
    "completions": OF_PROMPTS | {"model"},
    "generate": OF_PROMPTS,
    **{endpoint: set(CONDITIONS) for endpoint in CONVERSING},
}


@pytest.mark.parametrize(
    ("endpoint", "condition"), [(endpoint, name) for endpoint in ENDPOINTS for name in CONDITIONS if name in HAVE[endpoint]]
)
def test_a_condition(scripted: Callable[..., Any], endpoint: str, condition: str) -> None:
    when, fitting, other = CONDITIONS[condition]
    api = scripted({"when": {"endpoint": endpoint, **when}, "reply": "yes"}, {"reply": "no"})
    assert heard(endpoint, ask(api, endpoint, **fitting)).text == "yes"
    assert heard(endpoint, ask(api, endpoint, **other)).text == "no"
    assert [entry.rule for entry in api.app.journal.entries] == ["script rules[0]", "script rules[1]"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_endpoint(scripted: Callable[..., Any], endpoint: str) -> None:
    api = scripted(*[{"when": {"endpoint": name}, "reply": f"of {name}"} for name in ENDPOINTS])
    assert heard(endpoint, ask(api, endpoint)).text == f"of {endpoint}"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_nth_and_sequences(scripted: Callable[..., Any], endpoint: str, stream: bool) -> None:
    api = scripted(
        {"when": {"nth": {"from": 2, "to": 2}}, "reply": "second"}, {"reply": ["first", "then", "finally {count}"]}
    )
    texts = [heard(endpoint, ask(api, endpoint, stream=stream)).text for _ in range(5)]
    assert texts == ["first", "second", "then", "finally 3", "finally 4"]


CALL = {"name": "get_order", "arguments": {"id": "{1}"}}
REPLIES: dict[str, tuple[Any, Heard]] = {
    "text": ("Grüße \U0001f600, {user}: {1} {{1}} {model}", Heard("Grüße \U0001f600, order 42: 42 {1} gpt-5")),
    "calls": ({"tool_calls": [CALL, CALL]}, Heard(calls=[("get_order", {"id": 42})] * 2, ended="calls")),
    "text and a call": ({"text": "Wait.", "tool_calls": [CALL]}, Heard("Wait.", [("get_order", {"id": 42})], ended="calls")),
    "json": ({"json": {"id": "{1}", "list": [1, None, "ü"]}}, Heard('{"id":"42","list":[1,null,"ü"]}')),
    "json null": ({"json": None}, Heard("null")),
    "reasoning": ({"reasoning": "Hm, {1}.", "text": "Yes."}, Heard("Yes.", thoughts="Hm, 42.")),
    "reasoning and a call": (
        {"reasoning": "Hm.", "tool_calls": [CALL]},
        Heard(calls=[("get_order", {"id": 42})], thoughts="Hm.", ended="calls"),
    ),
    "refusal": ({"refusal": "No, {1}."}, Heard(refusal="No, 42.")),
    "length": ({"text": "Cut", "finish_reason": "length"}, Heard("Cut", ended="length")),
    "filter": ({"text": "Cut", "finish_reason": "content_filter"}, Heard("Cut", ended="filter")),
    "empty": ("", Heard("")),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [(endpoint, kind) for endpoint in ENDPOINTS for kind in REPLIES if endpoint in CONVERSING or "call" not in kind],
)
def test_a_reply(scripted: Callable[..., Any], endpoint: str, kind: str, stream: bool) -> None:
    reply, wanted = REPLIES[kind]
    api = scripted({"when": {"user": {"regex": r"order (\d+)"}}, "reply": reply})
    asked = {"tools": {"get_order": TOOL_ARGUMENTS}} if "call" in kind else {}
    said = heard(endpoint, ask(api, endpoint, users=["order 42"], model="gpt-5", stream=stream, **asked))
    if endpoint == "generate":  # which names no model
        wanted = replace(wanted, text=wanted.text.replace("gpt-5", MODEL))
    assert said == wanted.as_told_by(endpoint)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", CONVERSING)
def test_an_agents_loop_quotes_what_its_tools_returned(scripted: Callable[..., Any], endpoint: str, stream: bool) -> None:
    api = scripted(
        {"when": {"user": {"regex": r"order (?P<id>\d+)"}}, "reply": {"tool_calls": [CALL | {"arguments": {"id": "{id}"}}]}},
        {"when": {"tool_result": "get_order"}, "reply": "{result.items.1.name}: {results.get_order} / {results}"},
    )
    asked: Any = {"users": ["order 7"], "tools": {"get_order": TOOL_ARGUMENTS}, "stream": stream}
    assert heard(endpoint, ask(api, endpoint, **asked)).calls == [("get_order", {"id": 7})]
    result = json.dumps({"items": [{"name": "a"}, {"name": "{user} ü"}]}, ensure_ascii=False)
    answer = heard(endpoint, ask(api, endpoint, results=[("get_order", result)], **asked))
    assert (answer.text, answer.calls) == (f"{{user}} ü: {result} / {result}", [])  # what a tool returned is no template


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_fault_and_a_rule_that_cannot_reply(scripted: Callable[..., Any], endpoint: str, stream: bool) -> None:
    api = scripted({"reply": [{"fault": {"kind": "status", "status": 503}}, "{result}", "ok"], "when": {"user": "Hello"}})
    statuses = [ask(api, endpoint, stream=stream) for _ in range(3)]
    assert [answer.status_code for answer in statuses] == [503, 400, 200]
    assert "script rules[0]: {result} needs a tool result" in statuses[1].text
    assert heard(endpoint, statuses[2]).text == "ok"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_tokens_and_usage(scripted: Callable[..., Any], endpoint: str, stream: bool) -> None:
    api = scripted(
        {"when": {"nth": 1}, "reply": {"tokens": 33}},
        {"reply": {"text": "a", "usage": {"prompt_tokens": 1000, "cached_tokens": 900, "completion_tokens": 50}}},
    )
    counted = heard(endpoint, ask(api, endpoint, stream=stream, most=100))
    assert counted.completion_tokens == 33
    assert len(counted.text) > 33
    told = heard(endpoint, ask(api, endpoint, stream=stream))
    assert (told.prompt_tokens, told.cached_tokens, told.completion_tokens) == (1000, 900, 50)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_choices(scripted: Callable[..., Any], endpoint: str, stream: bool) -> None:
    api = scripted({"reply": {"choices": ["one", {"text": "two", "finish_reason": "length"}]}})
    answer = ask(api, endpoint, stream=stream, n=3)
    assert [(said.text, said.ended) for said in (heard(endpoint, answer, choice) for choice in range(3))] == [
        ("one", "stop"), ("two", "length"), ("one", "stop"),
    ]  # fmt: skip
