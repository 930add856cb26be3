"""A target that is an endpoint reached over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

import httpx

from llmirage_client.measure.mismatch import other_model
from llmirage_client.measure.record import Exchange, RequestError, absurd_count
from llmirage_client.settings.endpoint import normalise_url
from llmirage_client.targets.endpoints.protocol import ReplyReader, stated_error
from llmirage_client.targets.fault import Fault, fault_of
from llmirage_client.targets.httpx_transport import HttpxTransport
from llmirage_client.targets.target import Call, TransportUse, run_clock
from llmirage_client.targets.timed_stream import MOST_REPLY_BYTES, StampedStream, TimedStream
from llmirage_client.targets.timed_transport import Origin, OutgoingRequest, TimedTransport
from llmirage_client.targets.wire_json import encode_body, parse


class StartGate:
    """Passes at most `per_turn` starts in one turn of the event loop, in order.

    Between its turns a loop polls its sockets. Hundreds of requests that start in one turn keep it from doing so for tens of
    milliseconds, and every reply that comes meanwhile is stamped that much late.
    """

    def __init__(self, per_turn: int = 2) -> None:
        self._per_turn = per_turn
        self._passed = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._ticking = False

    async def enter(self) -> None:
        """Return when this start may go ahead."""
        if self._passed < self._per_turn and not self._queue:
            self._passed += 1
            self._tick_later()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        self._tick_later()
        await waiter

    def _tick_later(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._passed = 0
        while self._queue and self._passed < self._per_turn:
            waiter = self._queue.popleft()
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
                self._passed += 1
        if self._passed:
            self._tick_later()


_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ERROR_TEXT_CHARACTERS = 300
# Raised by readers for values of other types than an API's, and nested deeper than their functions call themselves.
_FORM_ERRORS = (TypeError, AttributeError, KeyError, ValueError, RecursionError)
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(slots=True)
class _Arrived:
    """The received part of a reply."""

    response: httpx.Response | None = None
    stream: TimedStream | None = None

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status_code


class HttpTarget:
    """Sends calls to one API root and makes an Exchange of whatever comes back."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout_s: float | None = None,
        key_header: str = "Authorization",
        most_reply_bytes: int = MOST_REPLY_BYTES,
    ) -> None:
        """Set up the target. Raises ValueError for a base_url or header that cannot be sent.

        base_url: see normalise_url. headers: sent with every call; they replace others of their names. timeout_s: for the
        whole of one reply. transport: any of httpx, closed with the target; None: a TimedTransport. key_header: where the
        key goes, as a bearer token if it is Authorization. most_reply_bytes: see TimedStream.most_bytes.
        """
        self.base_url = normalise_url(base_url)
        self._timeout_s = timeout_s
        self._most_reply_bytes = most_reply_bytes
        self._transport = TimedTransport() if transport is None else transport
        self._extensions = {} if connect_timeout_s is None else {"timeout": {"connect": connect_timeout_s}}
        self._gate = StartGate()
        self._headers = {
            "user-agent": ("User-Agent", f"llmirage/{version('llmirage')}"),
            "accept-encoding": ("Accept-Encoding", "identity"),
            "content-type": ("Content-Type", "application/json"),
        }
        if api_key:
            bearer = key_header.lower() == "authorization"
            self._headers[key_header.lower()] = (key_header, f"Bearer {api_key}" if bearer else api_key)
        self._chosen = {name.lower(): (name, value) for name, value in headers}
        for name, value in (self._headers | self._chosen).values():
            _check_header(name, value)

    def now(self) -> float:
        return run_clock(asyncio.get_running_loop())()

    async def send(self, call: Call) -> Exchange:
        """Send and wait for the whole reply. Raises nothing but CancelledError, which closes the connection."""
        await self._gate.enter()
        now = run_clock(asyncio.get_running_loop())
        exchange, arrived = Exchange(start_s=now()), _Arrived()
        try:
            request = self._request(call)
            exchange.start_s = now()  # what it takes to write the body as JSON is not the endpoint's time
            async with asyncio.timeout(self._timeout_s):
                await self._receive(request, arrived)
        except TimeoutError:
            got = "no reply" if arrived.response is None else "the reply was not complete"
            exchange.error = RequestError(arrived.status, "timeout", f"{got} within {self._timeout_s:g} s")
        except Fault as fault:
            exchange.error = RequestError(arrived.status, fault.kind.value, fault.message)
        except (ValueError, TypeError, httpx.InvalidURL) as error:
            exchange.error = RequestError(None, "invalid_request", f"the request cannot be sent: {error}")
        stream = arrived.stream
        exchange.end_s = now() if stream is None or stream.end_s is None else stream.end_s
        reply = call.new_reply()
        _take_in(exchange, reply, arrived, call.empty_ok)
        exchange.other_model = other_model(call.body.get("model"), reply.model)
        return exchange

    async def get(self, path: str, from_root: bool = False) -> tuple[int, bytes]:
        """Ask for GET of a path below the API root, or below the server's: status and body. Raises Fault."""
        arrived = _Arrived()
        headers = list((self._headers | {"accept": ("Accept", "application/json")} | self._chosen).values())
        await self._receive(OutgoingRequest("GET", self._address(path, from_root), headers, b"", self._extensions), arrived)
        assert arrived.stream is not None
        if arrived.stream.fault is not None:
            raise arrived.stream.fault
        return arrived.status or 0, _joined(arrived.stream.segments)

    def uses(self) -> list[TransportUse]:
        return [self._transport.use] if isinstance(self._transport, HttpxTransport) else []

    async def close(self) -> None:
        await self._transport.aclose()

    async def _receive(self, request: httpx.Request, arrived: _Arrived) -> None:
        """Send, and wait for the whole reply. Raises Fault when none began."""
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise fault_of(error, str(Origin.of(request.url)), begun=False) from error
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        timed = stream if isinstance(stream, TimedStream) else StampedStream(response, self.now)
        timed.most_bytes = self._most_reply_bytes
        arrived.response, arrived.stream = response, timed
        try:
            if timed.end_s is None:
                await timed.collect()
        finally:
            await stream.aclose()

    def _request(self, call: Call) -> OutgoingRequest:
        """Return the request as it goes out. Raises ValueError or TypeError for a body that JSON does not have."""
        accept = ("Accept", "text/event-stream" if call.stream else "application/json")
        headers = self._headers | {"accept": accept}
        headers |= {name.lower(): (name, value) for name, value in call.headers.items()} | self._chosen
        extensions = self._extensions if call.on_sent is None else {**self._extensions, "on_sent": call.on_sent}
        address = self._address(call.path, call.from_root)
        return OutgoingRequest("POST", address, list(headers.values()), encode_body(call.body), extensions)

    def _address(self, path: str, from_root: bool) -> str:
        return str(httpx.URL(self.base_url).join(path)) if from_root else self.base_url + path


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the value of the header {name} has a character that cannot be sent")


def _take_in(exchange: Exchange, reply: ReplyReader, arrived: _Arrived, empty_ok: bool) -> None:
    """Take in a reply, complete or not, and note the error if it is not a valid one."""
    response, stream = arrived.response, arrived.stream
    if response is not None and stream is not None:
        exchange.status, exchange.ack_s, fault = response.status_code, stream.headers_s, stream.fault
        exchange.body_s = stream.body_s
        if fault is not None and exchange.error is None:
            exchange.error = RequestError(exchange.status, fault.kind.value, fault.message)
        try:
            _read(exchange, reply, response, stream)
        except _FORM_ERRORS as error:
            kind = "malformed_stream" if exchange.streamed else "malformed_body"
            reason = f"the reply has not the form of its API ({type(error).__name__}: {error})"
            exchange.error = exchange.error or RequestError(exchange.status, kind, reason)
    exchange.token_s = reply.token_s
    exchange.first_output_s = reply.first_output_s
    exchange.text = reply.text
    exchange.reasoning = reply.reasoning
    exchange.finish_reason = reply.finish_reason
    absurd = None if reply.usage is None else absurd_count(reply.usage)
    exchange.usage = reply.usage if absurd is None else None
    exchange.response_id = reply.response_id
    if exchange.streamed and reply.ended:
        exchange.error = None  # the reply was complete; how the connection ended does not matter
    if exchange.error is None and reply.error is not None:
        exchange.error = reply.error
    if exchange.error is None and absurd is not None:
        name, count = absurd
        exchange.error = RequestError(exchange.status, "absurd_usage", f"usage says {repr(count)[:24]} {name}")
    exchange.skipped_events = reply.skipped_events
    if exchange.error is None and exchange.streamed and not reply.ended and reply.finish_reason is None:
        exchange.error = reply.malformed or RequestError(
            exchange.status, "stream_ended_early", "the stream ended without [DONE] or a finish reason"
        )
    message = reply.message()
    if exchange.error is None and message is None and not (reply.may_be_empty and exchange.token_s):
        if empty_ok and (reply.ended or reply.finish_reason is not None):
            message = {"role": "assistant", "content": ""}
        elif reply.malformed is not None:
            exchange.error = reply.malformed
        else:
            exchange.error = RequestError(exchange.status, "empty_response", "the reply has no text and no tool call")
    if exchange.error is None:
        exchange.message = message
        exchange.items = reply.items


def _read(exchange: Exchange, reply: ReplyReader, response: httpx.Response, stream: TimedStream) -> None:
    status, end_s, segments = response.status_code, exchange.end_s, stream.segments
    assert end_s is not None
    content_type = _header(stream, b"content-type").partition(";")[0].strip().lower()
    encoding = _header(stream, b"content-encoding")
    if status != 200:
        exchange.retry_after_s = _seconds(_header(stream, b"retry-after"))
        exchange.error = exchange.error or _status_error(response, stream)
    elif encoding not in ("", "identity"):
        exchange.error = RequestError(
            status, "wrong_content_encoding", f"the reply is compressed ({encoding}) although no compression was requested"
        )
    elif content_type == "text/event-stream":
        exchange.streamed = True
        reply.read_stream(segments)
    elif exchange.error is None:
        body = _joined(segments)
        try:
            reply.read_body(segments[-1][0] if segments else end_s, body)
        except ValueError:
            exchange.error = _body_error(status, content_type, body)


def _header(stream: TimedStream, name: bytes) -> str:
    """Return the first value of a header, by its name in small letters; "" where there is none."""
    return next((value.decode("latin-1") for key, value in stream.headers if key.lower() == name), "")


def _joined(segments: list[tuple[float, bytes]]) -> bytes:
    return b"".join([piece for _, piece in segments])


def _seconds(text: str) -> float | None:
    """Return a header's number of seconds; None for a date, which Retry-After may have too, and for nonsense."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d+)?", text) else None


def _status_error(response: httpx.Response, stream: TimedStream) -> RequestError:
    status, body = response.status_code, _joined(stream.segments)
    if status in _REDIRECTS:
        location = _header(stream, b"location") or "nowhere"
        return RequestError(status, "redirect", f"redirected to {location}: give that address instead")
    with suppress(ValueError):
        value = parse(body)
        if value:
            return stated_error(value, status, "http_error")
    text = " ".join(body.decode("utf-8", "replace").split())[:_ERROR_TEXT_CHARACTERS]
    return RequestError(status, "http_error", text or response.reason_phrase or f"HTTP {status}")


def _body_error(status: int, content_type: str, body: bytes) -> RequestError:
    if not body:
        return RequestError(status, "empty_response", "the reply has no body")
    if content_type.endswith("json"):
        return RequestError(status, "malformed_body", "the reply is not a JSON object")
    kind = content_type or "no content type"
    return RequestError(status, "wrong_content_type", f"expected JSON or an event stream, got {kind}")
