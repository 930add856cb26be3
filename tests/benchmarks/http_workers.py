"""CPU of paced streams: `serve` in one process beside `serve --workers 2`. The figures of docs/scaling.md.

    PYTHONPATH=tests/benchmarks python tests/benchmarks/http_workers.py

Each connection has two streams of 100 tokens, one after the other. What counts is CPU time of the server's processes for a
chunk, which other load of the machine changes less than rates; the least of several runs. Two cores serve the streams that
one core serves in one process, times the gain. The process that has most to do may be the limit: it has one core.
A process that is late writes several chunks of a stream at once, which cost less: compare only what writes about as often.
The rates are what the client saw, the most of several runs: it computes on the same cores as the server, and where one
process keeps up, a second brings nothing.
"""

import asyncio
import time

from bench.processes import Server
from bench.server import drive

RUNS = 5
WARM_UP = 16  # connections
SETTLED_S = 2.0  # one process loads after it has begun to listen what workers load before
CASES = {  # flags, connections
    "a token every 20 ms, each at a time of its own": (["--ttft", "200", "--itl", "20"], 512),
    "a token every 10 ms, each at a time of its own": (["--ttft", "200", "--itl", "10"], 64),
    "Qwen3-30B-A3B on 4 H100, batches of 64": (["--instances", "4"], 256),
}


def chunk_us(flags: list[str], connections: int) -> tuple[list[float], float, float]:
    """Return the CPU time of each process for a chunk of all, the chunks a second that the client saw, writes a chunk."""
    with Server(*flags) as server:
        asyncio.run(drive([server.port], 2 * WARM_UP, True, 0.1, WARM_UP))
        time.sleep(SETTLED_S)
        before, written, begun_s = server.cpu_of_children_s() or [server.cpu_s()], server.writes(), time.perf_counter()
        load = asyncio.run(drive([server.port], 2 * connections, True, 1.0, connections))
        after, took_s = server.cpu_of_children_s() or [server.cpu_s()], time.perf_counter() - begun_s
        written = server.writes() - written
    each_us = [(end - begin) / load.chunks * 1e6 for begin, end in zip(before, after, strict=True)]
    return each_us, load.chunks / took_s, written / load.chunks


def main() -> None:
    for title, (flags, connections) in CASES.items():
        single, several, rates = [], [], []
        for _ in range(RUNS):
            (one,), alone, one_writes = chunk_us(flags, connections)
            processes, together, their_writes = chunk_us([*flags, "--workers", "2"], connections)
            single.append((one, one_writes))
            several.append((processes, their_writes))
            rates.append((alone, together))
        (one, one_writes), ((engine, *workers), their_writes) = min(single), min(several, key=lambda run: sum(run[0]))
        gain = one / max(sum((engine, *workers)) / 2, engine, *workers)
        alone, together = map(max, zip(*rates, strict=True))
        print(
            f"{connections} streams, {title}: one process {one:.1f} us a chunk; with two workers: the engine {engine:.1f},"
        )
        print(f"  the workers {sum(workers):.1f}; streams on two cores: {gain:.2f} times those on one;")
        print(f"  with the client on them: {together:.0f} chunks a second beside {alone:.0f};")
        print(f"  writes a chunk: {their_writes:.2f} beside {one_writes:.2f}", flush=True)


if __name__ == "__main__":
    main()
