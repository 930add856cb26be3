"""The transport under the clients that users put on it: httpx, httpx2 and the OpenAI SDK."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmirage_client.targets.connection import HIGH_WATER_BYTES
from llmirage_client.targets.transport import LeanTransport

httpx2 = pytest.importorskip("httpx2")
from llmirage_client.targets.transport_httpx2 import Httpx2LeanTransport  # noqa: E402

MakeServer = Callable[..., Any]
LIBRARIES = [pytest.param(httpx, LeanTransport, id="httpx"), pytest.param(httpx2, Httpx2LeanTransport, id="httpx2")]
both = pytest.mark.parametrize(("library", "transport"), LIBRARIES)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"


def fetch(
    server: Any, use: Callable[[Any, str], Any], library: Any = httpx, transport: Any = LeanTransport, **options: Any
) -> Any:
    """What `use(client, url)` gives with a client on the transport and the server running."""

    async def main() -> Any:
        async with server, library.AsyncClient(transport=transport(**options)) as client:
            return await use(client, server.url)

    return asyncio.run(main())


@both
def test_lines_of_a_chunked_reply_come_as_they_are_sent(raw_server: MakeServer, library: Any, transport: Any) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        reply = chunked(b"data: a\n", b"\ndata: b\n\n")
        for i in range(0, len(reply), 7):
            writer.write(reply[i : i + 7])
            await asyncio.sleep(0.001)

    async def use(client: Any, url: str) -> tuple[int, list[str]]:
        async with client.stream("POST", url, json={"a": 1}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert (response.http_version, response.reason_phrase) == ("HTTP/1.1", "OK")
            return response.status_code, [line async for line in response.aiter_lines()]

    assert fetch(raw_server(answer), use, library, transport) == (200, ["data: a", "", "data: b", ""])


@both
def test_keeps_connections_and_posts_bodies_of_every_kind(raw_server: MakeServer, library: Any, transport: Any) -> None:
    server = raw_server(OK)

    async def pieces() -> Any:
        yield b"str"
        yield b"eam"

    async def use(client: Any, url: str) -> None:
        assert (await client.get(f"{url}/a?b=c")).text == "ok"
        assert (await client.post(url, content=pieces())).text == "ok"
        assert (await client.post(url, data={"k": "v"})).text == "ok"

    fetch(server, use, library, transport)
    assert [request.body for request in server.requests] == [b"", b"stream", b"k=v"]
    assert server.requests[0].head.startswith("GET /a?b=c HTTP/1.1")
    assert server.requests[1].header("transfer-encoding") is None
    assert server.connections == 1


@both
def test_faults_are_the_library_s_own_exceptions(raw_server: MakeServer, library: Any, transport: Any) -> None:
    async def hang_up(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def cut(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        writer.close()

    async def hang(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await asyncio.sleep(30)

    async def get(client: Any, url: str) -> None:
        await client.get(url, timeout=0.05)

    for answer, expected in (
        (hang_up, library.RemoteProtocolError),
        (cut, library.RemoteProtocolError),
        (hang, library.ReadTimeout),
    ):
        with pytest.raises(expected):
            fetch(raw_server(answer), get, library, transport)
    with pytest.raises(library.RemoteProtocolError):
        fetch(raw_server(b"nonsense\r\n\r\n"), get, library, transport)

    async def elsewhere(client: Any, url: str) -> None:
        with pytest.raises(library.ConnectError):
            await client.get("http://127.0.0.1:1/")
        with pytest.raises(library.UnsupportedProtocol):
            await client.get("ftp://127.0.0.1/")
        with pytest.raises(library.LocalProtocolError):
            await client.get(url, headers={"a": "b\r\nc: d"})

    fetch(raw_server(OK), elsewhere, library, transport)


def test_a_kept_connection_that_the_server_closed_is_replaced_unseen(raw_server: MakeServer) -> None:
    seen: list[int] = []

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        seen.append(request.connection)
        if len(seen) == 2:
            writer.transport.abort()  # closes just as the second request arrives on the kept connection
            return
        writer.write(OK)

    async def use(client: Any, url: str) -> str:
        await client.get(url)
        return (await client.get(url)).text

    assert fetch(raw_server(answer), use) == "ok"
    assert seen == [0, 0, 1]


def test_a_request_whose_reply_had_begun_is_never_sent_twice(raw_server: MakeServer) -> None:
    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            writer.write(OK)
        else:
            writer.write(b"HTTP/1.1 2")
            writer.close()

    server = raw_server(answer)

    async def use(client: Any, url: str) -> None:
        await client.get(url)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)

    fetch(server, use)
    assert len(server.requests) == 2


REPLIES = [
    ("until the end of the connection", b"HTTP/1.1 200 OK\r\n\r\nok"),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ("with Connection: close", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
]


@pytest.mark.parametrize("reply", [reply for _, reply in REPLIES], ids=[name for name, _ in REPLIES])
def test_reads_replies_that_end_the_connection(raw_server: MakeServer, reply: bytes) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    server = raw_server(answer)

    async def use(client: Any, url: str) -> list[str]:
        return [(await client.get(url)).text for _ in range(2)]

    assert fetch(server, use) == ["ok", "ok"]
    assert server.connections == 2


def test_skips_interim_replies_and_reads_bodyless_ones(raw_server: MakeServer) -> None:
    replies = {
        "GET /early": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        "HEAD /": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "GET /empty": b"HTTP/1.1 204 No Content\r\n\r\n",
        "GET /same": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        "GET /trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
        "GET /moved": b"HTTP/1.1 302 Found\r\nLocation: /early\r\nContent-Length: 0\r\n\r\n",
    }

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(replies[request.head.split(" HTTP")[0]])

    server = raw_server(answer)

    async def use(client: Any, url: str) -> list[tuple[int, str]]:
        responses = [await client.request(*name.replace("/", url + "/", 1).split(" ")) for name in replies]
        assert "link" not in responses[0].headers
        assert responses[1].headers["content-length"] == "5"
        return [(response.status_code, response.text) for response in responses]

    assert fetch(server, use) == [(200, "ok"), (200, ""), (204, ""), (304, ""), (200, "ok"), (302, "")]
    assert server.connections == 1


def test_bytes_behind_a_reply_cost_the_connection_and_not_the_reply(raw_server: MakeServer) -> None:
    server = raw_server(OK + b"HTTP/1.1 500 Unasked\r\n\r\n")

    async def use(client: Any, url: str) -> list[str]:
        return [(await client.get(url)).text for _ in range(2)]

    assert fetch(server, use) == ["ok", "ok"]
    assert server.connections == 2


def test_leaving_a_stream_early_closes_its_connection_and_frees_its_place(raw_server: MakeServer) -> None:
    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) > 1:
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nstart")
        await asyncio.sleep(30)

    server = raw_server(answer)

    async def use(client: Any, url: str) -> str:
        async with client.stream("GET", url) as response:
            async for piece in response.aiter_bytes():
                assert piece == b"start"
                break
        return (await client.get(url, timeout=httpx.Timeout(5, pool=1))).text

    assert fetch(server, use, max_connections=1) == "ok"
    assert server.connections == 2


def test_requests_beyond_max_connections_wait_and_may_time_out(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(OK)

    server = raw_server(answer)

    async def use(client: Any, url: str) -> None:
        first = asyncio.create_task(client.get(url))
        await asyncio.sleep(0.02)
        with pytest.raises(httpx.PoolTimeout):
            await client.get(url, timeout=httpx.Timeout(5, pool=0.01))
        assert (await client.get(url)).text == "ok"
        assert (await first).text == "ok"

    fetch(server, use, max_connections=1)
    assert server.connections == 1


def test_a_slow_reader_holds_the_sender_back_and_loses_nothing(raw_server: MakeServer) -> None:
    total = 16 * HIGH_WATER_BYTES
    sent = 0

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await writer.drain()

    async def use(client: Any, url: str) -> int:
        got = 0
        async with client.stream("GET", url) as response:
            async for piece in response.aiter_raw():
                if not got:
                    await asyncio.sleep(0.3)
                    assert sent < total
                got += len(piece)
        return got

    assert fetch(raw_server(answer), use) == total


def test_the_read_timeout_counts_from_the_last_byte(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        for _i in range(6):
            await asyncio.sleep(0.05)
            writer.write(b"x")

    async def use(client: Any, url: str) -> str:
        return (await client.get(url, timeout=0.2)).text

    assert fetch(raw_server(answer), use) == "xxxxxx"


def test_one_transport_serves_several_event_loops_in_turn(raw_server: MakeServer) -> None:
    transport = LeanTransport()
    for _ in range(2):

        async def main() -> str:
            async with raw_server(OK) as server:
                response = await transport.handle_async_request(httpx.Request("GET", server.url))
                body = await response.aread()
                await response.aclose()
                return body.decode()

        assert asyncio.run(main()) == "ok"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def test_speaks_tls_and_trusts_no_stranger(raw_server: MakeServer, certificate: tuple[Path, Path]) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*certificate)

    async def use(client: Any, url: str) -> list[str]:
        return [(await client.get(url.replace("http:", "https:"))).text for _ in range(2)]

    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    for verify in (trusting, False):
        server = raw_server(OK, ssl=served)
        assert fetch(server, use, verify=verify) == ["ok", "ok"]
        assert server.connections == 1
    with pytest.raises(httpx.ConnectError, match="certificate"):
        fetch(raw_server(OK, ssl=served), use)


CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
)


@both
def test_the_openai_sdk_streams_over_it(raw_server: MakeServer, library: Any, transport: Any) -> None:
    openai = pytest.importorskip("openai")
    server = raw_server(chunked(CHAT % b"Hel", CHAT % b"lo", b"data: [DONE]\n\n"))

    async def main() -> str:
        async with server:
            http_client = library.AsyncClient(transport=transport())
            async with openai.AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="k", http_client=http_client, max_retries=0
            ) as client:
                messages = [{"role": "user", "content": "hi"}]
                text = ""
                for _ in range(2):
                    stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
                    async for part in stream:
                        text += part.choices[0].delta.content or ""
                return text

    assert asyncio.run(main()) == "HelloHello"
    assert server.connections == 1
