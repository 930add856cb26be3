"""Checks of scripts: rules that can never match, placeholders without a value, arguments that do not fit a tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_server.replies.scripts.conditions import (
    CONVERSING,
    CountCondition,
    EndpointCondition,
    ResultCondition,
    TextCondition,
    TextMatch,
)
from llmirage_server.replies.scripts.rule import (
    PLACEHOLDERS,
    ScriptedCall,
    ScriptedReply,
    ScriptRule,
    Template,
    rendered,
    templates_in,
)
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.validity import validator_for
from llmirage_shared.settings import did_you_mean


def shadowed(rules: Sequence[ScriptRule]) -> Iterator[str]:
    """Yield a problem for each rule to which an earlier one leaves nothing."""
    earlier = _EarlierRules()
    for rule in rules:
        first = next((candidate for candidate in earlier.candidates(rule) if candidate.covers(rule)), None)
        if first is not None:
            yield f"{rule.place}: can never match: what fits it fits {first.place} before; put it first, or add a condition"
        earlier.add(rule)


class _EarlierRules:
    """Rules by their condition on the user message, of which a long script has another in each rule."""

    def __init__(self) -> None:
        self._number = 0
        self._others: list[tuple[int, ScriptRule]] = []
        self._contains: list[tuple[int, ScriptRule, str]] = []  # with a text that must occur
        self._equal: dict[TextMatch, list[tuple[int, ScriptRule]]] = {}

    def add(self, rule: ScriptRule) -> None:
        match = _user_match(rule)
        entry = (self._number, rule)
        self._number += 1
        if match is None or match.kind == "glob":
            self._others.append(entry)
        else:
            self._equal.setdefault(match, []).append(entry)
        if match is not None and match.kind == "contains":
            self._contains.append((*entry, match.texts[0]))

    def candidates(self, rule: ScriptRule) -> Iterator[ScriptRule]:
        """All that may cover a rule, in their order."""
        found = list(self._others)
        match = _user_match(rule)
        if match is not None:
            found += self._equal.get(match, ())
            if match.kind == "exact":  # a regular expression covers the texts that it matches
                found += [entry for other, entries in self._equal.items() if other.kind == "regex" for entry in entries]
            texts = "\0".join(match.texts).casefold()
            found += [(number, other) for number, other, text in self._contains if text in texts]
        for _, candidate in sorted(found, key=lambda entry: entry[0]):
            yield candidate


def _user_match(rule: ScriptRule) -> TextMatch | None:
    condition = rule.when.get("user")
    return condition.match if isinstance(condition, TextCondition) else None


def rule_problems(rule: ScriptRule) -> Iterator[str]:
    """Conditions that exclude each other, and placeholders without a value."""
    yield from _contradictions(rule)
    groups, named = _groups(rule)
    result = rule.when.get("tool_result")
    results = result.there if isinstance(result, ResultCondition) else len(rule.replies) > 1
    found = [name for reply in rule.replies for each in (reply, *reply.choices) for name in _placeholders(each)]
    for name in dict.fromkeys(found):
        yield from _placeholder_problems(name, groups, named, results)


def _contradictions(rule: ScriptRule) -> Iterator[str]:
    endpoint = rule.when.get("endpoint")
    if not isinstance(endpoint, EndpointCondition) or endpoint.names & CONVERSING:
        return
    result = rule.when.get("tool_result")
    turn, replies = rule.when.get("turn"), rule.when.get("assistant_messages")
    impossible = {
        "system": "system" in rule.when,
        "tool_result": isinstance(result, ResultCondition) and result.there,
        "turn": isinstance(turn, CountCondition) and 1 not in turn.span,
        "assistant_messages": isinstance(replies, CountCondition) and 0 not in replies.span,
        "tool": "tool" in rule.when,
        "tool_calls": any(each.calls for reply in rule.replies for each in (reply, *reply.choices)),
    }
    for name in [name for name, is_so in impossible.items() if is_so]:
        yield f"can never match: requests for {' and '.join(sorted(endpoint.names))} have no {_WORDS[name]}"


_WORDS = {
    "system": "system prompt", "tool_result": "tool results", "turn": "second turn", "tool_calls": "tools to call",
    "assistant_messages": "messages of the assistant", "tool": "tools",
}  # fmt: skip


def _groups(rule: ScriptRule) -> tuple[int, list[str]]:
    """Return the number of groups of the rule's regular expressions, and the names of some."""
    matches = []
    for condition in rule.when.values():
        if isinstance(condition, TextCondition):
            matches.append(condition.match)
        elif isinstance(condition, ResultCondition) and condition.content is not None:
            matches.append(condition.content)
        else:
            matches += [match for _, match in getattr(condition, "wanted", ())]
    return sum(match.group_count for match in matches), [name for match in matches for name in match.group_names]


def _placeholders(reply: ScriptedReply) -> Iterator[str]:
    texts = [reply.text, reply.reasoning, reply.refusal, reply.json, [call.arguments for call in reply.calls]]
    for template in templates_in(texts):
        yield from template.names


def _placeholder_problems(name: str, groups: int, named: Sequence[str], results: bool) -> Iterator[str]:
    """Return the problem with a placeholder. groups, named: of the rule's regular expressions; results: may there be any?"""
    head = name.partition(".")[0]
    if head.isdecimal():
        if not 1 <= int(head) <= groups:
            there = (
                f"the rule's regular expressions have {groups} groups" if groups else "the rule has no regular expression"
            )
            yield f"{{{name}}}: {there}; write {{{{{name}}}}} for the text itself"
    elif head not in (*PLACEHOLDERS, *named):
        hint = did_you_mean(head, [*PLACEHOLDERS, *named])
        yield f"{{{name}}}: unknown placeholder{hint}; write {{{{{name}}}}} for the text itself"
    elif head in ("result", "results") and not results and head not in named:
        yield f"{{{name}}}: the rule is for requests without tool results; add tool_result to `when`"


# --- tools --------------------------------------------------------------------------------------------------------------


def declared_tools(value: Any) -> Mapping[str, Any]:
    """JSON Schemas of the arguments by tool, of declarations in any API's form. Raises ValueError."""
    found: dict[str, Any] = {}
    for index, tool in enumerate(value if isinstance(value, list) else [value]):
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise ValueError(f"[{index}] must be a tool as requests declare it, with a name and its parameters")
        schema = inner.get("parameters") or inner.get("input_schema") or {}
        try:
            validator_for(schema)
        except SchemaError as error:
            raise ValueError(f"{inner['name']}: the parameters are not a JSON Schema: {error}") from None
        found[inner["name"]] = schema
    return found


class _LaterText(str):
    """Stands for a text that is known when a request comes."""

    bare = False

    @staticmethod
    def of(template: Template, _: tuple[str, ...]) -> _LaterText:
        text = _LaterText(template)
        text.bare = template.bare
        return text


def argument_problem(call: ScriptedCall, tools: Mapping[str, Any]) -> str:
    """Return the problem with a call, as far as known before a request; "": none. tools: as of `declared_tools`."""
    if isinstance(call.arguments, Template):
        return ""
    if call.name not in tools:
        return f"`tools` declares no {call.name!r}{did_you_mean(call.name, tools)}; it has {', '.join(tools)}"
    for problem in validator_for(tools[call.name]).problems(rendered(call.arguments, _LaterText.of)):
        if isinstance(problem.instance, _LaterText) and (problem.instance.bare or problem.keyword != "type"):
            continue
        path = "".join(f".{part}" for part in problem.path)
        return f"arguments{path}: {problem.message}"
    return ""
