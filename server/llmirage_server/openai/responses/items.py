"""Items as chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmirage_server.replies.reply import Tool
from llmirage_server.service.simulated_tools import unsealed
from llmirage_server.state.items import Item
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

_UNSEEN = (
    "reasoning", "compaction_trigger", "configuration_update", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response",
)  # fmt: skip


def arguments(*names: str) -> dict[str, Any]:
    """Return the JSON Schema of arguments that are strings."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


# By type: the tool as the model sees it. The server runs `hosted` tools, the client runs `client` tools.
OWN_TOOLS: dict[str, Tool] = {
    "web_search": Tool("hosted", "web_search", "Search the web.", arguments("query")),
    "file_search": Tool("hosted", "file_search", "Search the uploaded documents.", arguments("query")),
    "code_interpreter": Tool("hosted", "code_interpreter", "Run Python code, plot and analyze data.", {
        **arguments("code"), "properties": {"code": {"type": "string", "contentMediaType": "text/x-python"}},
    }),
    "image_generation": Tool("hosted", "image_generation", "Generate an image, a picture or a photo.", arguments("prompt")),
    "computer": Tool("client", "computer", "Use a computer: open websites, click, type, take screenshots.", arguments()),
    "shell": Tool("client", "shell", "Run a shell command.", arguments("command")),
    "local_shell": Tool("client", "local_shell", "Run a shell command.", arguments("command")),
    "apply_patch": Tool("client", "apply_patch", "Change a file.", arguments("operation")),
}  # fmt: skip
# The tool that the model called, by type of the item; "": named by the item (MCP).
_OWN_CALLS = {f"{kind}_call": tool.name for kind, tool in OWN_TOOLS.items()} | {"mcp_call": ""}


def references(items: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of the items that they refer to."""
    return {item["id"] for item in items if item.get("type") == "item_reference"}


def resolved(items: Sequence[Mapping[str, Any]], find: Callable[[str], Item | None]) -> list[Mapping[str, Any]]:
    """Return the items with references replaced by their targets. Raises ApiError (404) for an unknown target."""
    found: list[Mapping[str, Any]] = []
    for item in items:
        if item.get("type") != "item_reference":
            found.append(item)
            continue
        target = find(item["id"])
        if target is None:
            raise ApiError(f"Item with id '{item['id']}' not found.", status=404, param="input")
        found.append(target)
    return found


def check_trigger(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise ApiError (400) for a compaction trigger that is not the last item."""
    for index, item in enumerate(items[:-1]):
        if item.get("type") == "compaction_trigger":
            raise errors.invalid_value(f"input[{index}]", "'compaction_trigger' must be the final input item.")


def compacted_since_user(items: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a compaction item comes after the last message of the user: the model has begun to answer it."""
    for item in reversed(items):
        if item.get("type") == "compaction":
            return True
        if (item.get("type") or "message") == "message" and item.get("role") == "user":
            return False
    return False


def _seen(items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the items that the model sees: before the last compaction item, which stands for the rest, only its input."""
    last = max([place for place, item in enumerate(items) if item.get("type") == "compaction"], default=0)
    needed = {item.get("call_id") for item in items[last:]} - {None}
    kept = [
        item
        for item in items[:last]
        if ((item.get("type") or "message") == "message" and item.get("role") != "assistant")
        or item.get("call_id") in needed
    ]
    return [*kept, *items[last:]] if last else items


def messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the items as chat messages. Thoughts are left out, as models drop them; consecutive calls are one message."""
    chat: list[dict[str, Any]] = []
    for item in _seen(items):
        kind = item.get("type") or "message"
        if kind == "message":
            chat.append({"role": item["role"], "content": _content(item["content"])})
        elif kind in ("function_call", "custom_tool_call"):
            call = _call(item, kind)
            if chat and chat[-1]["role"] == "assistant":
                chat[-1].setdefault("tool_calls", []).append(call)
            else:
                chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            chat.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        elif kind in _OWN_CALLS:
            call = {
                "name": _OWN_CALLS[kind] or f"{item.get('server_label')}.{item.get('name')}",
                "arguments": _written(item),
            }
            call_id = item.get("call_id") or item.get("id")
            chat.append(
                {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "type": "function", "function": call}]}
            )
            if "call_id" not in item:  # a hosted tool: the item holds the result
                chat.append({"role": "tool", "tool_call_id": call_id, "content": _written(item)})
        elif kind.endswith("_call_output"):
            output = item.get("output")
            written = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            if item.get("status") == "failed":
                written = f"Failed: {written}"
            chat.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": written})
        elif kind == "compaction":
            chat.append({"role": "system", "content": unsealed(str(item.get("encrypted_content") or ""))})
        elif kind not in _UNSEEN:  # other items of the API's own tools are shown as they are
            chat.append({"role": "assistant", "content": json.dumps(dict(item), ensure_ascii=False)})
    return chat


def _written(item: Mapping[str, Any]) -> str:
    fields = {key: value for key, value in item.items() if key not in ("id", "type", "status", "call_id")}
    return json.dumps(fields, ensure_ascii=False)


def check_outputs(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise ApiError unless each tool output answers a call before it and each call is answered."""
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        kind = item.get("type")
        if kind in ("function_call", "custom_tool_call"):
            calls[item["call_id"]] = "function" if kind == "function_call" else "custom tool"
        elif kind in ("function_call_output", "custom_tool_call_output"):
            what = "function" if kind == "function_call_output" else "custom tool"
            if item["call_id"] not in calls:
                raise ApiError(f"No tool call found for {what} call output with call_id {item['call_id']}.", param="input")
            answered.add(item["call_id"])
    for call_id, what in calls.items():
        if call_id not in answered:
            raise ApiError(f"No tool output found for {what} call {call_id}.", param="input")


def _call(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        return {"id": item["call_id"], "type": "function", "function": function}
    return {"id": item["call_id"], "type": "custom", "custom": {"name": item["name"], "input": item["input"]}}


def _content(content: Any) -> Any:
    """Content in chat's form; parts that are text alone as one string."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content or ()]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == "input_image":
        url = part.get("image_url") or f"file:{part.get('file_id')}"
        return {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail") or "auto"}}
    if kind == "input_file":
        return {"type": "file", "file": {key: value for key, value in part.items() if key != "type"}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    return {"type": "text", "text": part.get("text") or part.get("refusal") or ""}
