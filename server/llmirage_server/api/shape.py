"""What a request asks of the form of its replies, in the terms of replies/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmirage_server.api.responses.hosted import chosen, hosted_tools
from llmirage_server.replies.prompted import object_form, prompted_form
from llmirage_server.replies.reply import ANY_OBJECT, AUTO, Grammar, Tool, ToolChoice
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.values import validator_for
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import called_before_user, called_since_user, results_since_user, text_before_user
from llmirage_shared.wire.schema.strict import strict_problem

if TYPE_CHECKING:
    from llmirage_shared.wire.chat import ChatRequest
    from llmirage_shared.wire.completions import CompletionRequest
    from llmirage_shared.wire.schema.chat import SamplingFields
    from llmirage_shared.wire.schema.responses import ResponseRequest

# Tokens of thought by reasoning effort: each level about four times the one before.
_THOUGHT = {"none": 0, "minimal": 32, "low": 128, "medium": 512, "high": 2048, "xhigh": 4096, "max": 8192}

_LENGTH_FACTORS = {"low": 0.5, "medium": 1.0, "high": 2.0}  # by verbosity


@dataclass(slots=True, frozen=True)
class Shape:
    """The fields of ReplyRequest of the same names, and how a tool call is told."""

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    called: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    called_before: tuple[str, ...] = ()
    text_before: str = ""
    json_schema: Any = None
    fenced: bool = False
    grammar: Grammar | None = None
    reasoning_tokens: int = 0
    most_hosted_calls: int = 8
    forced: bool = False  # one tool was named: the API then ends with "stop"
    legacy_functions: bool = False  # `functions` instead of `tools`: one call, told as function_call
    show_reasoning: bool = True
    length_factor: float = 1.0
    may_refuse: bool = False  # it is a conversation, in which the model may decline


TEXT = Shape()


def chat_shape(request: ChatRequest) -> Shape:
    """The shape of a chat reply. Raises ApiError for schemas and grammars that are none."""
    body = request.body
    legacy = bool(body.functions) and not body.tools
    schema, grammar = response_form(body.response_format.model_dump(by_alias=True) if body.response_format else None)
    guided_schema, guided_grammar = guided_form(body)
    choice, forced = _tool_choice(body.function_call if legacy else _plain(body.tool_choice))
    schema, fenced = asked_in_words(
        schema if schema is not None else guided_schema, grammar or guided_grammar, request.messages
    )
    return Shape(
        tools=tuple(read_tool(tool) for tool in request.tools or ()),
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and not legacy,
        called=called_since_user(request.heard),
        results=results_since_user(request.heard),
        called_before=called_before_user(request.heard),
        text_before=text_before_user(request.heard),
        json_schema=schema,
        fenced=fenced,
        grammar=grammar or guided_grammar,
        reasoning_tokens=_reasoning_tokens(body.reasoning_effort, body.chat_template_kwargs, request.sampling.max_tokens),
        forced=forced,
        legacy_functions=legacy,
        show_reasoning=body.include_reasoning is not False,
        length_factor=_LENGTH_FACTORS.get(body.verbosity or "medium", 1.0),
        may_refuse=True,
    )


def asked_in_words(schema: Any, grammar: Grammar | None, messages: Sequence[Mapping[str, Any]]) -> tuple[Any, bool]:
    """The schema of the answer and whether it is fenced, where the prompt's words say more than the request's fields."""
    if grammar is not None or not (schema is None or schema == ANY_OBJECT):
        return schema, False
    texts = [
        text
        for index, message in enumerate(messages)
        if message.get("role") in ("system", "developer") or (message.get("role") == "user" and index >= len(messages) - 8)
        for text in _texts(message.get("content"))
    ]
    if schema is not None:
        return object_form(texts), False
    form = prompted_form(texts)
    return (None, False) if form is None else (form.schema, form.fenced)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]


def response_shape(
    request: ResponseRequest, messages: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]] = ()
) -> Shape:
    """The shape of a response. messages: all that the model sees, in chat form; items: in the API's own. Raises ApiError."""
    tools: list[Tool] = []
    for index, tool in enumerate(request.tools or ()):
        plain = tool.model_dump(by_alias=True, exclude_unset=True)
        if plain["type"] == "function":
            strict = plain.get("strict") is True
            if (parameters := plain.get("parameters")) and (problem := schema_problem(parameters, strict)):
                where = f"tools[{index}].parameters"
                raise errors.invalid_schema(f"function '{plain['name']}'", problem, where, "invalid_function_parameters")
            tools.append(Tool("function", plain["name"], plain.get("description") or "", plain.get("parameters")))
        elif plain["type"] == "custom":
            tools.append(custom_tool(plain))
        else:
            tools += hosted_tools(plain, items)
    schema: Any = None
    form: dict[str, Any]
    form = request.text.format.model_dump(by_alias=True) if request.text and request.text.format else {"type": "text"}
    if form["type"] == "json_object":
        schema = ANY_OBJECT
    elif form["type"] == "json_schema":
        schema = form["schema"]
        if problem := schema_problem(schema, bool(form.get("strict"))):
            raise errors.invalid_schema(
                f"response_format '{form['name']}'", problem, "text.format.schema", "invalid_json_schema"
            )
    choice, forced = _response_choice(request.tool_choice, tools)
    if request.tool_choice == "required" and not request.tools:
        raise errors.only_with("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    schema, fenced = asked_in_words(schema, None, messages)
    return Shape(
        tools=tuple(tools),
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        most_hosted_calls=request.max_tool_calls or 8,
        called=called_since_user(messages),
        results=results_since_user(messages),
        called_before=called_before_user(messages),
        text_before=text_before_user(messages),
        json_schema=schema,
        fenced=fenced,
        reasoning_tokens=thought_tokens(request.reasoning.effort if request.reasoning else None, request.max_output_tokens),
        forced=forced,
        length_factor=_LENGTH_FACTORS.get((request.text.verbosity if request.text else None) or "medium", 1.0),
        may_refuse=True,
    )


def _response_choice(choice: Any, tools: Sequence[Tool]) -> tuple[ToolChoice, bool]:
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            names = tuple(
                name for tool in choice.get("tools") or () for name in chosen(tool, tools) or (str(tool.get("name", "")),)
            )
            return ToolChoice(choice.get("mode", "auto"), names), False
        if choice.get("type") not in ("function", "custom"):
            forced = chosen(choice, tools)
            return (ToolChoice("auto"), False) if forced is None else (ToolChoice("required", forced), True)
    return _tool_choice(choice)


def completion_shape(request: CompletionRequest) -> Shape:
    """The shape of a text completion: vLLM's structured outputs are all it may ask for."""
    schema, grammar = guided_form(request.body)
    return TEXT if schema is None and grammar is None else Shape(json_schema=schema, grammar=grammar)


def check_schemas(request: ChatRequest) -> None:
    """Raises ApiError for the first tool or response format whose JSON Schema is none, or not what `strict` demands."""
    for index, tool in enumerate(request.tools or ()):
        function = tool.get("function")
        parameters = function.get("parameters") if isinstance(function, dict) else None
        if parameters and (problem := schema_problem(parameters, bool(tool["function"].get("strict")))):
            where = f"tools[{index}].function.parameters"
            raise errors.invalid_schema(
                f"function '{tool['function']['name']}'", problem, where, "invalid_function_parameters"
            )
    form = request.body.response_format
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        if "json" not in json.dumps(request.messages).lower():
            raise errors.invalid_value(
                "messages",
                "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            )
    elif form.json_schema.schema_ is not None and (
        problem := schema_problem(form.json_schema.schema_, bool(form.json_schema.strict))
    ):
        raise errors.invalid_schema(f"response_format '{form.json_schema.name}'", problem, "response_format", None)


def import_models() -> None:
    """Import what every first request would wait for: pydantic, and its model of chat requests."""
    from llmirage_shared.wire.schema import chat, completions, validation  # noqa: F401


def warm_up_schemas() -> None:
    """Import the validator of JSON Schemas, which the first request with one would wait for."""
    schema_problem(ANY_OBJECT, strict=False)


def schema_problem(schema: Any, strict: bool) -> str | None:
    """What is wrong with a JSON Schema, None when nothing is."""
    return _schema_problem(json.dumps(schema), strict)


@lru_cache(maxsize=4096)
def _schema_problem(written: str, strict: bool) -> str | None:
    """Agents send the same tools with every request: each is looked at once."""
    schema = json.loads(written)
    try:
        validator_for(schema)
    except SchemaError as error:
        return f"{error.path + ': ' if error.path else ''}{error}"
    return strict_problem(schema) if strict else None


def _plain(choice: Any) -> Any:
    return choice.model_dump() if hasattr(choice, "model_dump") else choice


def _reasoning_tokens(effort: str | None, template: dict[str, Any] | None, max_tokens: int | None) -> int:
    if effort is None and (template or {}).get("enable_thinking") is True:
        effort = "medium"
    return thought_tokens(effort, max_tokens)


def thought_tokens(effort: str | None, max_tokens: int | None) -> int:
    """How long to think: by effort, and never so long that nothing is left for the answer."""
    tokens = _THOUGHT.get(effort or "none", 0)
    return tokens if max_tokens is None else min(tokens, max_tokens * 3 // 4)


def read_tool(tool: dict[str, Any]) -> Tool:
    """A tool in the form of chat completions."""
    custom = tool.get("custom")
    if tool.get("type") == "custom" and isinstance(custom, dict):
        return custom_tool(custom)
    function = tool.get("function") or {}
    return Tool("function", function.get("name", ""), function.get("description") or "", function.get("parameters"))


def custom_tool(custom: dict[str, Any]) -> Tool:
    form = custom.get("format") or {}
    grammar = None
    if form.get("type") == "grammar":
        written = form.get("grammar") or form  # chat nests it, the Responses API does not
        grammar = Grammar(written.get("syntax", "lark"), written.get("definition", ""))
    return Tool("custom", custom.get("name", ""), custom.get("description") or "", None, grammar)


def _tool_choice(choice: Any) -> tuple[ToolChoice, bool]:
    """The choice, and whether it names one tool."""
    if choice is None or choice in ("auto", "none", "required"):
        return ToolChoice(choice or "auto"), False
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        return ToolChoice(allowed["mode"], tuple(_tool_name(tool) for tool in allowed["tools"])), False
    return ToolChoice("required", (_tool_name(choice),)), True


def _tool_name(tool: dict[str, Any]) -> str:
    inner = tool.get("function") or tool.get("custom") or tool
    return str(inner.get("name", ""))


def check_names(shape: Shape, param: str = "tool_choice") -> None:
    """Raises ApiError when a tool was named that is not there."""
    known = {tool.name for tool in shape.tools}
    for name in shape.tool_choice.names or ():
        if name not in known:
            raise errors.invalid_value(param, f"tool choice '{name}' not found in 'tools' parameter.")


def response_form(form: dict[str, Any] | None) -> tuple[Any, Grammar | None]:
    """The JSON Schema that a `response_format` asks for, None for text."""
    if form is None or form.get("type") == "text":
        return None, None
    if form["type"] == "json_object":
        return ANY_OBJECT, None
    inner = form.get("json_schema") or {}
    schema = inner.get("schema")
    return (ANY_OBJECT if schema is None else schema), None


def guided_form(body: SamplingFields) -> tuple[Any, Grammar | None]:
    """vLLM's structured_outputs and guided_* fields."""
    given = body.structured_outputs
    schema: Any = (given.json_ if given else None) or body.guided_json
    if schema is None and given is not None and given.json_object:
        schema = ANY_OBJECT
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
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
    return schema, None
