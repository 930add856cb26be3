"""What the SDKs get from a replay is what they got when it was recorded, byte for byte."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from recorded import Bytes, proxy_before, recordings_in
from sdks import anthropic, openai
from starlette.types import ASGIApp

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
KEY = "sk-proj-abcdEFGH12345678"


async def calls(app: ASGIApp) -> None:
    """Calls of all recorded APIs, whole and streamed, with tools, thoughts, a refused request and a repeated one."""
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport) as http:
        sdk = openai.AsyncOpenAI(base_url="http://server/v1", api_key=KEY, http_client=http, max_retries=0)
        said: Any = [{"role": "user", "content": f"What is the weather in Paris? Use get_weather. {KEY}"}]
        asked: dict[str, Any] = {"model": "gpt-5", "messages": said, "tools": [WEATHER], "parallel_tool_calls": False}
        called = (await sdk.chat.completions.create(**asked)).choices[0].message
        assert called.tool_calls
        said += [called.model_dump(), {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "21 °C\n"}]
        for stream in (False, True, True):
            answer = await sdk.chat.completions.create(**asked, stream=stream, reasoning_effort="low", max_tokens=40)
            if stream:
                assert [chunk async for chunk in answer]
        async for _ in await sdk.completions.create(model="gpt-5", prompt="Once", max_tokens=9, stream=True, n=2):
            pass
        first = await sdk.responses.create(model="gpt-5", input="Hello", max_output_tokens=16)
        followed = {"previous_response_id": first.id, "input": "Go on", "max_output_tokens": 20}
        async for _ in await sdk.responses.create(model="gpt-5", stream=True, **followed):
            pass
        await sdk.embeddings.create(model="text-embedding-3-small", input=["a", "b"])
        with pytest.raises(Exception, match="temperature"):
            await sdk.chat.completions.create(model="gpt-5", messages=said[:1], temperature=7)
        claude = anthropic.AsyncAnthropic(base_url="http://server", api_key=KEY, http_client=http, max_retries=0)
        turn: Any = [{"role": "user", "content": "Hello"}]
        await claude.messages.create(model="claude", max_tokens=9, messages=turn)
        async with claude.messages.stream(model="claude", max_tokens=9, messages=turn) as events:
            async for _ in events:
                pass


def replayed(folder: Path, timing: str) -> list[tuple[int, str, bytes]]:
    settings: Any = {"replay": str(folder), "replay_timing": timing, "speed": 50.0}
    app = Bytes(create_app(ClusterConfig(ttft_ms=5.0, itl_ms=1.0, **settings)))
    asyncio.run(calls(app))
    return app.sent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, bytes]]]:
    """A folder, and what the SDKs got while it was recorded."""
    folder = tmp_path_factory.mktemp("recordings")

    async def record() -> list[tuple[int, str, bytes]]:
        proxy = proxy_before(create_app(ClusterConfig(ttft_ms=5.0, itl_ms=1.0, speed=50.0)), folder)
        app = Bytes(proxy)
        await calls(app)
        await proxy.close()
        return app.sent

    return folder, asyncio.run(record())


@pytest.mark.parametrize("timing", ["none", "recorded", "cluster"])
def test_a_replay_has_the_bytes_of_the_recording(recorded: tuple[Path, list[tuple[int, str, bytes]]], timing: str) -> None:
    folder, sent = recorded
    assert len(sent) == 11
    assert replayed(folder, timing) == sent


def test_each_exchange_is_a_file_without_the_key(recorded: tuple[Path, list[tuple[int, str, bytes]]]) -> None:
    folder, sent = recorded
    assert len(recordings_in(folder)) == len(sent)
    assert not any(KEY in path.read_text() for path in folder.iterdir())
