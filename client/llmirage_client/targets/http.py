"""A target that is an endpoint reached over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import httpx

from llmirage_client.measure.record import Exchange, RequestError
from llmirage_client.targets.address import normalise_url
from llmirage_client.targets.clock import run_clock
from llmirage_client.targets.fault import Fault
from llmirage_client.targets.probe import EndpointInfo, probe
from llmirage_client.targets.reply import Reply, stated_error
from llmirage_client.targets.start_gate import StartGate
from llmirage_client.targets.target import Call
from llmirage_client.targets.transport import BodyStream, LeanTransport
from llmirage_client.targets.wire_json import encode_body

__all__ = ["EndpointInfo", "HttpTarget", "normalise_url", "probe"]

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ERROR_TEXT_CHARACTERS = 300
_REDIRECTS = (301, 302, 303, 307, 308)


class HttpTarget:
    """Sends calls to one API root and makes an Exchange of whatever comes back.

    Requests go to an httpx transport directly, not through httpx.AsyncClient: its merging of cookies, authentication and
    redirects has nothing to do here.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float | None = None,
        max_connections: int | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout_s: float | None = None,
        key_header: str = "Authorization",
    ) -> None:
        """base_url: see normalise_url. headers: sent with every call, they replace ours of the same name. timeout_s: for the
        whole of one reply. max_connections: how many calls may be under way at once, None for no limit. transport: another
        way to reach the endpoint, then max_connections is that transport's business. key_header: where the key goes, alone
        unless it is Authorization. Raises ValueError for a base_url or a header that cannot be sent.
        """
        self.base_url = normalise_url(base_url)
        self._timeout_s = timeout_s
        self._transport = transport or LeanTransport(max_connections=max_connections)
        self._gate = StartGate()
        self._urls: dict[str, httpx.URL] = {}
        self._headers = {
            "user-agent": ("User-Agent", f"llmirage/{version('llmirage')}"),
            "accept-encoding": ("Accept-Encoding", "identity"),
            "content-type": ("Content-Type", "application/json"),
        }
        if api_key:
            bearer = key_header.lower() == "authorization"
            self._headers[key_header.lower()] = (key_header, f"Bearer {api_key}" if bearer else api_key)
        self._timeouts = {} if connect_timeout_s is None else {"timeout": {"connect": connect_timeout_s}}
        for name, value in headers:
            self._headers[name.lower()] = (name, value)
        for name, value in self._headers.values():
            _check_header(name, value)

    def now(self) -> float:
        return run_clock(asyncio.get_running_loop())()

    async def send(self, call: Call) -> Exchange:
        """Send and wait for the whole reply. Raises nothing but CancelledError, which closes the connection."""
        await self._gate.enter()
        now = run_clock(asyncio.get_running_loop())
        exchange = Exchange(start_s=now())
        reply = call.new_reply()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(call, exchange, reply, now)
        except TimeoutError:
            got = "no reply" if exchange.ack_s is None else "the reply was not complete"
            exchange.error = RequestError(exchange.status, "timeout", f"{got} within {self._timeout_s:g} s")
        except httpx.TransportError as error:
            exchange.error = _transport_error(error, exchange.status)
        except (ValueError, TypeError, httpx.InvalidURL) as error:
            exchange.error = RequestError(None, "invalid_request", f"the request cannot be sent: {error}")
        if exchange.end_s is None:
            exchange.end_s = now()
        _complete(exchange, reply)
        return exchange

    async def get(self, path: str) -> tuple[int, bytes]:
        """GET a path below the API root: status and body. Raises httpx.TransportError."""
        headers = [*self._headers.values(), ("Accept", "application/json")]
        response = await self._transport.handle_async_request(httpx.Request("GET", self.base_url + path, headers=headers))
        try:
            return response.status_code, await response.aread()
        finally:
            await response.aclose()

    async def close(self) -> None:
        await self._transport.aclose()

    async def _exchange(self, call: Call, exchange: Exchange, reply: Reply, now: Any) -> None:
        response = await self._transport.handle_async_request(self._request(call))
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        exchange.status = response.status_code
        segments: list[tuple[float, bytes]] = []
        fault: httpx.TransportError | None = None
        try:
            if isinstance(stream, BodyStream):
                segments = stream.incoming.segments
                exchange.ack_s = stream.incoming.headers_s
                broken = (await stream.collect()).fault
                exchange.end_s = stream.incoming.arrival_s
                if broken is not None:
                    exchange.error = RequestError(exchange.status, broken.kind.value, broken.message)
            else:
                exchange.ack_s = now()
                async for piece in stream:
                    segments.append((now(), piece))
                exchange.end_s = now()
        except httpx.TransportError as error:
            fault = error
        finally:
            await stream.aclose()
            # Also after a timeout: what arrived until then is part of the record.
            _read(exchange, reply, response, segments)
        if fault is not None:
            raise fault

    def _request(self, call: Call) -> httpx.Request:
        url = self._urls.get(call.path)
        if url is None:
            root = httpx.URL(self.base_url)
            url = root.join(call.path) if call.from_root else httpx.URL(self.base_url + call.path)
            self._urls[call.path] = url
        headers = dict(self._headers)
        headers.setdefault("accept", ("Accept", "text/event-stream" if call.stream else "application/json"))
        for name, value in call.headers.items():
            headers[name.lower()] = (name, value)
        extensions = self._timeouts if call.on_sent is None else {**self._timeouts, "on_sent": call.on_sent}
        content = encode_body(call.body)
        return httpx.Request("POST", url, headers=list(headers.values()), content=content, extensions=extensions)


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the value of the header {name} has a character that cannot be sent")


def _transport_error(error: httpx.TransportError, status: int | None) -> RequestError:
    if isinstance(error.__cause__, Fault):
        return RequestError(status, error.__cause__.kind.value, error.__cause__.message)
    return RequestError(status, "connection_error", str(error) or type(error).__name__)


def _read(exchange: Exchange, reply: Reply, response: httpx.Response, segments: list[tuple[float, bytes]]) -> None:
    """Take in what arrived of a reply, whole or not."""
    status = response.status_code
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = response.headers.get("content-encoding", "identity")
    if status != 200:
        body = b"".join([piece for _, piece in segments])
        exchange.retry_after_s = _seconds(response.headers.get("retry-after"))
        exchange.error = exchange.error or _status_error(
            status, response.headers.get("location"), body, response.reason_phrase
        )
    elif encoding not in ("", "identity"):
        exchange.error = RequestError(status, "wrong_content_encoding", f"the reply is compressed ({encoding}) unasked")
    elif content_type == "text/event-stream":
        exchange.streamed = True
        reply.read_stream(segments)
    elif exchange.end_s is not None and exchange.error is None:
        body = b"".join([piece for _, piece in segments])
        try:
            reply.read_body(segments[-1][0] if segments else exchange.end_s, body)
        except ValueError:
            exchange.error = _body_error(status, content_type, body)


def _complete(exchange: Exchange, reply: Reply) -> None:
    """Fill in what the reply says, and the error if it is not what a reply must be."""
    exchange.token_s = reply.token_s
    exchange.first_output_s = reply.first_output_s
    exchange.text = reply.text
    exchange.reasoning = reply.reasoning
    exchange.finish_reason = reply.finish_reason
    exchange.usage = reply.usage
    exchange.response_id = reply.response_id
    if exchange.streamed and reply.ended:
        exchange.error = None  # the reply was complete; how the connection ended does not matter
    if exchange.error is None and reply.error is not None:
        exchange.error = reply.error
    if exchange.error is None and exchange.streamed and not reply.ended and reply.finish_reason is None:
        exchange.error = RequestError(
            exchange.status, "stream_ended_early", "the stream ended without [DONE] or a finish reason"
        )
    message = reply.message()
    if exchange.error is None and message is None and not (reply.may_be_empty and exchange.token_s):
        exchange.error = RequestError(exchange.status, "empty_response", "the reply has no text and no tool call")
    if exchange.error is None:
        exchange.message = message
        exchange.items = reply.items


def _seconds(text: str | None) -> float | None:
    """A header's number of seconds; None for a date, which Retry-After may have too, and for nonsense."""
    return float(text) if text is not None and re.fullmatch(r"\d{1,9}(\.\d+)?", text) else None


def _status_error(status: int, location: str | None, body: bytes, reason: str) -> RequestError:
    if status in _REDIRECTS:
        return RequestError(status, "redirect", f"redirected to {location or 'nowhere'}: give that address instead")
    with suppress(ValueError):
        value = json.loads(body)
        if value:
            return stated_error(value, status, "http_error")
    text = " ".join(body.decode("utf-8", "replace").split())[:_ERROR_TEXT_CHARACTERS]
    return RequestError(status, "http_error", text or reason or f"HTTP {status}")


def _body_error(status: int, content_type: str, body: bytes) -> RequestError:
    if not body:
        return RequestError(status, "empty_response", "the reply has no body")
    if content_type.endswith("json"):
        return RequestError(status, "malformed_body", "the reply is not a JSON object")
    kind = content_type or "no content type"
    return RequestError(status, "wrong_content_type", f"expected JSON or an event stream, got {kind}")
