"""`llmirage serve` as a process: starts, answers, ends."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from warm import llmirage

from llmirage_server.commands.serve import serve

BODY = {
    "model": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 2000,
    "stream": True,
}


class Served:
    """A running server and what it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.banner = ""
        assert process.stdout is not None
        while "-d '" not in self.banner:
            line = process.stdout.readline()
            assert line, f"the server ended: {process.communicate()}"
            self.banner += line
        found = re.search(r"http://\S+/v1", self.banner)
        assert found is not None
        self.url = found.group()

    def end(self, sig: int) -> tuple[int, str, str]:
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out, err


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    command = [*llmirage(), "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_its_streams_at_once_without_a_trace(sig: int) -> None:
    long = BODY | {"ignore_eos": True}
    with served() as server, httpx.stream("POST", f"{server.url}/chat/completions", json=long, timeout=10) as response:
        lines = response.iter_lines()
        while '"content":' not in next(lines):
            pass
        started = time.monotonic()
        code, out, err = server.end(sig)
        rest = [line for line in lines if line]
    assert time.monotonic() - started < 5
    assert code == 0
    assert err == ""
    assert "tokens sent. Late by" in out
    assert '"code":"server_shutdown"' in rest[-1]


def test_the_banner_says_what_is_simulated_and_its_curl_line_works() -> None:
    with served("--speed", "max") as server:
        for part in (
            "2 instances of Qwen/Qwen3-30B-A3B-Instruct-2507 on 1x H100",
            "KV cache",
            "TTFT",
            "TPOT",
            "prefix",
            "max",
        ):
            assert part in server.banner
        command = server.banner[server.banner.index("curl") :]
        output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=10, check=True).stdout
        assert output.rstrip().endswith("data: [DONE]")


def test_fixed_times_are_said_in_the_banner() -> None:
    with served("--ttft", "5", "--itl", "1") as server:
        assert "TTFT 5 ms, ITL 1 ms, at any load" in server.banner


@pytest.mark.parametrize(
    "flags",
    [("--instances", "3", "--itl", "20"), ("--instances", "1", "--dp", "3", "--speed", "0.2", "--set", "fleet_ranks=true")],
)
def test_a_fleet_listens_on_a_port_for_each_engine(tmp_path: Path, flags: tuple[str, ...]) -> None:
    listed = tmp_path / "urls"
    with served("--fleet", *flags, "--set", f"fleet_file={listed}", "--exact-length") as server:
        urls = listed.read_text().split()
        assert [url in server.banner for url in urls] == [True, False, False]
        for url in urls[1:]:
            assert httpx.post(f"{url}/v1/chat/completions", json=BODY | {"max_tokens": 3}).status_code == 200
        with httpx.stream("POST", f"{urls[1]}/v1/chat/completions", json=BODY) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            assert [httpx.get(f"{url}/load").json()["server_load"] for url in urls] == [0, 1, 0]
        instances = httpx.get(f"{server.url.removesuffix('/v1')}/llmirage/instances").json()["instances"]
        assert [f"http://localhost:{one['port']}" for one in instances] == urls[: len(instances)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "65535", "--fleet"), "--fleet: 2 ports after 65535 go beyond 65535"),
        (("--set", "fleet_ranks=true"), "fleet_ranks needs --fleet"),
        (
            ("--set", "discovery_address=h:1"),
            "discovery_address needs --fleet with pools of role prefill and decode, or kv_transfer.mode of one engine",
        ),
        (("--set", "fleet_file=/no/such/folder/urls"), "fleet_file: /no/such/folder/urls: No such file or directory"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(serve, ["--port", "0", *arguments], prog_name="llmirage serve")
    assert (result.exit_code, result.stderr) == (2, f"llmirage serve: {said}\n")


def test_a_port_in_use_is_one_clear_line_and_status_1() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run([*llmirage(), "serve", "--port", str(port)], capture_output=True, text=True, timeout=10)
    assert result.returncode == 1
    assert result.stderr == f"llmirage serve: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    assert result.stdout == ""


def test_a_client_that_closes_its_connection_frees_its_slot() -> None:
    """With room for one sequence, the second request is only answered because the first one's client has left."""
    with served("--instances", "1", "--max-num-seqs", "1") as server, httpx.Client(timeout=10) as client:
        endless = BODY | {"max_tokens": 30_000, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/chat/completions", json=endless) as response:
            next(response.iter_lines())
        body = client.post(f"{server.url}/chat/completions", json=BODY | {"max_tokens": 3, "stream": False}).json()
        assert body["usage"]["completion_tokens"] == 3
        code, _, err = server.end(signal.SIGINT)
        assert (code, err) == (0, "")


def test_a_client_that_does_not_read_cannot_keep_the_server_from_ending() -> None:
    with served("--speed", "max") as server, closing(open_stream(server, 30_000)):
        time.sleep(0.5)  # the connection's buffers are full now
        code, _, err = server.end(signal.SIGTERM)
    assert (code, err) == (0, "")


def test_work_that_waits_for_a_thread_cannot_keep_the_server_from_ending() -> None:
    content = json.dumps({"model": "text-embedding-3-large", "input": ["some text"] * 1_500}).encode()
    request = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    with served() as server, contextlib.ExitStack() as connections:
        address = "localhost", int(server.url.split(":")[2].partition("/")[0])
        for _ in range(80):
            connections.enter_context(socket.create_connection(address)).sendall(request)
        time.sleep(0.5)
        code, _, err = server.end(signal.SIGTERM)
    assert code == 0
    late = ("WARNING: The server cannot keep up", "WARNING: The event loop was held up")  # on a machine that is busy
    assert [line for line in err.splitlines() if not line.startswith(late)] == []


def test_a_slow_reader_gets_everything() -> None:
    """The connection's buffers fill up, the stream waits, and nothing is lost."""
    with served("--speed", "max") as server, closing(open_stream(server, 20_000)) as connection:
        time.sleep(0.5)
        received = []
        while part := connection.recv(65536):
            received.append(part)
    whole = b"".join(received)
    assert whole.count(b'"delta":{"content":') == 20_000
    assert b"data: [DONE]" in whole


def open_stream(server: Served, max_tokens: int) -> socket.socket:
    """A request on a connection of which nothing was read yet, with a receive buffer that the reply overflows."""
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps(BODY | {"max_tokens": max_tokens, "ignore_eos": True}).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close"]
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return connection
