"""HTTP replies as bytes, for servers that send just these."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from llmirage_client.measure.record import Exchange
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.target import Call

MakeServer = Callable[..., Any]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A piece of a stream."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: str = "200 OK", content_type: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def hanging(*pieces: bytes) -> Any:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        await asyncio.sleep(30)

    return answer


def closing(*pieces: bytes, reset: bool = False) -> Any:
    """Sends the pieces a little apart, and then ends the connection."""

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
        writer.close()

    return answer


def exchange_of(server: Any, call: Call, **options: Any) -> Exchange:
    """Return what HttpTarget makes of one call to the server."""

    async def main() -> Exchange:
        async with server:
            target = HttpTarget(server.url, **options)
            try:
                return await target.send(call)
            finally:
                await target.close()

    return asyncio.run(main())
