"""Talk between the processes of a server: pickled messages over Unix sockets, and requests that one forwards to another.

Only processes of the same user are listened to.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_server.cluster.request import Request
from llmirage_server.faults.fault import reset
from llmirage_server.http.byte_budget import HELD, Held
from llmirage_server.http.event_stream import transport_of
from llmirage_server.http.exchange import ARRIVED

TICK_S = 0.002  # between two wake-ups for tokens, on average
_HEAD_BYTES = 4  # the length of a message
_MOST_UNREAD = 16  # messages
_DONE, _CLOSED, _RESET = "done", "closed", "reset"  # the ends of a forwarded request
_SCOPE = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client",
    "server", "subprotocols", "extensions",
)  # fmt: skip


# What a caller sets of a request, besides its number and token ids; what the cluster writes, besides `produced`.
_ASKED = (
    "session_key", "model", "priority", "objective", "fairness_id", "body_bytes", "slo_ttft_s", "max_tokens",
    "only_instance", "rank", "adapter",
)  # fmt: skip
_WRITTEN = (
    "age_s", "arrival_s", "instance", "at_rank", "placed_s", "stream", "plan", "cached_tokens", "external_tokens",
    "preemptions", "admitted_s", "handed_s", "joined_s", "first_token_s", "finished_s", "failed", "dropped",
)  # fmt: skip
asked = attrgetter("id", "key", "prompt_tokens", *_ASKED)  # a request itself cannot be pickled where its class is compiled
written = attrgetter(*_WRITTEN)


def request_of(values: Sequence[Any]) -> Request:
    """Return the request of which `asked` has returned this in another process."""
    number, key, prompt_tokens, *others = values
    request = Request.of_key(number, key, prompt_tokens)
    for name, value in zip(_ASKED, others, strict=True):
        setattr(request, name, value)
    return request


def write(request: Request, values: Sequence[Any]) -> None:
    """Set what `written` has returned of the same request in another process."""
    for name, value in zip(_WRITTEN, values, strict=True):
        setattr(request, name, value)


class Channel(asyncio.Protocol):
    """One connection between two processes.

    received: is called with each message; before it is set, `get` returns them. lost: is called once it has ended.
    """

    transport: asyncio.Transport

    def __init__(self, received: Callable[[Any], None] | None = None) -> None:
        self.received = received or self.keep
        self.lost: Callable[[], None] = lambda: None
        self._unread = bytearray()
        self._kept: asyncio.Queue[Any] = asyncio.Queue()  # None at the end
        self._writable: asyncio.Future[None] | None = None  # while the other side does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if struct.unpack("3i", transport.get_extra_info("socket").getsockopt(*_PEER, 12))[1] != os.getuid():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        start = 0
        while len(unread) - start >= _HEAD_BYTES:
            begin = start + _HEAD_BYTES
            end = begin + int.from_bytes(unread[start:begin], "little")
            if end > len(unread):
                break
            start = end
            self.received(pickle.loads(bytes(unread[begin:end])))
        del unread[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._kept.put_nowait(None)
        self.lost()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def send(self, message: Any) -> None:
        """Send a message, which is lost if the other side has gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if not self.transport.is_closing():
            self.transport.write(len(data).to_bytes(_HEAD_BYTES, "little") + data)

    async def drain(self) -> None:
        """Return when the other side takes more."""
        if self._writable is not None:
            await self._writable

    async def get(self) -> Any:
        """Return the next message; None at the end."""
        message = await self._kept.get()
        if message is None:
            self._kept.put_nowait(None)
        elif self._kept.empty():
            self.transport.resume_reading()
        return message

    def keep(self, message: Any) -> None:
        """Keep a message for `get`."""
        self._kept.put_nowait(message)
        if self._kept.qsize() == _MOST_UNREAD:
            self.transport.pause_reading()


_PEER = socket.SOL_SOCKET, getattr(socket, "SO_PEERCRED", 0)  # of Linux


async def forward(channel: Channel, scope: Scope, receive: Receive, send: Send, body: bytes | None = None) -> None:
    """Let the process at the other end answer a request. body: what has been read of it already."""
    state = {name: value for name, value in scope.get("state", {}).items() if name == ARRIVED}
    channel.send({name: scope[name] for name in _SCOPE if name in scope} | {"state": state})
    if body is not None:
        channel.send({"type": "http.request", "body": body})
    upwards = asyncio.create_task(_pass_on(receive, channel))
    try:
        while isinstance(message := await channel.get(), dict):
            await send(message)
        if message != _DONE and (client := transport_of(send)) is not None:  # the response breaks off here, too
            if message == _RESET:
                reset(client)
            else:
                client.close()
            await upwards
    finally:
        upwards.cancel()
        channel.transport.close()


async def _pass_on(receive: Receive, channel: Channel) -> None:
    kind = ""
    while not kind.endswith(".disconnect"):
        message = await receive()
        kind = message["type"]
        held: Held | None = message.pop(HELD, None)  # of a WebSocket's message
        channel.send(message)
        await channel.drain()
        if held is not None:
            held.release()


class TunnelledRequest:
    """A request that another process forwards here. `send` may be stepped, as that of the HTTP server."""

    may_be_stepped = True

    def __init__(self, channel: Channel, scope: Scope, before: Callable[[], Awaitable[None]]) -> None:
        """before: is awaited before the response begins."""
        self._channel = channel
        self._scope = scope
        self._before = before

    async def _receive(self) -> Message:
        message: Message | None = await self._channel.get()
        return {"type": f"{self._scope['type']}.disconnect", "code": 1006} if message is None else message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._before()
        self._channel.send(message)
        await self._channel.drain()

    async def answer(self, app: ASGIApp) -> None:
        """Let the application answer."""
        end = _CLOSED
        try:
            await app(self._scope, self._receive, self.send)
            end = _DONE
        except ConnectionResetError:  # a fault breaks the connection
            end = _RESET
        except ConnectionAbortedError:
            pass
        finally:
            self._channel.send(end)  # the other side closes: it may still write, and would not read what it was sent
