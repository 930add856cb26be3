"""/v1/conversations: items that outlive a response."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.items import Item, check_size, listed_items
from llmirage_server.state.state import State, stored
from llmirage_shared.wire import schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id
from llmirage_shared.wire.paging import page
from llmirage_shared.wire.refusals import refuse_items


class ConversationsHandler(ServiceHandler):
    """Creates, changes and deletes conversations, and their items one by one."""

    def __init__(self, service: Service, state: State) -> None:
        super().__init__(service)
        self._state = state

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object(empty={})
        documented_only = self._service.documented_only
        request = await exchange.apart(lambda: schema.responses.ConversationCreate.check(body, documented_only))
        await exchange.apart(lambda: self._refuse(body))
        record: dict[str, Any] = {
            "object": {
                "id": new_id("conv_"),
                "object": "conversation",
                "created_at": int(time.time()),
                "metadata": request.metadata or {},
            },
            "items": await exchange.apart(lambda: listed_items([item.plain() for item in request.items or ()])),
        }
        await exchange.apart(lambda: self._put(record))
        return exchange.json(record["object"])

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._found(exchange)["object"])

    async def update(self, exchange: HttpExchange) -> Response:
        record = self._found(exchange)
        request = await exchange.checked(schema.responses.ConversationUpdate.check, self._service.documented_only)
        record["object"]["metadata"] = request.metadata
        self._put(record)
        return exchange.json(record["object"])

    async def delete(self, exchange: HttpExchange) -> Response:
        key = self._found(exchange)["object"]["id"]
        self._state.delete("conversation", key)
        return exchange.json({"id": key, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, exchange: HttpExchange) -> Response:
        record = self._found(exchange)
        body = await exchange.json_object()
        request = await exchange.apart(lambda: schema.responses.ItemsCreate.check(body, self._service.documented_only))
        await exchange.apart(lambda: self._refuse(body))
        new = await exchange.apart(lambda: listed_items([item.plain() for item in request.items]))
        record["items"] += new
        check_size(record["items"], "items")
        await exchange.apart(lambda: self._put(record))
        return exchange.json(page(new, lambda name: {"limit": "100"}.get(name), "asc"))

    async def list_items(self, exchange: HttpExchange) -> Response:
        return exchange.json(page(self._found(exchange)["items"], exchange.query))

    async def retrieve_item(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._item(self._found(exchange), exchange))

    async def delete_item(self, exchange: HttpExchange) -> Response:
        """Answers with the conversation, as the OpenAI API does."""
        record = self._found(exchange)
        record["items"].remove(self._item(record, exchange))
        self._put(record)
        return exchange.json(record["object"])

    def _refuse(self, body: Mapping[str, Any]) -> None:
        if self._service.dialect.strict:
            refuse_items(body, "items")

    def _put(self, record: dict[str, Any]) -> None:
        self._state.put("conversation", record["object"]["id"], record)

    def _found(self, exchange: HttpExchange) -> dict[str, Any]:
        return stored(self._state, "conversation", exchange.path_id())

    @staticmethod
    def _item(record: Mapping[str, Any], exchange: HttpExchange) -> Item:
        key = exchange.path_id("item")
        for item in record["items"]:
            if item["id"] == key:
                found: Item = item
                return found
        raise ApiError(f"Item with id '{key}' not found.", status=404, param="item_id")
