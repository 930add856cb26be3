"""What a streamed token and a request cost the server: CPU time of its process under load over 64 connections.

The server is `llmirage serve` in a process of its own. This one asks for replies of 100 tokens, in a closed loop.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measurement import Cost, Work, limits, measures
from bench.processes import Server

CONNECTIONS = 64
TOKENS = 100
CONTENT = b'"delta":{"content":'
END_OF_STREAM = b"0\r\n\r\n"
END_OF_WHOLE = b'_fingerprint"'  # the last key of a reply in one piece


@dataclass
class Load:
    """What is still to be sent, and what came back."""

    left: int
    done: asyncio.Event
    running: int = 0
    requests: int = 0
    chunks: int = 0
    itls_s: list[float] = field(default_factory=list)  # mean of each stream


class Connection(asyncio.Protocol):
    """Sends a request when the last one was answered. It counts chunks and notes when the first and the last came."""

    def __init__(self, request: bytes, load: Load, streams: bool) -> None:
        self._request, self._load, self._streams = request, load, streams
        self._tail = b""
        self._chunks = 0
        self._first_s = self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._load.running += 1
        self._send()

    def _send(self) -> None:
        load = self._load
        if not load.left:
            load.running -= 1
            if not load.running:
                load.done.set()
            return
        load.left -= 1
        self._chunks, self._tail = 0, b""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        found = data.count(CONTENT)
        if found:
            self._last_s = time.perf_counter()
            if not self._chunks:
                self._first_s = self._last_s
            self._chunks += found
        self._tail = (self._tail + data)[-400:]
        if self._tail.endswith(END_OF_STREAM) if self._streams else END_OF_WHOLE in self._tail:
            self._load.requests += 1
            self._load.chunks += self._chunks
            if self._chunks > 1:
                self._load.itls_s.append((self._last_s - self._first_s) / (self._chunks - 1))
            self._send()


async def drive(
    ports: list[int], requests: int, streams: bool, stagger_s: float = 0.0, connections: int = CONNECTIONS
) -> Load:
    """Send so many requests. stagger_s: connections start over so long: streams that start together are due together."""
    message = {"role": "user", "content": "Tell me a story."}
    body = json.dumps(
        {"model": "m", "messages": [message], "max_tokens": TOKENS, "ignore_eos": True, "stream": streams}
    ).encode()
    request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    load, loop, transports = Load(requests, asyncio.Event()), asyncio.get_running_loop(), []
    for port in ports * connections:
        transport, _ = await loop.create_connection(lambda: Connection(request, load, streams), "127.0.0.1", port)
        transports.append(transport)
        await asyncio.sleep(stagger_s / len(ports) / connections)
    await asyncio.wait_for(load.done.wait(), 120)
    for transport in transports:
        transport.abort()
    assert load.requests == requests
    assert not streams or load.chunks == requests * TOKENS, (load.chunks, requests)
    return load


def streamed(server: Server, requests: int, stagger_s: float = 0.0) -> Work:
    """CPU of the server, of each chunk."""

    def work(share: float) -> Cost:
        before_s = server.cpu_s()
        load = asyncio.run(drive([server.port], max(CONNECTIONS, int(requests * share)), True, stagger_s))
        return Cost(server.cpu_s() - before_s, load.chunks)

    return work


@measures("chunk")
def flood_fixed() -> Iterator[Work]:
    """Streams that take no time: --ttft 0 --itl 0."""
    with Server("--ttft", "0", "--itl", "0") as server:
        yield streamed(server, 1600)


@measures("chunk")
def flood_max() -> Iterator[Work]:
    """Streams of the default cluster at --speed max."""
    with Server("--speed", "max") as server:
        yield streamed(server, 1600)


@measures("chunk")
def paced() -> Iterator[Work]:
    """Streams of a token every 10 ms, each due at a time of its own."""
    with Server("--ttft", "200", "--itl", "10") as server:
        yield streamed(server, CONNECTIONS, stagger_s=1.0)


@measures("request")
def whole() -> Iterator[Work]:
    """Chat requests answered in one piece, the default cluster at --speed max."""
    with Server("--speed", "max") as server:

        def work(share: float) -> Cost:
            before_s = server.cpu_s()
            load = asyncio.run(drive([server.port], max(CONNECTIONS, int(1500 * share)), False))
            return Cost(server.cpu_s() - before_s, load.requests)

        yield work


@limits("%", 0.5)
def pacing() -> float:
    """How far the mean time between tokens that a client sees is from --itl 10."""
    with Server("--ttft", "200", "--itl", "10") as server:
        return off(asyncio.run(drive([server.port], 2 * CONNECTIONS, True, stagger_s=1.0)), 0.010)


@limits("%", 1)
def pacing_of_a_fleet() -> float:
    """The same from --itl 50, of 64 streams at each of 16 ports."""
    with fleet(16, "--ttft", "200", "--itl", "50") as (_, ports):
        return off(asyncio.run(drive(ports, len(ports) * CONNECTIONS, True, stagger_s=2.0)), 0.050)


def off(load: Load, itl_s: float) -> float:
    return abs(statistics.fmean(load.itls_s) / itl_s - 1) * 100


@contextmanager
def fleet(instances: int, *flags: str) -> Iterator[tuple[Server, list[int]]]:
    """A server, and the ports of its instances."""
    with tempfile.NamedTemporaryFile("r") as urls:
        shape = ("--fleet", "--instances", str(instances), "--set", f"fleet_file={urls.name}")
        with Server(*shape, *flags) as server:
            yield server, [int(url.rpartition(":")[2]) for url in Path(urls.name).read_text().split()]


IDLE_S = 10.0


@limits("MB", 300)
def memory_of_an_idle_fleet() -> float:
    """Resident memory of 64 instances with ports of their own."""
    with fleet(64) as (server, _):
        time.sleep(IDLE_S)
        return server.resident_mb()


@limits("%", 2)
def cpu_of_an_idle_fleet() -> float:
    """CPU time of the same, of a core."""
    with fleet(64) as (server, _):
        time.sleep(IDLE_S)
        before_s = server.cpu_s()
        time.sleep(IDLE_S)
        return (server.cpu_s() - before_s) / IDLE_S * 100
