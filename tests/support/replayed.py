"""A recording to replay, and what an application sends for a request, with its times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from raw_asgi import RawAnswer
from starlette.types import ASGIApp

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


class Sent(RawAnswer):
    """What an application sent for one request, and when."""

    @property
    def times_ms(self) -> list[float]:
        return [round((at_s - self.began_s) * 1000, 6) for at_s in self.times]


async def answered(app: ASGIApp, body: Any, path: str = CHAT, leaves_ms: float | None = None, **options: Any) -> Sent:
    sent = Sent()
    if leaves_ms is not None:
        asyncio.get_running_loop().call_later(leaves_ms / 1000, sent.left.set)
    return await sent.ask(app, path, body, **options)


def ask(app: ASGIApp, body: Any = STREAM, path: str = CHAT, **options: Any) -> Sent:
    return virtual_time.run(answered(app, body, path, **options))


WHOLE_STREAM = b"".join(data for _, data in EVENTS)
