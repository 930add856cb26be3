"""WebSocket connections to an application in this process, and talks over them in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.faults.rule import read_rules
from llmirage_shared import virtual_time
from llmirage_shared.yaml_lines import node_of

END = ("response.completed", "response.incomplete", "response.failed", "error")


class Socket:
    """A client of /v1/responses. accepted: the headers of the upgrade; refused: status, headers and error of its refusal."""

    def __init__(self, app: Any, path: str = "/v1/responses", headers: dict[str, str] | None = None) -> None:
        self.accepted: dict[str, str] | None = None
        self.refused: tuple[int, dict[str, str], Any] | None = None
        self.closed: int | None = None
        self._to_app: asyncio.Queue[Any] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        self._app = app
        self._scope = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "http_version": "1.1",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1), "server": ("test", 80), "scheme": "ws", "root_path": "", "state": {},
            "subprotocols": [], "extensions": {"websocket.http.response": {}}, "asgi": {"version": "3.0"},
        }  # fmt: skip

    async def __aenter__(self) -> Socket:
        await self._to_app.put({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(self._scope, self._to_app.get, self._from_app.put))
        first = await self._next()
        if first["type"] == "websocket.accept":
            self.accepted = _headers(first)
        elif first["type"] == "websocket.http.response.start":
            body = await self._next()
            self.refused = first["status"], _headers(first), json.loads(body["body"])["error"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        await asyncio.wait_for(self._task, 10)

    def leave(self) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1005})

    async def send(self, event: Any) -> None:
        """An event; a text or bytes as they are."""
        if isinstance(event, bytes):
            await self._to_app.put({"type": "websocket.receive", "bytes": event})
        else:
            text = event if isinstance(event, str) else json.dumps(event)
            await self._to_app.put({"type": "websocket.receive", "text": text})

    async def create(self, text: Any = "Hello", **fields: Any) -> None:
        await self.send({"type": "response.create", "model": "m", "store": False, "input": text} | fields)

    async def event(self) -> dict[str, Any]:
        """The next event; {} if the server has closed the connection."""
        message = await self._next()
        if message["type"] == "websocket.close":
            self.closed = message["code"]
            self.leave()
            return {}
        event: dict[str, Any] = json.loads(message["text"])
        return event

    async def response(self) -> list[dict[str, Any]]:
        """The events up to the last one of a response."""
        events = [await self.event()]
        while events[-1] and events[-1]["type"] not in END:
            events.append(await self.event())
        return events

    async def _next(self) -> Any:
        return await asyncio.wait_for(self._from_app.get(), 10)


def _headers(message: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message["headers"]}


Talk = Callable[..., Any]


def played(
    talk: Talk, headers: Any = None, prepare: Callable[[LlmirageApp], Any] = lambda app: None, **settings: Any
) -> Any:
    """What a talk over one connection comes to, in virtual time."""

    async def play() -> Any:
        app = create_app(ClusterConfig(**({"ttft_ms": 100.0, "itl_ms": 10.0} | settings)))
        prepare(app)
        async with Socket(app) as socket:
            return await talk(socket, app)

    return virtual_time.run(play())


def _wrong(*told: Any) -> None:
    raise AssertionError(told)


def order(*faults: Any) -> Callable[[LlmirageApp], None]:
    return lambda app: app.faults.add(read_rules(node_of(list(faults)), "faults", _wrong))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
