"""Through proxies and over HTTP/2: the same replies, times and faults as over direct connections."""

import asyncio
import json
import os
import socket
import ssl
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxies import HttpProxy, SocksProxy, http2_server
from raw_replies import STREAM_END, STREAM_HEAD, MakeServer, chunk, closing, whole

from llmirage_client.measure.record import Exchange
from llmirage_client.targets import httpx_transport as module
from llmirage_client.targets.endpoint import EndpointSettings, Tls
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.httpx_transport import HttpxTransport, httpx_transport, proxy_of, transport_notes
from llmirage_client.targets.target import Call, EndpointTarget
from llmirage_client.targets.timed_transport import TimedTransport

BODY = json.dumps({"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}).encode()
OK = whole(BODY)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


DONE = chunk(b"data: [DONE]\n\n") + STREAM_END


def call(stream: bool = False, **fields: Any) -> Call:
    return Call("/chat/completions", {"stream": stream}, stream=stream, **fields)


async def asked(target: EndpointTarget, times: int = 1) -> list[Exchange]:
    try:
        return [await target.send(call()) for _ in range(times)]
    finally:
        await target.close()


def through(url: str, proxy: str | None = None, http2: bool = False, **options: Any) -> EndpointTarget:
    """The target of a run whose environment names the proxy."""
    root = f"{url}/v1"
    proxies = {} if proxy is None else {root: proxy}
    return EndpointSettings(
        urls=(root,), proxies=proxies, http2=http2, timeout_s=10.0, connect_timeout_s=5.0, **options
    ).target()


def errors(exchanges: list[Exchange]) -> list[tuple[str, str] | None]:
    return [(one.error.type, one.error.message) if one.error else None for one in exchanges]


# --- the ways out ------------------------------------------------------------------------------------------------------


async def test_plain_http_goes_through_a_proxy_in_absolute_form(raw_server: MakeServer) -> None:
    async with raw_server(OK) as server, HttpProxy(credentials="ann:s3cret") as proxy:
        exchanges = await asked(through(server.url, f"http://ann:s3cret@127.0.0.1:{proxy.port}"), 2)
        assert [one.text for one in exchanges] == ["Hello", "Hello"]
        assert proxy.lines == [f"POST {server.url}/v1/chat/completions"] * 2
        assert server.requests[0].header("content-length") == "16"
        assert server.requests[0].body == b'{"stream":false}'


@pytest.mark.parametrize("tls_to_proxy", [False, True])
async def test_https_is_tunnelled_with_both_certificates(
    raw_server: MakeServer, authority: Path, tls_to_proxy: bool
) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority / "ca.pem"))
    served.load_cert_chain(authority / "server.pem", authority / "server.key")
    served.verify_mode = ssl.CERT_REQUIRED
    proxy_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    proxy_tls.load_cert_chain(authority / "server.pem", authority / "server.key")
    tls = Tls(ca=str(authority / "ca.pem"), cert=str(authority / "client.pem"), key=str(authority / "client.key"))
    async with raw_server(OK, ssl=served) as server, HttpProxy(ssl=proxy_tls if tls_to_proxy else None) as proxy:
        url = f"https://localhost:{server.port}"
        address = f"{'https' if tls_to_proxy else 'http'}://localhost:{proxy.port}"
        assert errors(await asked(through(url, address, tls=tls), 3)) == [None] * 3
        assert (proxy.lines, server.connections) == ([f"CONNECT localhost:{server.port}"], 1)
        [untrusted] = errors(await asked(through(url, address, tls=Tls())))
        assert untrusted is not None
        assert untrusted[0] == "tls_error"
        assert ("(the proxy)" in untrusted[1]) is tls_to_proxy
        [unknown] = errors(await asked(through(url, address, tls=Tls(ca=tls.ca))))
        assert unknown is not None
        assert unknown[0] in ("connection_reset", "connection_closed")


@pytest.mark.parametrize("credentials", ["", "ann:s3cret"])
async def test_socks_proxies_resolve_the_name(raw_server: MakeServer, credentials: str) -> None:
    async with raw_server(OK) as server, SocksProxy(credentials) as proxy:
        user = f"{credentials}@" if credentials else ""
        target = through(f"http://localhost:{server.port}", f"socks5://{user}127.0.0.1:{proxy.port}")
        assert errors(await asked(target, 2)) == [None, None]
        assert proxy.lines == [f"localhost:{server.port}"]


async def test_endpoints_and_proxies_may_have_addresses_of_ipv6(raw_server: MakeServer) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(OK)

    try:
        server = await asyncio.start_server(reply, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = server.sockets[0].getsockname()[1]
    async with raw_server(OK) as other, SocksProxy(host="::1") as socks, HttpProxy(host="::1") as proxy:
        assert errors(await asked(through(f"http://[::1]:{port}", f"socks5://[::1]:{socks.port}"))) == [None]
        assert socks.lines == [f"::1:{port}"]
        assert errors(await asked(through(other.url, f"http://[::1]:{proxy.port}"))) == [None]
        with pytest.raises(ValueError, match="httpx writes addresses of IPv6 without their brackets"):
            through(f"http://[::1]:{port}", f"http://[::1]:{proxy.port}")
    server.close()


async def streaming_app(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that streams five chunks, 10 ms apart; `written` has when each was."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.03)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for number in range(5):
        await send({"type": "http.response.body", "body": event(str(number)), "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@pytest.mark.parametrize("streams", [100, 2])
@pytest.mark.parametrize("tls", [True, False])
async def test_http2_carries_many_requests_and_none_waits_for_a_stream(authority: Path, tls: bool, streams: int) -> None:
    waiting = 0
    all_there = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal waiting
        if scope["type"] == "http":
            waiting += 1
            if waiting == 30:
                all_there.set()
            await all_there.wait()
        await streaming_app(scope, receive, send)

    async with http2_server(app, authority if tls else None, streams) as port:
        scheme = "https" if tls else "http"
        target = through(f"{scheme}://127.0.0.1:{port}", http2=True, tls=Tls(insecure=tls))
        exchanges = await asyncio.gather(*[target.send(call(stream=True)) for _ in range(30)])
        [use] = target.uses()
        await target.close()
    assert errors(exchanges) == [None] * 30
    assert {one.text for one in exchanges} == {"01234"}
    assert (use.requests, use.versions) == (30, {"HTTP/2"})


async def test_connections_of_http2_are_replaced_before_their_server_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REQUESTS", 8)
    async with http2_server(streaming_app, requests=20) as port:
        target = through(f"http://127.0.0.1:{port}", http2=True)
        sending = []
        for _ in range(60):  # some are in the middle of their reply at any time
            sending.append(asyncio.create_task(target.send(call(stream=True))))
            await asyncio.sleep(0.005)
        assert errors(await asyncio.gather(*sending)) == [None] * 60
        await target.close()


async def test_http2_falls_back_where_the_server_chooses_otherwise(raw_server: MakeServer, authority: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(authority / "server.pem", authority / "server.key")
    async with raw_server(OK, ssl=served) as server:
        target = through(f"https://127.0.0.1:{server.port}", http2=True, tls=Tls(insecure=True))
        assert errors(await asyncio.gather(*[target.send(call()) for _ in range(4)])) == [None] * 4
        await target.close()
        assert transport_notes(target.uses())[1] == "http2: the server chose HTTP/1.1."


async def test_http2_goes_through_a_tunnel(authority: Path) -> None:
    async with http2_server(streaming_app, authority) as port, HttpProxy() as proxy:
        target = through(f"https://127.0.0.1:{port}", f"http://127.0.0.1:{proxy.port}", True, tls=Tls(insecure=True))
        exchange = await target.send(call(stream=True))
        await target.close()
        assert (exchange.text, target.uses()[0].versions) == ("01234", {"HTTP/2"})


@pytest.mark.parametrize("beside", [0, 1])
async def test_a_request_given_up_over_http2_ends_with_its_connection(beside: int) -> None:
    left: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith("long"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                pass
            left.append("gone")
        else:
            await streaming_app(scope, receive, send)

    async with http2_server(app) as port:
        target = through(f"http://127.0.0.1:{port}", http2=True)
        assert errors([await target.send(call(stream=True))]) == [None]
        long = asyncio.create_task(target.send(Call("/long", {})))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(target.send(call(stream=True))) for _ in range(beside)]
        await asyncio.sleep(0.02)
        long.cancel()
        await asyncio.wait([long])
        assert left == []
        assert errors(await asyncio.gather(*others)) == [None] * beside
        await asyncio.sleep(0.05)
        assert left == ["gone"]
        assert errors([await target.send(call(stream=True))]) == [None]
        await target.close()
        told = [note.partition(".")[0] for note in transport_notes(target.uses())[1:]]
    assert told == ["Requests over HTTP/2 that were given up: 1"] * beside


# --- time stamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["direct", "proxy", "socks"])
async def test_stamps_are_those_of_the_bytes_within_five_milliseconds(raw_server: MakeServer, way: str) -> None:
    """Server and client have one clock and one loop here: a stamp is after the write, by what the way takes."""
    written_s: list[float] = []
    sent_s: list[float] = []

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        for part in [STREAM_HEAD, *[chunk(event("x"))] * 10, DONE]:
            await asyncio.sleep(0.02)
            written_s.append(time.monotonic())
            writer.write(part)

    async with raw_server(answer) as server, HttpProxy() as http, SocksProxy() as socks:
        proxies = {"direct": None, "proxy": f"http://127.0.0.1:{http.port}", "socks": f"socks5://127.0.0.1:{socks.port}"}
        target = through(server.url, proxies[way])
        exchange = await target.send(call(stream=True, on_sent=lambda: sent_s.append(time.monotonic())))
        await target.close()
    assert exchange.ack_s is not None
    assert exchange.end_s is not None
    assert (exchange.body_s is None) == (way != "direct")  # who stamps no reads of a socket does not know
    stamps_s = [exchange.ack_s, *exchange.token_s, exchange.end_s]
    assert len(stamps_s) == len(written_s) == 12
    late_s = [stamp - written for stamp, written in zip(stamps_s, written_s, strict=True)]
    assert min(late_s) > 0
    assert statistics.median(late_s) < 0.005
    [sent] = sent_s
    assert exchange.start_s < sent < written_s[0]


# --- faults ------------------------------------------------------------------------------------------------------------


def plain(url: str) -> HttpxTransport:
    """httpx's transport on the way that TimedTransport takes."""
    return httpx_transport(url, None, False, ssl.create_default_context())


FAULTS: dict[str, Any] = {
    "closed before a reply": closing(),
    "reset before a reply": closing(reset=True),
    "closed within the headers": closing(STREAM_HEAD[:30]),
    "closed within a stream": closing(STREAM_HEAD, chunk(event("a"))),
    "reset within a stream": closing(STREAM_HEAD, chunk(event("a")), reset=True),
    "closed within a body of known length": closing(OK[:-3]),
    "nonsense": b"nonsense\r\n\r\n",
    "nonsense within the framing": STREAM_HEAD + chunk(event("a")) + b"zz\r\n",
    "a status": b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nRetry-After: 2\r\n\r\nbusy",
    "interim replies": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
    "until the end of the connection": closing(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + BODY),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_the_same_on_both_paths(raw_server: MakeServer, name: str) -> None:
    async def found(transport: httpx.AsyncBaseTransport) -> tuple[Any, ...]:
        async with raw_server(FAULTS[name]) as server:
            target = HttpTarget(server.url, transport=transport, timeout_s=5.0)
            [exchange] = await asked(target)
            error = None if exchange.error is None else (exchange.error.code, exchange.error.type)
            return error, exchange.text, exchange.retry_after_s, server.connections

    direct, ours = asyncio.run(found(TimedTransport())), asyncio.run(found(plain("http://x")))
    assert ours == direct


async def test_who_cannot_be_reached_is_told_alike() -> None:
    async def found(url: str, transport: httpx.AsyncBaseTransport) -> tuple[str, str] | None:
        return errors(await asked(HttpTarget(url, transport=transport, connect_timeout_s=0.5)))[0]

    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    taken = [socket.socket() for _ in range(3)]
    for one in taken:
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    hanging = f"http://127.0.0.1:{full.getsockname()[1]}"
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid", hanging, f"https://127.0.0.1:{port}"):
        assert await found(url, plain(url)) == await found(url, TimedTransport()), url
    silent.close()
    for one in [*taken, full]:
        one.close()


@pytest.mark.parametrize("make", [plain, lambda _: TimedTransport()], ids=["httpx", "direct"])
async def test_a_kept_connection_that_the_server_closed_is_replaced_unseen(raw_server: MakeServer, make: Any) -> None:
    seen: list[int] = []
    sent = 0

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        seen.append(request.connection)
        if len(seen) in (2, 3):
            writer.transport.abort()
        else:
            writer.write(OK)

    def count() -> None:
        nonlocal sent
        sent += 1

    async with raw_server(answer) as server:
        target = HttpTarget(server.url, transport=make(server.url))
        exchanges = [await target.send(call(on_sent=count)) for _ in range(3)]
        await target.close()
        first, second, third = errors(exchanges)
    assert (first, third) == (None, None)
    assert second is not None  # the connection of its second try was new: what is lost there is the request's fault
    assert second[0] == "connection_closed"
    assert seen == [0, 0, 1, 2]
    assert sent == 4


PROXY_FAULTS = {
    "407": ({"credentials": "ann:other"}, "407 Proxy Authentication Required"),
    "502": ({"refusal": "502 Bad Gateway"}, "502 Bad Gateway"),
}


@pytest.mark.parametrize("name", PROXY_FAULTS)
async def test_a_proxy_that_refuses_is_named_without_its_credentials(raw_server: MakeServer, name: str) -> None:
    options, said = PROXY_FAULTS[name]
    async with raw_server(OK) as server, HttpProxy(**options) as proxy:
        address = f"http://ann:s3cret@127.0.0.1:{proxy.port}"
        [tunnel] = errors(await asked(through(f"https://localhost:{server.port}", address)))
        assert tunnel == ("connection_error", f"127.0.0.1:{proxy.port} (the proxy) refused the connection: {said}")
        [exchange] = await asked(through(server.url, address))
        assert exchange.error is not None
        assert (exchange.error.code, exchange.error.type) == (int(name), "http_error")
        assert server.requests == []


async def test_a_proxy_that_is_not_there_or_does_not_speak_is_named(raw_server: MakeServer) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with other, raw_server(OK) as server:
        here = f"127.0.0.1:{port} (the proxy)"
        for scheme, url in (("http", server.url.replace("http:", "https:")), ("socks5", server.url)):
            [error] = errors(await asked(through(url, f"{scheme}://127.0.0.1:{port}")))
            assert error is not None
            assert error[0] == "connection_error", error
            assert here in error[1]
            [error] = errors(await asked(through(url, f"{scheme}://127.0.0.1:1")))
            assert error == ("connection_refused", "nothing listens at 127.0.0.1:1 (the proxy)")
            [error] = errors(await asked(through(url, f"{scheme}://no-such-host.invalid:1")))
            assert error == ("dns_error", "cannot resolve the host name of no-such-host.invalid:1 (the proxy)")


@pytest.mark.parametrize("reply", [1, 2, 5])
async def test_a_socks_proxy_that_refuses_is_named(raw_server: MakeServer, reply: int) -> None:
    async with raw_server(OK) as server, SocksProxy(reply=reply) as refusing, SocksProxy("ann:other") as wanting:
        for proxy in (refusing, wanting):
            [error] = errors(await asked(through(server.url, f"socks5://ann:s3cret@127.0.0.1:{proxy.port}")))
            assert error is not None
            assert error[0] == "connection_error"
            assert f"127.0.0.1:{proxy.port} (the proxy)" in error[1]
            assert "s3cret" not in error[1]


@pytest.mark.parametrize("kind", [HttpProxy, SocksProxy])
async def test_a_proxy_that_dies_in_a_stream_leaves_what_came(raw_server: MakeServer, kind: Any) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event("a")))
        await asyncio.sleep(0.05)
        proxy.die()

    async with raw_server(answer) as server, kind() as proxy:
        scheme = "http" if kind is HttpProxy else "socks5"
        target = through(server.url, f"{scheme}://127.0.0.1:{proxy.port}")
        exchange = await target.send(call(stream=True))
        await target.close()
    assert exchange.error is not None
    assert exchange.error.type in ("connection_closed", "connection_reset")
    assert exchange.text == "a"


async def test_a_server_that_speaks_no_http2_is_told() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    found = errors(await asked(through(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", http2=True)))
    server.close()
    [error] = found
    assert error is not None
    assert error[0] == "protocol_error"
    assert error[1].endswith("closed the connection without a word of HTTP/2")


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "proxy", "http2", "message"),
    [
        ("socksio", "socks5://p:1", False, "socksio: pip install 'llmirage[socks]'"),
        ("h2", None, True, "h2: pip install 'llmirage[http2]'"),
        ("", "http://p:1", True, "carries HTTP/1.1 alone to http://far/v1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    missing: str, proxy: str | None, http2: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else True)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        through("http://far", proxy, http2)
    assert message in str(caught.value)


# --- which proxy -------------------------------------------------------------------------------------------------------


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("", "http://localhost:8000/v1", False),
        ("localhost", "http://localhost:8000/v1", True),
        ("*", "https://api.example.com/v1", True),
        ("example.com", "https://api.example.com/v1", True),
        ("example.com", "https://notexample.com/v1", False),
        (".example.com", "https://example.com/v1", False),
        (" .example.com , x", "https://api.example.com/v1", True),
        ("EXAMPLE.com", "https://api.example.com/v1", True),
        ("10.0.0.0/8", "http://10.1.2.3/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("10.0.0.0/8", "http://10.example.com/v1", False),
        ("::1", "http://[::1]:8000/v1", True),
        ("[fd00::]/8", "http://[fd12::1]/v1", True),
        ("example.com:8443", "https://example.com:8443/v1", True),
        ("example.com:8443", "https://example.com/v1", False),
        ("example.com:443", "https://example.com/v1", True),
        ("http://example.com", "https://example.com/v1", False),
        ("https://example.com", "https://example.com/v1", True),
    ],
)
def test_no_proxy(no_proxy: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, ALL_PROXY="http://proxy:3128", NO_PROXY=no_proxy)
    assert (proxy_of(url) is None) is direct


HOSTS = ["localhost", "example.com", "api.example.com", "a.localhost", "127.0.0.1", "10.0.0.7", "[::1]", "example.com.evil"]
ENTRIES = [
    "localhost",
    "example.com",
    ".example.com",
    "com",
    "127.0.0.1",
    "::1",
    "example.com:8080",
    "*",
    "https://example.com",
]


@given(
    st.sampled_from(["http", "https"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":8080"]),
    st.lists(st.sampled_from(ENTRIES), max_size=4),
    st.dictionaries(st.sampled_from(["HTTP_PROXY", "https_proxy", "ALL_PROXY"]), st.sampled_from(["http://p:1", "q:2"])),
)
def test_the_environment_means_what_it_means_to_httpx(
    scheme: str, host: str, port: str, entries: list[str], proxies: dict[str, str]
) -> None:
    url = f"{scheme}://{host}{port}/v1"
    with pytest.MonkeyPatch.context() as monkeypatch:
        environment(monkeypatch, **proxies, NO_PROXY=",".join(entries))
        ours, client = proxy_of(url), httpx.Client(verify=False)
    pool: Any = client._transport_for_url(httpx.URL(url))._pool  # type: ignore[attr-defined]
    theirs = getattr(pool, "_proxy_url", None)
    assert (theirs is None) is (ours is None)
    if theirs is not None:
        assert ours == f"http://{theirs.host.decode()}:{theirs.port}"


@pytest.mark.parametrize("value", ["ftp://ann:s3cret@p:1", "http://", "http://ann:s3cret@p:port", "socks4://p"])
def test_what_is_no_proxy_is_refused_without_its_credentials(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, http_proxy=value)
    with pytest.raises(ValueError, match=r"^HTTP_PROXY is not the URL of a proxy") as caught:
        proxy_of("http://far/v1")
    assert "s3cret" not in str(caught.value)
    assert proxy_of("https://far/v1") is None
