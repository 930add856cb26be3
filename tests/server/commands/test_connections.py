"""Connections at their limits: how many, large and slow headers, a dead cluster, the end of the server; over sockets."""

import contextlib
import gc
import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time
import weakref
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from listening import Listening
from served import started
from sse_starlette.sse import AppStatus

from llmirage_server.commands.http_protocol import ConnectionLimits
from llmirage_server.commands.http_server import connection_limits
from llmirage_server.commands.serve import serve
from llmirage_server.config.cluster import EventConfig
from llmirage_server.http import event_stream

CHAT = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "stream": True}


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the error of what came until the end of the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_one_connection_too_many_is_told_so_and_the_others_go_on() -> None:
    with Listening(ConnectionLimits(most=3)) as listening:
        held = [listening.connect() for _ in range(3)]
        held[0].sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        assert held[0].recv(65536).startswith(b"HTTP/1.1 200")
        status, error = answer(listening.connect())
        assert (status, error["type"]) == (503, "server_error")
        assert error["message"] == "The server has 3 connections, its most (max_connections)."
        held.pop().close()
        assert httpx.get(f"{listening.url}/livez").status_code == 200
        assert listening.limits.refused == 1
        for connection in held:
            connection.close()


@pytest.mark.parametrize("piece", [b"a: " + b"x" * 1000 + b"\r\n", b"a" * 1000])
def test_headers_without_end_are_refused_at_their_limit(piece: bytes) -> None:
    with Listening(ConnectionLimits(most=9, header_bytes=5000)) as listening, listening.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(50):
                connection.sendall(piece)
                time.sleep(0.002)
        status, error = answer(connection)
        assert (status, error["message"]) == (431, "The headers of a request have at most 5000 bytes.")


def test_headers_that_do_not_come_end_the_connection() -> None:
    with Listening(ConnectionLimits(most=9, header_s=0.3)) as listening:
        with listening.connect() as silent:
            assert answer(silent)[0] == 408
        with listening.connect() as slow:
            slow.sendall(b"GET /livez HT")
            assert answer(slow)[0] == 408
        with listening.connect() as second:
            second.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
            assert second.recv(65536).startswith(b"HTTP/1.1 200")
            second.sendall(b"GET /livez HTTP/1.1\r\nho")
            assert answer(second)[0] == 408


def test_a_long_response_is_not_cut_by_the_time_for_headers() -> None:
    with Listening(ConnectionLimits(most=9, header_s=0.2), itl_ms=20.0) as listening:
        text = httpx.post(f"{listening.url}/v1/chat/completions", json=CHAT, timeout=20).text
        assert text.rstrip().endswith("data: [DONE]")


def test_a_body_over_the_limit_ends_its_connection() -> None:
    with Listening(ConnectionLimits(most=9), max_body_mib=1) as listening, listening.connect() as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b"content-length: 9000000\r\n\r\n{")
        status, error = answer(connection)  # the connection is closed: this would wait for ever else
        assert (status, error["code"]) == (413, "request_too_large")


def test_a_connection_that_is_silent_between_two_requests_is_closed() -> None:
    with Listening(ConnectionLimits(most=9, idle_s=1)) as listening, listening.connect() as connection:
        for pause_s in (0.0, 0.5):
            time.sleep(pause_s)
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        received = b""
        while data := connection.recv(65536):
            received += data
        assert received.count(b"HTTP/1.1 200") == 2
    assert ConnectionLimits(most=9).idle_s == 75


def test_a_connection_that_the_client_reset_is_forgotten_at_once() -> None:
    with Listening(ConnectionLimits(most=9)) as listening:
        with listening.connect() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
            response = HTTPResponse(connection)
            response.begin()
            response.read()
            [protocol] = map(weakref.ref, listening.server.server_state.connections)
            httpx.get(f"{listening.url}/livez")  # by then it waits for the next request
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
        until_s = time.monotonic() + 10
        while protocol() is not None and time.monotonic() < until_s:
            httpx.get(f"{listening.url}/livez")
            gc.collect()
        assert protocol() is None


def unread(listening: Listening, **fields: Any) -> socket.socket:
    """A connection that has asked for more bytes than are held for a client that does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(listening.address)
    body = json.dumps(CHAT | {"max_tokens": 4000, "ignore_eos": True} | fields).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    connection.sendall(head % len(body) + body)
    connection.recv(20)  # the response has begun
    return connection


def ended(listening: Listening) -> bool:
    """Whether the server's connections and responses end within ten seconds."""
    until_s = time.monotonic() + 10
    while (going := listening.server.server_state.connections or listening.server.server_state.tasks) and (
        time.monotonic() < until_s
    ):
        time.sleep(0.02)
    return not going


@pytest.mark.parametrize("fields", [{}, {"stream": False, "logprobs": True}], ids=["stream", "whole"])
def test_a_connection_from_which_nothing_is_read_ends_though_its_response_is_complete(fields: dict[str, Any]) -> None:
    with Listening(ConnectionLimits(most=9, unread_s=0.3), small_buffers=True) as listening, unread(listening, **fields):
        assert ended(listening)
        assert not listening.app.service.responses.open
        [entry] = listening.app.journal.entries
        assert entry.outcome == "complete"


def test_a_connection_from_which_little_is_read_stays() -> None:
    with Listening(ConnectionLimits(most=9, unread_s=1.0), small_buffers=True) as listening, unread(listening) as connection:
        for _ in range(20):
            time.sleep(0.1)
            assert connection.recv(2000)
        assert listening.server.server_state.connections


def test_an_event_stream_whose_client_reads_nothing_ends_without_a_word_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_stream, "SEND_TIMEOUT_S", 0.3)
    with Listening(ConnectionLimits(most=9), small_buffers=True, itl_ms=0.5) as listening, unread(listening):
        assert ended(listening)
        assert not listening.app.service.responses.open
        [entry] = listening.app.journal.entries
        assert entry.outcome == "client_left"
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_a_signal_to_one_server_ends_no_stream_of_another_in_the_process() -> None:
    limits = ConnectionLimits(most=9)
    with (
        Listening(limits, itl_ms=50.0) as ends,
        Listening(limits, itl_ms=50.0) as goes_on,
        httpx.stream("POST", f"{ends.url}/v1/chat/completions", json=CHAT, timeout=20) as cut,
        httpx.stream("POST", f"{goes_on.url}/v1/chat/completions", json=CHAT, timeout=20) as whole,
    ):
        lines = cut.iter_lines(), whole.iter_lines()
        for each in lines:
            next(each)
        ends.server.handle_exit(signal.SIGTERM, None)
        assert "server_shutdown" in "".join(lines[0])
        assert [line for line in lines[1] if line][-1] == "data: [DONE]"
    assert not AppStatus.should_exit  # what sse-starlette sets for the whole process where uvicorn's own handler is called


def test_responses_may_end_by_themselves_while_the_server_drains() -> None:
    with Listening(ConnectionLimits(most=9), drain_s=30.0, itl_ms=25.0) as listening:
        lines: list[str] = []
        with httpx.stream("POST", f"{listening.url}/v1/chat/completions", json=CHAT, timeout=20) as response:
            for line in response.iter_lines():
                lines.append(line)
                if '"content":' in line and not listening.server.should_exit:
                    listening.server.should_exit = True
        assert [line for line in lines if line][-1] == "data: [DONE]"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{listening.url}/livez")


def test_a_dead_cluster_is_alive_and_not_ready() -> None:
    crash = EventConfig(at_s=0.001, action="crash", instance=0)
    with Listening(ConnectionLimits(most=9), instances=1, events=(crash,)) as listening:
        httpx.post(f"{listening.url}/v1/chat/completions", json=CHAT | {"stream": False})
        deadline = time.monotonic() + 10
        while (health := httpx.get(f"{listening.url}/health")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert health.status_code == 503
        assert health.json()["error"]["message"].startswith("No instance")
        assert httpx.get(f"{listening.url}/livez").status_code == 200


def test_the_limit_of_open_files_is_raised_and_bounds_the_connections() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        most = connection_limits(None).most
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert most == soft - 64
        assert soft > 256 or before[1] <= 256
        assert connection_limits(10).most == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_https_by_certificate_files_and_a_drain_after_sigterm(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    files = {name: str(tmp_path / name) for name in ("cert", "key")}
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", files["key"], "-out", files["cert"]]
    subprocess.run(made, check=True, capture_output=True)
    tls = ("--tls-cert", files["cert"], "--tls-key", files["key"])
    flags = (*tls, "--set", "shutdown_timeout_s=20", "--itl", "20", "--ttft", "1")
    with started(*flags) as (process, url), httpx.Client(verify=ssl.create_default_context(cafile=files["cert"])) as client:
        assert url.startswith("https://localhost:")
        with client.stream("POST", f"{url}/v1/chat/completions", json=CHAT, timeout=20) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert first.startswith("data: ")
        assert rest[-1] == "data: [DONE]"
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tls-cert", "/no/such/file"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "/no/such/file", "--tls-key", "/no/such/file"], "No such file or directory"),
        (["--set", "api_key_file=/no/such/file"], "api_key_file: /no/such/file: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used_are_told_at_once(flags: list[str], told: str) -> None:
    ended = CliRunner().invoke(serve, ["--port", "0", *flags])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1
