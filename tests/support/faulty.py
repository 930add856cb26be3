"""Requests to an app of which a fault is ordered, in virtual time, and what httpx makes of the response."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TTFT_S, ITL_S = 0.1, 0.01
TIMES = {"ttft_ms": 100.0, "itl_ms": 10.0}
ASK = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 6},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 6},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": ASK, "max_tokens": 6},
}
CHAT = "/v1/chat/completions"
_NEW = re.compile(rb'("(?:id|item_id|request_id|created|created_at|completed_at)":)(?:"[^"\n]*"|\d+)')  # in every reply
_PING = re.compile(rb": ping[^\n]*\n\n")


@dataclass
class HttpxReply:
    """What httpx saw. pieces: bytes with the seconds since the request was sent. error: what it raised."""

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: Exception | None = None
    took_s: float = 0.0

    @property
    def body(self) -> bytes:
        """The body without pings, and without what is new in every reply."""
        return _NEW.sub(rb"\1 0", _PING.sub(b"", b"".join([piece for _, piece in self.pieces])))

    @property
    def events(self) -> list[bytes]:
        return [event for event in self.body.split(b"\n\n") if event]


def new_app(**settings: Any) -> LlmirageApp:
    """Two instances; the first token is due after 100 ms, each further one after 10 ms."""
    return create_app(ClusterConfig(**({"instances": 2, "allow_fault_header": True} | TIMES | settings)))


async def ask(
    app: Any, fault: str | None = None, path: str = CHAT, timeout_s: float = 100.0, key: str = "x", **fields: Any
) -> HttpxReply:
    """Send a POST that orders a fault, and read its response to the end."""
    reply, loop = HttpxReply(), asyncio.get_running_loop()
    headers = {"authorization": f"Bearer {key}", **({"x-llmirage-fault": fault} if fault else {})}
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test", timeout=timeout_s) as client:
        sent_s = loop.time()
        try:
            body = {**({"model": MODEL, **BODIES[path]} if path in BODIES else {}), **fields}
            async with client.stream("POST", path, json=body, headers=headers) as response:
                reply.status, reply.headers = response.status_code, response.headers
                async for piece in response.aiter_raw():
                    reply.pieces.append((loop.time() - sent_s, piece))
        except httpx.HTTPError as error:
            reply.error = error
        reply.took_s = loop.time() - sent_s
    return reply


def met(fault: str | None, path: str = CHAT, *, timeout_s: float = 100.0, **fields: Any) -> HttpxReply:
    """The reply of a fresh server to one request with this fault, in virtual time."""

    async def main() -> HttpxReply:
        return await ask(new_app(), fault, path, timeout_s, **fields)

    return virtual_time.run(main())
