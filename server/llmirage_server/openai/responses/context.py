"""The prompt of a response: the items before this request, its own items, and both as chat messages."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.openai.responses.hosted import OWN_TOOLS
from llmirage_server.service.simulated_tools import unsealed
from llmirage_server.state.conversation import MOST_PARTS, Item, StoredConversation, check_size, listed_items, size_of
from llmirage_server.state.state import Breaks, ReadKept, State
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError

_UNSEEN = (
    "reasoning", "compaction_trigger", "configuration_update", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response",
)  # fmt: skip
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


def chat_messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


logger = logging.getLogger("llmirage")

_MANY = 500  # items: to make a prompt of more takes some milliseconds
_AT_ONCE = 500  # places of items that are stored in one turn of the event loop: some milliseconds


@dataclass(slots=True)
class ResponseContext:
    """items: all that the model sees, in order; new: those that this request brought."""

    items: list[Item]
    new: list[Item]
    conversation: str | None


async def read_context(
    exchange: HttpExchange,
    state: State,
    request: schema.responses.InputFields,
    strict: bool = True,
    previous: bytes | None = None,
) -> ResponseContext:
    """Return the context of a request.

    Raises ApiError for unknown objects; strict: and calls without outputs or the reverse.
    previous: the record of the response before it, as JSON, if it is known elsewhere than in the state.
    """
    kept = partial(exchange.kept, in_prompt=True)
    given = request.conversation
    conversation = given if given is None or isinstance(given, str) else given.id
    if conversation is not None and request.previous_response_id is not None:
        raise ApiError(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you are only providing "
            "one of these parameters.",
            code="mutually_exclusive_parameters",
        )
    before: list[Item] = []
    given_input = request.input
    if request.previous_response_id is not None:
        record = await kept(previous or state.read("response", request.previous_response_id))
        if record is None:
            raise ApiError(
                f"Previous response with id '{request.previous_response_id}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        before = record["items"]
    if conversation is not None:
        found = StoredConversation.find(state, conversation, kept)
        if found is None:
            raise ApiError(f"Conversation with id '{conversation}' not found.", status=404, param="conversation")
        if request.truncation != "auto":
            check_size(found.size, "input", MOST_PARTS)
        before = await found.newest(MOST_PARTS)
        if found.size > MOST_PARTS:
            calls = {item.get("call_id") for item in before if not item["type"].endswith("_output")}
            before = [item for item in before if not item["type"].endswith("_output") or item.get("call_id") in calls]
    exchange.is_large |= len(before) > _MANY
    check_size(size_of(before), "input", MOST_PARTS)
    brought: Sequence[Mapping[str, Any]] = []
    if isinstance(given_input, str):
        brought = [{"type": "message", "role": "user", "content": given_input}]
    elif given_input is not None:
        brought = await exchange.apart(lambda: [item.plain() for item in given_input])
    check_trigger(brought)
    known = {item["id"]: item for item in before if "id" in item}
    known |= await _stored_items(state, references(brought) - known.keys(), exchange.kept)

    def whole() -> ResponseContext:
        new = listed_items(resolved(brought, known.get))
        everything = [*before, *new]
        if strict:
            check_outputs(everything)
        return ResponseContext(everything, new, conversation)

    return await exchange.apart(whole)


def record_of(context: ResponseContext, response: Item) -> dict[str, Any]:
    """Return the record of a response, which lets others follow it."""
    end = len(context.items)
    begin = end - len(context.new)
    is_whole = context.items[begin:] == context.new  # not with truncation
    brought = {"input_at": [begin, end]} if is_whole else {"input": context.new}
    return {"response": response, "items": [*context.items, *response["output"]], **brought}


def input_of(record: Mapping[str, Any]) -> list[Item]:
    """Return the items that a request brought, from the record of its response."""
    if "input" in record:
        given: list[Item] = record["input"]
        return given
    begin, end = record["input_at"]
    found: list[Item] = record["items"][begin:end]
    return found


def store_context(state: State, context: ResponseContext, response: Item) -> None:
    """Store a response with its context, unless the request says otherwise. Add a finished one to its conversation."""
    new = [*context.new, *response["output"]]
    places = [item["id"] for item in new] if response["store"] else []
    with state.together():
        _store_places(state, response["id"], places[:_AT_ONCE])
        if response["store"]:
            state.put("response", response["id"], record_of(context, response))  # last: what a full store keeps for certain
        if context.conversation is not None and response["status"] in ("completed", "incomplete"):
            conversation = StoredConversation.find(state, context.conversation)
            if conversation is not None:  # not deleted meanwhile
                conversation.append(new)
    if len(places) > _AT_ONCE:
        _store_later(state, response["id"], places[_AT_ONCE:])


def chat_form(request: schema.responses.InputFields, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the prompt as chat messages: instructions, prompt template, items."""
    messages = chat_messages(items)
    if request.prompt is not None:
        messages = [{"role": "developer", "content": _template(request.prompt.plain())}, *messages]
    instructions = request.instructions
    if isinstance(instructions, str):
        return [{"role": "system", "content": instructions}, *messages]
    if instructions:
        return [*chat_messages([item.plain() for item in instructions]), *messages]
    return messages or [{"role": "user", "content": ""}]


def answer_schema(request: schema.responses.InputFields) -> Any:
    """Return the JSON Schema that the answer must fit, None for text."""
    form = request.text.format if request.text else None
    return form.schema_ if form is not None and form.type == "json_schema" else None


def chat_tools(request: schema.responses.InputFields) -> list[dict[str, Any]] | None:
    """Return the tools in chat's form, as the prompt shows them."""
    tools: list[dict[str, Any]] = []
    for tool in request.plain_tools:
        kind = tool["type"]
        nested = kind in ("function", "custom")
        tools.append({"type": kind, kind: {k: v for k, v in tool.items() if k != "type"}} if nested else tool)
    return tools or None


def without_oldest(items: list[Item], count: int) -> list[Item]:
    """Return the items without the first `count`, and without the outputs of calls among these."""
    calls = {item.get("call_id") for item in items[:count]} - {None}
    return [item for item in items[count:] if item.get("call_id") not in calls]


def most_left_out(items: list[Item]) -> int:
    """Return the number of the oldest items that can be left out so that the newest stays."""
    call = items[-1].get("call_id") if items else None
    return next((place for place, item in enumerate(items) if call and item.get("call_id") == call), len(items) - 1)


def _store_places(state: State, response_id: str, keys: list[str]) -> None:
    """Store where an item_reference finds the items."""
    for key in keys:
        if state.get("item", key) is None:
            state.put("item", key, {"response": response_id})


def _store_later(state: State, response_id: str, keys: list[str]) -> None:
    """Store the places of further items, on a loop some in each turn."""
    try:
        asyncio.get_running_loop().call_soon(_store_some, state, response_id, keys)
    except RuntimeError:  # in a thread
        _store_some(state, response_id, keys)


def _store_some(state: State, response_id: str, keys: list[str]) -> None:
    try:
        with state.together():
            _store_places(state, response_id, keys[:_AT_ONCE])
    except ApiError as error:
        logger.error("Not all items of response %s can be referred to: %s", response_id, error.message)
        return
    if len(keys) > _AT_ONCE:
        _store_later(state, response_id, keys[_AT_ONCE:])


async def _stored_items(state: State, keys: Iterable[str], kept: ReadKept) -> dict[str, Item]:
    """Return the items that are in any stored response. Others have the event loop between two responses."""
    breaks = Breaks()
    places: dict[str, set[str]] = {}
    for key in keys:
        if (place := state.get("item", key)) is not None:
            places.setdefault(place["response"], set()).add(key)
        await breaks.maybe()
    found: dict[str, Item] = {}
    for response_id, wanted in places.items():
        if (record := await kept(state.read("response", response_id))) is not None:
            found |= {item["id"]: item for item in record["items"] if item.get("id") in wanted}
        await breaks.maybe()
    return found


def _template(prompt: Mapping[str, Any]) -> str:
    """Return the name and the variables of a prompt template, which stand for its text: only its owner knows that."""
    lines = [f"Prompt {prompt.get('id', '')}{' version ' + str(prompt['version']) if prompt.get('version') else ''}"]
    for name, value in (prompt.get("variables") or {}).items():
        written = value.get("text", value.get("type", "")) if isinstance(value, dict) else value
        lines.append(f"{name}: {written}")
    return "\n".join(lines)
