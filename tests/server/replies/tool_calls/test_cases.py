"""The table of cases.yaml: which tools are called for a prompt, and with which arguments."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.reply import ReplyRequest, Tool, ToolChoice
from llmirage_shared.wire.chat import chat_history

DATA = yaml.load((Path(__file__).parent / "cases.yaml").read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
CASES, MISSES = DATA["cases"], DATA["misses"]
SAMPLE = "*"
Calls = list[tuple[str, Any]]


def schema_of(written: Any) -> dict[str, Any]:
    """The JSON Schema for a type as the table writes it."""
    if isinstance(written, Mapping):
        properties = {name.removesuffix("?"): schema_of(kind) for name, kind in written.items()}
        required = [name for name in written if not name.endswith("?")]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if written.endswith("[]"):
        return {"type": "array", "items": schema_of(written[:-2]), "minItems": 1}
    if "|" in written:
        return {"type": "string", "enum": written.split("|")}
    kind, _, form = written.partition("/")
    return {"type": kind, "format": form} if form else {"type": kind}


def tool_of(declared: Mapping[str, Any]) -> Tool:
    if declared.get("custom"):
        return Tool("custom", declared["name"], declared["about"])
    return Tool("function", declared["name"], declared["about"], schema_of(declared["properties"]))


TOOLS = {key: tool_of(declared) for key, declared in DATA["tools"].items()}


def choice_of(written: Any) -> ToolChoice:
    if isinstance(written, Mapping):
        [(mode, names)] = written.items()
        return ToolChoice(mode, tuple(names))
    return ToolChoice(written) if written in ("auto", "none", "required") else ToolChoice("required", (written,))


def request_of(case: Mapping[str, Any]) -> ReplyRequest:
    messages: list[dict[str, Any]] = [{"role": "system", "content": case.get("system", "")}]
    messages += [{"role": role, "content": said} for turn in case.get("before", ()) for role, said in turn.items()]
    messages.append({"role": "user", "content": case["user"]})
    for place, [(name, result)] in enumerate(one.items() for one in case.get("called", ())):
        call = {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{place}", "content": result})
    history = chat_history(messages)
    return ReplyRequest(
        prompt_ids=np.arange(20, dtype=np.int32),
        last_user_text=history.last_user_text,
        max_tokens=None,
        limit_tokens=4000,
        tools=tuple(TOOLS[key] for key in DATA["groups"].get(str(case["tools"]), case["tools"])),
        tool_choice=choice_of(case.get("choice", "auto")),
        parallel_tool_calls=case.get("parallel", True),
        called=history.called,
        results=history.results,
    )


def calls_of(source: ComposedReplies, case: Mapping[str, Any]) -> Calls:
    request = request_of(case)
    reply = source.reply(request)
    schemas = {tool.name: tool.parameters for tool in request.tools}
    calls: Calls = []
    for part in reply.parts:
        if part.kind == "custom_call":
            calls.append((part.name, reply.said(part)))
        elif part.kind == "function_call":
            calls.append((part.name, json.loads(reply.said(part))))
            Draft202012Validator(schemas[part.name]).validate(calls[-1][1])
    assert (reply.finish_reason == "tool_calls") == bool(calls)
    if not calls:
        assert all(call[1] in reply.text for call in zip(request.called, request.results, strict=True))
    return calls


def expected_of(written: list[Mapping[str, Any]]) -> Calls:
    return [(name, arguments) for call in written for name, arguments in call.items()]


def is_same(calls: Calls, expected: Calls) -> bool:
    return len(calls) == len(expected) and all(
        name == wanted and _same_arguments(given, arguments)
        for (name, given), (wanted, arguments) in zip(calls, expected, strict=True)
    )


def _same_arguments(given: Any, wanted: Any) -> bool:
    if not isinstance(given, Mapping):
        return bool(given == wanted)
    return given.keys() == wanted.keys() and all(wanted[name] in (SAMPLE, value) for name, value in given.items())


@pytest.mark.parametrize("case", CASES, ids=[f"{place}: {case['user'][:40]}" for place, case in enumerate(CASES)])
def test_a_prompt_calls_what_the_table_says(source: ComposedReplies, case: Mapping[str, Any]) -> None:
    calls, expected = calls_of(source, case), expected_of(case["calls"])
    assert is_same(calls, expected), f"{calls} instead of {expected}"


@pytest.mark.parametrize("case", CASES, ids=[f"{place}: {case['user'][:40]}" for place, case in enumerate(CASES)])
def test_an_agent_loop_ends(source: ComposedReplies, case: Mapping[str, Any]) -> None:
    if case.get("choice", "auto") not in ("auto", "none") or case.get("parallel") is False:
        return
    called = [*case.get("called", ())]
    for _ in range(case.get("rounds", 1)):
        called += [{name: f"result of {name}"} for name, _ in calls_of(source, {**case, "called": called})]
    assert calls_of(source, {**case, "called": called}) == []


@pytest.mark.parametrize("case", MISSES, ids=[case["user"][:40] for case in MISSES])
def test_a_known_miss_is_one(source: ComposedReplies, case: Mapping[str, Any]) -> None:
    calls = calls_of(source, case)
    assert is_same(calls, expected_of(case["calls"]))
    assert not is_same(calls, expected_of(case["wanted"]))


def test_at_least_95_of_100_prompts_are_right() -> None:
    assert len(CASES) >= 150
    assert len(MISSES) <= 0.05 * (len(CASES) + len(MISSES))
