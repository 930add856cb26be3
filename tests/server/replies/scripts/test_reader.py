"""Scripts as they are written: what is refused, with its line, and what the keys mean."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llmirage_server.commands.script_actions import EXAMPLE_FILE
from llmirage_server.replies.scripts.checks import shadowed
from llmirage_server.replies.scripts.conditions import ENDPOINTS
from llmirage_server.replies.scripts.reader import read_scripts, script_of
from llmirage_server.replies.scripts.rule import FALLBACKS, FINISH_REASONS, KEYS, MOST_RULES, SCHEMA, Script
from llmirage_shared.settings import ConfigError
from llmirage_shared.yaml_lines import YamlNode


def read_fault(node: YamlNode, place: str, report: Any, _: str) -> Any:
    if node.value == "bad":
        report(node.line, place, "there is no fault 'bad'")
        return None
    return node.value


def problems(tmp_path: Path, text: str) -> list[str]:
    """Of a script, without the path before them."""
    path = tmp_path / "replies.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_scripts([str(path)], read_fault)
    return [problem.removeprefix(f"{path}:") for problem in refused.value.problems]


def script(*rules: Any, **more: Any) -> Script:
    return script_of({"rules": list(rules), **more}, read_fault)


MISTAKES = """
{when: {usr: a}, reply: b}                       | .when.usr: unknown key (did you mean 'user'?)
{wehn: {user: a}, reply: b}                      | .wehn: unknown key (did you mean 'when'?)
{when: {user: a}}                                | : reply is missing
{when: {user: 42}, reply: b}                     | .when.user: must be a text or one of contains, exact, regex; not 42
{when: {user: ''}, reply: b}                     | .when.user: must not be empty
{when: {user: {regex: '(a'}}, reply: b}          | .when.user: is not a regular expression of RE2: missing ): (a
{when: {user: {regex: a, exact: b}}, reply: b}   | .when.user: must have one of contains, exact, regex
{when: {endpoint: chta}, reply: b}               | .when.endpoint: must be one of chat, completions, responses
{when: {turn: {from: 3, to: 2}}, reply: b}       | .when.turn: can never match: from 3 to 2
{when: {nth: 0}, reply: b}                       | .when.nth: must be at least 1, not 0
{reply: {text: a, json: 1}}                      | .reply: text and json exclude each other
{reply: {}}                                      | .reply: is empty; known:
{reply: []}                                      | .reply: must not be empty
{reply: {tool_calls: [{nam: x}]}}                | .reply.tool_calls[0].nam: unknown key (did you mean 'name'?)
{reply: {tool_calls: [{name: x, arguments: 3}]}} | .reply.tool_calls[0].arguments: must be a mapping or a text, not 3
{reply: {text: a, finish_reason: stp}}           | .reply.finish_reason: must be one of stop, length, tool_calls
{reply: {text: a, delay_s: -1}}                  | .reply.delay_s: must be a number of seconds from 0 on, not -1
{reply: {tokens: 0}}                             | .reply.tokens: must be at least 1 and at most 1,000,000, not 0
{reply: {text: a, usage: {prompt: 1}}}           | .reply.usage.prompt: unknown key (did you mean 'prompt_tokens'?)
{reply: {choices: [{delay_s: 1, text: a}]}}      | .reply.choices[0].delay_s: unknown key
{reply: a, fault: bad}                           | .fault: there is no fault 'bad'
{reply: '{1}'}                                   | : {1}: the rule has no regular expression; write {{1}} for the text itself
{when: {user: {regex: (a)}}, reply: '{2}'}       | : {2}: the rule's regular expressions have 1 groups
{reply: {tool_calls: [{name: ''}]}}              | .reply.tool_calls[0].name: must not be empty
{reply: 'x²: {²}'}                               | : {²}: unknown placeholder; write {{²}} for the text itself
{when: {endpoint: completions, tool: f}, reply: a} | : can never match: requests for completions have no tools
{when: {endpoint: generate, assistant_messages: 1}, reply: a} | : can never match: requests for generate have no messages of
{when: {tool_result: true}, reply: '{resul}'}    | : {resul}: unknown placeholder (did you mean 'result'?)
{when: {tool_result: false}, reply: '{result}'}  | : {result}: the rule is for requests without tool results
{when: {user: a}, reply: '{results.x}'}          | : {results.x}: the rule is for requests without tool results
{when: {endpoint: completions, system: x}, reply: a}            | : can never match: requests for completions have no
{when: {endpoint: generate}, reply: {tool_calls: [{name: x}]}}  | : can never match: requests for generate have no
{when: {endpoint: completions, turn: 2}, reply: a}              | : can never match: requests for completions have
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_is_told_with_its_line_and_its_field(tmp_path: Path, mistake: str) -> None:
    rule, _, told = mistake.partition(" | ")
    found = problems(tmp_path, f"rules:\n  - {rule.strip()}\n")
    assert found[0].startswith(f"2: rules[0]{told}")
    assert len(found) == 1 + ("nam:" in rule)  # the name is then missing, too


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = "rules:\n  - {when: {usr: a}, reply: 5}\n  - {reply: [a, {txt: b}]}\nfallback: non\ntols: []\n"
    found = problems(tmp_path, text)
    assert [problem.partition(" ")[0] for problem in found] == ["2:", "2:", "3:", "4:", "5:"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"user": "a"}),
        ({"user": "wea"}, {"user": "Weather in Paris"}),
        ({"user": "wea"}, {"user": {"exact": "The weather"}}),
        ({"user": {"contains": ["a"]}}, {"user": {"contains": ["b", "cab"]}}),
        ({"user": {"regex": "^order"}}, {"user": {"exact": "order 3"}}),
        ({"model": "gpt-*"}, {"model": "gpt-4*"}),
        ({"endpoint": ["chat", "messages"]}, {"endpoint": "chat", "user": "x"}),
        ({"turn": {"from": 2}}, {"turn": 3}),
        ({"header": {"x-a": "*"}}, {"header": {"x-a": "1", "x-b": "2"}}),
        ({"tool_result": True}, {"tool_result": "get_order"}),
        ({"tool_result": "get_*"}, {"tool_result": {"name": "get_order", "content": "x"}}),
        ({"user": "a"}, {"user": "a", "nth": 1}),
    ],
)
def test_a_rule_behind_one_that_takes_all_its_requests_is_refused(first: Any, second: Any) -> None:
    with pytest.raises(ConfigError, match=r"script rules\[1\]: can never match: what fits it fits script rules\[0\] before"):
        script({"when": first, "reply": "1"}, {"when": second, "reply": "2"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"user": "weather"}, {"user": "wea"}),
        ({"user": "a"}, {"system": "a"}),
        ({"user": {"exact": "a"}}, {"user": "a"}),
        ({"user": {"regex": "a+"}}, {"user": {"regex": "a"}}),
        ({"user": "a", "nth": 1}, {"user": "a"}),
        ({"turn": 1}, {"turn": {"from": 1}}),
        ({"tool_result": "get_order"}, {"tool_result": True}),
        ({"tool_result": False}, {"tool_result": True}),
        ({"model": "gpt-4"}, {"model": "gpt-*"}),
    ],
)
def test_a_rule_that_can_still_match_is_not_refused(first: Any, second: Any) -> None:
    assert len(script({"when": first, "reply": "1"}, {"when": second, "reply": "2"}).rules) == 2


def test_a_rule_is_shadowed_across_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.yaml", tmp_path / "b.json"]
    paths[0].write_text("rules:\n  - reply: x\n")
    paths[1].write_text(json.dumps({"rules": [{"when": {"user": "a"}, "reply": "y"}]}))
    with pytest.raises(ConfigError, match=f"{paths[1]}:1: can never match: what fits it fits {paths[0]}:2 before"):
        read_scripts([str(path) for path in paths], read_fault)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"id": "x"}, "arguments.id: 'x' is not of type 'integer'"),
        ({"id": "no {1}"}, "arguments.id: 'no {1}' is not of type 'integer'"),
        ({}, "arguments: 'id' is a required property"),
        ({"id": 1, "idd": 2}, "arguments: Additional properties are not allowed ('idd' was unexpected)"),
        ({"id": "{1}"}, ""),
        ({"id": 3}, ""),
        ("not even JSON", ""),
    ],
)
@pytest.mark.parametrize("form", ["chat", "responses", "messages"])
def test_arguments_are_checked_against_declared_tools(arguments: Any, told: str, form: str) -> None:
    properties = {"id": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["id"], "additionalProperties": False}
    inner = {"name": "get_order", "input_schema" if form == "messages" else "parameters": schema}
    tools = [{"type": "function", "function": inner} if form == "chat" else inner]
    rule = {"when": {"user": {"regex": "(a)"}}, "reply": {"tool_calls": [{"name": "get_order", "arguments": arguments}]}}
    if not told:
        assert script(rule, tools=tools).rules
        return
    with pytest.raises(ConfigError) as refused:
        script(rule, tools=tools)
    assert refused.value.problems == [f"script: rules[0].reply.tool_calls[0]: {told}"]


def test_an_undeclared_tool_is_refused_where_tools_are_declared() -> None:
    with pytest.raises(ConfigError, match=r"`tools` declares no 'get_ordr' \(did you mean 'get_order'\?\)"):
        script({"reply": {"tool_calls": [{"name": "get_ordr"}]}}, tools=[{"name": "get_order"}])


SOME = ["a", "A", "b", "ab", "ba", "aba"]
MATCHES = st.one_of(
    st.sampled_from(SOME),
    st.fixed_dictionaries({"contains": st.lists(st.sampled_from(SOME), min_size=1, max_size=2)}),
    st.fixed_dictionaries({"exact": st.sampled_from(SOME)}),
    st.fixed_dictionaries({"regex": st.sampled_from(["a", "^a", "b$", "a.a"])}),
)
WHEN = st.fixed_dictionaries({}, optional={"user": MATCHES, "turn": st.just(2), "model": st.sampled_from(["a*", "ab", "*"])})


@given(st.lists(st.builds(lambda when: {"when": when, "reply": "x"}, WHEN), max_size=8))
def test_rules_that_can_never_match_are_found_as_by_comparing_all_with_all(rules: list[Any]) -> None:
    read = [script_of({"rules": [rule]}, read_fault).rules[0] for rule in rules]
    for number, rule in enumerate(read):
        rule.place = str(number)
    wanted = [
        (str(late), str(early)) for late in range(len(read)) for early in range(late) if read[early].covers(read[late])
    ]
    firsts = dict(reversed(wanted))
    told = [re.findall(r"\d+", problem) for problem in shadowed(read)]
    assert told == [[late, early] for late, early in sorted(firsts.items())]


def test_long_scripts_are_read_and_longer_ones_refused() -> None:
    """Comparing all rules with all took minutes for these."""
    rules = [{"when": {"user": {kind: f"user {number} asks"}}, "reply": "x"}
             for number in range(MOST_RULES // 2) for kind in ("contains", "regex")]  # fmt: skip
    assert len(script_of({"rules": rules}, read_fault).rules) == MOST_RULES
    with pytest.raises(ConfigError, match="must be at most 5,000 rules, not 5,001"):
        script_of({"rules": [*rules, rules[0]]}, read_fault)


def test_json_as_json_libraries_write_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"rules": [{"reply": "\U0001f600 a/b"}]}, indent="\t").replace("/", "\\/"))
    assert "\\ud83d" in path.read_text()
    [rule] = read_scripts([str(path)], read_fault).rules
    assert str(rule.replies[0].text) == "\U0001f600 a/b"
    assert rule.place == f"{path}:3"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scripts([str(tmp_path / "none.yaml")], read_fault)
    assert problems(tmp_path, "- a\n") == ["1: a script is a list of `key: value` lines"]
    assert problems(tmp_path, "rules: {a: }: b\n")[0].startswith("1: not valid YAML")
    assert problems(tmp_path, "fallback: error\n") == [" rules: missing: a list of rules, each with `when` and `reply`"]


def test_the_example_is_a_script_and_fits_the_schema() -> None:
    assert len(read_scripts([str(EXAMPLE_FILE)], read_fault).rules) >= 6
    assert not list(Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(EXAMPLE_FILE.read_text())))


EVERY_KEY = {
    "rules": [
        {
            "when": {
                "user": {"contains": ["a", "b"]}, "system": {"exact": "c"}, "model": {"regex": "(d)"}, "endpoint": ["chat"],
                "tool_result": {"name": "e*", "content": "f"}, "turn": {"from": 1, "to": 2}, "nth": 3, "header": {"g": "h"},
                "metadata": {"i": {"regex": "j"}}, "tool": "l", "assistant_messages": {"from": 0, "to": 4},
            },
            "reply": [
                {"text": "k", "tool_calls": [{"name": "l", "arguments": {"m": 1}}], "reasoning": "n",
                 "finish_reason": "stop",
                 "usage": {"prompt_tokens": 1, "cached_tokens": 1, "completion_tokens": 1, "reasoning_tokens": 1},
                 "delay_s": 0.5, "fault": {"kind": "cut"}},
                {"json": None}, {"refusal": "o"}, {"tokens": 5}, {"choices": ["p", {"text": "q"}]}, "r",
            ],
            "fault": "cut",
        }
    ],
    "fallback": "upstream",
    "tools": [{"name": "l"}],
    "embeddings": [{"text": "s", "near": "t"}, {"text": "u", "vector": [0.5]}],
}  # fmt: skip


def test_reader_and_schema_know_the_same_keys() -> None:
    """Every key of the schema can be read; the reader takes its lists of keys from the schema."""
    assert script_of(EVERY_KEY, read_fault).rules
    assert not list(Draft202012Validator(SCHEMA).iter_errors(EVERY_KEY))
    written = json.dumps(EVERY_KEY)
    assert not [key for kind in KEYS.values() for key in kind if f'"{key}"' not in written]
    assert SCHEMA["properties"]["fallback"]["enum"] == list(FALLBACKS)
    assert SCHEMA["$defs"]["when"]["properties"]["endpoint"]["anyOf"][0]["enum"] == list(ENDPOINTS.values())
    assert "content_filter" in FINISH_REASONS
