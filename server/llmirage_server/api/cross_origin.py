"""What browsers want to know before a page of another origin may call and read (CORS): every page may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmirage_server.api.response import Response

FOR_ANY_ORIGIN: Sequence[tuple[bytes, bytes]] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"*"),
)


def preflight(asked: Mapping[bytes, bytes], request_id: bytes) -> Response:
    """The answer to a browser that asks whether it may call. asked: the headers of its request."""
    response = Response(status_code=204)
    response.raw_headers.extend(
        [
            (b"x-request-id", request_id),
            (b"access-control-allow-origin", b"*"),
            (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
            (b"access-control-allow-headers", asked.get(b"access-control-request-headers", b"*")),
            (b"access-control-max-age", b"86400"),
        ]
    )
    return response
