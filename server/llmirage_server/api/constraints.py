"""What a request demands of its replies, in the terms of replies/: tools, the form of the answer, thoughts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from llmirage_server.replies.reply import ANY_OBJECT, AUTO, Grammar, Tool, ToolChoice
from llmirage_server.replies.structured.budget import working_on
from llmirage_server.replies.structured.matcher import GrammarError, PatternError, compiled
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.schema_check import check_schema
from llmirage_shared.settings import at_call
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import NO_HISTORY, ChatHistory, ChatRequest
from llmirage_shared.wire.completions import TextRequest
from llmirage_shared.wire.schema.strict import strict_problem

# Tokens of thought by reasoning effort: each level about four times the one before.
_THOUGHT_TOKENS = {"none": 0, "minimal": 32, "low": 128, "medium": 512, "high": 2048, "xhigh": 4096, "max": 8192}
LENGTH_FACTORS = {"low": 0.5, "medium": 1.0, "high": 2.0}  # by verbosity
_REMEMBERED_PROBLEMS = 4096
_problems: dict[tuple[bytes, str], str | None] = {}  # by digest and kind: agents send the same tools each time
_problems_lock = Lock()  # planning may run in a thread
_WITHOUT_REFERENCES = 2  # the version of marshal's format that writes equal values equally; a fifth of the time of JSON
_INSTRUCTING_MESSAGES = 8  # the last messages of a user that may ask for a form of the answer

check_grammar: Callable[[str], None] = at_call("llmirage_server.replies.structured.grammar:check_grammar")


@dataclass(slots=True, frozen=True)
class ReplyConstraints:
    """Fields of ReplyRequest (those of `history`, too) under their names, and how the API writes a tool call."""

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    history: ChatHistory = NO_HISTORY
    json_schema: Any = None
    grammar: Grammar | None = None
    instructions: tuple[str, ...] | None = None
    reasoning_tokens: int = 0
    most_hosted_calls: int = 8
    length_factor: float = 1.0
    may_refuse: bool = False
    compacts: bool = False  # the reply is a summary of the conversation
    forced: bool = False  # the request names one tool: the finish reason is then "stop"
    legacy_functions: bool = False  # `functions` instead of `tools`: one call, written as function_call
    show_reasoning: bool = True


TEXT = ReplyConstraints()


def chat_constraints(request: ChatRequest) -> ReplyConstraints:
    """The constraints of a chat reply. Raises ApiError for an invalid JSON Schema or grammar and for an unknown tool."""
    _check_schemas(request)
    body = request.body
    legacy = bool(body.functions) and not body.tools
    guided_schema, grammar = _guided(body)
    answer_schema = _response_schema(body)
    tools = tuple([_read_tool(index, tool) for index, tool in enumerate(request.tools or ())])
    choice, forced = tool_choice(plain(body.function_call if legacy else body.tool_choice))
    check_names(choice, tools)
    effort = body.reasoning_effort
    if effort is None and (body.chat_template_kwargs or {}).get("enable_thinking") is True:
        effort = "medium"
    return ReplyConstraints(
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and not legacy,
        history=request.history,
        json_schema=guided_schema if answer_schema is None else answer_schema,
        grammar=grammar,
        instructions=instructions_of(request.messages),
        reasoning_tokens=thought_tokens(effort, request.sampling.max_tokens),
        length_factor=LENGTH_FACTORS.get(body.verbosity or "medium", 1.0),
        may_refuse=True,
        forced=forced,
        legacy_functions=legacy,
        show_reasoning=body.include_reasoning is not False,
    )


def completion_constraints(request: TextRequest) -> ReplyConstraints:
    """The constraints of a text completion: vLLM's structured outputs. Raises ApiError for an invalid one."""
    answer_schema, grammar = _guided(request.body)
    return (
        TEXT if answer_schema is None and grammar is None else ReplyConstraints(json_schema=answer_schema, grammar=grammar)
    )


def check_names(choice: ToolChoice, tools: Sequence[Tool]) -> None:
    """Raise ApiError if the choice names a tool that is not declared."""
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            raise errors.invalid_value("tool_choice", f"tool choice '{name}' not found in 'tools' parameter.")


def instructions_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The texts of a conversation that may ask for a form of the answer."""
    first = len(messages) - _INSTRUCTING_MESSAGES
    return tuple(
        [
            text
            for index, message in enumerate(messages)
            if message.get("role") in ("system", "developer") or (message.get("role") == "user" and index >= first)
            for text in _texts(message.get("content"))
        ]
    )


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]


def thought_tokens(effort: str | None, max_tokens: int | None) -> int:
    """Tokens of thought for an effort; a quarter of `max_tokens` at least is left for the answer."""
    tokens = _THOUGHT_TOKENS.get(effort or "none", 0)
    return tokens if max_tokens is None else min(tokens, max_tokens * 3 // 4)


# --- schemas and grammars -----------------------------------------------------------------------------------------------


def schema_problem(json_schema: Any, where: str, strict: bool = False) -> str | None:
    """What is wrong with a JSON Schema, None if it is valid.

    where: the field that it stands in. strict: also what `strict: true` demands. Spends steps of planning.
    """
    return _problem(json_schema, where, "strict" if strict else "schema", lambda: _schema_problem(json_schema, strict))


def _problem(definition: Any, where: str, kind: str, find: Callable[[], str | None]) -> str | None:
    """What `find` finds wrong with a definition of this kind, which may be known already."""
    working_on(where)
    key = (hashlib.blake2b(marshal.dumps(definition, _WITHOUT_REFERENCES), digest_size=16).digest(), kind)
    if key in _problems:
        with contextlib.suppress(KeyError):  # forgotten meanwhile
            return _problems[key]
    problem = find()
    with _problems_lock:
        _problems[key] = problem
        if len(_problems) > _REMEMBERED_PROBLEMS:
            _problems.pop(next(iter(_problems)))
    return problem


def _schema_problem(json_schema: Any, strict: bool) -> str | None:
    try:
        check_schema(json_schema)
    except SchemaError as error:
        return f"{error.path + ': ' if error.path else ''}{error}"
    return strict_problem(json_schema) if strict else None


def _check_schemas(request: ChatRequest) -> None:
    """Raise ApiError for the first tool or response format with an invalid JSON Schema, or less strict than it claims."""
    for index, tool in enumerate(request.tools or ()):
        function = tool.get("function")
        parameters = function.get("parameters") if isinstance(function, dict) else None
        where = f"tools[{index}].function.parameters"
        if parameters and (problem := schema_problem(parameters, where, bool(tool["function"].get("strict")))):
            raise errors.invalid_schema(
                f"function '{tool['function']['name']}'", problem, where, "invalid_function_parameters"
            )
    form = request.body.response_format
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        if not any("json" in json.dumps(message).lower() for message in request.messages):
            raise errors.invalid_value(
                "messages",
                "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            )
    elif form.json_schema.schema_ is not None and (
        problem := schema_problem(form.json_schema.schema_, "response_format", bool(form.json_schema.strict))
    ):
        raise errors.invalid_schema(f"response_format '{form.json_schema.name}'", problem, "response_format", None)


def _response_schema(body: schema.chat.ChatCompletionRequest) -> Any:
    """The JSON Schema that a `response_format` asks for, None for text."""
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object" or form.json_schema.schema_ is None:
        return ANY_OBJECT
    return form.json_schema.schema_


def _guided(body: schema.chat.SamplingFields) -> tuple[Any, Grammar | None]:
    """The JSON Schema or the grammar of vLLM's `structured_outputs` and `guided_*` fields."""
    given = body.structured_outputs
    answer_schema: Any = (given.json_ if given else None) or body.guided_json
    if answer_schema is None and given is not None and given.json_object:
        answer_schema = ANY_OBJECT
    if isinstance(answer_schema, str):
        try:
            answer_schema = json.loads(answer_schema)
        except ValueError:
            raise errors.invalid_value("structured_outputs.json", "it is not valid JSON.") from None
    regex = (given.regex if given else None) or body.guided_regex
    choices: Sequence[str] | None = (given.choice if given else None) or body.guided_choice
    grammar = (given.grammar if given else None) or body.guided_grammar
    if regex is not None:
        return None, Grammar("regex", regex)
    if choices:
        return None, Grammar("choice", choices=tuple(choices))
    if grammar is not None:
        return None, Grammar("lark", grammar)
    return answer_schema, None


# --- tools --------------------------------------------------------------------------------------------------------------


def plain(field: Any) -> Any:
    """A field's value as it was sent, of an object, too."""
    return field.plain() if hasattr(field, "plain") else field


def _read_tool(index: int, tool: Mapping[str, Any]) -> Tool:
    """A tool in chat's form. Raises ApiError for an invalid grammar."""
    custom = tool.get("custom")
    if tool.get("type") == "custom" and isinstance(custom, dict):
        return custom_tool(custom, f"tools[{index}].custom")
    function = tool.get("function") or {}
    return Tool("function", function.get("name", ""), function.get("description") or "", function.get("parameters"))


def custom_tool(custom: Mapping[str, Any], where: str) -> Tool:
    """A tool that takes free text, or text of a grammar. where: the field. Raises ApiError for an invalid grammar."""
    form = custom.get("format") or {}
    grammar = None
    if form.get("type") == "grammar":
        written = form.get("grammar") or form  # nested in chat, not in the Responses API
        grammar = Grammar(written.get("syntax", "lark"), written.get("definition", ""))
        definition = grammar.definition
        check = check_grammar if grammar.syntax == "lark" else compiled
        where = f"{where}.format.{'definition' if written is form else 'grammar.definition'}"
        if problem := _problem(definition, where, grammar.syntax, lambda: _refusal(lambda: check(definition))):
            raise errors.ApiError(f"Invalid grammar for custom tool '{custom.get('name', '')}': {problem}", param=where)
    return Tool("custom", custom.get("name", ""), custom.get("description") or "", None, grammar)


def _refusal(check: Callable[[], Any]) -> str | None:
    """The message of the error that a check of a grammar raises."""
    try:
        check()
    except (GrammarError, PatternError) as error:
        return str(error)
    return None


def tool_choice(choice: Any) -> tuple[ToolChoice, bool]:
    """The choice, and whether it names one tool."""
    if choice is None or choice in ("auto", "none", "required"):
        return ToolChoice(choice or "auto"), False
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        return ToolChoice(allowed["mode"], tuple(_tool_name(tool) for tool in allowed["tools"])), False
    return ToolChoice("required", (_tool_name(choice),)), True


def _tool_name(tool: Mapping[str, Any]) -> str:
    inner = tool.get("function") or tool.get("custom") or tool
    return str(inner.get("name", ""))
