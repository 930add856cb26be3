"""Requests that are not complete, and what follows one: bytes and time that a connection may cost; over sockets."""

import contextlib
import gzip
import json
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from listening import Listening
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmirage_server.commands.http_protocol import BoundedProtocol, ConnectionLimits
from llmirage_server.http.byte_budget import ByteBudget, Held

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}).encode()
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@dataclass
class Reply:
    status: int
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def replies(connection: socket.socket) -> list[Reply]:
    """All that the server sends until it closes."""
    read: list[Reply] = []
    with connection.makefile("rb") as file:
        shared = SimpleNamespace(
            makefile=lambda _: SimpleNamespace(**{name: getattr(file, name) for name in _READS}, close=lambda: None)
        )
        while file.peek(1):
            response = HTTPResponse(shared)  # type: ignore[arg-type]
            response.begin()
            read.append(Reply(response.status, response.read()))
    return read


_READS = ("read", "read1", "readinto", "readline", "peek", "flush")


def chunked(body: bytes, size: int = 7) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def posted(body: bytes = BODY, more: bytes = b"") -> bytes:
    return HEAD + more + b"content-length: %d\r\n\r\n" % len(body) + body


def asked(connection: socket.socket) -> Reply:
    """The one reply that the server sends before it closes."""
    [reply] = replies(connection)
    return reply


def eventually(found: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 10
    while not (is_found := found()) and time.monotonic() < until_s:
        time.sleep(0.02)
    return is_found


def eventually_free(budget: ByteBudget) -> bool:
    return eventually(lambda: not budget.taken)


def test_half_of_the_total_is_for_small_requests() -> None:
    budget = ByteBudget(1 << 20)
    large, second, small = Held(budget), Held(budget), Held(budget)
    assert large.takes(400_000)
    assert not second.takes(200_000)
    assert small.takes(60_000)
    assert budget.taken == 460_000
    small.planned()
    assert (small.bytes, budget.taken) == (0, 400_000)
    large.planned()
    assert budget.taken == 0


def test_requests_that_come_leave_room_for_whole_ones() -> None:
    budget = ByteBudget(1 << 20)
    first, second = Held(budget), Held(budget)
    assert first.takes(500_000, is_whole=False)  # alone
    first.release()
    assert first.takes(200_000, is_whole=False)
    assert not second.takes(200_000, is_whole=False)
    assert second.takes(200_000)


def test_lines_of_batches_give_way_to_requests() -> None:
    budget = ByteBudget(1 << 20)
    line, second, large = Held(budget, 1 << 18), Held(budget, 1 << 18), Held(budget)
    assert line.takes(400_000)
    assert not second.takes(100)
    assert large.takes(100_000)
    assert not line.takes(100)
    line.release()
    assert second.takes(100_000)
    assert not second.takes(100_000)


FOLLOWING = [
    posted(),
    chunked(BODY),
    b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    chunked(BODY, 1),
    posted(BODY + b"\r\n\r\n"),
]


@pytest.mark.parametrize("piece_bytes", [1, 3, 50, 1 << 20])
def test_requests_that_follow_each_other_are_answered_in_order_however_they_come(piece_bytes: int) -> None:
    wanted = [b"/v1/chat", b"/v1/chat", b"/livez", b"/v1/chat", b"/v1/chat"]
    last = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    sent = b"".join(FOLLOWING) + last
    with Listening(ConnectionLimits(most=9)) as listening, listening.connect() as connection:
        for start in range(0, len(sent), piece_bytes):
            connection.sendall(sent[start : start + piece_bytes])
        answers = replies(connection)
        assert [answer.status for answer in answers] == [200] * (len(wanted) + 1)
        assert [b"choices" in answer.body for answer in answers] == [path == b"/v1/chat" for path in wanted] + [False]
        assert len(listening.app.journal.entries) >= 4
        assert eventually_free(listening.limits.unread)


def test_one_request_of_a_connection_is_in_progress_and_the_others_wait_unparsed() -> None:
    with Listening(ConnectionLimits(most=99)) as listening:
        connections = [listening.connect() for _ in range(5)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for connection in connections:
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                connection.sendall(b"GET /x HTTP/1.1\r\n\r\n" * 200_000)
        protocols = cast("set[HttpToolsProtocol]", listening.server.server_state.connections)
        assert eventually(lambda: len(protocols) == 5 and not any(each.transport.is_reading() for each in list(protocols)))
        assert [len(protocol.pipeline) for protocol in protocols] == [0] * 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB; 2 KB a request were 4 GB
        assert httpx.get(f"{listening.url}/livez").status_code == 200
        for connection in connections:
            connection.close()
        assert eventually_free(listening.limits.unread)


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.3, h2c"])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_post_that_asks_for_an_upgrade_is_answered_as_one_without(upgrade: str, pause_s: float, is_chunked: bool) -> None:
    more = f"upgrade: {upgrade}\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\n".encode()
    head, _, body = (chunked(BODY) if is_chunked else posted()).partition(b"\r\n\r\n")
    with Listening(ConnectionLimits(most=9, websockets=(b"/v1/chat/completions",))) as listening:
        with listening.connect() as connection:
            for _ in range(2):
                connection.sendall(head + b"\r\n" + more + b"\r\n" + (b"" if pause_s else body))
                if pause_s:
                    time.sleep(pause_s)
                    connection.sendall(body)
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert [answer.status for answer in replies(connection)] == [200, 200, 200]
        entries = listening.app.journal.entries
        assert [entry.header(b"upgrade") for entry in entries] == [upgrade.encode()] * 2


@pytest.mark.parametrize("sent", [posted()[:-1], CHUNKED + b"5\r\n{", CHUNKED + b"1\r\n{\r\n0\r\na: b"])
def test_a_body_that_does_not_end_is_refused_in_time(sent: bytes) -> None:
    with Listening(ConnectionLimits(most=9, header_s=0.4)) as listening, listening.connect() as connection:
        connection.sendall(sent)
        reply = asked(connection)
        assert (reply.status, reply.error["type"]) == (408, "invalid_request_error")
        assert "32768 bytes each second" in reply.error["message"]
        assert eventually_free(listening.limits.unread)


def test_a_body_may_take_longer_if_it_comes_fast_enough() -> None:
    limits = ConnectionLimits(most=9, header_s=0.4, body_bytes_per_s=1000)
    body = BODY[:-1] + b" " * 2000 + b"}"
    sent = posted(body)
    with Listening(limits) as listening, listening.connect() as connection:
        for start in range(0, len(sent), 200):
            connection.sendall(sent[start : start + 200])
            time.sleep(0.1)
        connection.settimeout(5)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_connection_is_read_once_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    parsed: list[int] = []
    receive, parse = BoundedProtocol.data_received, HttpToolsProtocol.data_received

    def counted(protocol: BoundedProtocol, data: bytes) -> None:
        receive(protocol, data)
        if len(data) > 1 << 15 and not protocol.transport.is_closing():
            assert protocol.flow.read_paused
            turns.append(len(data))

    def parse_counted(protocol: HttpToolsProtocol, data: bytes) -> None:
        parsed.append(len(data))
        parse(protocol, data)

    monkeypatch.setattr(BoundedProtocol, "data_received", counted)
    monkeypatch.setattr(HttpToolsProtocol, "data_received", parse_counted)
    with Listening(ConnectionLimits(most=9)) as listening, listening.connect() as connection:
        connection.sendall(chunked(BODY + b" " * 200_000, 1))
        connection.sendall(posted(more=b"connection: close\r\n"))
        assert [reply.status for reply in replies(connection)] == [200, 200]
        assert sum(turns) > 1_000_000
        assert max(parsed) <= 1 << 12


@pytest.mark.parametrize("begins", [CHUNKED, b""], ids=["small chunks", "headers"])
def test_connections_share_the_time_of_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch, begins: bytes) -> None:
    """Each parses a step of what comes at once; more follows as long as the turn has room, here for one step."""
    parsed: list[int] = []
    parse = HttpToolsProtocol.data_received

    def parse_counted(protocol: HttpToolsProtocol, data: bytes) -> None:
        parsed.append(len(data))
        parse(protocol, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", parse_counted)
    many, headers = 8, b"a:b\r\n" * 5_000
    sent = chunked(BODY + b" " * 5_000, 1) if begins else posted(more=headers + b"connection: close\r\n")
    with Listening(ConnectionLimits(most=many)) as listening, contextlib.ExitStack() as opened:
        connections = [opened.enter_context(listening.connect()) for _ in range(many)]
        for connection in connections:
            connection.sendall(begins)
        protocols = listening.server.server_state.connections
        assert eventually(lambda: len(protocols) == many and len(parsed) == (many if begins else 0))
        parsed.clear()
        at_once: list[int] = []

        def receive() -> None:
            monkeypatch.setattr("llmirage_server.http.turns.TURN_S", 0.0)
            for protocol in list(protocols):
                protocol.data_received(sent[len(begins) :])  # type: ignore[union-attr]
            at_once.append(sum(parsed))

        listening.loop.call_soon_threadsafe(receive)
        assert eventually(lambda: bool(at_once))
        assert at_once[0] <= (many + 1) << 12
        for connection in connections:
            connection.settimeout(5)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_headers_that_drip_are_refused_in_time() -> None:
    with Listening(ConnectionLimits(most=9, header_s=0.6)) as listening, listening.connect() as connection:
        with contextlib.suppress(OSError):
            for _ in range(30):
                connection.sendall(b"\r\n")
                time.sleep(0.05)
        assert asked(connection).status == 408


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"a: " + b"x" * 1000 + b"\r\n"),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"y" * 1000),
        (CHUNKED, b"x" * 1000),
        (CHUNKED + b"1;a=", b"x" * 1000),
    ],
    ids=["trailers", "one trailer", "a chunk's size", "a chunk's extension"],
)
def test_what_comes_beside_a_body_has_the_limit_of_headers(begins: bytes, goes_on: bytes) -> None:
    with Listening(ConnectionLimits(most=9, header_bytes=20_000)) as listening, listening.connect() as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(begins)
            for _ in range(100):
                connection.sendall(goes_on)
                time.sleep(0.001)
        assert asked(connection).status in (400, 431)
        assert eventually_free(listening.limits.unread)


@pytest.mark.parametrize(("clients", "at_once"), [(6, False), (24, True)])
def test_unread_bodies_share_one_total_and_small_requests_get_through(clients: int, at_once: bool) -> None:
    """at_once: all wait at the server before it reads the first one, and each takes room from the others."""
    limits, begin = ConnectionLimits(most=99, unread=ByteBudget(6 << 20)), threading.Event()
    with Listening(limits) as listening:
        connections = [listening.connect() for _ in range(clients)]

        def send(connection: socket.socket) -> None:
            connection.settimeout(2)
            with contextlib.suppress(OSError):
                connection.sendall(HEAD + b"content-length: 1000001\r\n\r\n" + b" " * 1_000_000)

        if at_once:
            listening.loop.call_soon_threadsafe(begin.wait, 10)
        with ThreadPoolExecutor(clients if at_once else 1) as threads:
            sent = [threads.submit(send, connection) for connection in connections]
            wait(sent, 0.2 if at_once else 20)
            begin.set()
        assert eventually(lambda: limits.refused == clients - 2)
        assert limits.unread.taken <= 3 << 20
        assert httpx.post(f"{listening.url}/v1/chat/completions", content=BODY + b" " * 30_000).status_code in (200, 415)
        refused: list[Any] = []
        for connection in connections:
            with contextlib.suppress(OSError):
                refused += [(reply.status, reply.error["code"]) for reply in replies(connection)]
        assert set(refused) <= {(503, "server_busy")}
        for connection in connections:
            connection.close()
        assert eventually_free(limits.unread)


def test_what_a_body_is_decompressed_to_counts() -> None:
    limits = ConnectionLimits(most=99, unread=ByteBudget(4 << 20))
    small = gzip.compress(BODY[:-1] + b" " * 10_000_000 + b"}")
    with Listening(limits) as listening:
        response = httpx.post(
            f"{listening.url}/v1/chat/completions",
            content=small,
            headers={"content-encoding": "gzip", "content-type": "application/json"},
        )
        assert (response.status_code, response.json()["error"]["code"]) == (503, "server_busy")
        assert response.headers["retry-after"] == "1"
        assert eventually_free(limits.unread)


def test_what_a_client_asked_for_and_left_counts_until_its_turn_and_is_not_done() -> None:
    limits, begin = ConnectionLimits(most=9), threading.Event()
    with Listening(limits) as listening:
        thread = listening.app.service.text._threads
        thread.submit(int).result(10)  # after what is loaded at the start
        thread.submit(begin.wait, 10)
        assert eventually(lambda: not thread._work_queue.qsize())
        with listening.connect() as connection:
            connection.sendall(posted(BODY[:-1] + b" " * 1_000_000 + b"}"))
            assert eventually(lambda: thread._work_queue.qsize() == 1)
        assert eventually(lambda: not listening.server.server_state.connections)
        assert limits.unread.taken > 1_000_000
        begin.set()
        assert eventually_free(limits.unread)
        [entry] = listening.app.journal.entries
        assert (entry.outcome, entry.model) == ("client_left", "")


def certificate(folder: Path) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    files = str(folder / "cert"), str(folder / "key")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", files[1], "-out", files[0]]
    subprocess.run(made, check=True, capture_output=True)
    return files


def test_tls_handshakes_count_as_connections_and_have_a_deadline(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=tls[0])
    trusting.check_hostname = False
    with Listening(ConnectionLimits(most=3, header_s=1.0), tls=tls) as listening:
        url = listening.url.replace("http", "https")
        assert httpx.get(f"{url}/livez", verify=trusting).status_code == 200
        silent = [listening.connect() for _ in range(3)]
        time.sleep(0.2)
        with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
            httpx.get(f"{url}/livez", verify=trusting)
        assert [connection.recv(1) for connection in silent] == [b""] * 3
        assert httpx.get(f"{url}/livez", verify=trusting).status_code == 200
        with listening.connect() as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            while plain.recv(1024):
                pass
        assert httpx.post(f"{url}/v1/chat/completions", json=json.loads(BODY), verify=trusting).status_code == 200
