"""HTTP replies as bytes, for servers that send just these."""

import asyncio
from collections.abc import Callable
from typing import Any

MakeServer = Callable[..., Any]


def whole(body: bytes, status: str = "200 OK", content_type: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def hanging(*pieces: bytes) -> Any:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        await asyncio.sleep(30)

    return answer
