"""Requests through raw ASGI: asked and read as they are, or over a connection that the test can fill, drain and leave."""

import asyncio
import json
from typing import Any, Self

from event_streams import json_events
from starlette.types import ASGIApp, Message, Send

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}


class RawAnswer:
    """A response as an application sends it. parts: of its body, each with the loop's time at which it was sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[tuple[float, bytes]] = []
        self.complete = False
        self.left = asyncio.Event()  # the client has
        self.began_s = 0.0

    @property
    def body(self) -> bytes:
        return b"".join([data for _, data in self.parts])

    @property
    def times(self) -> list[float]:
        return [at_s for at_s, _ in self.parts]

    async def ask(
        self, app: ASGIApp, path: str, body: Any = b"", method: str = "POST", headers: Any = (), port: int = 80
    ) -> Self:
        """body: as it is, or a value that is sent as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
        loop = asyncio.get_running_loop()
        self.began_s = loop.time()

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])
                return
            if message.get("body"):
                self.parts.append((loop.time(), message["body"]))
            self.complete = not message.get("more_body")

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "raw_path": b"", "query_string": b""}
        await app(scope | {"server": ("test", port), "state": {}}, receive, send)
        return self


class Connection:
    """One request through raw ASGI, in virtual time. Its class pretends to be uvicorn's, whose `send` may be stepped."""

    def __init__(self, app: ASGIApp, path: str = "/v1/completions", **fields: Any) -> None:
        self.app = app
        self.path = path
        asked = {"prompt": "Hello", "max_tokens": 10} if path == "/v1/completions" else {}
        body = {"model": MODEL, "stream": True} | asked | fields
        self._body = json.dumps(body).encode()
        self._received = False
        self.gone = asyncio.Event()  # the client has left
        self.writable = asyncio.Event()
        self.writable.set()
        self.messages: list[tuple[float, Message]] = []
        self.in_task: list[bool] = []  # of each body message: was it sent from a task
        self.waits = 0
        self.method, self.query = "POST", b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.transport: Any = None  # of uvicorn's connection

    async def receive(self) -> Message:
        if not self._received:
            self._received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if not self.writable.is_set():
            self.waits += 1
            await self.writable.wait()
        if message["type"] == "http.response.body":
            self.in_task.append(asyncio.current_task() is not None)
        self.messages.append((asyncio.get_running_loop().time(), message))

    async def run(self, send: Send | None = None) -> None:
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "headers": self.headers,
        }
        await self.app(scope, self.receive, send or self.send)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for _, message in self.messages if message["type"] == "http.response.body")

    @property
    def bodies(self) -> list[tuple[float, bytes]]:
        return [(time, m["body"]) for time, m in self.messages if m["type"] == "http.response.body" and m["body"]]

    @property
    def complete(self) -> bool:
        last = self.messages[-1][1] if self.messages else {"type": "none"}
        return last["type"] == "http.response.body" and not last.get("more_body", False)


Connection.__module__ = "uvicorn.in_a_test"


def fixed_app(ttft_ms: float = 200.0, itl_ms: float = 10.0) -> LlmirageApp:
    return create_app(ClusterConfig(ttft_ms=ttft_ms, itl_ms=itl_ms, instances=1))


def texts(body: bytes) -> list[str]:
    chunks = json_events(body.decode())
    return [c["choices"][0]["text"] for c in chunks if "choices" in c and c["choices"][0]["text"]]


def idle(app: LlmirageApp) -> bool:
    return all(s.running == s.waiting == s.kv_used_tokens == 0 for s in app.driver.cluster.snapshot())
