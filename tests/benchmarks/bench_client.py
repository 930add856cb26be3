"""What the client spends on a streamed request: CPU milliseconds of HttpTarget.send, beside stock httpx for the ratio.

    python tests/benchmarks/bench_client.py                       # 64 streams, 100 tokens, all at once and 5 ms apart
    python tests/benchmarks/bench_client.py --streams 256 --itl-ms 25 --no-stock
    python tests/benchmarks/bench_client.py --burst 256           # TTFT distortion when many requests start together

A small server in its own process writes one chunk a token. Every figure is the median of repetitions that alternate between
the clients, so that other load on the machine meets them alike. The target is at most 1.2 ms per streamed 100-token request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx
import uvloop

from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.start_gate import StartGate
from llmirage_client.targets.target import Call

BODY = {
    "model": "bench",
    "messages": [{"role": "user", "content": "Lorem ipsum dolor sit amet. " * 40}],
    "stream": True,
    "max_completion_tokens": 100,
}


def chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


class Server(asyncio.Protocol):
    """Answers every request with the same stream: the tokens at once when itl_s is 0, else each in a write of its own.

    The first token's text is the time it was sent, so that a client can tell how late it stamped it.
    """

    tokens = 100
    itl_s = 0.0

    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        if len(body) >= length:
            self.buffer = body[length:]
            self.start()

    def event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        return chunk(json.dumps(body).encode())

    def start(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        usage = {"prompt_tokens": 300, "completion_tokens": self.tokens, "total_tokens": 300 + self.tokens}
        first = self.event({"role": "assistant", "content": f"{time.monotonic()!r} "})
        token = self.event({"content": "token "})
        tail = self.event({}, "stop") + chunk(json.dumps({"choices": [], "usage": usage}).encode())
        tail += chunk(b"[DONE]") + b"0\r\n\r\n"
        writes = [head + first, *[token] * (self.tokens - 1)]
        if self.itl_s == 0.0:
            self.transport.write(b"".join(writes) + tail)  # type: ignore[attr-defined]
            return
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        def write(i: int) -> None:
            self.transport.write(writes[i] if i < len(writes) - 1 else writes[i] + tail)  # type: ignore[attr-defined]
            if i < len(writes) - 1:
                loop.call_at(start_s + (i + 1) * self.itl_s, write, i + 1)

        write(0)


async def serve(itl_ms: float, tokens: int) -> None:
    Server.itl_s, Server.tokens = itl_ms / 1e3, tokens
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Endpoint:
    """The server in its own process, for as long as the `with` block."""

    def __init__(self, itl_ms: float, tokens: int) -> None:
        self.command = [sys.executable, __file__, "--serve", "--itl-ms", str(itl_ms), "--tokens", str(tokens)]

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        return f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


async def closed_loop(send: Callable[[], Awaitable[None]], streams: int, requests: int) -> float:
    """CPU milliseconds per request of `requests` requests with `streams` of them under way; the connections are warm."""
    await asyncio.gather(*[send() for _ in range(streams)])
    left = requests

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send()

    before = time.process_time()
    await asyncio.gather(*[worker() for _ in range(streams)])
    return (time.process_time() - before) * 1e3 / requests


async def target_cost(url: str, streams: int, requests: int) -> float:
    target = HttpTarget(url)

    async def send() -> None:
        exchange = await target.send(Call("/chat/completions", BODY, {"X-Correlation-ID": "c"}))
        assert exchange.error is None, exchange.error
        assert len(exchange.token_s) == exchange.usage["completion_tokens"]  # type: ignore[index]

    try:
        return await closed_loop(send, streams, requests)
    finally:
        await target.close()


async def stock_cost(url: str, streams: int, requests: int) -> float:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def send() -> None:
            stamps, text = [], []
            async with client.stream("POST", f"{url}/chat/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        delta = (json.loads(line[6:])["choices"] or [{"delta": {}}])[0]["delta"]
                        if delta.get("content"):
                            stamps.append(time.monotonic())
                            text.append(delta["content"])

        return await closed_loop(send, streams, requests)


async def burst_ms(url: str, streams: int, per_turn: int) -> list[float]:
    """How late, in ms, each of `streams` requests that start together stamped its first token: sorted.

    The server writes the time it sent the token into the token's text; both processes read the same monotonic clock.
    """
    target = HttpTarget(url)
    target._gate = StartGate(per_turn)
    await asyncio.gather(*[target.send(Call("/chat/completions", BODY)) for _ in range(streams)])  # warm connections
    exchanges = await asyncio.gather(*[target.send(Call("/chat/completions", BODY)) for _ in range(streams)])
    await target.close()
    return sorted((exchange.token_s[0] - float(exchange.text.split(" ", 1)[0])) * 1e3 for exchange in exchanges)


def bursts(streams: int, repetitions: int, tokens: int) -> None:
    with Endpoint(25.0, tokens) as url:
        found: dict[int, list[list[float]]] = {1: [], 2: [], 4: [], 8: [], streams: []}
        for _ in range(repetitions):
            for per_turn, late in found.items():
                late.append(uvloop.run(burst_ms(url, streams, per_turn)))
    for per_turn, late in found.items():
        p50 = statistics.median(one[len(one) // 2] for one in late)
        p99 = statistics.median(one[len(one) * 99 // 100] for one in late)
        print(
            f"burst of {streams}, {per_turn} starts a turn: TTFT stamped late by p50 {p50:.2f} ms, p99 {p99:.2f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--itl-ms", type=float, action="append")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.itl_ms[0], options.tokens))
        return
    if options.burst:
        bursts(options.burst, options.repetitions, options.tokens)
        return
    for itl_ms in options.itl_ms or [0.0, 5.0]:
        with Endpoint(itl_ms, options.tokens) as url:
            ours: list[float] = []
            stock: list[float] = []
            for _ in range(options.repetitions):
                ours.append(uvloop.run(target_cost(url, options.streams, options.requests)))
                if not options.no_stock:
                    stock.append(uvloop.run(stock_cost(url, options.streams, max(64, options.requests // 4))))
        cost = statistics.median(ours)
        line = f"ITL {itl_ms:g} ms, {options.streams} streams, {options.tokens} tokens: {cost:.2f} ms CPU a request"
        if stock:
            line += f"; stock httpx {statistics.median(stock):.1f} ms, {statistics.median(stock) / cost:.0f} times as much"
        print(line, flush=True)


if __name__ == "__main__":
    main()
