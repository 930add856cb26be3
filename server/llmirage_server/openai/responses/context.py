"""The prompt of a response: the items before this request, its own items, and both as chat messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.openai.responses import items as item_forms
from llmirage_server.state.conversation import StoredConversation
from llmirage_server.state.items import MOST_PARTS, Item, check_size, listed_items, size_of
from llmirage_server.state.state import Breaks, ReadKept, State
from llmirage_shared.wire import schema
from llmirage_shared.wire.errors import ApiError

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
    item_forms.check_trigger(brought)
    known = {item["id"]: item for item in before if "id" in item}
    known |= await _stored_items(state, item_forms.references(brought) - known.keys(), exchange.kept)

    def whole() -> ResponseContext:
        new = listed_items(item_forms.resolved(brought, known.get))
        everything = [*before, *new]
        if strict:
            item_forms.check_outputs(everything)
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
    messages = item_forms.messages(items)
    if request.prompt is not None:
        messages = [{"role": "developer", "content": _template(request.prompt.plain())}, *messages]
    instructions = request.instructions
    if isinstance(instructions, str):
        return [{"role": "system", "content": instructions}, *messages]
    if instructions:
        return [*item_forms.messages([item.plain() for item in instructions]), *messages]
    return messages or [{"role": "user", "content": ""}]


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
