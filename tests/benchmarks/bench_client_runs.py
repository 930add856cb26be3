"""What a whole run costs the client: CPU milliseconds a request, from the turn of a workload to the line of its record.

    python tests/benchmarks/bench_client_runs.py                  # all cases, 50 connections, median of 5 repetitions
    python tests/benchmarks/bench_client_runs.py json long        # some
    python tests/benchmarks/bench_client_runs.py --url http://127.0.0.1:18398/v1 stream16   # against another server

| case | what | at most |
|---|---|---|
| json | replies in one piece | 0.35 ms |
| stream16, stream128 | so many chunks, in one write | 0.6 ms, 2.0 ms |
| turns3 | conversations of 3 turns, 16 chunks | 0.8 ms |
| burst | 256 conversations that start at once: how late the first token is | p50 15 ms |
| long | 32 conversations of 50 turns with 60,000 tokens of context: CPU at 4 requests a second | 50 % of a core |

The server, in a process of its own, answers from bytes that were put together before. It takes no time: all of the burst's
TTFT is the client's own lateness.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import RunResult
from llmirage_client.report.records_file import RecordWriter, RunClock
from llmirage_client.targets.http import HttpTarget
from llmirage_client.workload.session import Session, Turn, Workload

CONNECTIONS = 50
WORDS = "lorem ipsum dolor sit amet consectetur " * 7
LONG_WORDS = 45_000  # of 60,000 tokens
LONG_RATE_PER_S = 4.0


def chunk(value: Any) -> bytes:
    event = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def replies(chunks: int) -> tuple[bytes, bytes]:
    """A streamed reply and one in one piece."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "mock"}
    usage = {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks}

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        return chunk({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    events = [event({"role": "assistant", "content": ""}), *[event({"content": "tok "})] * chunks, event({}, "stop")]
    stream = b"".join([*events, chunk({**head, "choices": [], "usage": usage}), chunk(b"[DONE]"), b"0\r\n\r\n"])
    message = {"role": "assistant", "content": "tok " * chunks}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}).encode()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + stream,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
    )


class Server(asyncio.Protocol):
    stream = whole = b""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.parts:
            head, _, body = data.partition(b"\r\n\r\n")
            self.missing = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0) - len(body)
        else:
            self.missing -= len(data)
        self.parts.append(data)
        if self.missing <= 0:
            streamed = b'"stream":true' in self.parts[-1][-200:] or b'"stream":true' in b"".join(self.parts)
            self.parts = []
            self.transport.write(self.stream if streamed else self.whole)  # type: ignore[attr-defined]


async def serve(chunks: int) -> None:
    Server.stream, Server.whole = replies(chunks)
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Endpoint:
    """The server in its own process, for as long as the `with` block; or another that runs already."""

    def __init__(self, chunks: int, url: str | None) -> None:
        self.url = url
        self.command = [sys.executable, __file__, "--serve", str(chunks)]

    def __enter__(self) -> str:
        self.process = None if self.url else subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        if self.process is None:
            return str(self.url)
        assert self.process.stdout is not None
        return f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def workload(conversations: int, turns: int, first: str = WORDS) -> Workload:
    sessions = {}
    for number in range(conversations):
        texts = [f"{number} {turn} {WORDS if turn else first}" for turn in range(turns)]
        turns_ = tuple(Turn(messages=({"role": "user", "content": text},), max_tokens=16) for text in texts)
        sessions[f"s{number}"] = Session(f"s{number}", turns_)
    return Workload("multi_turn", "bench", sessions, tuple(sessions))


async def cost(url: str, flow: Workload, **options: Any) -> tuple[float, RunResult]:
    """CPU seconds of a run, its records written to a file, and what it found."""
    target = HttpTarget(url, timeout_s=600.0, connect_timeout_s=30.0)
    with tempfile.TemporaryDirectory() as folder:
        records = RecordWriter(Path(folder), RunClock(target.now(), time.time()))
        runner = Runner(flow, RunOptions(model="m", seed=1, **options), target, None, records.write)
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        before_s = time.process_time()
        result = await runner.run()
        spent_s = time.process_time() - before_s
    await target.close()
    failed = [record.exchange.error for record in result.records if record.exchange.error]
    assert not failed, failed[0]
    return spent_s, result


def cpu_ms(url: str, requests: int, turns: int = 1, streaming: bool = True) -> float:
    run = cost(url, workload(requests // turns, turns), concurrency=CONNECTIONS, streaming=streaming)
    spent_s, result = uvloop.run(run)
    return spent_s * 1e3 / len(result.records)


def burst_ms(url: str, requests: int) -> float:
    """Median TTFT of 256 first turns, on connections that are not there yet."""
    _, result = uvloop.run(cost(url, workload(256, 1), concurrency=256))
    return statistics.median((r.exchange.token_s[0] - r.exchange.start_s) * 1e3 for r in result.records)


def long_percent(url: str, requests: int) -> float:
    """The share of a core that requests at 4 a second take, from what each costs."""
    run = cost(url, workload(32, max(2, requests // 60), " ".join(["lorem"] * LONG_WORDS)), concurrency=32)
    spent_s, result = uvloop.run(run)
    return spent_s / len(result.records) * LONG_RATE_PER_S * 100.0


CASES: dict[str, tuple[int, Callable[[str, int], float], str, float]] = {
    "json": (16, lambda url, n: cpu_ms(url, n, streaming=False), "ms CPU a request", 0.35),
    "stream16": (16, cpu_ms, "ms CPU a request", 0.6),
    "stream128": (128, cpu_ms, "ms CPU a request", 2.0),
    "turns3": (16, lambda url, n: cpu_ms(url, n, turns=3), "ms CPU a request", 0.8),
    "burst": (16, burst_ms, "ms TTFT, p50", 15.0),
    "long": (16, long_percent, "% of a core at 4 requests/s", 50.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all when none is named")
    parser.add_argument("--url")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--serve", type=int, metavar="CHUNKS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        uvloop.run(serve(options.serve))
        return
    for name in options.cases or CASES:
        chunks, measure, unit, limit = CASES[name]
        with Endpoint(chunks, options.url) as url:
            found = [measure(url, options.requests) for _ in range(options.repetitions)]
        print(f"{name}: {statistics.median(found):.3g} {unit} (at most {limit:g}); {min(found):.3g} to {max(found):.3g}")


if __name__ == "__main__":
    main()
