"""Chat completions stored with `store: true`: list, update, delete."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.state import State, stored
from llmirage_shared.wire import schema
from llmirage_shared.wire.chat import ChatRequest
from llmirage_shared.wire.paging import page


def store_completion(state: State, request: ChatRequest, completion: dict[str, Any]) -> None:
    """Keep a finished completion with the messages that it answers."""
    body = request.body
    kept = {
        **completion,
        "metadata": body.metadata or {},
        "request_id": completion["id"],
        "tool_choice": _plain(body.tool_choice),
        "seed": body.seed,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "input_user": body.user,
        "tools": request.tools,
        "response_format": _plain(body.response_format),
    }
    messages = [
        {"id": f"{completion['id']}-{place}", "content": None, "refusal": None, **message}
        for place, message in enumerate(request.messages)
    ]
    state.put("completion", completion["id"], {"completion": kept, "messages": messages})


class StoredChatHandler:
    """GET, POST and DELETE under /v1/chat/completions."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def list(self, exchange: HttpExchange) -> Response:
        model = exchange.query("model")
        completions = [record["completion"] for record in self._state.all("completion")]
        wanted = {name[9:-1]: exchange.query(name) for name in exchange.query_names() if name.startswith("metadata[")}
        listed = [
            completion
            for completion in completions
            if (model is None or completion["model"] == model)
            and all(completion["metadata"].get(key) == value for key, value in wanted.items())
        ]
        return exchange.json(page(listed, exchange.query, "asc"))

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._found(exchange)["completion"])

    async def update(self, exchange: HttpExchange) -> Response:
        record = self._found(exchange)
        update = schema.responses.ConversationUpdate.check(await exchange.json_object())
        record["completion"]["metadata"] = update.metadata
        self._state.put("completion", record["completion"]["id"], record)
        return exchange.json(record["completion"])

    async def delete(self, exchange: HttpExchange) -> Response:
        key = self._found(exchange)["completion"]["id"]
        self._state.delete("completion", key)
        return exchange.json({"object": "chat.completion.deleted", "id": key, "deleted": True})

    async def messages(self, exchange: HttpExchange) -> Response:
        return exchange.json(page(self._found(exchange)["messages"], exchange.query, "asc"))

    def _found(self, exchange: HttpExchange) -> dict[str, Any]:
        return stored(self._state, "completion", exchange.path_id())


def _plain(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_unset=True) if hasattr(value, "model_dump") else value
