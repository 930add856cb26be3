"""WebSocket connections to /v1/responses: each `response.create` is served as the body of a POST would be.

https://developers.openai.com/api/docs/guides/websocket-mode. A connection has lanes, named by `stream_id`: the responses of
one lane follow each other, those of different lanes run together.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import deque
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from llmirage_server.http.bodies import digest
from llmirage_server.http.byte_budget import HELD
from llmirage_server.http.endpoints import HttpEndpoint, HttpFace, post
from llmirage_server.http.exchange import ARRIVED, FAULT_HEADER, IS_TEXT, EndpointApp, HttpExchange
from llmirage_server.http.turns import turn
from llmirage_server.openai.responses.context import ResponseContext, read_context, record_of
from llmirage_server.openai.responses.endpoint import ResponsesHandler
from llmirage_server.openai.responses.socket_frames import (
    FRAME,
    EventFrames,
    FrameExchange,
    SocketFrame,
    SocketOutbox,
    error_event,
    read_frame,
    refused_kind,
    steering_failed,
)
from llmirage_server.openai.responses.writer import response_usage
from llmirage_server.service.prompts import ContextWindow
from llmirage_server.service.service import Service
from llmirage_server.service.unstreamed import prefill
from llmirage_server.state.conversation import Item
from llmirage_server.state.state import MemoryState, State
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import last_user_text
from llmirage_shared.wire.output import encoded, named_event, usage

logger = logging.getLogger("llmirage")

MOST_AT_ONCE = 16  # responses in flight on a connection; as OpenAI has it
MOST_STREAMS = 32  # names of lanes on a connection; as OpenAI has it
_MOST_QUEUED = 64  # frames that wait; then no more are read
_CACHE_MIB = 32  # of contexts that only their connections know, over all connections
_OF_THE_UPGRADE = re.compile(rb"sec-websocket-|connection|upgrade|content-|transfer-encoding|expect|x-request-id")
_GOING_AWAY, _BROKEN_OFF = 1001, 1011
_SESSION = "llmirage.session"  # key in the scope of a frame's exchange
_IGNORED = ("response.processed",)  # Codex: that it has used a response


class SocketResponses(ResponsesHandler):
    """Responses to frames. Those with store false are remembered for their connection, the last one of each lane."""

    def __init__(self, service: Service, state: State) -> None:
        """Keep what answers. state: has the responses that are stored."""
        super().__init__(service, state)
        self._cache = MemoryState(_CACHE_MIB << 20)

    def forget(self, session: SocketSession, response_id: str) -> None:
        self._cache.delete("response", session.key(response_id))

    async def create(self, exchange: HttpExchange) -> Response:
        frame = _frame_of(exchange)
        if frame.error is not None:
            raise frame.error
        return await super().create(exchange) if frame.generate else await self._prepare(exchange)

    async def _prepare(self, exchange: HttpExchange) -> Response:
        """`generate` false: the cluster reads the prompt, and the next response can continue from it."""
        service = self._service
        request = await self._request(exchange)
        served, context, messages = await self._asked(exchange, request)
        ids = await self._encode(exchange, request, messages, ContextWindow(served.max_model_len, "input"))
        if len(ids) >= served.max_model_len:
            raise errors.context_length_exceeded(served.max_model_len, len(ids), None, "input")
        exchange.entry.asked(served.model, last_user_text(messages), "", (), (), True)
        exchange.admit(served.model, len(ids))
        assert request.model is not None
        read = await prefill(service, request.model, [ids], exchange)
        response = await self._begun(exchange, request, context)
        events = [("response.created", {**response}), ("response.in_progress", {**response})]
        cached = sum([exchange.dialect.cached(each.cached_tokens) for each in read])
        response |= {
            "status": "completed",
            "completed_at": response["created_at"],
            "usage": response_usage(usage(len(ids), 0, cached)),
        }
        self._keep(exchange, context, response)
        events.append(("response.completed", response))
        written = [
            named_event(kind, {"type": kind, "sequence_number": number, "response": value})
            for number, (kind, value) in enumerate(events)
        ]
        return exchange.content(b"".join(written), b"text/event-stream; charset=utf-8")

    async def _context(self, exchange: HttpExchange, request: schema.responses.ResponseRequest) -> ResponseContext:
        session, previous = _session_of(exchange), request.previous_response_id
        known = None if previous is None else self._cache.read("response", session.key(previous))
        return await read_context(exchange, self._state, request, self._service.dialect.strict, known)

    def _keep(self, exchange: HttpExchange, context: ResponseContext, response: Item) -> None:
        super()._keep(exchange, context, response)
        session, lane = _session_of(exchange), _frame_of(exchange).stream_id
        if (last := session.latest.get(lane)) is not None:
            self.forget(session, last)
        session.latest[lane] = response["id"]
        if not response["store"]:
            items = record_of(context, response)["items"]
            self._cache.put("response", session.key(response["id"]), {"items": items})


class ResponsesSocket:
    """The ASGI application of the connections.

    Attributes:
        responses: Answers frames.
        frames: The application of frames.
        limit_s: The longest that a connection lasts; 0: none is taken.
        most_bytes: The largest body of a frame, and of all frames that wait.
        in_thread: Runs the long work of large frames.
        on_error: Called for each error of the server's own code.
    """

    def __init__(self, service: Service, state: State, face: HttpFace, limit_s: float) -> None:
        """Make the applications of upgrades and of frames."""
        self.responses = SocketResponses(service, state)
        self._in_progress = service.responses
        self.limit_s = limit_s
        self.most_bytes = face.most_bytes
        self.in_thread = service.text.in_thread
        self._upgrades = EndpointApp(
            {"GET": self._welcome}, face.guard, journal=face.journal, faults=face.faults, on_error=face.on_error
        )
        create = post(face.before(self.responses.create))
        self.frames = face.app(HttpEndpoint("/v1/responses", create, exchange=FrameExchange))
        self.on_error = face.on_error
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # that a client wants to connect
        upgrade = _Upgrade(scope, receive, send)
        await self._upgrades(upgrade.request, upgrade.receive, upgrade.send)
        if upgrade.accepted:
            await SocketSession(self, next(self._numbers), scope, receive, send).run()

    async def _welcome(self, exchange: HttpExchange) -> Response:
        self._in_progress.check_open()
        if not self.limit_s:
            raise errors.no_websocket()
        return exchange.content(b"", b"text/plain", 101)


class _Upgrade:
    """The upgrade of a connection, as an HTTP request and its response. accepted: status 101 was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.accepted = False
        headers = [header for header in scope["headers"] if header[0] != FAULT_HEADER]  # it is for the frames
        self.request = {**scope, "type": "http", "method": "GET", "headers": headers}
        self._may_refuse = "websocket.http.response" in scope.get("extensions", {})
        self._receive = receive
        self._send = send
        self._start: Message = {}

    async def receive(self) -> Message:
        while (await self._receive())["type"] != "websocket.disconnect":
            pass
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif self._start["status"] == 101:
            of_content = (b"content-type", b"content-length")
            headers = [header for header in self._start["headers"] if header[0] not in of_content]
            await self._send({"type": "websocket.accept", "headers": headers})
            self.accepted = True
        elif self._may_refuse:
            await self._send({**self._start, "type": "websocket.http.response.start"})
            await self._send({**message, "type": "websocket.http.response.body"})
        else:
            await self._send({"type": "websocket.close", "code": _GOING_AWAY})


class SocketSession:
    """One connection. latest: the id of the last response of each lane."""

    def __init__(self, socket: ResponsesSocket, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._socket = socket
        self.latest: dict[str | None, str] = {}
        self._number = number
        self._receive = receive
        self._outbox = SocketOutbox(send)
        headers = [header for header in scope["headers"] if not _OF_THE_UPGRADE.match(header[0])]
        self._state = {name: value for name, value in scope.get("state", {}).items() if name != ARRIVED}
        self._scope = {**scope, "type": "http", "method": "POST", "headers": headers, _SESSION: self}
        self._clock = precise_clock()
        self._streams: set[str] = set()  # names of lanes
        self._queued: deque[SocketFrame] = deque()
        self._busy: dict[str | None, asyncio.Task[None]] = {}  # by lane
        self._room = asyncio.Event()  # for another frame in the queue
        self._gone = asyncio.Event()
        self._too_old = False

    def key(self, response_id: str) -> str:
        """Return the key of a response that only this connection knows."""
        return f"{self._number} {response_id}"

    async def run(self) -> None:
        """Serve frames until the connection ends."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._socket.limit_s, self._grow_old)
        writing = loop.create_task(self._outbox.run())
        try:
            while (message := await self._receive())["type"] != "websocket.disconnect":
                await self._take(message)
        finally:
            timer.cancel()
            self._gone.set()
            self._forget_queued()
            if self._busy:
                await asyncio.wait(self._busy.values())
            writing.cancel()
            for response_id in self.latest.values():
                self._socket.responses.forget(self, response_id)

    async def _take(self, message: Message) -> None:
        """Serve a message, or queue it. With a full queue it waits, and with it all that the client sends."""
        await turn()  # messages come as fast as this takes them
        await self._outbox.drained()
        text = message.get("text")
        raw: bytes = message["bytes"] if text is None else text.encode("utf-8", "replace")
        frame = SocketFrame(len(raw), await digest(raw), message.get(ARRIVED) or self._clock(), held=message.get(HELD))
        await read_frame(frame, raw, text is not None or message.get(IS_TEXT, False), self._socket.in_thread)
        if frame.error is None and frame.kind in (*_IGNORED, "response.steer"):
            if frame.kind == "response.steer":
                self._outbox.put(encoded(steering_failed(frame.body)))
            if frame.held is not None:
                frame.held.release()
            return
        if frame.error is None:
            frame.error = self._refusal(frame)
        if frame.error is not None:
            await self._serve(frame, at_once=True)
            return
        self._queued.append(frame)
        self._start_next()
        while self._is_full() and not self._gone.is_set():
            self._room.clear()
            await self._room.wait()

    def _refusal(self, frame: SocketFrame) -> Any:
        """Why a frame that is an event is not served, None if it is."""
        if frame.kind != "response.create":
            return refused_kind(frame.kind)
        if self._too_old:
            return errors.websocket_too_old(self._socket.limit_s)
        if frame.stream_id is not None and frame.stream_id not in self._streams:
            if len(self._streams) == MOST_STREAMS:
                return errors.too_many_streams(MOST_STREAMS)
            self._streams.add(frame.stream_id)
        return None

    def _is_full(self) -> bool:
        size = sum([frame.size for frame in self._queued])
        return len(self._queued) >= _MOST_QUEUED or size > self._socket.most_bytes

    def _start_next(self) -> None:
        """Start the first frame whose lane is free; another one in another turn of the loop, after the streams of others."""
        if len(self._busy) >= MOST_AT_ONCE:
            return
        frame = next((frame for frame in self._queued if frame.stream_id not in self._busy), None)
        if frame is None:
            return
        at_once = len(self._queued) == 1 and not self._busy
        self._queued.remove(frame)
        self._room.set()
        loop = asyncio.get_running_loop()
        self._busy[frame.stream_id] = loop.create_task(self._run(frame, at_once))
        if self._queued:
            loop.call_soon(self._start_next)

    async def _run(self, frame: SocketFrame, at_once: bool) -> None:
        try:
            await self._outbox.drained()
            if not self._gone.is_set():
                await self._serve(frame, at_once)
        finally:
            if frame.held is not None:
                frame.held.release()
            del self._busy[frame.stream_id]
            if self._too_old and not self._busy:
                self._say_too_old()
            self._start_next()

    async def _serve(self, frame: SocketFrame, at_once: bool) -> None:
        """Let the endpoint serve a frame. at_once: it did not wait for others."""
        frames = EventFrames(self._outbox, frame.stream_id)
        arrived = {ARRIVED: frame.arrived_s} if at_once else {}
        scope = {**self._scope, FRAME: frame, "state": {**self._state, **arrived, HELD: frame.held}}
        previous = frame.body.get("previous_response_id")
        try:
            await self._socket.frames(scope, self._disconnected, frames.send)
        except ConnectionError:  # a fault has broken the connection of an application in process
            self._outbox.close(_BROKEN_OFF, "A fault has broken the connection.")
            return
        except Exception:
            logger.exception("A response over WebSocket failed inside the server; please report this")
            self._socket.on_error()
            self._outbox.close(_BROKEN_OFF, "The server had an error while processing your request.")
            return
        finally:
            if frame.held is not None:
                frame.held.release()
        if frames.failed and previous is not None and self.latest.get(frame.stream_id) == previous:
            del self.latest[frame.stream_id]
            self._socket.responses.forget(self, previous)
        if frames.status == 200 and not frames.ended and not self._gone.is_set():
            self._outbox.close(_BROKEN_OFF, "The response has broken off.")

    async def _disconnected(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def _grow_old(self) -> None:
        """No more responses begin; those in progress may end."""
        self._too_old = True
        self._forget_queued()
        self._room.set()
        if not self._busy:
            self._say_too_old()

    def _forget_queued(self) -> None:
        while self._queued:
            if (held := self._queued.pop().held) is not None:
                held.release()

    def _say_too_old(self) -> None:
        error = errors.websocket_too_old(self._socket.limit_s)
        self._outbox.put(error_event(error.status, error.body(), None, {}))
        self._outbox.close(_GOING_AWAY, "")


def _frame_of(exchange: HttpExchange) -> SocketFrame:
    frame: SocketFrame = exchange.scope[FRAME]
    return frame


def _session_of(exchange: HttpExchange) -> SocketSession:
    session: SocketSession = exchange.scope[_SESSION]
    return session
