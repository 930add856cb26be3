"""Recordings of other mock servers replay byte for byte for the SDKs. Runs where their commands are on the path."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from recorded import Bytes, recordings_in
from sdks import anthropic, openai
from starlette.types import ASGIApp

from llmirage_server.app import create_app
from llmirage_server.commands.record_actions import RecordingProxy
from llmirage_server.config import ClusterConfig
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.store import RecordingWriter

COMMANDS = {
    "fakellm": ["serve", "--port"],
    "guidellm": ["mock-server", "--ttft-ms", "20", "--itl-ms", "2", "--output-tokens", "8", "--port"],
}
ANSWERED = {"fakellm": 5, "guidellm": 7}  # of the calls; the others are 404, which is recorded, too
KEY = "sk-proj-abcdEFGH12345678"


@pytest.fixture(params=COMMANDS, scope="module")
def upstream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The name of a server, and its URL."""
    name = request.param
    command = shutil.which(name)
    if command is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp(name)
    if name == "fakellm":
        subprocess.run([command, "init"], cwd=folder, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [command, *COMMANDS[name], str(port)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port)
            yield name, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/")
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline_s, "the server does not answer"
            time.sleep(0.1)


async def calls(app: ASGIApp) -> int:
    """Calls of all recorded APIs, whole and streamed; how many were answered."""
    answered = 0

    async def one(call: Callable[[], Awaitable[Any]]) -> None:
        nonlocal answered
        try:
            answer = await call()
            if hasattr(answer, "__aiter__"):
                assert [event async for event in answer]
        except (openai.NotFoundError, anthropic.NotFoundError):
            return
        answered += 1

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        sdk = openai.AsyncOpenAI(base_url="http://server/v1", api_key=KEY, http_client=http, max_retries=0)
        other = anthropic.AsyncAnthropic(base_url="http://server", api_key=KEY, http_client=http, max_retries=0)
        said: Any = [{"role": "user", "content": f"Grüße, {KEY}"}]
        for stream in (False, True):
            given: Any = {"model": "gpt-4o", "stream": stream}
            await one(lambda given=given: sdk.chat.completions.create(messages=said, **given))  # type: ignore[misc]
            await one(lambda given=given: sdk.completions.create(prompt="Once", max_tokens=9, **given))  # type: ignore[misc]
            await one(lambda given=given: sdk.responses.create(input="Hello", **given))  # type: ignore[misc]
            await one(lambda given=given: other.messages.create(messages=said, max_tokens=9, **given))  # type: ignore[misc]
        await one(lambda: sdk.chat.completions.create(model="gpt-4o", messages=said))
        await one(lambda: sdk.embeddings.create(model="e", input=["a", "b"]))
    return answered


def test_a_replay_has_the_bytes_of_the_recording(upstream: tuple[str, str], tmp_path: Path) -> None:
    name, url = upstream

    async def record() -> Bytes:
        proxy = RecordingProxy(HttpUpstream(url), ExchangeRecorder(RecordingWriter(tmp_path)))
        app = Bytes(proxy)
        assert await calls(app) == ANSWERED[name]
        await proxy.close()
        return app

    recorded = asyncio.run(record())
    assert len(recordings_in(tmp_path)) == len(recorded.sent) == 10
    assert not any(KEY in path.read_text() for path in tmp_path.iterdir())
    for timing in ("none", "recorded", "cluster"):
        settings: Any = {"replay": str(tmp_path), "replay_timing": timing, "speed": 50.0}
        app = Bytes(create_app(ClusterConfig(ttft_ms=5.0, itl_ms=1.0, **settings)))
        asyncio.run(calls(app))
        assert app.sent == [(status, kind, body.replace(KEY.encode(), b"REDACTED")) for status, kind, body in recorded.sent]
