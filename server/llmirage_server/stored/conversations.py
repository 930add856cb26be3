"""/v1/conversations: items that outlive a response."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.conversation import MOST_SIZE, PageEnds, StoredConversation
from llmirage_server.state.items import check_size, listed_items, size_of
from llmirage_server.state.state import State, not_stored
from llmirage_shared.wire import schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id
from llmirage_shared.wire.paging import MOST, USUAL, integer, page
from llmirage_shared.wire.refusals import refuse_items


class ConversationsHandler(ServiceHandler):
    """Creates, changes and deletes conversations, and their items one by one."""

    def __init__(self, service: Service, state: State) -> None:
        super().__init__(service)
        self._state = state
        self._ends = PageEnds()

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object(empty={})
        documented_only = self._service.documented_only
        request = await exchange.apart(lambda: schema.responses.ConversationCreate.check(body, documented_only))
        await exchange.apart(lambda: self._refuse(body))
        items = await exchange.apart(lambda: listed_items([item.plain() for item in request.items or ()]))
        shown: dict[str, Any] = {
            "id": new_id("conv_"),
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": request.metadata or {},
        }
        await exchange.apart(lambda: StoredConversation.begun(self._state, shown).append(items))
        return exchange.json(shown)

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._found(exchange).shown)

    async def update(self, exchange: HttpExchange) -> Response:
        self._found(exchange)
        request = await exchange.checked(schema.responses.ConversationUpdate.check, self._service.documented_only)
        conversation = self._found(exchange)  # as it is by now
        conversation.shown["metadata"] = request.metadata
        conversation.put()
        return exchange.json(conversation.shown)

    async def delete(self, exchange: HttpExchange) -> Response:
        conversation = self._found(exchange)
        conversation.delete()
        return exchange.json({"id": conversation.shown["id"], "object": "conversation.deleted", "deleted": True})

    async def add_items(self, exchange: HttpExchange) -> Response:
        self._found(exchange)
        body = await exchange.json_object()
        request = await exchange.apart(lambda: schema.responses.ItemsCreate.check(body, self._service.documented_only))
        await exchange.apart(lambda: self._refuse(body))
        new = await exchange.apart(lambda: listed_items([item.plain() for item in request.items]))
        conversation = self._found(exchange)  # as it is by now
        check_size(conversation.size + size_of(new), "items", MOST_SIZE)
        await exchange.apart(lambda: conversation.append(new))
        return await exchange.large_json(page(new, lambda name: {"limit": "100"}.get(name), "asc"))

    async def list_items(self, exchange: HttpExchange) -> Response:
        limit = exchange.query("limit")
        count = integer("limit", limit) if limit else USUAL
        newest_first = exchange.query("order") != "asc"
        after = exchange.query("after") or None
        items = await self._found(exchange).window(after, min(max(count, 1), MOST), newest_first, self._ends)
        return await exchange.large_json(page(items, exchange.query))

    async def retrieve_item(self, exchange: HttpExchange) -> Response:
        key = exchange.path_id("item")
        item = await self._found(exchange).item(key, self._ends)
        if item is None:
            raise _no_item(key)
        return await exchange.large_json(item)

    async def delete_item(self, exchange: HttpExchange) -> Response:
        """Answers with the conversation, as the OpenAI API does."""
        key = exchange.path_id("item")
        conversation = self._found(exchange)
        if not await conversation.remove(key, self._ends):
            raise _no_item(key)
        return exchange.json(conversation.shown)

    def _refuse(self, body: Mapping[str, Any]) -> None:
        if self._service.dialect.strict:
            refuse_items(body, "items")

    def _found(self, exchange: HttpExchange) -> StoredConversation:
        found = StoredConversation.find(self._state, exchange.path_id(), exchange.kept)
        if found is None:
            raise not_stored("conversation", exchange.path_id())
        return found


def _no_item(key: str) -> ApiError:
    return ApiError(f"Item with id '{key}' not found.", status=404, param="item_id")
