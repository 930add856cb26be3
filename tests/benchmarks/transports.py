"""CPU time that a request costs the client over each transport: `make transports`. The table of docs/load.md.

Each endpoint is a process of its own that answers from bytes made before: endpoint.py, and hypercorn for HTTP/2. The columns
are a whole run's CPU a request, records included; how much of it httpx's own transport measured itself, as a report says;
and what a request costs more than over direct connections, as the median of paired runs.
"""

import argparse
import asyncio
import socket
import ssl
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import bench.client as client
from bench.endpoint import Replies
from bench.processes import Endpoint

from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.httpx_transport import HttpxTransport, httpx_transport

CONCURRENCY = 50


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one kind. chunks: of a stream; itl_ms: 0: all of them in one write."""

    name: str
    requests: int
    streaming: bool
    chunks: int = 16
    itl_ms: float = 0.0


SHAPES = (
    Shape("JSON", 1500, False),
    Shape("16 chunks in one write", 1000, True),
    Shape("128 chunks in one write", 500, True, 128),
    Shape("100 chunks, one every 5 ms", 100, True, 100, 5.0),
)


def unframed(write: bytes) -> bytes:
    """The data of the chunks of a write of HTTP/1.1, its head left out."""
    rest, data = write[write.find(b"\r\n\r\n") + 4 :] if write.startswith(b"HTTP/") else write, b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return data


async def serve_http2(chunks: int, itl_s: float) -> None:
    """What endpoint.py answers, over HTTP/2. Prints the port."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    replies = Replies(chunks)
    events = [unframed(write) for write in replies.writes]
    whole = replies.whole.partition(b"\r\n\r\n")[2]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        streamed = b'"stream":true' in body
        kind = b"text/event-stream" if streamed else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for part in [whole] if not streamed else events if itl_s else [b"".join(events)]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(itl_s)
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind, config.accesslog, config.errorlog = [f"fd://{listening.fileno()}"], None, None
    print(listening.getsockname()[1], flush=True)
    await serve(app, config)


@contextmanager
def http2_endpoint(shape: Shape) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", str(shape.chunks), str(shape.itl_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.communicate()


def cost(url: str, shape: Shape, requests: int, way: str) -> tuple[float, float | None]:
    """CPU ms of a request in a run, and of that what the transport measured."""
    made: list[HttpxTransport] = []

    def target(url: str, **options: Any) -> HttpTarget:
        if way == "direct":
            return HttpTarget(url, **options)
        made.append(httpx_transport(url, None, way == "HTTP/2", ssl.create_default_context()))
        return HttpTarget(url, transport=made[0], **options)

    with mock.patch.object(client, "HttpTarget", target):
        work = client.conversations(requests, 1)
        spent = client.played(client.run(url, work, concurrency=CONCURRENCY, streaming=shape.streaming))
    metered_ms = made[0].use.cpu_s / made[0].use.requests * 1e3 if made else None
    return spent.cpu_s / spent.units * 1e3, metered_ms


def measure(shape: Shape, pairs: int) -> None:
    with Endpoint(shape.chunks, shape.itl_ms) as url, http2_endpoint(shape) as http2:
        ways = {"direct": url, "HTTP/1.1": url, "HTTP/2": http2}
        found: dict[str, list[tuple[float, float | None]]] = {way: [] for way in ways}
        for way, address in ways.items():
            cost(address, shape, CONCURRENCY, way)
        for _ in range(pairs):
            for way, address in ways.items():
                found[way].append(cost(address, shape, shape.requests, way))
    for way, costs in found.items():
        line = f"{shape.name:28} {way:9} {statistics.median(total for total, _ in costs):7.3f} ms"
        if way != "direct":
            metered = statistics.median(own for _, own in costs if own is not None)
            more = statistics.median(total - plain for (total, _), (plain, _) in zip(costs, found["direct"], strict=True))
            line += f"   measured by itself {metered:7.3f} ms   more than direct {more:7.3f} ms"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="runs over each transport (default: 5)")
    parser.add_argument("--serve", nargs=2, type=float, metavar=("CHUNKS", "ITL_MS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve_http2(int(given.serve[0]), given.serve[1] / 1e3))
        return
    for shape in SHAPES:
        measure(shape, given.pairs)


if __name__ == "__main__":
    main()
