"""Responses of many bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from llmirage_server.api.response import Response

_LARGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18


def response_of(body: Sequence[bytes], status: int) -> Response:
    """A response with the header of its length alone. A large one is not joined, and sent in pieces."""
    size = sum(map(len, body))
    return Response(b"".join(body), status) if size <= _LARGE_BYTES else _LargeResponse(body, size, status)


class _LargeResponse(Response):
    """A response in pieces: the connection would copy a whole one several times at once."""

    def __init__(self, pieces: Sequence[bytes], size: int, status: int) -> None:
        super().__init__(status_code=status)
        self.raw_headers = [(b"content-length", b"%d" % size)]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        together: list[bytes] = []
        size = 0
        for piece in self._pieces:
            for start in range(0, len(piece), _PIECE_BYTES):
                together.append(piece[start : start + _PIECE_BYTES])
                size += len(together[-1])
                if size >= _PIECE_BYTES:
                    await send({"type": "http.response.body", "body": b"".join(together), "more_body": True})
                    together, size = [], 0
                    await asyncio.sleep(0)  # a connection that takes all at once waits for nothing
        await send({"type": "http.response.body", "body": b"".join(together), "more_body": False})
