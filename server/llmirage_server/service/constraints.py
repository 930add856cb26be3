"""Constraints of a request on its replies, in the terms of replies/: tools, the form of the answer, thoughts."""

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
from llmirage_server.replies.structured.matcher import GrammarError, compiled
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.schema_check import check_schema
from llmirage_shared.settings import at_call
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import NO_HISTORY, ChatHistory, ChatRequest
from llmirage_shared.wire.refusals import strict_problem

# Tokens of thought by reasoning effort: each level about four times the one before.
_THOUGHT_TOKENS = {"none": 0, "minimal": 32, "low": 128, "medium": 512, "high": 2048, "xhigh": 4096, "max": 8192}
LENGTH_FACTORS = {"low": 0.5, "medium": 1.0, "high": 2.0}  # by verbosity
_REMEMBERED_PROBLEMS = 4096
_problems: dict[tuple[bytes, str], str | None] = {}  # by digest and kind: agents send the same tools each time
_problems_lock = Lock()  # planning may run in a thread
_WITHOUT_REFERENCES = 2  # the version of marshal's format that writes equal values equally; a fifth of the time of JSON
_FORM_FIELDS = frozenset((
    "ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_json_object", "guided_regex", "json_schema",
    "regex", "structured_outputs",
))  # fmt: skip
_INSTRUCTING_MESSAGES = 8  # the last messages of a user that may ask for a form of the answer

check_grammar: Callable[[str], None] = at_call("llmirage_server.replies.structured.grammar:check_grammar")


@dataclass(slots=True)
class ReplyConstraints:
    """Fields of ReplyRequest (those of `history`, too) under their names, and how the API writes a tool call."""

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    history: ChatHistory = NO_HISTORY
    json_schema: Any = None
    grammar: Grammar | None = None
    form_field: str = "response_format"  # that gives one of these two
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


@dataclass(slots=True, frozen=True)
class AnswerForm:
    """A JSON value or a text of a grammar that the answer must be, and the field that says so. False without either."""

    field: str = "response_format"
    json_schema: Any = None
    grammar: Grammar | None = None

    def __bool__(self) -> bool:
        return self.json_schema is not None or self.grammar is not None


NO_FORM = AnswerForm()


def chat_constraints(request: ChatRequest) -> ReplyConstraints:
    """Return the constraints of a chat reply.

    Raises ApiError for an invalid JSON Schema or grammar and for an unknown tool.
    """
    _check_schemas(request)
    body = request.body
    legacy = bool(body.functions) and not body.tools
    form = _answer_form(body)
    tools = tuple([_read_tool(index, tool, legacy) for index, tool in enumerate(request.tools or ())])
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
        json_schema=form.json_schema,
        grammar=form.grammar,
        form_field=form.field,
        instructions=instructions_of(request.messages),
        reasoning_tokens=thought_tokens(effort, request.sampling.max_tokens),
        length_factor=LENGTH_FACTORS.get(body.verbosity or "medium", 1.0),
        may_refuse=True,
        forced=forced,
        legacy_functions=legacy,
        show_reasoning=body.include_reasoning is not False,
    )


def completion_constraints(body: schema.chat.SamplingFields) -> ReplyConstraints:
    """Return the constraints of a text completion: the form of its text. Raises ApiError for a schema that is no JSON."""
    form = _answer_form(body)
    return ReplyConstraints(json_schema=form.json_schema, grammar=form.grammar, form_field=form.field) if form else TEXT


def check_names(choice: ToolChoice, tools: Sequence[Tool]) -> None:
    """Raise ApiError if the choice names a tool that is not declared."""
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            raise errors.invalid_value("tool_choice", f"tool choice '{name}' not found in 'tools' parameter.")


def instructions_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the texts of a conversation that may ask for a form of the answer."""
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
    """Return the problem of a JSON Schema, None if it is valid.

    where: the field that it stands in. strict: also what `strict: true` demands. Spends steps of planning.
    """
    return _problem(json_schema, where, "strict" if strict else "schema", lambda: _schema_problem(json_schema, strict))


def _problem(definition: Any, where: str, kind: str, find: Callable[[], str | None]) -> str | None:
    """Return the problem that `find` finds in a definition of this kind; remembered ones are not searched again."""
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
        where = _tool_field(index, not request.body.tools)
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


def _answer_form(body: schema.chat.SamplingFields) -> AnswerForm:
    """Return the form that the fields of a request give for its answer. Raises ApiError for a schema that is no JSON."""
    guided, form = _guided(body), body.response_format
    if guided.grammar is not None or form is None or form.type == "text":
        return guided
    if form.type == "json_object":  # others than OpenAI take a schema with it
        given = (form.model_extra or {}).get("schema")
        return AnswerForm("response_format", given if isinstance(given, dict) else ANY_OBJECT)
    given = form.json_schema.schema_
    return AnswerForm("response_format", ANY_OBJECT if given is None else given)


def _guided(body: schema.chat.SamplingFields) -> AnswerForm:
    """Return the form of vLLM's `structured_outputs` and `guided_*`, SGLang's and llama.cpp's fields."""
    if _FORM_FIELDS.isdisjoint(body.model_fields_set):
        return NO_FORM
    given = structured_form(body.structured_outputs)
    return given or _form(
        regexes=((body.guided_regex, "guided_regex"), (body.regex, "regex")),
        choices=((body.guided_choice, "guided_choice"),),
        grammars=((body.guided_grammar, "guided_grammar"), (body.ebnf, "ebnf"), (body.grammar, "grammar")),
        schemas=((body.guided_json, "guided_json"), (body.json_schema, "json_schema")),
        any_object=((body.guided_json_object, "guided_json_object"),),
    )


def structured_form(given: schema.chat.StructuredOutputs | None) -> AnswerForm:
    """Return the form of `structured_outputs`. Raises ApiError for a schema that is no JSON."""
    name = "structured_outputs"
    return NO_FORM if given is None else _form(
        ((given.regex, f"{name}.regex"),), ((given.choice, f"{name}.choice"),), ((given.grammar, f"{name}.grammar"),),
        ((given.json_, f"{name}.json"),), ((given.json_object, f"{name}.json_object"),)
    )  # fmt: skip


_Given = Sequence[tuple[Any, str]]  # values of fields with their names


def _form(regexes: _Given, choices: _Given, grammars: _Given, schemas: _Given, any_object: _Given) -> AnswerForm:
    for regex, field in regexes:
        if regex is not None:
            return AnswerForm(field, grammar=Grammar("regex", regex))
    for texts, field in choices:
        if texts:
            return AnswerForm(field, grammar=Grammar("choice", choices=tuple(texts)))
    for grammar, field in grammars:
        if grammar is not None:
            return AnswerForm(field, grammar=Grammar("lark", grammar))
    for json_schema, field in schemas:
        if isinstance(json_schema, str):
            try:
                json_schema = json.loads(json_schema)
            except (ValueError, RecursionError):
                raise errors.invalid_value(field, "it is not valid JSON.") from None
        if json_schema is not None:
            return AnswerForm(field, json_schema)
    for wanted, field in any_object:
        if wanted:
            return AnswerForm(field, ANY_OBJECT)
    return NO_FORM


# --- tools --------------------------------------------------------------------------------------------------------------


def plain(field: Any) -> Any:
    """Return a field's value as it was sent, of an object, too."""
    return field.plain() if hasattr(field, "plain") else field


def _tool_field(index: int, legacy: bool) -> str:
    """Return the field with a function's parameters. legacy: of the deprecated `functions`."""
    return f"functions[{index}].parameters" if legacy else f"tools[{index}].function.parameters"


def _read_tool(index: int, tool: Mapping[str, Any], legacy: bool) -> Tool:
    """Return a tool in chat's form. legacy: of the deprecated `functions`. Raises ApiError for an invalid grammar."""
    custom = tool.get("custom")
    if tool.get("type") == "custom" and isinstance(custom, dict):
        return custom_tool(custom, f"tools[{index}].custom")
    field = _tool_field(index, legacy)
    function = tool.get("function") or {}
    return Tool(
        "function", function.get("name", ""), function.get("description") or "", function.get("parameters"), field=field
    )


def custom_tool(custom: Mapping[str, Any], where: str) -> Tool:
    """Return a tool that takes free text, or text of a grammar. where: its field. Raises ApiError for an invalid grammar."""
    form = custom.get("format") or {}
    grammar = None
    if form.get("type") == "grammar":
        written = form.get("grammar") or form  # nested in chat, not in the Responses API
        grammar = Grammar(written.get("syntax", "lark"), written.get("definition", ""))
        definition = grammar.definition
        check = check_grammar if grammar.syntax == "lark" else compiled
        place = f"{where}.format.{'definition' if written is form else 'grammar.definition'}"
        if problem := _problem(definition, place, grammar.syntax, lambda: _refusal(lambda: check(definition))):
            raise errors.ApiError(f"Invalid grammar for custom tool '{custom.get('name', '')}': {problem}", param=place)
    return Tool("custom", custom.get("name", ""), custom.get("description") or "", None, grammar, f"{where}.format")


def _refusal(check: Callable[[], Any]) -> str | None:
    """Return the message of the error that a check of a grammar raises."""
    try:
        check()
    except (GrammarError, PatternError) as error:
        return str(error)
    return None


def tool_choice(choice: Any) -> tuple[ToolChoice, bool]:
    """Return the choice, and whether it names one tool."""
    if choice is None or choice in ("auto", "none", "required"):
        return ToolChoice(choice or "auto"), False
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        return ToolChoice(allowed["mode"], tuple(_tool_name(tool) for tool in allowed["tools"])), False
    return ToolChoice("required", (_tool_name(choice),)), True


def _tool_name(tool: Mapping[str, Any]) -> str:
    inner = tool.get("function") or tool.get("custom") or tool
    return str(inner.get("name", ""))
