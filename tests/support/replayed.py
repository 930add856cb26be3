"""A recording to replay, and what an application sends for a request, with its times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_shared import virtual_time

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = HELLO | {"stream": True}


def said(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()


# A role, two events of one time, a pause, the end.
EVENTS = [(100.0, said("")), (100.0, said("one")), (350.0, said(" two three four")), (350.0, b"data: [DONE]\n\n")]


def write(folder: Path, body: Any = STREAM, path: str = CHAT, ended: str | None = None, answer: bytes | None = None) -> Path:
    headers = {"content-type": "text/event-stream" if answer is None else "application/json", "retry-after": "3"}
    chunks = [Chunk(at_ms, data) for at_ms, data in EVENTS] if answer is None else [Chunk(350.0, answer)]
    return RecordingWriter(folder).write(Recording("POST", path, body, 200, headers, chunks, answer is None, ended))


def replaying(folder: Path, **settings: Any) -> LlmirageApp:
    return create_app(ClusterConfig(**({"ttft_ms": 40.0, "itl_ms": 10.0, "replay": str(folder)} | settings)))


class Sent:
    """What an application sent for one request, and when."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.times_ms: list[float] = []
        self.complete = False

    async def ask(
        self, app: ASGIApp, body: Any, path: str = CHAT, headers: Any = (), leaves_ms: float | None = None, port: int = 80
    ) -> Sent:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await (loop.create_future() if leaves_ms is None else asyncio.sleep(leaves_ms / 1000))
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])
                return
            if message["body"]:
                self.times_ms.append(round((loop.time() - started_s) * 1000, 6))
            self.body += message["body"]
            self.complete = not message.get("more_body")

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "raw_path": b"", "query_string": b""}
        scope["server"] = ("test", port)
        await app(scope, receive, send)
        return self


def ask(app: ASGIApp, body: Any = STREAM, path: str = CHAT, **options: Any) -> Sent:
    return virtual_time.run(Sent().ask(app, body, path, **options))


WHOLE_STREAM = b"".join(data for _, data in EVENTS)
