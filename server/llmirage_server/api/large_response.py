"""Responses of many bytes."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

LARGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18


class LargeResponse(Response):
    """A response that is sent in pieces: the connection would copy a whole one several times at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _PIECE_BYTES):
            end = start + _PIECE_BYTES
            await send({"type": "http.response.body", "body": bytes(body[start:end]), "more_body": end < len(body)})
