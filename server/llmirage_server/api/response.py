"""A response of bytes."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

_WITHOUT_BODY = (204, 304)


class Response:
    """A status, headers and bytes. raw_headers: begins with the length of the body, where the status has one.

    Starlette's own knows of cookies, charsets and background tasks too, and takes 25 ms to import.
    """

    def __init__(self, body: bytes = b"", status_code: int = 200) -> None:
        self.body = body
        self.status_code = status_code
        self.raw_headers: list[tuple[bytes, bytes]] = []
        if status_code not in _WITHOUT_BODY:
            self.raw_headers.append((b"content-length", b"%d" % len(body)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})
