"""Several servers, failed requests that go out again, TLS, and keys."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmirage_client.commands.run import run
from llmirage_client.measure.record import Exchange, RequestError
from llmirage_client.operations.run import endpoint_of
from llmirage_client.settings.run import RunSettings, contradictions
from llmirage_client.targets.endpoint import EndpointSettings, ServersTarget, Tls, worth_retrying
from llmirage_client.targets.endpoints.responses import ResponsesReply
from llmirage_client.targets.target import Call
from llmirage_shared import virtual_time
from llmirage_shared.settings import instance_of

JSON = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(JSON), JSON)


class Scripted:
    """Fails as the script says, then succeeds; each attempt takes a second."""

    def __init__(self, *errors: tuple[int | None, str], retry_after_s: float | None = None) -> None:
        self.errors = list(errors)
        self.retry_after_s = retry_after_s
        self.starts: list[float] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, call: Call) -> Exchange:
        exchange = Exchange(start_s=self.now(), status=200)
        self.starts.append(exchange.start_s)
        await asyncio.sleep(1.0)
        if self.errors:
            status, kind = self.errors.pop(0)
            exchange.status = status
            exchange.error = RequestError(status, kind, "no")
            exchange.retry_after_s = self.retry_after_s
        exchange.end_s = self.now()
        return exchange

    async def get(self, path: str) -> tuple[int, bytes]:
        return 200, path.encode()

    async def close(self) -> None: ...


def retried(target: Scripted, retries: int, request_id: str = "r") -> Exchange:
    call = Call("/chat/completions", {}, {"X-Request-ID": request_id})
    return virtual_time.run(ServersTarget([("", target)], retries=retries).send(call))


def test_failures_are_sent_again_with_growing_pauses_and_all_time_counts() -> None:
    target = Scripted((500, "http_error"), (None, "connection_refused"), (429, "http_error"))
    exchange = retried(target, 5)
    assert (exchange.error, exchange.retries, exchange.start_s) == (None, 3, target.starts[0])
    pauses = [b - a - 1.0 for a, b in zip(target.starts, target.starts[1:], strict=False)]
    assert all(0.75 * most <= pause <= most for pause, most in zip(pauses, (0.5, 1.0, 2.0), strict=True))
    again = Scripted((500, "http_error"), (None, "connection_refused"), (429, "http_error"))
    retried(again, 5)
    assert again.starts == target.starts


def test_the_last_failure_is_the_result_when_no_attempt_is_left() -> None:
    exchange = retried(Scripted((500, "http_error"), (503, "http_error"), (500, "http_error")), 1)
    assert (exchange.error.code, exchange.retries) == (503, 1)


def test_a_server_that_names_a_time_is_asked_then() -> None:
    target = Scripted((429, "http_error"), retry_after_s=7.0)
    retried(target, 1)
    assert target.starts[1] - target.starts[0] == 8.0
    assert retried(Scripted((429, "http_error"), retry_after_s=61.0), 1).retries == 0


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, "http_error", False),
        (404, "http_error", False),
        (408, "http_error", True),
        (409, "http_error", True),
        (429, "http_error", True),
        (529, "http_error", True),
        (200, "stream_error", False),
        (200, "connection_reset", False),
        (302, "redirect", False),
        (None, "connection_refused", True),
        (None, "connection_reset", True),
        (None, "connect_timeout", True),
        (None, "timeout", False),
        (None, "tls_error", False),
        (None, "dns_error", False),
        (None, "invalid_request", False),
    ],
)
def test_what_is_sent_again(status: int | None, kind: str, again: bool) -> None:
    exchange = Exchange(start_s=0.0, status=status, error=RequestError(status, kind, "no"))
    assert worth_retrying(exchange) is again
    exchange.token_s = [1.0]  # a part of the reply was there
    assert worth_retrying(exchange) is False


def test_calls_take_turns_or_stay_with_their_conversation() -> None:
    async def urls(strategy: Any) -> list[str | None]:
        spread = ServersTarget([("a", Scripted()), ("b", Scripted())], strategy)
        exchanges = [await spread.send(Call("/x", {}, affinity_id=name)) for name in ("1", "1", "2", "1", "3", "2")]
        return [exchange.url for exchange in exchanges]

    assert virtual_time.run(urls("round_robin")) == ["a", "b", "a", "b", "a", "b"]
    assert virtual_time.run(urls("sticky")) == ["a", "a", "b", "a", "a", "b"]


def test_a_conversation_leaves_a_server_that_cannot_be_reached() -> None:
    async def urls(status: int | None) -> list[str | None]:
        servers = [("a", Scripted((status, "connection_refused"))), ("b", Scripted())]
        spread = ServersTarget(servers, "sticky", retries=1)
        return [(await spread.send(Call("/x", {}, affinity_id="1"))).url for _ in range(2)]

    assert virtual_time.run(urls(None)) == ["b", "b"]
    assert virtual_time.run(urls(503)) == ["a", "a"]


async def test_a_server_that_comes_back_is_waited_for(raw_server: Callable[..., Any]) -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(busy if len(server.requests) == 1 else OK)

    server = raw_server(answer)
    async with server:
        target = EndpointSettings(urls=(server.url,), retries=1).target()
        exchange = await target.send(Call("/chat/completions", {}, stream=False))
        await target.close()
    assert (exchange.error, exchange.retries, exchange.text) == (None, 1, "hi")


def test_both_sides_show_certificates(raw_server: Callable[..., Any], authority: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority / "ca.pem"))
    served.load_cert_chain(authority / "server.pem", authority / "server.key")

    async def error_with(tls: Tls) -> str | None:
        async with raw_server(OK, ssl=served) as server:
            target = EndpointSettings(urls=(f"https://127.0.0.1:{server.port}",), tls=tls, timeout_s=5.0).target()
            exchange = await target.send(Call("/chat/completions", {}, stream=False))
            await target.close()
            return exchange.error.type if exchange.error else None

    def error(wanted: ssl.VerifyMode, **tls: Any) -> str | None:
        served.verify_mode = wanted
        return asyncio.run(error_with(Tls(**tls)))

    ca, ours = str(authority / "ca.pem"), {"cert": str(authority / "client.pem"), "key": str(authority / "client.key")}
    assert error(ssl.CERT_NONE) == "tls_error"
    assert error(ssl.CERT_NONE, ca=ca) is None
    assert error(ssl.CERT_NONE, insecure=True) is None
    assert error(ssl.CERT_REQUIRED, ca=ca) is not None
    assert error(ssl.CERT_REQUIRED, ca=ca, **ours) is None


def test_files_that_do_not_fit_are_refused(authority: Path) -> None:
    with pytest.raises(ValueError, match=r"tls_cert .*client.pem with tls_key .*server.key"):
        Tls(cert=str(authority / "client.pem"), key=str(authority / "server.key")).context()
    with pytest.raises(ValueError, match="tls_ca nowhere: No such file"):
        Tls(ca="nowhere").context()
    assert Tls().context() is None


def settings(*arguments: str) -> RunSettings:
    with run.make_context("run", ["file", *arguments]) as context:
        return instance_of(RunSettings, context.params)


@pytest.mark.parametrize(
    ("arguments", "key", "api"),
    [
        ([], "from-openai", "chat"),
        (["--url", "https://far"], "from-openai", "chat"),
        (["--url", "http://far"], None, "chat"),
        (["--url", "localhost:1,http://far"], None, "chat"),
        (["--api-key", "mine", "--url", "http://far"], "mine", "chat"),
        (["--endpoint-type", "messages"], "from-anthropic", "messages"),
    ],
)
def test_a_key_of_the_environment_goes_only_where_nobody_reads_it(
    arguments: list[str], key: str | None, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-anthropic")
    endpoint = endpoint_of(settings(*arguments))
    assert (endpoint.api_key, endpoint.api) == (key, api)


def test_urls_may_be_repeated_or_have_commas() -> None:
    endpoint = endpoint_of(settings("--url", "a:1,b:2", "--url", "http://c"))
    assert endpoint.urls == ("http://a:1/v1", "http://b:2/v1", "http://c/v1")
    assert endpoint.url_strategy == "sticky"
    on_server = ("--endpoint-type", "responses", "--set", "context_mode=server_state", "--url", "a,b")
    assert endpoint_of(settings(*on_server)).url_strategy == "sticky"
    [problem] = contradictions(settings(*on_server, "--url-strategy", "round_robin"))
    assert problem == "context_mode server_state needs --url-strategy sticky: the history is on one server"


def test_the_key_goes_into_the_header_of_its_api(raw_server: Callable[..., Any]) -> None:
    async def sent(**options: Any) -> Any:
        async with raw_server(OK) as server:
            target = EndpointSettings(urls=(server.url,), api_key="k", **options).target()
            await target.send(Call("/chat/completions", {}, stream=False))
            await target.close()
            return server.requests[0]

    bearer = asyncio.run(sent())
    assert (bearer.header("authorization"), bearer.header("x-api-key")) == ("Bearer k", None)
    alone = asyncio.run(sent(api="messages"))
    assert (alone.header("authorization"), alone.header("x-api-key")) == (None, "k")
    assert (bearer.header("anthropic-version"), alone.header("anthropic-version")) == (None, "2023-06-01")
    assert asyncio.run(sent(api="messages", headers=(("Anthropic-Version", "new"),))).header("anthropic-version") == "new"


def test_a_conversation_is_made_once_and_its_failure_is_told(raw_server: Callable[..., Any]) -> None:
    made = b'{"id":"conv_1","object":"conversation"}'
    done = (
        b'{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"text":"hi"}]}]}'
    )
    refused = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n"

    def whole(body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def talk(able: bool) -> tuple[Any, list[Exchange]]:
        async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
            making = request.head.startswith("POST /v1/conversations ")
            writer.write(refused if making and not able else whole(made if making else done))

        async with raw_server(answer) as server:
            target = EndpointSettings(urls=(server.url,), keeps_conversations=True).target()
            calls = [Call("/responses", {"conversation": "ours"}, stream=False, new_reply=ResponsesReply) for _ in range(2)]
            exchanges = [await target.send(call) for call in calls]
            await target.close()
            return server, exchanges

    server, exchanges = asyncio.run(talk(able=True))
    assert [request.body for request in server.requests] == [b"{}"] + [b'{"conversation":"conv_1"}'] * 2
    assert [exchange.text for exchange in exchanges] == ["hi", "hi"]
    server, exchanges = asyncio.run(talk(able=False))
    assert [exchange.error.code for exchange in exchanges if exchange.error] == [501, 501]
