"""Another server that answers in this one's place: the request goes to it, and its response comes back unbuffered."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from llmirage_server.http.access import is_foreign
from llmirage_server.http.exchange import Header
from llmirage_server.http.relay import BrokenOffError, Ending, ForwardedRequest, RelayedResponse, Tap
from llmirage_shared.wire import errors

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)  # of one silence: models think, and long prompts wait
# Headers of one connection (RFC 9110, 7.6.1), and those that the client library writes itself.
_NOT_PASSED_ON = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
     b"host", b"content-length", b"content-encoding", b"accept-encoding", b"expect")
)  # fmt: skip
_NOT_PASSED_BACK = frozenset((b"connection", b"keep-alive", b"trailer", b"transfer-encoding", b"upgrade"))
_DECODED = ("gzip", "deflate")  # encodings that every installation of httpx undoes
_KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")


class HttpUpstream:
    """The other server, over HTTP."""

    def __init__(self, url: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """url: with or without the /v1 that requests have. key: in place of the keys that requests bring.

        transport: how it is reached, for tests.
        """
        self._url = url.rstrip("/")
        self.key = key
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, transport=transport, limits=httpx.Limits(max_connections=None))

    async def answer(
        self, request: ForwardedRequest, tap: Tap | None = None, under_way: set[Any] | None = None
    ) -> RelayedResponse:
        if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(unquote(request.target.partition("?")[0])))):
            raise errors.outside_base_path()
        try:
            forwarded = self._client.build_request(
                request.method, self._target(request.target), headers=self._headers(request), content=request.body or None
            )
            response = await self._client.send(forwarded, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise errors.no_upstream(f"{type(error).__name__} {error}".strip()) from None
        return _PassedResponse(response, tap, under_way)

    async def close(self) -> None:
        await self._client.aclose()

    def _target(self, target: str) -> str:
        """Return the URL of a path: a path that begins as the upstream's ends, with /v1, has that only once."""
        last = f"/{self._url.rpartition('/')[2]}/"
        if urlsplit(self._url).path.strip("/") and target.startswith(last):
            return self._url + target[len(last) - 1 :]
        return self._url + target

    def _headers(self, request: ForwardedRequest) -> list[Header]:
        key = None if self.key is None or is_foreign(dict(request.headers)) else self.key  # no page of others uses it
        replaced = _KEY_HEADERS if key is not None else ()
        headers = [(name, value) for name, value in request.headers if name not in _NOT_PASSED_ON and name not in replaced]
        if key is not None:
            given = {name for name, _ in request.headers}
            name = b"x-api-key" if b"x-api-key" in given or b"anthropic-version" in given else b"authorization"
            name = b"api-key" if b"api-key" in given else name
            headers.append((name, key.encode() if name != b"authorization" else b"Bearer " + key.encode()))
        headers.append((b"accept-encoding", b"identity"))  # so that events can be read, and come one by one
        return headers


class _PassedResponse(RelayedResponse):
    """A response of the upstream on its way to the client."""

    def __init__(self, response: httpx.Response, tap: Tap | None, under_way: set[Any] | None) -> None:
        self._response = response
        self._tap = tap
        self._decoded = response.headers.get("content-encoding", "").lower() in _DECODED
        dropped = _NOT_PASSED_BACK | ({b"content-encoding", b"content-length"} if self._decoded else frozenset())
        headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in dropped]
        super().__init__(response.status_code, headers, under_way)
        if tap is not None:
            tap.started(response.status_code, {name.decode("latin-1"): value.decode("latin-1") for name, value in headers})

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._response.aiter_bytes() if self._decoded else self._response.aiter_raw():
                if self._tap is not None:
                    self._tap.received(data)
                yield data
        except httpx.HTTPError:
            raise BrokenOffError from None

    async def ended(self, ending: Ending) -> None:
        try:
            await self._response.aclose()
        finally:
            if self._tap is not None:
                self._tap.ended(ending)
