"""One HTTP request and its response, and the endpoint that surrounds every handler: methods, headers, errors.

The endpoints are plain ASGI applications and the app has no middleware of its own, because a wrapped `send` would cost its
price again for every token.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

logger = logging.getLogger("llmirage")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
MAX_BODY_BYTES = 128 * 1024 * 1024
# What the API tells of its rate limits where there are none: as if this were the only request.
_UNLIMITED = (
    (b"x-ratelimit-limit-requests", b"30000"),
    (b"x-ratelimit-limit-tokens", b"180000000"),
    (b"x-ratelimit-remaining-requests", b"29999"),
    (b"x-ratelimit-remaining-tokens", b"179999999"),
    (b"x-ratelimit-reset-requests", b"2ms"),
    (b"x-ratelimit-reset-tokens", b"0s"),
)
ARRIVED = "llmirage.arrived_s"  # in a scope's state, where the HTTP server says when the request had come
_REQUEST_ID = re.compile(rb"[!-~]{1,256}")


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


class Exchange:
    """What a handler gets: the request's headers and body, and ways to answer.

    arrived_s: when the whole request had come, seconds on `precise_clock`. A body that comes slowly is the client's or the
    network's time: no server can begin before it has it.
    """

    __slots__ = ("_clock", "arrived_s", "headers", "more_headers", "receive", "request_id", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._clock = precise_clock()
        self.scope = scope
        self.receive = receive
        self.arrived_s = self._arrival()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        # Of the response, beside the usual ones.
        self.more_headers: Sequence[tuple[bytes, bytes]] = _UNLIMITED if scope["method"] == "POST" else ()
        given = self.headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            self.request_id = given
        else:
            self.request_id = b"req_" + os.urandom(12).hex().encode()

    async def body(self) -> bytes:
        """The body, whole and unpacked. Raises ClientGoneError, and ApiError for one too large or not said to be JSON."""
        body = await self._packed_body()
        self.arrived_s = self._arrival()
        encoding = self.headers.get(b"content-encoding")
        return body if encoding is None else _unpacked(body, encoding.strip().lower())

    async def _packed_body(self) -> bytes:
        kind = self.headers.get(b"content-type")
        if kind is not None and b"json" not in kind.lower():
            raise errors.unsupported_content_type(kind.decode("latin-1"))
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            raise errors.body_too_large(MAX_BODY_BYTES)
        message = await self.receive()
        body: bytes = _body_of(message)
        if not message.get("more_body"):
            return body
        parts = [body]
        size = len(body)
        while message.get("more_body"):
            message = await self.receive()
            parts.append(_body_of(message))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise errors.body_too_large(MAX_BODY_BYTES)
        return b"".join(parts)

    def _arrival(self) -> float:
        """What the HTTP server says, else now."""
        arrived_s: float | None = self.scope.get("state", {}).get(ARRIVED)
        return self._clock() if arrived_s is None else arrived_s

    def header(self, name: bytes) -> str | None:
        """A header's value, None when it is absent or empty. The name is in lower case."""
        return self.headers.get(name, b"").decode("latin-1") or None

    def query(self, name: str) -> str | None:
        """A parameter of the URL, None when it is absent."""
        values = self._query().get(name)
        return values[-1] if values else None

    def query_names(self) -> list[str]:
        """The names of the URL's parameters."""
        return list(self._query())

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    def response_headers(self, content_type: bytes) -> list[tuple[bytes, bytes]]:
        """The headers that every response has."""
        elapsed_ms = int((self._clock() - self.arrived_s) * 1000)
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", self.request_id),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
            (b"openai-version", b"2020-10-01"),
            (b"openai-organization", b"llmirage"),
            *self.more_headers,
        ]
        if self.scope["path"].startswith("/v1/messages"):
            headers.append((b"request-id", self.request_id))  # Anthropic's name for it
        if b"origin" in self.headers:
            headers.append((b"access-control-allow-origin", b"*"))
            headers.append((b"access-control-expose-headers", b"*"))
        return headers

    def json(self, value: Any, status: int = 200) -> Response:
        return self.content(_encode(value).encode("utf-8", "replace"), b"application/json", status)

    def content(self, body: bytes, content_type: bytes, status: int = 200) -> Response:
        """A response of bytes."""
        response = Response(body, status)
        response.raw_headers.extend(self.response_headers(content_type))
        return response

    def error(self, error: ApiError) -> Response:
        return self.refusal(error.body(), error)

    def refusal(self, body: dict[str, Any], error: ApiError) -> Response:
        """An error in the shape that an API has for them. Anthropic's tells the id of the request."""
        if body.get("type") == "error":
            body = {**body, "request_id": self.request_id.decode()}
        self.more_headers = error.headers
        return self.json(body, error.status)

    def preflight(self) -> Response:
        """The answer to a browser that asks whether it may call."""
        response = Response(status_code=204)
        response.raw_headers.extend(
            [
                (b"x-request-id", self.request_id),
                (b"access-control-allow-origin", b"*"),
                (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
                (b"access-control-allow-headers", self.headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", b"86400"),
            ]
        )
        return response


def _unpacked(body: bytes, encoding: bytes) -> bytes:
    """Raises ApiError for an encoding that is not read, and for a body that has none or is too large."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise errors.unsupported_content_encoding(encoding.decode("latin-1"))
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either kind
    try:
        plain = unpacking.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error:
        raise errors.bad_json("the body is not what its content-encoding says") from None
    if len(plain) > MAX_BODY_BYTES:
        raise errors.body_too_large(MAX_BODY_BYTES)
    return plain


def _body_of(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    body: bytes = message.get("body", b"")
    return body


Handler = Callable[[Exchange], Awaitable[Response]]


class Endpoint:
    """An ASGI application around one handler. Whatever happens, the client gets an answer in the API's own shape."""

    def __init__(
        self, handler: Handler, methods: Sequence[str], error_body: Callable[[ApiError], dict[str, Any]] = ApiError.body
    ) -> None:
        """error_body: the shape of the API's errors."""
        self._handler = handler
        self._methods = methods
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive)
        try:
            if scope["method"] in self._methods:
                response = await self._handler(exchange)
            elif scope["method"] == "OPTIONS":
                response = exchange.preflight()
            else:
                error = errors.method_not_supported(scope["method"], scope["path"], self._methods)
                response = self._refuse(exchange, error)
                response.raw_headers.append((b"allow", ", ".join(self._methods).encode()))
        except ApiError as error:
            response = self._refuse(exchange, error)
        except ClientGoneError:
            return
        except Exception:
            logger.exception("A request failed inside the server; please report this")
            response = self._refuse(exchange, errors.internal_error())
        await response(scope, receive, send)

    def _refuse(self, exchange: Exchange, error: ApiError) -> Response:
        return exchange.refusal(self._error_body(error), error)


async def unknown_url(exchange: Exchange) -> Response:
    """The handler of every path that is not an endpoint."""
    return exchange.error(errors.unknown_url(exchange.scope["method"], exchange.scope["path"]))


class NotFound(Endpoint):
    """Answers all methods of all other paths."""

    def __init__(self) -> None:
        super().__init__(unknown_url, ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"))
