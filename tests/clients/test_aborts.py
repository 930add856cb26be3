"""Clients that go away in the middle of a response: nothing of them stays, and nobody else notices."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sdks import openai
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HELLO = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2000},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2000},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2000},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2000},
}


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    """A server whose streams of 2,000 tokens last for 50 seconds."""
    with serving("--ttft", "1", "--itl", "25", "--max-model-len", "4000") as url:
        yield url


def load(url: str) -> int:
    under_way: int = httpx.get(url.removesuffix("/v1") + "/load").json()["server_load"]
    return under_way


async def wait_for_load(url: str, expected: int) -> int:
    """The requests under way, as soon as they are as many as expected, or after ten seconds."""
    for _ in range(100):
        if load(url) == expected:
            break
        await asyncio.sleep(0.1)
    return load(url)


async def leave(url: str, path: str, stream: bool, abruptly: bool) -> None:
    """Ask, wait for the first event (if there are any), and go."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps({"model": MODEL, "stream": stream, **BODIES[path]}).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    if stream:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"data: ")
    else:
        await asyncio.sleep(0.05)
    if abruptly:
        writer.transport.abort()
    else:
        writer.close()


def test_a_thousand_clients_that_leave_hold_nothing_and_disturb_nobody(slow_url: str, wait: Any) -> None:
    async def main() -> tuple[list[str], int]:
        async with openai.AsyncOpenAI(base_url=slow_url, api_key="none", max_retries=0) as client:

            async def stays() -> str:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=HELLO,
                    max_tokens=20,
                    seed=3,
                    stream=True,  # type: ignore[arg-type]
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            texts = [await stays()]
            paths = list(BODIES)
            for wave in range(10):
                staying = asyncio.ensure_future(stays())
                leaving = [leave(slow_url, paths[n % 4], stream=n % 10 != 0, abruptly=n % 3 == 0) for n in range(100)]
                await asyncio.gather(*leaving)
                if wave in (0, 9):
                    texts.append(await staying)
                else:
                    staying.cancel()
            return texts, await wait_for_load(slow_url, 0)

    texts, left = wait(main())
    assert texts[0]
    assert texts == [texts[0]] * 3
    assert left == 0


def test_the_sdks_ways_to_leave_free_the_request(slow_url: str, wait: Any) -> None:
    with openai.OpenAI(base_url=slow_url, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2000, stream=True)  # type: ignore[call-overload]
        next(iter(stream))
        assert load(slow_url) == 1
        stream.close()
        assert wait(wait_for_load(slow_url, 0)) == 0
        with client.responses.stream(
            model=MODEL, input="Hello", max_output_tokens=2000, extra_body={"ignore_eos": True}
        ) as events:
            next(iter(events))
            assert load(slow_url) == 1
        assert wait(wait_for_load(slow_url, 0)) == 0
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2000)  # type: ignore[call-overload]
        assert wait(wait_for_load(slow_url, 0)) == 0


def test_a_background_response_outlives_its_client_until_it_is_cancelled(slow_url: str, wait: Any) -> None:
    with openai.OpenAI(base_url=slow_url, api_key="none", max_retries=0) as client:
        stream = client.responses.create(model=MODEL, input="Hello", background=True, stream=True)
        created: Any = next(iter(stream))
        stream.close()
        assert client.responses.retrieve(created.response.id).status in ("queued", "in_progress")
        assert client.responses.cancel(created.response.id).status == "cancelled"
        assert wait(wait_for_load(slow_url, 0)) == 0
