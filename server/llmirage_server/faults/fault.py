"""A fault: its parameters, its effect on the events of a response of any API, and the connection that takes it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from llmirage_shared.settings import make_plain, settings_of, under
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import EventSplitter, encoded, event, named_event

END = b"\n\n"  # of an event
# What reading objects that are not this server's may raise.
OTHER_FORM = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_TEXT_KEYS = frozenset(
    ("content", "text", "delta", "reasoning_content", "refusal", "arguments", "input", "thinking", "partial_json")
)
_CHAT_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "token_ids")
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed", "message_delta", "message_stop")


@dataclass(slots=True, frozen=True)
class StreamEvent:
    """raw: its bytes with the blank line. name: of an event that has one. data: its JSON value, None if it has none.

    brings_tokens: it carries part of what the model writes. ends_reply: it comes after the last token. text: what it adds to
    the visible answer.
    """

    raw: bytes
    name: str = ""
    data: Any = None
    brings_tokens: bool = False
    ends_reply: bool = False
    text: str = ""

    def with_data(self, data: Any) -> bytes:
        """Return the bytes of this event with another value."""
        return named_event(self.name, data) if self.name else event(data)


def read_event(raw: bytes) -> StreamEvent:
    """Read an event; one of another form than this server's (a recorded one, for instance) brings nothing.

    raw: with its blank line.
    """
    head, _, written = raw.partition(b"data:")
    name = head[6:].strip().decode("utf-8", "replace") if head.startswith(b"event:") else ""
    if written.strip() == b"[DONE]":
        return StreamEvent(raw, ends_reply=True)
    try:
        return _read(raw, name, json.loads(written))
    except OTHER_FORM:
        return StreamEvent(raw, name)


def _read(raw: bytes, name: str, data: Any) -> StreamEvent:
    """Read an event with these data. Raises OTHER_FORM."""
    if "choices" in data:
        return _of_chat(raw, data)
    kind = data.get("type", "")
    if kind == "content_block_delta":
        return StreamEvent(raw, name, data, brings_tokens=True, text=data["delta"].get("text", ""))
    if kind.endswith(".delta"):
        said = data["delta"] if kind == "response.output_text.delta" else ""
        return StreamEvent(raw, name, data, brings_tokens=True, text=said)
    if "meta_info" in data:  # SGLang's /generate
        ended = data["meta_info"].get("finish_reason") is not None
        return StreamEvent(raw, name, data, brings_tokens=not ended, ends_reply=ended)
    return StreamEvent(raw, name, data, ends_reply=kind in _LAST_EVENTS)


def _of_chat(raw: bytes, data: Any) -> StreamEvent:
    deltas = [choice.get("delta", choice) for choice in data["choices"]]
    said = "".join([delta.get("content") or delta.get("text") or "" for delta in deltas])
    brings = bool(said) or any(delta.get(key) for delta in deltas for key in _CHAT_TEXTS)
    ends = not data["choices"] or any(choice.get("finish_reason") for choice in data["choices"])
    return StreamEvent(raw, "", data, brings_tokens=brings, ends_reply=ends and not brings, text=said)


def with_text(data: Any, change: Callable[[str], str]) -> Any:
    """Return the same JSON value with the model's first text changed; without one, with its first text of any kind."""
    for keys in (_TEXT_KEYS, None):
        changed, found = _change_first(data, change, keys)
        if found:
            return changed
    return data


def _change_first(data: Any, change: Callable[[str], str], keys: frozenset[str] | None) -> tuple[Any, bool]:
    pairs = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    for key, value in pairs:
        if isinstance(value, str):
            if value and (keys is None or key in keys):
                changed, found = change(value), True
            else:
                continue
        else:
            changed, found = _change_first(value, change, keys)
        if found:
            if isinstance(data, dict):
                return {**data, key: changed}, True
            return [*data[:key], changed, *data[key + 1 :]], True
    return data, False


parameter = under("Parameters")


@dataclass(slots=True, frozen=True)
class Pause:
    """Nothing is sent for so long. Cluster time."""

    seconds: float


@dataclass(slots=True, frozen=True)
class Close:
    """The end of the response.

    ended: the body ends as a complete one does; closed: the connection is closed before the body is complete (FIN); reset:
    the connection is reset (RST), and what the client has not read may be lost.
    """

    how: Literal["ended", "closed", "reset"]


@dataclass(slots=True, frozen=True)
class CrashInstance:
    """The instance that serves the request crashes. restart_after_s: None: it does not come back."""

    restart_after_s: float | None


Step = bytes | Pause | Close | CrashInstance
Header = tuple[bytes, bytes]


@dataclass(slots=True)
class SoFar:
    """The part of one response that has passed.

    error_body: an error in the form of the request's API. tokens: events with tokens; text: the answer's text in them.
    sent_bytes: of all events. struck: the fault has happened. response, sequence: of a Responses stream, the last object and
    the number of the last event.
    """

    error_body: Callable[[ApiError], dict[str, Any]]
    tokens: int = 0
    sent_bytes: int = 0
    text: str = ""
    struck: bool = False
    response: Any = None
    sequence: int = 0

    def note(self, event: StreamEvent) -> None:
        self.tokens += event.brings_tokens
        self.sent_bytes += len(event.raw)
        self.text += event.text
        if event.name.startswith("response."):
            self.response = event.data.get("response", self.response)
            self.sequence = event.data.get("sequence_number", self.sequence)


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """One fault with its parameters. A subclass says what it changes; what it does not override stays as it is.

    kind: its name. example: as a line of a file of faults. streams_only: whether it needs a streamed reply. exclusive: pairs
    of parameters of which only one may be given.
    """

    kind: ClassVar[str]
    example: ClassVar[str]
    streams_only: ClassVar[bool] = False
    exclusive: ClassVar[Sequence[tuple[str, str]]] = ()

    def __post_init__(self) -> None:
        make_plain(self)

    @property
    def refusal(self) -> ApiError | None:
        """The response that is sent instead of a reply."""
        return None

    @property
    def hold_s(self) -> float:
        """Seconds of cluster time that the request is kept before the cluster gets it."""
        return 0.0

    @property
    def limits(self) -> tuple[int | None, int | None] | None:
        """Requests and tokens per minute and key that replace the server's; None: no others."""
        return None

    def headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return the headers of the response, without content-length, which follows from the body."""
        return headers

    def begin(self) -> Iterable[Step]:
        """Return the steps before the response begins."""
        return ()

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        """Yield the steps for one event of a streamed reply."""
        yield event.raw

    def whole(self, body: bytes) -> Iterable[Step]:
        """Yield the steps for a reply in one piece."""
        yield body

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, about.field) for name, about in settings_of(type(self)).items()}


@dataclass(frozen=True, kw_only=True)
class FaultAtToken(InjectedFault):
    """A fault that happens once, before the event that brings the next token after `after_tokens` of them.

    A reply that is shorter meets it before its end.
    """

    after_tokens: int = parameter(
        1, "Events with tokens that are sent before it; a shorter reply meets it at its end.", least=0
    )

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        due = event.brings_tokens and so_far.tokens >= self.after_tokens
        if so_far.struck or not (due or event.ends_reply):
            yield event.raw
        else:
            so_far.struck = True
            yield from self.strike(event, so_far)

    def strike(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        """Yield the steps in place of that event."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class EditedReply(InjectedFault):
    """A fault that changes objects of the reply: each event of a stream, and the body of a reply in one piece."""

    def edit(self, data: Any) -> Any:
        """Return the object as it is sent, None for an event that is left out. data: a fresh copy."""
        raise NotImplementedError

    def event(self, event: StreamEvent, so_far: SoFar) -> Iterable[Step]:
        if event.data is None:
            yield event.raw
            return
        try:
            edited = self.edit(event.data)
            renamed = edited.get("type", event.name) if edited and event.name else ""
        except OTHER_FORM:
            yield event.raw
        else:
            if edited is not None:
                yield StreamEvent(b"", renamed).with_data(edited)

    def whole(self, body: bytes) -> Iterable[Step]:
        yield edited_body(body, self.edit)


def edited_body(body: bytes, edit: Callable[[Any], Any]) -> bytes:
    """Return a body of JSON, edited; one of another form as it is."""
    try:
        return encoded(edit(json.loads(body)))
    except OTHER_FORM:
        return body


def duration(default: Any, help: str, **about: Any) -> Any:
    """Declare a parameter in seconds of the cluster's time: at --speed N it takes an Nth of them."""
    return parameter(default, help, **({"least": 0, "most": 86_400} | about))


# --- the connection of a response: ASGI messages come in, altered ones go out -------------------------------------------

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
        self._body_read = b""  # of a reply in one piece
        self._splitter = EventSplitter()
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
                self._body_read += message.get("body", b"")
                if not message.get("more_body"):
                    await self._whole(self._body_read)

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
        for raw in self._splitter.feed(body):
            event = read_event(raw)
            await self._play(self.altered.event(event, self.so_far))
            if self._over.is_set():
                return
            self.so_far.note(event)
        if last:
            await self._body(self._splitter.rest, last=True)

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
