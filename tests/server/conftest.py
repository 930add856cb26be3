"""The API inside the test's process: requests in, whole responses out, no socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig

MODEL = "Qwen/Qwen3-30B-A3B"


class Api:
    """An app and a client for it. Without other settings every token is due at once."""

    def __init__(self, runner: asyncio.Runner, **settings: Any) -> None:
        self.app: LlmirageApp = create_app(ClusterConfig(**({"ttft_ms": 0.0, "itl_ms": 0.0} | settings)))
        self._runner = runner

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return self._runner.run(send())

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, content=content, **options)

    def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]} | fields
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": prompt} | fields)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def api(runner: asyncio.Runner) -> Api:
    """The default cluster at no latency."""
    return Api(runner)


@pytest.fixture
def make_api(runner: asyncio.Runner) -> Callable[..., Api]:
    """An API of other settings."""
    return lambda **settings: Api(runner, **settings)
