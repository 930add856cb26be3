"""/v1/conversations: items that outlive a response."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Service
from llmirage_server.api.responses.items import Item, stored
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.paging import page
from llmirage_shared.wire.responses import new_id


class ConversationsEndpoint:
    """Creates, changes and deletes conversations, and their items one by one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._state = service.state

    async def create(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.responses import ConversationCreate
        from llmirage_shared.wire.schema.validation import check

        body = await exchange.body()
        request = check(ConversationCreate, parse_object(body) if body.strip() else {})
        self._service.check_fields(request, "conversations")
        record: dict[str, Any] = {
            "object": {
                "id": new_id("conv_"),
                "object": "conversation",
                "created_at": int(time.time()),
                "metadata": request.metadata or {},
            },
            "items": stored(_plain(request.items)),
        }
        self._put(record)
        return exchange.json(record["object"])

    async def retrieve(self, exchange: Exchange) -> Response:
        return exchange.json(self._found(exchange)["object"])

    async def update(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.responses import ConversationUpdate
        from llmirage_shared.wire.schema.validation import check

        record = self._found(exchange)
        request = check(ConversationUpdate, parse_object(await exchange.body()))
        self._service.check_fields(request, "conversations")
        record["object"]["metadata"] = request.metadata
        self._put(record)
        return exchange.json(record["object"])

    async def delete(self, exchange: Exchange) -> Response:
        key = self._found(exchange)["object"]["id"]
        self._state.delete("conversation", key)
        return exchange.json({"id": key, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, exchange: Exchange) -> Response:
        from llmirage_shared.wire.schema.responses import ItemsCreate
        from llmirage_shared.wire.schema.validation import check

        record = self._found(exchange)
        request = check(ItemsCreate, parse_object(await exchange.body()))
        self._service.check_fields(request, "conversations")
        new = stored(_plain(request.items))
        record["items"] += new
        self._put(record)
        return exchange.json(page(new, lambda name: {"limit": "100"}.get(name), "asc"))

    async def list_items(self, exchange: Exchange) -> Response:
        return exchange.json(page(self._found(exchange)["items"], exchange.query))

    async def retrieve_item(self, exchange: Exchange) -> Response:
        return exchange.json(self._item(self._found(exchange), exchange))

    async def delete_item(self, exchange: Exchange) -> Response:
        """The answer is the conversation, as the API has it."""
        record = self._found(exchange)
        record["items"].remove(self._item(record, exchange))
        self._put(record)
        return exchange.json(record["object"])

    def _put(self, record: dict[str, Any]) -> None:
        self._state.put("conversation", record["object"]["id"], record)

    def _found(self, exchange: Exchange) -> dict[str, Any]:
        key = exchange.scope["path_params"]["id"]
        record = self._state.get("conversation", key)
        if record is None:
            raise ApiError(f"Conversation with id '{key}' not found.", status=404, param="conversation_id")
        return record

    @staticmethod
    def _item(record: Mapping[str, Any], exchange: Exchange) -> Item:
        key = exchange.scope["path_params"]["item"]
        for item in record["items"]:
            if item["id"] == key:
                found: Item = item
                return found
        raise ApiError(f"Item with id '{key}' not found.", status=404, param="item_id")


def _plain(items: Any) -> list[dict[str, Any]]:
    return [item.model_dump(by_alias=True, exclude_unset=True) for item in items or ()]
