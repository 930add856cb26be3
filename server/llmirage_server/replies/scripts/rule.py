"""A script: rules in order, what each asks, the reply that it plans by its texts with placeholders, and the fallback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from llmirage_server.replies.draft import Draft, conversation_key, ended, most_tokens
from llmirage_server.replies.reply import FinishReason, Reply, ReplyRequest, Tool
from llmirage_server.replies.scripts.conditions import CONVERSING, Condition, Groups, ScriptRequest, Span
from llmirage_server.replies.structured.budget import spend, spend_tokens
from llmirage_server.replies.structured.validity import first_problem
from llmirage_shared.settings import did_you_mean
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.output import json_text

_CHARACTERS, _MOST_STEPS = 16, 62_500  # of a step of planning; of a text, which is copied and becomes tokens
_NAME = r"\w[\w-]*(?:\.[\w-]+)*"
_PLACEHOLDER = re.compile(rf"\{{(\{{{_NAME}\}})\}}|\{{({_NAME})\}}")
T = TypeVar("T")

PLACEHOLDERS: Mapping[str, str] = {
    "user": "the last user message, or the prompt",
    "model": "the model's name in the request",
    "result": "the newest tool result; `{result.status}`: a value in its JSON",
    "results": "all tool results since the last user message, a line each; `{results.get_order}`: that of one tool",
    "count": "how many replies this rule has given, with this one",
}


class ScriptError(ValueError):
    """A rule that cannot reply to a request that it matches. The message says why."""


@dataclass(slots=True)
class Scope:
    """The values of the placeholders of one reply."""

    request: ScriptRequest
    groups: Groups
    count: int

    def value(self, name: str) -> str:
        """Return the value of a placeholder. Raises ScriptError for a value that this request does not have."""
        head, _, path = name.partition(".")
        if head.isdecimal():
            return self.groups.numbered[int(head) - 1]
        if head in self.groups.named:
            return self.groups.named[head]
        if head == "result":
            return self._of_result(self._newest(), path)
        if head == "results":
            return self._of_results(path)
        return str(self.count) if head == "count" else str(getattr(self.request, head))

    def _newest(self) -> tuple[str, str]:
        results = self.request.newest_results or self.request.results
        if not results:
            raise ScriptError("{result} needs a tool result, and this request has none: add tool_result: true to `when`")
        return results[-1]

    def _of_results(self, path: str) -> str:
        if not path:
            return "\n".join([content for _, content in self.request.results])
        tool, _, rest = path.partition(".")
        found = [result for result in self.request.results if result[0] == tool]
        if not found:
            raise ScriptError(f"{{results.{path}}} needs a result of {tool}, and this request has none")
        return self._of_result(found[-1], rest)

    def _of_result(self, result: tuple[str, str], path: str) -> str:
        name, content = result
        if not path:
            return content
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise ScriptError(f"the result of {name} is not JSON, so it has no {path}") from None
        for key in path.split("."):
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, dict) and key in value:
                value = value[key]
            else:
                raise ScriptError(f"the result of {name} has no {path}")
        return value if isinstance(value, str) else json_text(value)


@dataclass(frozen=True, slots=True)
class Template:
    """A text, in turn literal and the name of a placeholder: the names have odd indexes."""

    parts: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Template:
        """`{{name}}` is the text {name}; braces without a name between them stay as they are."""
        parts = [""]
        at = 0
        for found in _PLACEHOLDER.finditer(text):
            parts[-1] += text[at : found.start()]
            at = found.end()
            if found[1] is None:
                parts += [found[2], ""]
            else:
                parts[-1] += found[1]
        parts[-1] += text[at:]
        return Template(tuple(parts))

    @property
    def names(self) -> Sequence[str]:
        return self.parts[1::2]

    @property
    def bare(self) -> bool:
        """If it is one placeholder and nothing else."""
        return len(self.parts) == 3 and not self.parts[0] and not self.parts[2]

    def __str__(self) -> str:
        return "".join([f"{{{part}}}" if index % 2 else part for index, part in enumerate(self.parts)])

    def render(self, scope: Scope) -> str:
        """Return the text with the placeholders' values. Raises ScriptError, and BudgetError for more than is left."""
        texts: list[str] = []
        steps = 0
        for index, part in enumerate(self.parts):
            texts.append(scope.value(part) if index % 2 else part)
            spend(more := len(texts[-1]) // _CHARACTERS + index % 2)
            if (steps := steps + more) > _MOST_STEPS:
                raise ScriptError(
                    f"its text would have more than {_MOST_STEPS * _CHARACTERS} characters, {_CHARACTERS} for a placeholder"
                )
        return "".join(texts)


def literal(text: str) -> str:
    """Return the template that says this text."""
    return _PLACEHOLDER.sub(lambda found: "{" + found[0] + "}", text) if "{" in text else text


def mapped(value: Any, kind: type[T], change: Callable[[T, tuple[str, ...]], Any], path: tuple[str, ...] = ()) -> Any:
    """Return JSON data with all values of a kind changed.

    change: gets such a value and the keys that lead to it; `*` stands for an index.
    """
    if isinstance(value, kind):
        return change(value, path)
    if isinstance(value, dict):
        return {key: mapped(item, kind, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, kind, change, (*path, "*")) for item in value]
    return value


def templated(value: Any) -> Any:
    """JSON data with a Template for each text that has placeholders or braces."""

    def template(text: str, _: tuple[str, ...]) -> Template | str:
        found = Template.of(text)
        return found if len(found.parts) > 1 or found.parts[0] != text else text

    return mapped(value, str, template)


def rendered(value: Any, render: Callable[[Template, tuple[str, ...]], Any]) -> Any:
    """Return JSON data without templates. render: as `mapped` has it."""
    return mapped(value, Template, render)


def templates_in(value: Any) -> Sequence[Template]:
    """All templates of JSON data."""
    found: list[Template] = []
    mapped(value, Template, lambda template, _: found.append(template))
    return found


SCHEMA_FILE = Path(__file__).with_name("script.schema.json")
SCHEMA: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))

FILE_KEYS: Sequence[str] = list(SCHEMA["properties"])
KEYS: Mapping[str, Sequence[str]] = {name: list(kind["properties"]) for name, kind in SCHEMA["$defs"].items()}
"""The keys of the mappings below the top, by the schema's names for these."""
FINISH_REASONS: Sequence[str] = SCHEMA["$defs"]["reply"]["properties"]["finish_reason"]["enum"]
MOST_RULES: int = SCHEMA["properties"]["rules"]["maxItems"]
MOST_TOKENS: int = SCHEMA["$defs"]["reply"]["properties"]["tokens"]["maximum"]


Fallback = Literal["generated", "error", "upstream"]
FALLBACKS: tuple[Fallback, ...] = ("generated", "error", "upstream")


ALL = Span()


class NoJson:
    """Stands for the absence of a JSON value, which may be null."""


NO_JSON = NoJson()


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call. arguments: JSON data with templates, checked against the tool's schema; a Template goes out as it is."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """The reply of a rule. Without text, calls, JSON, reasoning, refusal, tokens and choices the reply is a generated one.

    tokens: so many tokens of prose. choices: one for each choice of the request, again from the first if there are more.
    usage: fields that replace what was counted. delay_s: seconds of the cluster's time before the request gets to it.
    fault: what goes wrong with it, for the server's faults.
    """

    text: Template | None = None
    calls: tuple[ScriptedCall, ...] = ()
    json: Any = NO_JSON
    reasoning: Template | None = None
    refusal: Template | None = None
    tokens: int = 0
    choices: tuple[ScriptedReply, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    delay_s: float = 0.0
    fault: Any = None

    @property
    def says_something(self) -> bool:
        """If anything of the reply itself is scripted."""
        texts = (self.text, self.reasoning, self.refusal)
        return bool(self.calls or self.tokens or self.choices) or self.json is not NO_JSON or texts != (None, None, None)


@dataclass(slots=True, eq=False)
class ScriptRule:
    """place: where it stands, `file:line`. when: its conditions by key. nth: which of the requests that fit it replies to.

    replies: in order; the last one is given again and again.
    fitting, replied: requests so far. Only a rule with `nth` counts as fitting those that an earlier rule replied to.
    """

    place: str
    when: Mapping[str, Condition]
    replies: Sequence[ScriptedReply]
    nth: Span = ALL
    fitting: int = 0
    replied: int = 0

    def fits(self, request: ScriptRequest) -> Groups | None:
        """Return the groups of the regular expressions; None if the conditions are not met."""
        groups = Groups()
        return groups if all(condition.fits(request, groups) for condition in self.when.values()) else None

    def covers(self, other: ScriptRule) -> bool:
        """Return if it is certain that nothing is left for a later rule."""
        if self.nth != ALL:
            return False
        return all(key in other.when and condition.covers(other.when[key]) for key, condition in self.when.items())


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The rule for a request, its reply, and the values of placeholders."""

    rule: ScriptRule
    reply: ScriptedReply
    scope: Scope


@dataclass(frozen=True, slots=True)
class ScriptedVector:
    """The embedding of one text: its coordinates, or a text whose embedding it is next to. place: `file:line`."""

    place: str
    vector: tuple[float, ...] = ()
    near: str = ""


@dataclass(slots=True)
class Script:
    """Rules in order. misses: requests so far that none matched. vectors: by text, as `embedding.same_text` has it."""

    rules: Sequence[ScriptRule] = ()
    fallback: Fallback = "generated"
    misses: int = 0
    vectors: Mapping[str, ScriptedVector] = field(default_factory=dict)

    def fitting(self, request: ScriptRequest) -> list[tuple[ScriptRule, Groups]]:
        """Return the rules that a request meets: all that have `nth`, and the first of the others. Counts nothing."""
        fitting: list[tuple[ScriptRule, Groups]] = []
        found = False
        for rule in self.rules:
            if not (found and rule.nth == ALL) and (groups := rule.fits(request)) is not None:
                fitting.append((rule, groups))
                found |= rule.nth == ALL
        return fitting

    def match(self, request: ScriptRequest, fitting: Sequence[tuple[ScriptRule, Groups]] | None = None) -> RuleMatch | None:
        """Return the first rule that replies, None if none does. Rules with `nth` count every request that fits them.

        fitting: what `fitting` has found.
        """
        found: RuleMatch | None = None
        for rule, groups in self.fitting(request) if fitting is None else fitting:
            if found is not None and rule.nth == ALL:
                continue
            rule.fitting += 1
            if found is None and rule.fitting in rule.nth:
                reply = rule.replies[min(rule.replied, len(rule.replies) - 1)]
                rule.replied += 1
                found = RuleMatch(rule, reply, Scope(request, groups, rule.replied))
        self.misses += found is None
        return found


def planned_reply(
    match: RuleMatch, request: ReplyRequest, tokenizer: Tokenizer, generated: Callable[[ReplyRequest], Reply]
) -> Reply:
    """Return the reply of a rule to one choice of a request. Raises ScriptError.

    generated: makes the reply where the rule leaves it open.
    """
    scripted = match.reply
    if scripted.choices:
        scripted = scripted.choices[request.choice % len(scripted.choices)]
    if not scripted.says_something:
        reply = generated(request)
        return reply if scripted.finish_reason is None else replace(reply, finish_reason=scripted.finish_reason)
    most = most_tokens(request)
    draft = Draft(tokenizer, most)
    reason = scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")
    ends = reason != "length"
    _write(draft, scripted, match.scope, request)
    if scripted.tokens:  # the token that ends the turn is one of them
        spend_tokens(tokens := min(scripted.tokens - ends, most))
        draft.add("text", *SyntheticText(tokenizer).ids_and_pieces(conversation_key(request), tokens))
    stopped = None
    if request.stop and not scripted.calls and len(draft):
        stopped = draft.stopped(request)
    reply = stopped or draft.reply(reason, ends=ends or not len(draft))
    return ended(reply, request, tokenizer)


def _write(draft: Draft, scripted: ScriptedReply, scope: Scope, request: ReplyRequest) -> None:
    converses = scope.request.endpoint in CONVERSING
    if scripted.reasoning is not None and converses:
        draft.write("reasoning", scripted.reasoning.render(scope))
        draft.end_thoughts()
    if scripted.refusal is not None:
        draft.write("refusal" if converses else "text", scripted.refusal.render(scope))
    if scripted.text is not None:
        draft.write("text", scripted.text.render(scope))
    if scripted.json is not NO_JSON:
        draft.write("text", _scripted_json(scripted.json, scope, request.json_schema))
    for call in scripted.calls:
        tool = _tool(call, request)
        draft.call(tool, _arguments(call, tool, scope))


def _scripted_json(value: Any, scope: Scope, schema: Any) -> str:
    data = rendered(value, lambda template, _: template.render(scope))
    if schema is not None and (problem := first_problem(data, schema)):
        raise ScriptError(f"its json does not fit the JSON Schema that the request asks for: {problem}")
    return json_text(data)


def _tool(call: ScriptedCall, request: ReplyRequest) -> Tool:
    """Return the declared tool of that name; where the request declares none, or the arguments are a text, any will do."""
    for tool in request.tools:
        if tool.name == call.name:
            return tool
    if request.tools and not isinstance(call.arguments, Template):
        names = [tool.name for tool in request.tools]
        raise ScriptError(
            f"the request declares no tool {call.name!r}{did_you_mean(call.name, names)}; it has {', '.join(names)}"
        )
    return Tool("function", call.name)


def _arguments(call: ScriptedCall, tool: Tool, scope: Scope) -> str:
    """Return the arguments of a call. Raises ScriptError for arguments that do not fit the tool's schema."""
    if isinstance(call.arguments, Template):
        return call.arguments.render(scope)
    schema = tool.parameters

    def render(template: Template, path: tuple[str, ...]) -> Any:
        text = template.render(scope)
        return as_type(text, _types(schema, path)) if template.bare else text

    data = rendered(call.arguments, render)
    if schema and (problem := first_problem(data, schema)):
        raise ScriptError(f"the arguments of {tool.name} do not fit its schema: {problem}")
    return json_text(data)


def _types(schema: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the types that a schema names for a value, () if it does not say."""
    for key in path:
        schema = schema if isinstance(schema, dict) else {}
        schema = schema.get("items") if key == "*" else (schema.get("properties") or {}).get(key)
    kind = schema.get("type") if isinstance(schema, dict) else None
    return tuple(kind) if isinstance(kind, list) else (kind,) if isinstance(kind, str) else ()


def as_type(text: str, types: tuple[str, ...]) -> Any:
    """Return the text as a number or a boolean if only these are asked for and it is one."""
    if "string" in types:
        return text
    readers: tuple[tuple[str, Callable[[str], Any]], ...] = (
        ("integer", int), ("number", float), ("boolean", {"true": True, "false": False}.__getitem__),
    )  # fmt: skip
    for name, read in readers:
        if name in types:
            try:
                return read(text.strip())
            except (ValueError, KeyError):
                pass
    return text
