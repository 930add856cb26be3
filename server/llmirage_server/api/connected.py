"""Work for a client that may leave: in plain tasks, which leave nothing to the collector of cycles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from llmirage_server.api.response import Response


async def disconnect(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Carry it out to its end, or until the client has left. Raises what it raises."""
    loop = asyncio.get_running_loop()
    tasks = loop.create_task(work), loop.create_task(disconnect(receive))
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


class StreamingResponse(Response):
    """Pieces of bytes, each sent when it is there, until the client has left. raw_headers: as its maker sets them."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._send_pieces(send))
        leaving = loop.create_task(_cancel_when_left(sending, receive))
        try:
            await sending
        except asyncio.CancelledError:
            if not leaving.done():
                raise
        finally:
            leaving.cancel()

    async def _send_pieces(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel_when_left(sending: asyncio.Task[None], receive: Receive) -> None:
    await disconnect(receive)
    sending.cancel()
