"""Constraints of a request of the Responses API on its reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_server.openai.responses.hosted import chosen, hosted_tools
from llmirage_server.openai.responses.items import compacted_since_user
from llmirage_server.replies.reply import ANY_OBJECT, Tool, ToolChoice
from llmirage_server.service.constraints import (
    LENGTH_FACTORS,
    AnswerForm,
    ReplyConstraints,
    check_names,
    custom_tool,
    instructions_of,
    plain,
    schema_problem,
    structured_form,
    thought_tokens,
    tool_choice,
)
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import chat_history


def response_constraints(
    request: schema.responses.ResponseRequest, messages: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]
) -> ReplyConstraints:
    """Return the constraints of a response. Raises ApiError for an invalid JSON Schema and for an unknown tool.

    messages: all that the model sees, in chat's form; items: the same in the API's own form.
    """
    if request.compacts:
        return compacting(messages)
    tools = [tool for index, declared in enumerate(request.plain_tools) for tool in _tools(index, declared, items)]
    form = _answer_form(request)
    choice, forced = _tool_choice(plain(request.tool_choice), tools)
    if request.tool_choice == "required" and not request.tools:
        raise errors.only_with("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    check_names(choice, tools)
    if choice.mode == "auto" and compacted_since_user(items):
        choice = ToolChoice("none")
    return ReplyConstraints(
        tools=tuple(tools),
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        history=chat_history(messages),
        json_schema=form.json_schema,
        grammar=form.grammar,
        form_field=form.field,
        instructions=instructions_of(messages),
        reasoning_tokens=thought_tokens(_effort(request, items), request.max_output_tokens),
        most_hosted_calls=request.max_tool_calls or 8,
        length_factor=LENGTH_FACTORS.get((request.text.verbosity if request.text else None) or "medium", 1.0),
        may_refuse=True,
        forced=forced,
    )


def _effort(request: schema.responses.ResponseRequest, items: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the effort of the last item that sets one, else of the request."""
    updates = [item.get("reasoning") or {} for item in items if item.get("type") == "configuration_update"]
    efforts = [update["effort"] for update in updates if update.get("effort")]
    return efforts[-1] if efforts else request.reasoning.effort if request.reasoning else None


def compacting(messages: Sequence[Mapping[str, Any]]) -> ReplyConstraints:
    """Return the constraints of a reply that sums a conversation up."""
    return ReplyConstraints(history=chat_history(messages), compacts=True)


def _tools(index: int, tool: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Return the callable tools of one declared tool. Raises ApiError for invalid parameters and grammars."""
    if tool["type"] == "custom":
        return [custom_tool(tool, f"tools[{index}]")]
    if tool["type"] != "function":
        return hosted_tools(tool, items)
    parameters = tool.get("parameters")
    where = f"tools[{index}].parameters"
    if parameters and (problem := schema_problem(parameters, where, tool.get("strict") is True)):
        raise errors.invalid_schema(f"function '{tool['name']}'", problem, where, "invalid_function_parameters")
    return [Tool("function", tool["name"], tool.get("description") or "", parameters, field=where)]


def _answer_form(request: schema.responses.ResponseRequest) -> AnswerForm:
    """Return the form of `text.format` or of vLLM's `structured_outputs`. Raises ApiError for an invalid JSON Schema."""
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return structured_form(request.structured_outputs)
    if form.type == "json_object":
        return AnswerForm("text.format", ANY_OBJECT)
    if problem := schema_problem(form.schema_, "text.format.schema", bool(form.strict)):
        raise errors.invalid_schema(f"response_format '{form.name}'", problem, "text.format.schema", "invalid_json_schema")
    return AnswerForm("text.format.schema", form.schema_)


def _tool_choice(choice: Any, tools: Sequence[Tool]) -> tuple[ToolChoice, bool]:
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            names = tuple(
                name for tool in choice.get("tools") or () for name in chosen(tool, tools) or (str(tool.get("name", "")),)
            )
            return ToolChoice(choice.get("mode", "auto"), names), False
        if choice.get("type") not in ("function", "custom"):
            forced = chosen(choice, tools)
            return (ToolChoice("auto"), False) if forced is None else (ToolChoice("required", forced), True)
    return tool_choice(choice)
