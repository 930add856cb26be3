"""What a run costs the client: CPU time of a request, from the turn of a workload to the line of its record.

The endpoint is a process of its own that answers from bytes made before (endpoint.py).
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.measurement import Cost, Work, limits, measures
from bench.processes import Endpoint
from bench.product import HttpTarget, RecordWriter, RunClock, Runner, RunOptions, Session, Turn, Workload

CONNECTIONS = 50
WORDS = "lorem ipsum dolor sit amet consectetur " * 7
LONG_WORDS = 45_000  # of 60,000 tokens


def conversations(count: int, turns: int, first: str = WORDS) -> Workload:
    sessions = {}
    for number in range(count):
        texts = [f"{number} {turn} {WORDS if turn else first}" for turn in range(turns)]
        said = tuple(Turn(messages=({"role": "user", "content": text},), max_tokens=16) for text in texts)
        sessions[f"s{number}"] = Session(f"s{number}", said)
    return Workload("multi_turn", "bench", sessions, tuple(sessions))


@contextmanager
def few_collections() -> Iterator[None]:
    """The settings of the cycle collector that `llmirage run` has."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def run(url: str, workload: Workload, **options: Any) -> tuple[Cost, list[float]]:
    """What a run costs, its records written to a file; and each reply's TTFT in ms."""
    target = HttpTarget(url, timeout_s=600.0, connect_timeout_s=30.0)
    with tempfile.TemporaryDirectory() as folder:
        records = RecordWriter(Path(folder), RunClock(target.now(), time.time()))
        runner = Runner(workload, RunOptions(model="m", seed=1, **options), target, None, records.write)
        with few_collections():
            begun_s = time.process_time()
            result = await runner.run()
            spent_s = time.process_time() - begun_s
    await target.close()
    failed = [record.exchange.error for record in result.records if record.exchange.error]
    assert not failed, failed[0]
    ttfts_ms = [(r.exchange.token_s[0] - r.exchange.start_s) * 1e3 for r in result.records if r.exchange.token_s]
    return Cost(spent_s, len(result.records)), ttfts_ms


def played(coroutine: Coroutine[Any, Any, tuple[Cost, list[float]]]) -> Cost:
    return uvloop.run(coroutine)[0]


def closed_loop(url: str, requests: int, turns: int = 1, **options: Any) -> Work:
    def work(share: float) -> Cost:
        count = max(CONNECTIONS, int(requests * share) // turns)
        return played(run(url, conversations(count, turns), concurrency=CONNECTIONS, **options))

    return work


@measures("request")
def json() -> Iterator[Work]:
    """Replies in one piece, 50 connections."""
    with Endpoint(16) as url:
        yield closed_loop(url, 3000, streaming=False)


@measures("request")
def stream16() -> Iterator[Work]:
    """Streams of 16 chunks in one write, 50 connections."""
    with Endpoint(16) as url:
        yield closed_loop(url, 2000)


@measures("request")
def stream128() -> Iterator[Work]:
    """Streams of 128 chunks in one write, 50 connections."""
    with Endpoint(128) as url:
        yield closed_loop(url, 1200)


@measures("request")
def turns3() -> Iterator[Work]:
    """Conversations of 3 turns, 16 chunks in one write, 50 connections."""
    with Endpoint(16) as url:
        yield closed_loop(url, 2100, turns=3)


@measures("request")
def paced() -> Iterator[Work]:
    """Streams of 100 chunks, one every 5 ms and each in a write of its own, 64 at a time."""
    with Endpoint(100, itl_ms=5.0) as url:

        def work(share: float) -> Cost:
            return played(run(url, conversations(max(64, int(256 * share)), 1), concurrency=64))

        yield work


@measures("request")
def long() -> Iterator[Work]:
    """32 conversations of 50 turns with 60,000 tokens of context from their first turn on."""
    with Endpoint(16) as url:
        first = " ".join(["lorem"] * LONG_WORDS)

        def work(share: float) -> Cost:
            return played(run(url, conversations(32, max(2, int(50 * share)), first), concurrency=32))

        yield work


@limits("ms", 15.0)
def burst() -> float:
    """256 conversations that start at once on new connections: median TTFT where the endpoint takes no time."""
    with Endpoint(16) as url:
        return statistics.median(uvloop.run(run(url, conversations(256, 1), concurrency=256))[1])
