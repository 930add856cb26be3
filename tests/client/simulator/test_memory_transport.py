"""An ASGI app behind an httpx client in one process: streams, errors, people who leave, and time that is virtual."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import pytest

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig
from llmirage_shared.virtual_time import run

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
CONFIG = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm")


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://llmirage")


async def start(send: Send, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})


def chat(stream: bool = True) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b-instruct",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 20,
        "stream": stream,
    }


def test_pieces_come_one_by_one_at_their_times() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["path"] == "/a b"
        assert scope["query_string"] == b"c=1"
        assert (await receive())["body"] == b"ask"
        await start(send)
        for piece in (b"one", b"two", b"three"):
            await asyncio.sleep(1.5)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(1.0)
        await send({"type": "http.response.body", "body": b""})

    async def main() -> list[tuple[float, bytes]]:
        loop = asyncio.get_running_loop()
        async with client(app) as http, http.stream("POST", "/a%20b?c=1", content=b"ask") as response:
            assert response.status_code == 200
            seen = [(loop.time(), piece) async for piece in response.aiter_raw()]
        assert loop.time() == 5.5
        return seen

    assert run(main()) == [(1.5, b"one"), (3.0, b"two"), (4.5, b"three")]


def test_the_server_streams_through_it_in_virtual_time() -> None:
    async def main() -> tuple[list[float], int]:
        loop = asyncio.get_running_loop()
        times = []
        async with client(create_app(CONFIG)) as http:
            async with http.stream("POST", "/v1/chat/completions", json=chat()) as response:
                times = [loop.time() async for line in response.aiter_lines() if '"content":"' in line]
            whole = await http.post("/v1/chat/completions", json=chat(stream=False))
        return times, whole.json()["usage"]["completion_tokens"]

    (times, tokens), again = run(main()), run(main())
    assert (times, tokens) == again
    assert tokens == 20
    assert len(set(times)) >= 20
    assert 0.05 < times[-1] < 0.3


async def test_it_works_on_a_loop_of_real_time() -> None:
    async with client(create_app(ClusterConfig(speed=float("inf")))) as http:
        response = await http.post("/v1/chat/completions", json=chat(stream=False) | {"model": "qwen3-30b-a3b"})
    assert str(response.json()["choices"][0]["finish_reason"]) == "length"


def test_who_leaves_is_noticed() -> None:
    seen = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        await start(send)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        seen.append((await receive())["type"])

    async def main() -> None:
        async with client(app) as http, http.stream("GET", "/") as response:
            async for _ in response.aiter_raw():
                break
        await asyncio.sleep(1)

    run(main())
    assert seen == ["http.disconnect"]


def test_an_app_that_says_nothing_to_who_has_left_is_no_error() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        await receive()  # the client has gone

    async def main() -> list[str]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with client(app) as http:
            asking = asyncio.create_task(http.post("/", content=b"ask"))
            await asyncio.sleep(1.0)
            asking.cancel()
            await asyncio.wait([asking])
        del asking
        gc.collect()
        return told

    assert run(main()) == []


def test_an_app_that_fails_before_its_response_fails_the_request() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise KeyError("lost")

    async def main() -> None:
        async with client(app) as http:
            await http.get("/")

    with pytest.raises(KeyError, match="lost"):
        run(main())


def test_an_app_that_fails_within_its_response_breaks_the_stream() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise KeyError("lost")

    async def main() -> None:
        async with client(app) as http:
            await http.get("/")

    with pytest.raises(httpx.ReadError, match="lost"):
        run(main())


def test_requests_of_one_moment_are_taken_in_one_after_the_other() -> None:
    order: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        for _ in range(3 if scope["path"] == "/slow" else 0):
            await asyncio.sleep(0)
        order.append(scope["path"])
        await start(send)
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        async with client(app) as http:
            await asyncio.gather(http.get("/slow"), http.get("/quick"), http.get("/last"))

    run(main())
    assert order == ["/slow", "/quick", "/last"]


def test_httpx2_has_the_same() -> None:
    httpx2 = pytest.importorskip("httpx2")
    from llmirage_client.simulator.memory import MemoryTransport as Transport2

    async def main() -> int:
        http = httpx2.AsyncClient(transport=Transport2(create_app(CONFIG)), base_url="http://llmirage")
        async with http, http.stream("POST", "/v1/chat/completions", json=chat()) as response:
            return len([line async for line in response.aiter_lines() if line.startswith("data: ")])

    assert run(main()) > 20


def test_a_request_under_way_fails_when_the_transport_closes() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await start(send)
        for _ in range(2):
            await receive()
        await asyncio.Event().wait()  # the client has gone, and the app stays

    async def main() -> None:
        http = client(app)
        asking = [asyncio.create_task(http.get(path)) for path in ("/silent", "/begun")]
        await asyncio.sleep(1.0)
        await http.aclose()
        for each in asking:
            with pytest.raises(httpx.RemoteProtocolError, match="the server closed"):
                await each

    run(main())


def test_a_client_without_a_loop_needs_a_host() -> None:
    http = httpx.Client(transport=MemoryTransport(None), base_url="http://llmirage")  # type: ignore[arg-type]
    with http, pytest.raises(RuntimeError, match="needs a host"):
        http.get("/")
