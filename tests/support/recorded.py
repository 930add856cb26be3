"""Recording and replaying inside one process: the proxy before an application, and bytes as they leave."""

from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_server.commands.record_actions import RecordingProxy
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.recording import Recording
from llmirage_server.replies.recordings.store import RecordingWriter, read_folder

URL = "http://upstream.test"


class Bytes:
    """An application, and the (status, content type, body) of every response that it sent, in the order of their ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.sent: list[tuple[int, str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: dict[str, Any] = {}
        body = b""

        async def noting(message: Message) -> None:
            nonlocal body
            head.update(message)
            body += message.get("body", b"")
            await send(message)

        await self._app(scope, receive, noting)
        kind = dict(head["headers"]).get(b"content-type", b"").decode()
        self.sent.append((head["status"], kind, body))


def proxy_before(app: ASGIApp, folder: Path, key: str | None = None) -> RecordingProxy:
    """The recording proxy with this application as its upstream."""
    upstream = HttpUpstream(URL, key, httpx.ASGITransport(app))
    return RecordingProxy(upstream, ExchangeRecorder(RecordingWriter(folder), () if key is None else (key,)))


def recordings_in(folder: Path) -> list[Recording]:
    recordings, problems = read_folder(folder)
    assert not problems
    return recordings
