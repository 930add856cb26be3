"""The connection of one response that a fault alters: ASGI messages come in, altered ones go out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Literal, Protocol

from llmirage_server.faults.fault import ENDS, Close, CrashInstance, InjectedFault, Pause, SoFar, Step, read_event
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import encoded

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Choose = Callable[[], InjectedFault | None]
_FIRST_ERROR = 400

_DISCONNECT: Message = {"type": "http.disconnect"}
_LINGER_0 = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends RST instead of FIN


class FaultHost(Protocol):
    """The server, which has the clock and the cluster."""

    async def sleep(self, seconds: float) -> None:
        """Wait. Cluster time."""
        ...

    def crash(self, restart_after_s: float | None) -> None:
        """Crash the instance that serves the request."""
        ...


class FaultyConnection:
    """`send` and `receive` for a response.

    choose: the fault, asked when a reply begins (an error stays as it is); None for a reply that stays as it is.
    altered: the fault that alters it. status: what was sent, None before. ended: how the fault ended the response, "" if it
    did not. so_far: what had passed until then. transport: the connection of uvicorn's request; None in process.
    """

    def __init__(
        self, choose: Choose, host: FaultHost, so_far: SoFar, receive: Receive, send: Send, transport: Any = None
    ) -> None:
        self.so_far = so_far
        self.status: int | None = None
        self.ended: Literal["", "ended", "closed", "reset"] = ""
        self._choose = choose
        self._host = host
        self._receive = receive
        self._send = send
        self.transport = transport
        self.altered: InjectedFault | None = None
        self._start: Message | None = None  # of a reply in one piece: its headers follow from its body
        self._unread = b""  # the beginning of an event, or of a reply in one piece
        self._streamed = False
        self._over = asyncio.Event()
        self._lock = asyncio.Lock()  # a stream's pings wait while it stalls

    async def send(self, message: Message) -> None:
        async with self._lock:
            if self._over.is_set():
                return
            if message["type"] == "http.response.start":
                await self._begin(message)
            elif self.altered is None:
                await self._send(message)
            elif self._streamed:
                await self._stream(message.get("body", b""), last=not message.get("more_body"))
            else:
                self._unread += message.get("body", b"")
                if not message.get("more_body"):
                    await self._whole(self._unread)

    async def receive(self) -> Message:
        """Return the client's next message; a disconnect once the fault has ended the response."""
        receiving, over = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else _DISCONNECT
        finally:
            receiving.cancel()
            over.cancel()

    async def _begin(self, message: Message) -> None:
        fault = self.altered = self._choose() if message["status"] < _FIRST_ERROR else None
        if fault is None:
            await self._send_start(message)
            return
        if fault.refusal is not None:
            await self._refuse(fault.refusal, message)
            return
        if fault.hold_s:
            await self._host.sleep(fault.hold_s)
        await self._play(fault.begin())
        if self._over.is_set():
            return
        headers = [(name.lower(), value) for name, value in message["headers"] if name.lower() != b"content-length"]
        self._streamed = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
        self._start = {**message, "headers": list(fault.headers(headers))}
        if self._streamed:
            await self._send_start(self._start)

    async def _refuse(self, error: ApiError, message: Message) -> None:
        body = encoded(self.so_far.error_body(error))
        replaced = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), **dict(error.headers)}
        headers = [(name, value) for name, value in message["headers"] if name.lower() not in replaced]
        await self._send_start({**message, "status": error.status, "headers": [*headers, *replaced.items()]})
        await self._body(body, last=True)
        self._over.set()

    async def _stream(self, body: bytes, last: bool) -> None:
        assert self.altered is not None
        for raw in self._events(body):
            event = read_event(raw)
            await self._play(self.altered.event(event, self.so_far))
            if self._over.is_set():
                return
            self.so_far.note(event)
        if last:
            await self._body(self._unread, last=True)

    def _events(self, body: bytes) -> list[bytes]:
        """Return the events that are complete now, with their blank lines."""
        unread, start, events = self._unread + body, 0, []
        for end in ENDS.finditer(unread):
            events.append(unread[start : end.end()])
            start = end.end()
        self._unread = unread[start:]
        return events

    async def _whole(self, body: bytes) -> None:
        assert self.altered is not None
        assert self._start is not None
        steps = list(self.altered.whole(body))
        cut = any(isinstance(step, Close) and step.how != "ended" for step in steps)
        size = len(body) if cut else sum([len(step) for step in steps if isinstance(step, bytes)])
        self._start["headers"].append((b"content-length", b"%d" % size))
        await self._send_start(self._start)
        await self._play(steps)
        if not self._over.is_set():
            await self._body(b"", last=True)

    async def _play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await self._body(step)
            elif isinstance(step, Pause):
                await self._host.sleep(step.seconds)
            elif isinstance(step, CrashInstance):
                self._host.crash(step.restart_after_s)
            else:
                await self._close(step)
                return

    async def _send_start(self, message: Message) -> None:
        self.status = message["status"]
        await self._send(message)

    async def _body(self, data: bytes, last: bool = False) -> None:
        if data or last:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _close(self, step: Close) -> None:
        self.ended = step.how
        if step.how == "ended":
            await self._body(b"", last=True)
            self._over.set()
            return
        if (transport := self.transport) is not None:
            if step.how == "reset":
                await asyncio.sleep(0)  # uvloop writes at the end of a turn what it was given during it
                reset(transport)
            else:
                transport.close()  # after what has been written
            while (await self._receive())["type"] != "http.disconnect":
                pass
        self._over.set()

    def raise_if_broken(self) -> None:
        """Raise ConnectionError for a response that broke off where there is no connection to close: in process."""
        if self.transport is None and self.ended in ("closed", "reset"):
            kind = ConnectionResetError if self.ended == "reset" else ConnectionAbortedError
            raise kind(f"a fault has {self.ended} the connection")


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST."""
    if (given := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(given.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    transport.abort()
