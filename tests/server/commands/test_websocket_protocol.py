"""WebSocket connections on a port: the upgrade, frames at their limits, clients that attack or go silent, the ends."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from listening import Listening
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from llmirage_server.app import WEBSOCKETS
from llmirage_server.commands import websocket_protocol
from llmirage_server.commands.http_protocol import ConnectionLimits
from llmirage_server.http.byte_budget import ByteBudget

KEY = base64.b64encode(b"0123456789abcdef").decode()
UPGRADE = {
    "host": "a", "connection": "keep-alive, Upgrade", "upgrade": "WebSocket", "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
}  # fmt: skip
CREATE = {"type": "response.create", "model": "m", "store": False, "input": "Hello", "max_output_tokens": 16}


def listening(**settings: Any) -> Listening:
    message_bytes = settings.pop("message_bytes", 1 << 20)
    return Listening(ConnectionLimits(most=99, websockets=WEBSOCKETS, message_bytes=message_bytes), **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening(itl_ms=1.0) as running:
        yield running


class Client:
    """A connection that was upgraded, or was to be. status, head: of the answer."""

    def __init__(self, server: Listening, **changed: str | None) -> None:
        headers = UPGRADE | {name.replace("_", "-"): value for name, value in changed.items()}
        lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
        self.socket = server.connect()
        self.socket.sendall("\r\n".join(["GET /v1/responses?x=1 HTTP/1.1", *lines, "", ""]).encode())
        received = b""
        while b"\r\n\r\n" not in received and (data := self.socket.recv(65536)):
            received += data
        head, _, self.rest = received.partition(b"\r\n\r\n")
        self.head = head.decode().lower()
        self.status = int(head.split()[1])
        self._frames = Connection(ConnectionType.CLIENT)
        self._events: list[Any] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *events: Any) -> None:
        for event in events:
            self.socket.sendall(self._frames.send(TextMessage(json.dumps(event)) if isinstance(event, dict) else event))

    def event(self) -> Any:
        """The next event of the connection."""
        while not self._events:
            data = self.socket.recv(65536)
            assert data, "the connection was closed without a close frame"
            self._frames.receive_data(data)
            self._events += self._frames.events()
        return self._events.pop(0)

    def said(self) -> dict[str, Any]:
        text = ""
        while True:
            event = self.event()
            assert isinstance(event, TextMessage), event
            text += event.data
            if event.message_finished:
                return json.loads(text)

    def last(self) -> dict[str, Any]:
        while (said := self.said())["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
            pass
        return said

    def close_code(self) -> int:
        with contextlib.suppress(ConnectionResetError):
            while not isinstance(event := self.event(), CloseConnection):
                pass
            return int(event.code)
        return 1006


def masked(first: int, payload: bytes, length: bytes | None = None) -> bytes:
    """A frame with the mask 0. first: its flags and kind. length: as it claims to be."""
    return bytes([first]) + (length or bytes([0x80 | len(payload)])) + bytes(4) + payload


def test_a_response_over_an_upgraded_connection(server: Listening) -> None:
    with Client(server, sec_websocket_extensions="permessage-deflate; client_max_window_bits") as client:
        assert client.status == 101
        assert "sec-websocket-accept: " in client.head
        assert "extensions" not in client.head
        client.send(CREATE)
        assert client.said()["type"] == "response.created"
        assert client.last()["type"] == "response.incomplete"
        client.send(Ping(b"there?"))
        assert client.event() == Pong(b"there?")
        client.send(CloseConnection(1000, "Bye."))
        assert client.close_code() == 1000
        assert client.socket.recv(1) == b""


def test_the_accept_header_is_that_of_the_standard(server: Listening) -> None:
    with Client(server, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==") as client:  # RFC 6455, section 1.3
        assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in client.head


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({"sec_websocket_version": "8"}, 426, "WebSocket connections are of version 13."),
        ({"sec_websocket_key": "short"}, 400, "The header Sec-WebSocket-Key must be 16 bytes in base64."),
        ({"sec_websocket_key": None}, 400, "The header Sec-WebSocket-Key must be 16 bytes in base64."),
        ({"upgrade": "h2c"}, 405, "Not allowed to GET on /v1/responses. (HINT: Perhaps you meant POST.)"),
        ({"connection": "close"}, 426, "No WebSocket connections are taken here: send the request over HTTP."),
    ],
)
def test_upgrades_that_are_none(server: Listening, changed: Any, status: int, told: str) -> None:
    with Client(server, **changed) as client:
        assert client.status == status
        assert json.loads(client.rest or client.socket.recv(65536))["error"]["message"] == told


def test_without_wsproto_or_with_a_limit_of_0_an_upgrade_is_a_426(caplog: pytest.LogCaptureFixture) -> None:
    with Listening(ConnectionLimits(most=9)) as server, Client(server) as client:
        assert client.status == 426
        assert "connection: close" in client.head
    assert not caplog.records


def test_a_wrong_key_is_a_401_in_the_apis_form() -> None:
    with listening(api_key=("sk-right",)) as server:
        with Client(server, authorization="Bearer sk-wrong") as client:
            assert client.status == 401
            assert json.loads(client.rest)["error"]["code"] == "invalid_api_key"
        with Client(server, authorization="Bearer sk-right") as client:
            assert client.status == 101


def test_a_message_in_many_fragments_is_one(server: Listening) -> None:
    text = json.dumps(CREATE)
    with Client(server) as client:
        for place in range(0, len(text), 3):
            client.send(
                TextMessage(text[place : place + 3], message_finished=False), TextMessage("", message_finished=False)
            )
        client.send(TextMessage(""))
        assert client.last()["type"] == "response.incomplete"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (masked(0x81, b"", b"\xff" + struct.pack("!Q", 1 << 40)) + bytes(1 << 16) * 17, 1009),
        (masked(0x01, bytes(125)) + masked(0x00, bytes(125)) * 9000, 1009),
        (masked(0xC1, b"\x00"), 1002),  # compressed, which was not agreed on
        (masked(0x83, b""), 1002),  # of no kind
        (masked(0x80, b"x"), 1002),  # the middle of a message
        (b"\x81\x01x", 1002),  # not masked
        (masked(0x81, b"\xff\xff"), 1007),  # no UTF-8
        (masked(0x89, b"", b"\xfe\x00\x7e") + bytes(126), 1002),  # a ping too long
    ],
)
def test_frames_that_are_none_or_too_large_end_the_connection(server: Listening, sent: bytes, code: int) -> None:
    with Client(server) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.socket.sendall(sent)
        assert client.close_code() == code
    assert httpx.get(f"{server.url}/livez").status_code == 200


def test_binary_frames_get_an_error_event(server: Listening) -> None:
    with Client(server) as client:
        client.send(BytesMessage(b"{}"))
        assert "binary" in client.last()["error"]["message"]


def test_who_sends_pings_and_reads_nothing_is_read_no_further(server: Listening) -> None:
    """Else the answers would fill the server's memory."""
    with Client(server) as client:
        client.socket.setblocking(False)
        sent, frames = 0, masked(0x89, b"x" * 125) * 500
        rest, stuck_since_s = frames, time.monotonic()
        while time.monotonic() - stuck_since_s < 0.5 and sent < 1 << 28:
            with contextlib.suppress(BlockingIOError):
                taken = client.socket.send(rest)
                sent, rest, stuck_since_s = sent + taken, rest[taken:] or frames, time.monotonic()
            time.sleep(0.001)
        assert sent < 1 << 26
        assert httpx.get(f"{server.url}/livez").status_code == 200


def test_many_frames_at_once_are_all_answered_in_order(server: Listening) -> None:
    with Client(server) as client:
        client.send(*[{"type": "response.create", "model": "m", "number": number} for number in range(1500)])
        for _ in range(1500):
            assert client.last()["error"]["code"] == "unknown_parameter"
        client.send(CREATE)
        assert client.last()["type"] == "response.incomplete"


def test_a_client_that_goes_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "PING_S", 0.1)
    with listening() as server, Client(server) as silent, Client(server) as alive:
        for _ in range(4):
            assert alive.event() == Ping(b"")
            alive.send(Pong(b""))
        assert silent.close_code() == 1011


def test_a_connection_that_is_lost_frees_the_cluster() -> None:
    with listening(itl_ms=20.0) as server:
        with Client(server) as client:
            client.send(CREATE | {"max_output_tokens": 5000})
            while client.said()["type"] != "response.output_text.delta":
                pass
            assert len(server.app.service.responses.requests()) == 1
        until_s = time.monotonic() + 5
        while server.app.service.responses.requests() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert not server.app.service.responses.requests()
        entry = server.app.journal.entries[-1]
        assert (entry.method, entry.outcome) == ("WS", "client_left")
        assert entry.connection is not None
        assert entry.connection.closed_s is not None
        assert entry.connection.unused_since_s is None  # such connections are kept open: the verdict calls none leaked


def test_a_server_that_ends_closes_its_connections() -> None:
    with listening(itl_ms=20.0) as server, Client(server) as client, Client(server) as idle:
        client.send(CREATE | {"max_output_tokens": 5000})
        while client.said()["type"] != "response.output_text.delta":
            pass
        server.server.should_exit = True
        assert client.last()["response"]["error"]["code"] == "server_shutdown"
        assert (client.close_code(), idle.close_code()) == (1012, 1012)


def test_a_response_may_end_by_itself_while_the_server_drains() -> None:
    with listening(itl_ms=20.0, drain_s=20.0) as server, Client(server) as client:
        client.send(CREATE | {"max_output_tokens": 30, "ignore_eos": True})
        while client.said()["type"] != "response.output_text.delta":
            pass
        server.server.should_exit = True
        assert client.last()["type"] == "response.incomplete"
        assert client.close_code() == 1012


def test_a_client_that_reads_late_gets_everything(server: Listening) -> None:
    with Client(server) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for lane in range(8):
            client.send(CREATE | {"stream_id": f"{lane}", "max_output_tokens": 600})
        time.sleep(1.5)
        deltas = dict.fromkeys([f"{lane}" for lane in range(8)], 0)
        ended = 0
        while ended < 8:
            said = client.said()
            deltas[said["stream_id"]] += said["type"] == "response.output_text.delta"
            ended += said["type"] in ("response.incomplete", "response.completed")
        assert min(deltas.values()) > 20


def test_an_upgrade_that_follows_a_request_is_served_after_its_response(server: Listening) -> None:
    body = json.dumps({"model": "m", "input": "Hello", "max_output_tokens": 50}).encode()
    lines = "\r\n".join(["GET /v1/responses HTTP/1.1", *[f"{name}: {value}" for name, value in UPGRADE.items()], "", ""])
    with server.connect() as connection:
        head = b"POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body + lines.encode())
        received = b""
        while b"101 Switching" not in received and (data := connection.recv(65536)):
            received += data
        assert received.startswith(b"HTTP/1.1 200")
        assert b"101 Switching" in received


@pytest.mark.parametrize("frame", [masked(0x01, b"x" * 100), masked(0x01, b"x" * 20, bytes([0x80 | 90]))])
def test_a_message_that_does_not_end_ends_its_connection_in_time(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "PING_S", 0.2)
    limits = ConnectionLimits(most=99, websockets=WEBSOCKETS, header_s=0.3, body_bytes_per_s=1e6)
    with Listening(limits) as running, Client(running) as client:
        client.socket.sendall(frame)
        client.socket.settimeout(5)
        assert client.close_code() == 1008


def test_messages_that_have_not_ended_share_one_total() -> None:
    limits = ConnectionLimits(most=99, websockets=WEBSOCKETS, unread=ByteBudget(1 << 20))
    with Listening(limits) as running, contextlib.ExitStack() as clients:
        opened = [clients.enter_context(Client(running)) for _ in range(8)]
        for client in opened:
            for number in range(20):
                with contextlib.suppress(OSError):
                    client.socket.sendall(masked(0x01 if not number else 0, b"x" * 10_000, struct.pack("!BH", 0xFE, 10_000)))
        codes = []
        for client in opened:
            client.socket.settimeout(1)
            with contextlib.suppress(TimeoutError):
                codes.append(client.close_code())
        assert codes
        assert set(codes) <= {1013, 1006}
        assert limits.unread.taken <= limits.unread.most
        clients.close()
        until_s = time.monotonic() + 10
        while limits.unread.taken and time.monotonic() < until_s:
            time.sleep(0.02)
        assert limits.unread.taken == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_texts_of_any_size_are_one_frame(size: int) -> None:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(websocket_protocol._text_frame(b"x" * size))
    assert list(client.events()) == [TextMessage("x" * size)]


def test_a_long_message_is_never_copied_as_a_whole_on_the_event_loop() -> None:
    event = {"type": "unknown", "input": "ż" * (8 << 20)}
    data = json.dumps(event, ensure_ascii=False).encode()
    begun_s = time.thread_time()
    assert bytearray(data).decode().encode() == data
    whole_s, longest_s, last_s = time.thread_time() - begun_s, 0.0, 0.0
    with listening(message_bytes=32 << 20) as running, Client(running) as client:

        def look() -> None:
            nonlocal longest_s, last_s
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - (last_s or now_s)), now_s
            loop.call_soon(look)

        [protocol] = running.server.server_state.connections
        loop = protocol._loop  # type: ignore[union-attr]
        loop.call_soon_threadsafe(look)
        client.send(TextMessage(data.decode()))
        assert client.said()["error"]["param"] == "type"
    assert longest_s < 0.4 * whole_s, (longest_s, whole_s)
