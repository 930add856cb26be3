"""What a streamed token costs the server, and how well it keeps time.

    python tests/benchmarks/bench_server.py                # all four, 3 rounds of 4 s each, medians
    python tests/benchmarks/bench_server.py --rounds 1 --seconds 2 --check

Starts `llmirage serve` as a process of its own, loads it from this one over 64 connections with replies of 100 tokens, and
reads the server's CPU time from the operating system (Linux):

- flood, fixed: `--ttft 0 --itl 0`, streamed; CPU seconds per million chunks, must be at most 15;
- flood, max: the default cluster at `--speed max`, streamed; the same;
- whole: the same cluster, not streamed; CPU milliseconds a request;
- paced: `--ttft 200 --itl 10`; mean ITL seen by the client, must be within 0.5 % of 10 ms.

CPU time of a shared machine varies by a factor of two with what else runs on it; compare medians of interleaved rounds.
With --check the exit status is 1 when a median misses its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

CONNECTIONS = 64
TOKENS = 100
CONTENT = b'"delta":{"content":'
MAX_CPU_S_PER_MILLION = 15.0
MAX_ITL_ERROR = 0.005


@dataclass
class Load:
    """What one round of load saw."""

    requests: int = 0
    chunks: int = 0
    itls_s: list[float] = field(default_factory=list)  # mean of each stream


class Client(asyncio.Protocol):
    """One connection in a closed loop. It counts chunks and notes when the first and the last came, nothing more."""

    def __init__(self, request: bytes, load: Load, streams: bool) -> None:
        self._request = request
        self._load = load
        self._end = b"0\r\n\r\n" if streams else b'_fingerprint"'
        self._tail = b""
        self._chunks = 0
        self._first_s = self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._fire()

    def _fire(self) -> None:
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
        if self._end in self._tail and (self._end != b"0\r\n\r\n" or self._tail.endswith(self._end)):
            self._load.requests += 1
            self._load.chunks += self._chunks
            if self._chunks > 1:
                self._load.itls_s.append((self._last_s - self._first_s) / (self._chunks - 1))
            self._fire()


async def drive(port: int, seconds: float, streams: bool, pid: int) -> tuple[Load, float, float]:
    """Load the server for `seconds` after a warm-up; return what was seen, its CPU seconds and the wall seconds."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": TOKENS,
        "stream": streams,
    }
    payload = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    load, loop, transports = Load(), asyncio.get_running_loop(), []
    for _ in range(CONNECTIONS):
        transport, _ = await loop.create_connection(
            lambda: Client(head.encode() + payload, load, streams), "127.0.0.1", port
        )
        transports.append(transport)
        await asyncio.sleep(1 / CONNECTIONS)  # streams that start together would all be due together
    load.requests = load.chunks = 0
    load.itls_s.clear()
    cpu_s, start_s = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu_s, wall_s = cpu_seconds(pid) - cpu_s, time.perf_counter() - start_s
    seen = Load(load.requests, load.chunks, list(load.itls_s))
    for transport in transports:
        transport.abort()
    return seen, cpu_s, wall_s


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its threads."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(flags: list[str], seconds: float, streams: bool) -> tuple[Load, float, float]:
    """One round against a server of its own."""
    command = "from llmirage_server.commands.serve import serve; serve()"
    server = subprocess.Popen(
        [sys.executable, "-c", command, "--port", "0", "--accept-models", "any", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.search(r":(\d+)/v1$", line):
                return asyncio.run(drive(int(found.group(1)), seconds, streams, server.pid))
        raise SystemExit("the server did not start")
    finally:
        server.terminate()
        server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()

    floods = {"flood, fixed": ["--ttft", "0", "--itl", "0"], "flood, max": ["--speed", "max"]}
    costs: dict[str, list[float]] = {name: [] for name in floods}
    whole_ms: list[float] = []
    itls_s: list[float] = []
    for _ in range(options.rounds):
        for name, flags in floods.items():
            load, cpu_s, wall_s = measure(flags, options.seconds, True)
            costs[name].append(cpu_s / load.chunks * 1e6)
            print(f"{name:13} {costs[name][-1]:6.1f} CPU s per million chunks, {load.chunks / wall_s:9,.0f} chunks/s")
        load, cpu_s, wall_s = measure(["--speed", "max"], options.seconds, False)
        whole_ms.append(cpu_s / load.requests * 1e3)
        print(f"{'whole':13} {whole_ms[-1]:6.2f} CPU ms a request, {load.requests / wall_s:9,.0f} requests/s")
        load, cpu_s, wall_s = measure(["--ttft", "200", "--itl", "10"], options.seconds, True)
        itls_s.append(statistics.fmean(load.itls_s))
        print(f"{'paced':13} {itls_s[-1] * 1e3:7.3f} ms mean ITL, {cpu_s / load.chunks * 1e6:5.1f} CPU s per million chunks")

    print("medians:")
    missed = False
    for name, values in costs.items():
        cost = statistics.median(values)
        missed |= cost > MAX_CPU_S_PER_MILLION
        print(f"  {name:13} {cost:6.1f} CPU s per million chunks (goal: at most {MAX_CPU_S_PER_MILLION:g})")
    print(f"  {'whole':13} {statistics.median(whole_ms):6.2f} CPU ms a request")
    error = statistics.median(itls_s) / 0.010 - 1
    missed |= abs(error) > MAX_ITL_ERROR
    print(f"  {'paced':13} mean ITL {error:+.2%} from 10 ms (goal: within {MAX_ITL_ERROR:.1%})")
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
