"""`llmirage script convert`: aimock's fixtures as a script that replies as they do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scripted import ask, heard

from llmirage_client.cli import main
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.replies.scripts.conditions import Groups, ScriptRequest
from llmirage_server.replies.scripts.rule import Scope, Template, literal


def convert(path: Path, *fixtures: Any) -> Result:
    path.write_text(json.dumps({"fixtures": list(fixtures)}), encoding="utf-8")
    return CliRunner().invoke(
        main, ["script", "convert", str(path), "--out", str(path.with_name("replies.yaml")), "--force"]
    )


def fixture(response: Any, more: Any = None, **match: Any) -> dict[str, Any]:
    return {"match": match, "response": {"content": response} if isinstance(response, str) else response, **(more or {})}


@pytest.fixture
def converted(make_api: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """An API with the script that these fixtures make."""

    def make(*fixtures: Any, notes: str = "") -> Any:
        result = convert(tmp_path / "fixtures.json", *fixtures)
        assert (result.exit_code, result.stderr.replace(str(tmp_path), "")) == (0, notes)
        api = make_api()
        script = {**yaml.safe_load((tmp_path / "replies.yaml").read_text()), "fallback": "error"}
        api.app = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=0.0), script=script)
        return api

    return make


@pytest.mark.parametrize(
    ("match", "fitting", "other"),
    [
        ({"userMessage": "weather in"}, {"users": ["The weather in Paris"]}, {"users": ["weather"]}),
        ({"systemMessage": ["a", "b"]}, {"system": "b a"}, {"system": "a"}),
        ({"model": "gpt-4o"}, {"model": "gpt-4o-2024-08-06"}, {"model": "gpt-4o-mini"}),
        ({"model": "gpt-4o", "endpoint": "chat"}, {"model": "gpt-4o"}, {"model": "gpt-4"}),
        ({"toolName": "f"}, {"tools": {"f": {}}}, {"tools": {"g": {}}}),
        ({"turnIndex": 1, "hasToolResult": True}, {"results": [("f", "1")]}, {"users": ["a", "b"]}),
        ({"hasToolResult": False}, {}, {"results": [("f", "1")]}),
        ({"toolResultContains": "ok"}, {"results": [("f", "all ok")]}, {"results": [("f", "bad")]}),
        ({"context": "crew"}, {"headers": {"x-aimock-context": "crew"}}, {}),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_a_match(converted: Callable[..., Any], match: Any, fitting: Any, other: Any, endpoint: str) -> None:
    api = converted(fixture("yes", **match))
    assert heard(endpoint, ask(api, endpoint, **fitting)).text == "yes"
    assert ask(api, endpoint, **other).status_code == 404


def test_what_is_said(converted: Callable[..., Any]) -> None:
    calls = [
        {"name": "f", "arguments": '{"a":"{1}"}', "id": "c1"},
        {"name": "g", "arguments": {"b": 1}},
        {"name": "h", "arguments": "{"},
    ]
    api = converted(
        fixture("Say {name} and {{name}}", userMessage="braces"),
        fixture({"content": {"a": ["{1}"]}}, userMessage="json"),
        fixture({"content": "Wait.", "toolCalls": calls, "reasoning": "Hm."}, userMessage="calls"),
        fixture({"toolCalls": calls[:1], "finishReason": "length", "usage": {"input_tokens": 7}}, userMessage="usage"),
        fixture("done", toolCallId="c1"),
        fixture({"error": {"message": "Slow down"}, "status": 429, "retryAfter": 3}, userMessage="error"),
    )  # fmt: skip
    assert heard("chat", ask(api, "chat", users=["braces"])).text == "Say {name} and {{name}}"
    assert heard("chat", ask(api, "chat", users=["json"])).text == '{"a":["{1}"]}'
    said = ask(api, "chat", users=["calls"]).json()["choices"][0]["message"]
    assert (said["content"], said["reasoning_content"]) == ("Wait.", "Hm.")
    assert [call["function"] for call in said["tool_calls"]] == [
        {"name": "f", "arguments": '{"a":"{1}"}'}, {"name": "g", "arguments": '{"b":1}'}, {"name": "h", "arguments": "{"},
    ]  # fmt: skip
    cut = heard("chat", ask(api, "chat", users=["usage"]))
    assert (cut.calls, cut.ended, cut.prompt_tokens) == ([("f", {"a": "{1}"})], "length", 7)
    assert heard("chat", ask(api, "chat", results=[("f", "x")])).text == "done"
    error = ask(api, "chat", users=["error"])
    assert (error.status_code, error.headers["retry-after"], error.json()["error"]["message"]) == (429, "3", "Slow down")


def test_a_sequence_is_one_rule(converted: Callable[..., Any]) -> None:
    """Also where calls and their results come between: the last user message stays what it was."""
    call = {"toolCalls": [{"name": "f", "arguments": {}}]}
    api = converted(
        fixture("last", userMessage="trip", sequenceIndex=2),
        fixture("other", userMessage="other"),
        fixture(call, userMessage="trip", sequenceIndex=0),
        fixture(call, userMessage="trip", sequenceIndex=1),
        fixture("never", userMessage="trip", sequenceIndex=1),
        fixture("from then on", userMessage="trip"),
    )
    said = [heard("chat", ask(api, "chat", users=["trip"], results=results)) for results in ((), [("f", "1")], (), ())]
    assert [each.text or each.calls for each in said] == [[("f", {})], [("f", {})], "last", "from then on"]


def test_what_has_no_counterpart_is_left_out_and_said(converted: Callable[..., Any]) -> None:
    blocks = {"blocks": [{"type": "toolCall", "name": "f", "arguments": "{}"}, {"type": "text", "text": "a"}]}
    converted(
        fixture("a", userMessage="a"),
        fixture("b", userMessage="an apple"),
        fixture("c", responseFormat="json_object"),
        fixture({"embedding": [1]}, inputText="x"),
        fixture("d", toolCallId="c9"),
        fixture({}, userMessage="d"),
        fixture("e", userMessage="e", sequenceIndex=1),
        fixture({"content": "f", "id": "x"}, {"latency": 5}, userMessage="b"),
        fixture(blocks, userMessage="h"),
        notes="""\
/fixtures.json: fixtures[1]: left out: an earlier fixture fits all that it fits
/fixtures.json: fixtures[2]: left out: match.responseFormat has no counterpart in a script
/fixtures.json: fixtures[3]: left out: response.embedding has no counterpart in a script
/fixtures.json: fixtures[4]: left out: no fixture calls a tool with the id 'c9'
/fixtures.json: fixtures[5]: left out: the response says nothing
/fixtures.json: fixtures[6]: left out: the sequenceIndex of what has this match must count from 0 on, not [1]
/fixtures.json: fixtures[7]: ignored: latency, id
/fixtures.json: fixtures[8]: ignored: the order of blocks (text comes before calls)
""",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "has no list of fixtures"),
        ('{"fixtures": [{"match": {}}]}', "fixtures[0]: must have match and response"),
        ('{"fixtures": []}', "no fixture in these files can be a rule"),
        ('{"fixtures": [{"match": {"userMessage": 5}, "response": {"content": "a"}}]}', "5 is not a text"),
        ('{"fixtures": [{"match": {"turnIndex": -1}, "response": {"content": "a"}}]}', "must be at least 0"),
        ('{"fixtures": [{"match": {}, "response": {"toolCalls": [{"arguments": 5}]}}]}', "must be a mapping or a text"),
        ('{"fixtures": [{"match": {}, "response": {"blocks": [5], "usage": 7}}]}', "blocks"),
        ('{"fixtures": [{"match": {}, "response": {"content": "a", "usage": 7}}]}', "usage"),
        ('{"fixtures": [{"match": {"sequenceIndex": "a"}, "response": {"content": "a"}}]}', "sequenceIndex"),
        ('{"fixtures": [{"match": {"toolCallId": ["a"]}, "response": {"content": "a"}}]}', "no fixture calls a tool"),
        ('{"fixtures": [{"match": {}, "response": {"toolCalls": null}}]}', "response.toolCalls must be a list of objects"),
        ('{"fixtures": [{"match": {}, "response": {"error": {"message": 5}, "status": "x"}}]}', "status"),
    ],
)
def test_a_file_that_cannot_be_converted(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "fixtures.json").write_text(text)
    result = CliRunner().invoke(main, ["script", "convert", str(tmp_path), "--out", str(tmp_path / "replies.yaml")])
    assert (result.exit_code, problem in result.stderr) == (2, True), result.output
    assert not (tmp_path / "replies.yaml").exists()


def test_a_script_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"fixtures": [fixture("a", userMessage="a")]}))
    words = ["script", "convert", str(tmp_path / "a.json"), "--out"]
    (tmp_path / "replies.yaml").write_text("rules: []")
    kept = CliRunner().invoke(main, [*words, str(tmp_path / "replies.yaml")])
    assert (kept.exit_code, "--force overwrites it" in kept.stderr) == (2, True)
    nowhere = CliRunner().invoke(main, [*words, str(tmp_path / "no" / "replies.yaml")])
    assert (nowhere.exit_code, "No such file" in nowhere.stderr) == (2, True)


@given(st.text(alphabet=st.sampled_from("{}a1.é \\")))
def test_a_literal_says_its_text(text: str) -> None:
    scope = Scope(ScriptRequest("chat", "m", "u"), Groups(), 1)
    assert Template.of(literal(text)).render(scope) == text
