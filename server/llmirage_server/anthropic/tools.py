"""The typed tools of the Messages API: one table of their declarations, what the model calls of each, and who runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmirage_server.replies.reply import Tool
from llmirage_shared.texts import short_cache
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError

Positive = Annotated[int, Field(gt=0)]
_LONGEST_NAME = 128


# --- declarations -------------------------------------------------------------------------------------------------------


class StrictObject(BaseModel):
    """An object of the API of which every field is known, and of its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Declared(StrictObject):
    """The fields that every typed tool may have."""

    type: str
    cache_control: dict[str, Any] | None = None


class _Named(_Declared):
    name: str
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    strict: bool | None = None


class _ClientTool(_Named):
    input_examples: list[dict[str, Any]] | None = None


class _Editor(_ClientTool):
    max_characters: Positive | None = None


class _Display(_ClientTool):
    display_width_px: Positive
    display_height_px: Positive
    display_number: Annotated[int, Field(ge=0)] | None = None


class _ZoomedDisplay(_Display):
    enable_zoom: bool | None = None


class _OfDomains(_Named):
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    max_uses: Positive | None = None

    @model_validator(mode="after")
    def _one_list(self) -> _OfDomains:
        if self.allowed_domains and self.blocked_domains:
            raise ValueError("`allowed_domains` and `blocked_domains` cannot be specified together")
        return self


class _Location(StrictObject):
    type: Literal["approximate"]
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class _WebSearch(_OfDomains):
    user_location: _Location | None = None


class _NewSearch(_WebSearch):
    response_inclusion: Literal["full", "excluded"] | None = None


class _Fetch(_OfDomains):
    citations: dict[str, Any] | None = None
    max_content_tokens: Positive | None = None
    url_sources: dict[str, Any] | None = None


class _CachedFetch(_Fetch):
    use_cache: bool | None = None


class _NewFetch(_CachedFetch):
    response_inclusion: Literal["full", "excluded"] | None = None


class _ToolConfig(StrictObject):
    enabled: bool | None = None
    defer_loading: bool | None = None


class _Toolset(_Declared):
    mcp_server_name: str
    default_config: _ToolConfig | None = None
    configs: dict[str, _ToolConfig] | None = None
    tools: list[dict[str, Any]] | None = None


class _ServerConfig(StrictObject):
    allowed_tools: list[str] | None = None
    enabled: bool | None = None


class _Server(StrictObject):
    """An entry of `mcp_servers`."""

    type: Literal["url"]
    name: Annotated[str, Field(min_length=1)]
    url: str
    authorization_token: str | None = None
    tool_configuration: _ServerConfig | None = None


# --- what the model calls -----------------------------------------------------------------------------------------------


def _object(properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), **more}


_TEXT: dict[str, Any] = {"type": "string"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_POINT: dict[str, Any] = {"type": "array", "items": _WHOLE, "minItems": 2, "maxItems": 2}
_RANGE: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _needs(command: str, key: str, *fields: str) -> dict[str, Any]:
    """JSON Schema: a `command` (the value of `key`) needs these fields, too."""
    return {"if": {"properties": {key: {"const": command}}}, "then": {"required": list(fields)}}


def _editor(*more_commands: str, path: Mapping[str, Any] = _TEXT) -> dict[str, Any]:
    texts = ("file_text", "old_str", "new_str", "insert_text")
    properties = {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", *more_commands]},
        "path": dict(path), **dict.fromkeys(texts, _TEXT), "insert_line": _WHOLE, "view_range": _RANGE,
    }  # fmt: skip
    needs = [
        _needs("create", "command", "file_text"), _needs("str_replace", "command", "old_str"),
        _needs("insert", "command", "insert_line"),
    ]  # fmt: skip
    return _object(properties, "command", "path", allOf=needs)


_BASH = _object({"command": _TEXT, "restart": {"type": "boolean"}}, "command")
_MEMORY = _editor("delete", "rename", path={"type": "string", "pattern": "^/memories"})
_ACTIONS = "screenshot key type mouse_move left_click left_click_drag right_click middle_click double_click cursor_position"
_NEW_ACTIONS = f"{_ACTIONS} left_mouse_down left_mouse_up triple_click scroll hold_key wait"


def _computer(actions: str) -> dict[str, Any]:
    names = actions.split()
    properties: dict[str, Any] = {"action": {"type": "string", "enum": names}, "coordinate": _POINT, "text": _TEXT}
    needs = [_needs(name, "action", "text") for name in ("key", "type")]
    needs += [_needs("mouse_move", "action", "coordinate")]
    needs += [_needs("left_click_drag", "action", "coordinate")]
    if "scroll" in names:
        directions = {"type": "string", "enum": ["down", "up", "left", "right"]}
        properties |= {"scroll_direction": directions, "scroll_amount": _WHOLE, "duration": {"type": "number", "minimum": 0}}
        needs += [_needs("scroll", "action", "coordinate", "scroll_direction", "scroll_amount")]
        needs += [_needs("hold_key", "action", "text", "duration"), _needs("wait", "action", "duration")]
    if "zoom" in names:
        properties["region"] = {"type": "array", "items": _WHOLE, "minItems": 4, "maxItems": 4}
        needs += [_needs("zoom", "action", "region")]
    return _object(properties, "action", allOf=needs)


_QUERY = _object({"query": _TEXT}, "query")
_URL = _object({"url": {"type": "string", "format": "uri"}}, "url")
_CODE = _object({"code": {"type": "string", "contentMediaType": "text/x-python"}}, "code")
_SHELL = _object({"command": _TEXT}, "command")


@dataclass(slots=True, frozen=True)
class Called:
    """One function that the model calls of a declared tool. result: the type of the block with what it gave."""

    name: str
    about: str
    input_schema: Mapping[str, Any]
    result: str = ""


@dataclass(slots=True, frozen=True)
class ToolType:
    """A type of tool. name: the one that its declaration must have, "" for none. calls: what the model calls of it.

    hosted: the API runs it. betas: headers of which one must be sent, if there are any.
    """

    name: str
    declared: type[_Declared]
    calls: tuple[Called, ...]
    hosted: bool = False
    betas: tuple[str, ...] = ()


def _client(name: str, about: str, input_schema: Mapping[str, Any], declared: type[_Declared], *betas: str) -> ToolType:
    return ToolType(name, declared, (Called(name, about, input_schema),), betas=betas)


def _hosted(name: str, declared: type[_Declared], *calls: Called, betas: tuple[str, ...] = ()) -> ToolType:
    return ToolType(name, declared, calls, hosted=True, betas=betas)


_RUN = "Run a shell command."
_EDIT = "View, create and edit files."
_USE = "Use a computer: take screenshots, move and click the mouse, type."
_REMEMBER = "Read and keep memories in files under /memories."
_SEARCHES = Called("web_search", "Search the web.", _QUERY, "web_search_tool_result")
_FETCHES = Called("web_fetch", "Fetch the page at a URL of the web.", _URL, "web_fetch_tool_result")
_RUNS = Called("code_execution", "Run Python code, plot and analyze data.", _CODE, "code_execution_tool_result")
_SHELLS = Called(
    "bash_code_execution", "Run code, a calculation or a shell command in the container.", _SHELL,
    "bash_code_execution_tool_result",
)  # fmt: skip
_EDITS = Called(
    "text_editor_code_execution", "View, create and edit files of the container.", _editor(),
    "text_editor_code_execution_tool_result",
)  # fmt: skip
_EDITOR, _OLD_EDITOR = "str_replace_based_edit_tool", "str_replace_editor"
_OLD_COMPUTER = "computer-use-2024-10-22"
MCP_BETAS = ("mcp-client-2025-11-20", "mcp-client-2026-09-15", "mcp-client-2025-04-04")  # the last one without toolsets


def _finder(kind: str) -> ToolType:
    return _hosted(kind, _Named, Called(kind, "Find tools.", _QUERY, "tool_search_tool_result"))


TOOL_TYPES: Mapping[str, ToolType] = {
    "bash_20241022": _client("bash", _RUN, _BASH, _ClientTool, _OLD_COMPUTER),
    "bash_20250124": _client("bash", _RUN, _BASH, _ClientTool),
    "text_editor_20241022": _client(_OLD_EDITOR, _EDIT, _editor("undo_edit"), _ClientTool, _OLD_COMPUTER),
    "text_editor_20250124": _client(_OLD_EDITOR, _EDIT, _editor("undo_edit"), _ClientTool),
    "text_editor_20250429": _client(_EDITOR, _EDIT, _editor(), _ClientTool),
    "text_editor_20250728": _client(_EDITOR, _EDIT, _editor(), _Editor),
    "computer_20241022": _client("computer", _USE, _computer(_ACTIONS), _Display, _OLD_COMPUTER),
    "computer_20250124": _client("computer", _USE, _computer(_NEW_ACTIONS), _Display, "computer-use-2025-01-24"),
    "computer_20251124": _client(
        "computer", _USE, _computer(f"{_NEW_ACTIONS} zoom"), _ZoomedDisplay, "computer-use-2025-11-24"
    ),
    "memory_20250818": _client("memory", _REMEMBER, _MEMORY, _ClientTool),
    "web_search_20250305": _hosted("web_search", _WebSearch, _SEARCHES),
    "web_search_20260209": _hosted("web_search", _WebSearch, _SEARCHES),
    "web_search_20260318": _hosted("web_search", _NewSearch, _SEARCHES),
    "web_fetch_20250910": _hosted("web_fetch", _Fetch, _FETCHES),
    "web_fetch_20260209": _hosted("web_fetch", _Fetch, _FETCHES),
    "web_fetch_20260309": _hosted("web_fetch", _CachedFetch, _FETCHES),
    "web_fetch_20260318": _hosted("web_fetch", _NewFetch, _FETCHES),
    "code_execution_20250522": _hosted("code_execution", _Named, _RUNS),
    "code_execution_20250825": _hosted("code_execution", _Named, _SHELLS, _EDITS),
    "code_execution_20260120": _hosted("code_execution", _Named, _SHELLS, _EDITS),
    "code_execution_20260521": _hosted("code_execution", _Named, _SHELLS, _EDITS),
    "tool_search_tool_regex_20251119": _finder("tool_search_tool_regex"),
    "tool_search_tool_regex": _finder("tool_search_tool_regex"),
    "tool_search_tool_bm25_20251119": _finder("tool_search_tool_bm25"),
    "tool_search_tool_bm25": _finder("tool_search_tool_bm25"),
    "mcp_toolset": ToolType("", _Toolset, (), hosted=True, betas=MCP_BETAS[:2]),
}
RESULT_TYPES = {call.name: call.result for kind in TOOL_TYPES.values() for call in kind.calls if call.result}
_UNSIMULATED = ("advisor_20260301", "browser_toolset_20260801", "computer_toolset_20260801")
_FINDERS = ("tool_search_tool_regex", "tool_search_tool_bm25")


# --- checks -------------------------------------------------------------------------------------------------------------


def check_tools(request: schema.messages.CountRequest, betas: frozenset[str]) -> None:
    """Raise ApiError in the API's words for a declaration that it refuses. betas: of the request's headers."""
    if request.mcp_servers is not None and betas.isdisjoint(MCP_BETAS):
        raise ApiError("mcp_servers: Extra inputs are not permitted")
    servers = [fitting(_Server, server, f"mcp_servers.{index}") for index, server in enumerate(request.mcp_servers or ())]
    server_names = [server.name for server in servers]
    if len(set(server_names)) < len(server_names):
        raise ApiError("mcp_servers: MCP server names must be unique.")
    names: list[str] = []
    sets: list[str] = []
    for index, tool in enumerate(request.tools or ()):
        where = f"tools.{index}"
        kind = tool.type or "custom"
        if kind == "custom":
            _check_custom(tool, where)
            names.append(tool.name or "")
            continue
        known = TOOL_TYPES.get(kind)
        if kind in _UNSIMULATED:
            raise errors.unsupported(f"{where}.type", f"The tool type '{kind}' is not simulated by llmirage.")
        if known is None or (known.betas and betas.isdisjoint(known.betas)):
            raise _unknown_type(where, kind, betas)
        plain = tool.plain()
        fitting(known.declared, plain, f"{where}.{kind}")
        if known.name and tool.name != known.name:
            raise ApiError(f"{where}.{kind}.name: Input should be '{known.name}'")
        _check_callers(plain, where)
        if known.name:
            names.append(known.name)
        else:
            sets.append(str(plain["mcp_server_name"]))
    for name in sets:
        if name not in server_names:
            raise ApiError(f"tools: MCP server '{name}' of an `mcp_toolset` is not defined in `mcp_servers`.")
    if len(set(sets)) < len(sets):
        raise ApiError("tools: Each MCP server can be referenced by one `mcp_toolset` only.")
    unused = [name for name in server_names if name not in sets]
    if unused and not betas.isdisjoint(MCP_BETAS[:2]):
        raise ApiError(f"mcp_servers: MCP server '{unused[0]}' is not referenced by any `mcp_toolset` in `tools`.")
    if len(set(names)) < len(names):
        raise ApiError("tools: Tool names must be unique.")
    deferred = [bool((tool.model_extra or {}).get("defer_loading")) for tool in request.tools or ()]
    if deferred and all(deferred):
        raise ApiError("tools: At least one tool must have `defer_loading` set to false.")


def _check_custom(tool: schema.messages.MessagesTool, where: str) -> None:
    if tool.name is None:
        raise ApiError(f"{where}.custom.name: Field required")
    if len(tool.name) > _LONGEST_NAME:
        raise ApiError(f"{where}.custom.name: String should have at most {_LONGEST_NAME} characters")
    if tool.input_schema is None:
        raise ApiError(f"{where}.custom.input_schema: Field required")
    if tool.input_schema.get("type") != "object":
        problem = "Field required" if "type" not in tool.input_schema else "Input should be 'object'"
        raise ApiError(f"{where}.custom.input_schema.type: {problem}")
    _check_callers(tool.plain(), where)


def _check_callers(tool: Mapping[str, Any], where: str) -> None:
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and "direct" not in callers:
        raise errors.unsupported(
            f"{where}.allowed_callers", 'Calls from code are not simulated by llmirage: add "direct" to `allowed_callers`.'
        )


def _unknown_type(where: str, kind: str, betas: frozenset[str]) -> ApiError:
    expected = [name for name, each in TOOL_TYPES.items() if not each.betas or not betas.isdisjoint(each.betas)]
    return unknown_tag(where, kind, [*expected, "custom"])


def unknown_tag(where: str, tag: str, expected: Iterable[str]) -> ApiError:
    """Return the error for an object whose type is none of those that may stand there."""
    listed = ", ".join(f"'{name}'" for name in sorted(expected))
    return ApiError(
        f"{where}: Input tag '{errors.shorten(tag)}' found using 'type' does not match any of the expected tags: {listed}"
    )


def fitting(model: type[Any], value: Mapping[str, Any], where: str) -> Any:
    """Return the checked object. Raises ApiError in pydantic's words, which are the API's. where: its field, if any."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        field = ".".join([*([where] if where else ()), *map(str, first["loc"])])
        raise ApiError(f"{field}: {first['msg']}") from None


# --- tools as the model sees them ---------------------------------------------------------------------------------------


def declared_tools(request: schema.messages.CountRequest) -> list[Tool]:
    """Return what the model may call, in the order of the declarations. Raises ApiError for a malformed MCP server.

    Unknown types and what is no declaration of a known one are left out: engines take them.
    """
    return list(_declared(request))


def _declared(request: schema.messages.CountRequest) -> Iterator[Tool]:
    finder = next((tool.name for tool in request.tools or () if tool.name in _FINDERS), "")
    found = found_tools(request) if finder else frozenset()
    for index, tool in enumerate(request.tools or ()):
        deferred = finder if bool((tool.model_extra or {}).get("defer_loading")) else ""
        if tool.type in (None, "custom"):
            name = tool.name or ""
            by, where = "" if name in found else deferred, f"tools.{index}.input_schema"
            yield Tool("function", name, tool.description or "", tool.input_schema, field=where, found_by=by)
        elif (known := valid_type(tool)) is not None and not known.name:
            yield from _of_toolset(tool.plain(), request.mcp_servers or (), finder, found)
        elif known is not None:
            for call in known.calls:
                by = "" if call.name in found else deferred
                side: Literal["hosted", "function"] = "hosted" if known.hosted else "function"
                yield Tool(side, call.name, call.about, dict(call.input_schema), found_by=by)
    sets = [(tool.model_extra or {}).get("mcp_server_name") for tool in request.tools or () if tool.type == "mcp_toolset"]
    for index, server in enumerate(request.mcp_servers or ()):
        if fitting(_Server, server, f"mcp_servers.{index}").name not in sets:  # the form before toolsets
            yield from _of_server(server)


def valid_type(tool: schema.messages.MessagesTool) -> ToolType | None:
    """Return the type of a declaration, None where it is unknown or the declaration has not its form."""
    known = TOOL_TYPES.get(tool.type or "")
    try:
        return known and fitting(known.declared, tool.plain(), "") and known
    except ApiError:
        return None


def _of_toolset(
    tool: Mapping[str, Any], servers: Sequence[Mapping[str, Any]], finder: str, found: frozenset[str]
) -> Iterator[Tool]:
    """Yield the tools of an MCP server, which is never asked: those that the request names, else one named search."""
    server = str(tool.get("mcp_server_name"))
    if not any(each.get("name") == server for each in servers):
        return
    usual, own = tool.get("default_config") or {}, tool.get("configs") or {}
    listed = {str(each.get("name")): each for each in tool.get("tools") or ()}
    names = list(listed) or list(own) or ["search"]
    for name in names:
        config = {**usual, **(own.get(name) or {})}
        if config.get("enabled") is not False:
            made = _mcp_tool(server, name, listed.get(name, {}))
            yield replace(made, found_by=finder if config.get("defer_loading") and made.name not in found else "")


def _of_server(server: Mapping[str, Any]) -> Iterator[Tool]:
    config = server.get("tool_configuration") or {}
    if config.get("enabled") is not False:
        for name in config.get("allowed_tools") or ["search"]:
            yield _mcp_tool(str(server.get("name")), str(name), {})


def _mcp_tool(server: str, name: str, listed: Mapping[str, Any]) -> Tool:
    given = listed.get("input_schema")
    return Tool("hosted", f"{server}.{name}", str(listed.get("description") or f"Use {server}."), given or _QUERY)


def found_tools(request: schema.messages.CountRequest) -> frozenset[str]:
    """Return the names of the tools that searches in the conversation have found."""
    return frozenset(
        [
            str(each.get("tool_name"))
            for message in request.messages
            if not isinstance(message.content, str)
            for block in message.content
            for each in _references(block.plain())
        ]
    )


def _references(block: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = block.get("content")
    if block["type"] == "tool_search_tool_result" and isinstance(content, dict):
        content = content.get("tool_references")
    if block["type"] in ("tool_search_tool_result", "tool_result") and isinstance(content, list):
        for each in content:
            if isinstance(each, dict) and each.get("type", "tool_reference") == "tool_reference":
                yield each


def forced_names(choice: str, tools: Sequence[Tool], request: schema.messages.CountRequest) -> tuple[str, ...]:
    """Return the names of what a declared tool of this name is called as; none for an unknown one."""
    kinds = [TOOL_TYPES.get(tool.type or "") for tool in request.tools or () if tool.name == choice]
    calls = [call.name for kind in kinds if kind is not None for call in kind.calls]
    known = {tool.name for tool in tools}
    return tuple(calls) or tuple(name for name in (choice,) if name in known)


@short_cache(256)
def betas_of(header: str) -> frozenset[str]:
    """Return the names in an `anthropic-beta` header."""
    return frozenset(name.strip() for name in header.split(",") if name.strip())
