"""From a matching rule to a planned reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmirage_server.replies.draft import Draft, stopped_at_token, with_end_shown
from llmirage_server.replies.prose import conversation_key
from llmirage_server.replies.reply import Reply, ReplyRequest, Tool
from llmirage_server.replies.scripts.conditions import CONVERSING
from llmirage_server.replies.scripts.rule import NO_JSON, RuleMatch, ScriptedCall, ScriptedReply
from llmirage_server.replies.scripts.template import Scope, ScriptError, Template, rendered
from llmirage_server.replies.structured.budget import spend_tokens
from llmirage_server.replies.structured.validity import first_problem
from llmirage_shared.settings import did_you_mean
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokens import Tokenizer


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
    most = request.limit_tokens if request.max_tokens is None else min(request.max_tokens, request.limit_tokens)
    draft = Draft(tokenizer, max(1, most))
    reason = scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")
    ends = reason != "length"
    _write(draft, scripted, match.scope, request)
    if scripted.tokens:  # the token that ends the turn is one of them
        spend_tokens(tokens := min(scripted.tokens - ends, most))
        draft.add("text", *SyntheticText(tokenizer).ids_and_pieces(conversation_key(request), tokens))
    stopped = None
    if request.stop and not scripted.calls and len(draft):
        stopped = draft.stopped(request.stop, request.include_stop_str, request.min_tokens)
    reply = stopped or draft.reply(reason, ends=ends or not len(draft))
    if request.stop_token_ids:
        reply = stopped_at_token(reply, request.stop_token_ids, request.include_stop_str, request.min_tokens)
    return with_end_shown(reply, tokenizer) if request.shows_end else reply


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
        draft.write("text", _json_text(scripted.json, scope, request.json_schema))
    for call in scripted.calls:
        tool = _tool(call, request)
        draft.call(tool, _arguments(call, tool, scope))


def _json_text(value: Any, scope: Scope, schema: Any) -> str:
    data = rendered(value, lambda template, _: template.render(scope))
    if schema is not None and (problem := first_problem(data, schema)):
        raise ScriptError(f"its json does not fit the JSON Schema that the request asks for: {problem}")
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


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
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


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
