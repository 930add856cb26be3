"""What the endpoints need of ASGI: its types, a response of bytes, and the two messages of a server's life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_WITHOUT_BODY = (204, 304)


class Response:
    """A status, headers and bytes. raw_headers: begins with the length of the body, where the status has one."""

    def __init__(self, body: bytes = b"", status_code: int = 200) -> None:
        self.body = body
        self.status_code = status_code
        self.raw_headers: list[tuple[bytes, bytes]] = []
        if status_code not in _WITHOUT_BODY:
            self.raw_headers.append((b"content-length", b"%d" % len(body)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


async def serve_lifespan(life: AbstractAsyncContextManager[None], receive: Receive, send: Send) -> None:
    """Enter when the server starts and leave when it stops. Raises what entering and leaving raise, and tells the server."""
    begun = False
    await receive()
    try:
        async with life:
            begun = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
    except BaseException as error:
        await send({"type": f"lifespan.{'shutdown' if begun else 'startup'}.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.shutdown.complete"})
