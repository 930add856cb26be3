"""Requests over kept connections: framing, faults, and what a server may do to a connection."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_replies import STREAM_END, STREAM_HEAD, MakeServer, chunk, closing

from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.target import Call
from llmirage_client.targets.timed_transport import Incoming, OutgoingRequest, TimedTransport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def chunked(*pieces: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunk, pieces)) + STREAM_END


@dataclass
class Reply:
    """A response, and its stream after the end."""

    response: httpx.Response
    stream: Incoming

    @property
    def body(self) -> bytes:
        return b"".join([piece for _, piece in self.stream.segments])


async def send(transport: TimedTransport, url: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    response = await transport.handle_async_request(OutgoingRequest("POST", url, headers, body, {}))
    stream = response.stream
    assert isinstance(stream, Incoming)
    await stream.collect()
    await stream.aclose()
    return Reply(response, stream)


def replies(server: Any, paths: tuple[str, ...] = ("/",), **options: Any) -> list[Reply]:
    """The replies of the server to requests one after the other, on one transport."""

    async def main() -> list[Reply]:
        transport = TimedTransport(**options)
        async with server:
            found = [await send(transport, server.url + path) for path in paths]
            await transport.aclose()
            return found

    return asyncio.run(main())


def test_bytes_of_a_chunked_reply_have_the_times_they_came(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        reply = chunked(b"data: a\n", b"\ndata: b\n\n")
        for i in range(0, len(reply), 7):
            writer.write(reply[i : i + 7])
            await asyncio.sleep(0.001)

    (arrived,) = replies(raw_server(answer))
    response, stream = arrived.response, arrived.stream
    assert (response.status_code, response.reason_phrase, arrived.body) == (200, "OK", b"data: a\n\ndata: b\n\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    times = [time_s for time_s, _ in stream.segments]
    assert times == sorted(times)
    assert len(set(times)) > 1
    assert stream.end_s is not None
    assert stream.headers_s <= times[0] <= times[-1] <= stream.end_s


async def test_connections_are_kept(raw_server: MakeServer) -> None:
    server = raw_server(OK)
    transport = TimedTransport()
    async with server:
        for body in (b"", b"one", b"two"):
            assert (await send(transport, f"{server.url}/a?b=c", body)).body == b"ok"
        await transport.aclose()
    assert [request.body for request in server.requests] == [b"", b"one", b"two"]
    assert server.requests[0].head.startswith("POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.connections == 1


def test_a_request_whose_reply_had_begun_is_never_sent_twice(raw_server: MakeServer) -> None:
    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            writer.write(OK)
        else:
            writer.write(b"HTTP/1.1 2")
            writer.close()

    server = raw_server(answer)
    with pytest.raises(httpx.RemoteProtocolError):
        replies(server, ("/", "/"))
    assert len(server.requests) == 2


REPLIES = [
    ("until the end of the connection", b"HTTP/1.1 200 OK\r\n\r\nok"),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ("with Connection: close", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
]


@pytest.mark.parametrize("reply", [reply for _, reply in REPLIES], ids=[name for name, _ in REPLIES])
def test_reads_replies_that_end_the_connection(raw_server: MakeServer, reply: bytes) -> None:
    server = raw_server(closing(reply))
    assert [(one.body, one.stream.fault) for one in replies(server, ("/", "/"))] == [(b"ok", None), (b"ok", None)]
    assert server.connections == 2


def test_skips_interim_replies_and_reads_bodyless_ones(raw_server: MakeServer) -> None:
    answers = {
        "/early": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        "/empty": b"HTTP/1.1 204 No Content\r\n\r\n",
        "/same": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        "/trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
        "/moved": b"HTTP/1.1 302 Found\r\nLocation: /early\r\nContent-Length: 0\r\n\r\n",
    }

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(answers[request.head.split(" ")[1]])

    server = raw_server(answer)
    found = replies(server, tuple(answers))
    assert [(one.response.status_code, one.body) for one in found] == [
        (200, b"ok"),
        (204, b""),
        (304, b""),
        (200, b"ok"),
        (302, b""),
    ]
    assert "link" not in found[0].response.headers
    assert server.connections == 1


def test_bytes_after_a_reply_cost_the_connection_and_not_the_reply(raw_server: MakeServer) -> None:
    server = raw_server(OK + b"HTTP/1.1 500 Unasked\r\n\r\n")
    assert [one.body for one in replies(server, ("/", "/"))] == [b"ok", b"ok"]
    assert server.connections == 2


def test_one_transport_serves_several_event_loops_in_turn(raw_server: MakeServer) -> None:
    transport = TimedTransport()
    for _ in range(2):

        async def main() -> bytes:
            async with raw_server(OK) as server:
                return (await send(transport, server.url)).body

        assert asyncio.run(main()) == b"ok"


def test_speaks_tls_and_trusts_no_stranger(raw_server: MakeServer, authority: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(authority / "server.pem", authority / "server.key")

    async def main(server: Any, context: ssl.SSLContext | None) -> list[bytes]:
        transport = TimedTransport(context)
        async with server:
            return [(await send(transport, server.url.replace("http:", "https:"))).body for _ in range(2)]

    server = raw_server(OK, ssl=served)
    trusting = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    assert asyncio.run(main(server, trusting)) == [b"ok", b"ok"]
    assert server.connections == 1
    with pytest.raises(httpx.ConnectError, match="certificate"):
        asyncio.run(main(raw_server(OK, ssl=served), None))


async def test_it_serves_a_client_of_httpx(raw_server: MakeServer) -> None:
    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        for piece in (chunked(request.body)[:-5], b"0\r\n\r\n"):
            writer.write(piece)
            await asyncio.sleep(0.01)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with raw_server(answer) as server, httpx.AsyncClient(transport=TimedTransport()) as client:
        assert (
            await client.post(server.url, content=pieces(), headers={"X-A": "\u00e9".encode("latin-1")})
        ).text == "onetwo"
        assert server.requests[0].header("transfer-encoding") is None
        async with client.stream("POST", server.url, json={}) as response:
            assert [piece async for piece in response.aiter_raw()] == [b"{}"]
        assert server.connections == 1
        with pytest.raises(httpx.ConnectError, match="nothing listens"):
            await client.get("http://127.0.0.1:1")


async def test_a_silence_within_a_body_has_the_limit_of_the_client(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await asyncio.sleep(30)

    limits = httpx.Timeout(5.0, read=0.05)
    async with raw_server(answer) as server, httpx.AsyncClient(transport=TimedTransport(), timeout=limits) as client:
        with pytest.raises(httpx.ReadTimeout, match="nothing came"):
            await client.get(server.url)


async def test_a_transport_of_the_user_s_own_may_change_what_goes_out(raw_server: MakeServer) -> None:
    class Signing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.headers["X-Signature"] = str(len(await request.aread()))
            return await inner.handle_async_request(request)

    inner = TimedTransport()
    async with raw_server(OK) as server:
        await HttpTarget(server.url, transport=Signing()).send(Call("/chat/completions", {}))
        [request] = server.requests
        assert (request.header("x-signature"), request.body) == ("2", b"{}")
        assert request.header("host") == f"127.0.0.1:{server.port}"
        await inner.aclose()


@pytest.mark.parametrize("path", ["direct", "httpx"])
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_authorities_of_the_environment_are_trusted(
    raw_server: MakeServer, authority: Path, variable: str, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(authority / "server.pem", authority / "server.key")
    name = subprocess.check_output(["openssl", "x509", "-hash", "-noout", "-in", authority / "ca.pem"], text=True).strip()
    (tmp_path / f"{name}.0").write_bytes((authority / "ca.pem").read_bytes())
    monkeypatch.setenv(variable, str(authority / "ca.pem" if variable == "SSL_CERT_FILE" else tmp_path))
    async with raw_server(OK, ssl=served) as server:
        url = f"https://127.0.0.1:{server.port}/v1"
        exchange = await EndpointSettings(urls=(url,), http2=path == "httpx").target().send(Call("/chat/completions", {}))
        assert exchange.status == 200, exchange.error
