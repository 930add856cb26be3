import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from raw_replies import STREAM_END, STREAM_HEAD, MakeServer, chunk, closing, exchange_of, hanging, whole

from llmirage_client.measure.record import Exchange, absurd_count, usage_counts
from llmirage_client.operations.preflight import probe
from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.endpoints.messages import MessagesReply
from llmirage_client.targets.endpoints.messages import chat_usage as messages_usage
from llmirage_client.targets.endpoints.protocol import ReplyReader
from llmirage_client.targets.endpoints.responses import ResponsesReply
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.httpx_transport import httpx_transport
from llmirage_client.targets.target import Call
from llmirage_client.targets.timed_transport import TimedTransport

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def token(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return chunk(b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n")


DONE = chunk(b"data: [DONE]\n\n")
GOOD_STREAM = STREAM_HEAD + token("Hel") + token("lo") + token("", "stop") + DONE + STREAM_END


def exchange_with(server: Any, empty_ok: bool = False, **options: Any) -> tuple[Exchange, Any]:
    """What HttpTarget makes of one call to the server, and the server."""
    return exchange_of(server, Call("/chat/completions", BODY, empty_ok=empty_ok), **options), server


TRANSPORTS: dict[str, Callable[[], httpx.AsyncBaseTransport]] = {
    "direct": TimedTransport,
    "httpx": lambda: httpx_transport("http://x", None, False, ssl.create_default_context()),
}
every_transport = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)


def error_of(exchange: Exchange) -> tuple[int | None, str]:
    assert exchange.error is not None
    assert exchange.error.message
    assert exchange.message is None
    assert exchange.end_s is not None
    assert exchange.start_s <= exchange.end_s
    return exchange.error.code, exchange.error.type


def test_a_streamed_reply_becomes_an_exchange(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        for piece in (STREAM_HEAD, token("Hel"), token("lo"), token("", "stop") + DONE + STREAM_END):
            writer.write(piece)
            await asyncio.sleep(0.01)

    exchange, server = exchange_with(raw_server(answer), api_key="k", headers=[("X-Team", "blue"), ("user-agent", "mine")])
    assert exchange.error is None
    assert exchange.streamed
    assert exchange.text == "Hello"
    assert exchange.message == {"role": "assistant", "content": "Hello"}
    assert exchange.status == 200
    assert len(exchange.token_s) == 2
    assert exchange.ack_s is not None
    assert exchange.end_s is not None
    assert exchange.body_s is not None
    assert exchange.ack_s <= exchange.body_s <= exchange.token_s[0]
    assert exchange.start_s < exchange.ack_s < exchange.token_s[0] < exchange.token_s[1] < exchange.end_s
    assert exchange.first_output_s == exchange.token_s[0]
    (request,) = server.requests
    assert request.head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert request.body == b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
    sent = {
        name: request.header(name)
        for name in ("Authorization", "X-Team", "User-Agent", "Accept", "Content-Type", "Accept-Encoding")
    }
    assert sent == {
        "Authorization": "Bearer k",
        "X-Team": "blue",
        "User-Agent": "mine",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
    }
    assert request.header("Host") == f"127.0.0.1:{server.port}"


def test_whether_a_reply_is_streamed_is_read_from_it_and_not_from_the_call(raw_server: MakeServer) -> None:
    body = json.dumps(
        {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    )
    exchange, _ = exchange_with(raw_server(whole(body.encode())))
    assert exchange.error is None
    assert (exchange.streamed, exchange.text, exchange.usage) == (False, "Hello", {"prompt_tokens": 1})
    assert exchange.token_s == [exchange.first_output_s]


def test_headers_of_the_target_replace_those_of_a_call_and_json_is_asked_for(raw_server: MakeServer) -> None:
    server = raw_server(GOOD_STREAM)
    call = Call("/completions", {"prompt": "\ud800é"}, {"x-a": "call", "x-b": "call"}, stream=False)
    exchange_of(server, call, headers=[("X-A", "target")])
    (request,) = server.requests
    assert [request.header(name) for name in ("x-a", "x-b", "accept")] == ["target", "call", "application/json"]
    assert request.head.lower().count("\r\nx-a:") == 1
    assert request.head.startswith("POST /v1/completions ")
    assert json.loads(request.body) == {"prompt": "\ud800é"}


async def test_many_calls_share_the_connections(raw_server: MakeServer) -> None:
    server = raw_server(GOOD_STREAM)
    async with server:
        target = HttpTarget(server.url)
        for _ in range(5):
            exchanges = await asyncio.gather(*[target.send(Call("/chat/completions", BODY)) for _ in range(4)])
            assert [exchange.text for exchange in exchanges] == ["Hello"] * 4
        await target.close()
    assert len(server.requests) == 20
    assert server.connections == 4


ERROR_BODIES = [
    (
        b'{"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}}',
        "no such model",
    ),
    (b'{"error": "plain"}', "plain"),
    (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
    (b'{"detail": "Not authenticated"}', "Not authenticated"),
    (b'{"detail": [{"loc": ["body"], "msg": "missing"}]}', '[{"loc": ["body"], "msg": "missing"}]'),
    (b"<html>\n  Bad   Gateway</html>", "<html> Bad Gateway</html>"),
    (b"", "Bad Gateway"),
]


@pytest.mark.parametrize(("body", "message"), ERROR_BODIES)
def test_a_status_that_says_failure_carries_the_server_s_words(raw_server: MakeServer, body: bytes, message: str) -> None:
    exchange, _ = exchange_with(raw_server(whole(body, "502 Bad Gateway")))
    assert error_of(exchange) == (502, "http_error")
    assert exchange.error is not None
    assert exchange.error.message == message


REPLIES = [
    (whole(b"", "307 Temporary Redirect", more="Location: http://elsewhere/v1\r\n"), 307, "redirect"),
    (whole(b"<html>hello</html>", content_type="text/html"), 200, "wrong_content_type"),
    (whole(b"{not json"), 200, "malformed_body"),
    (whole(b"[1]"), 200, "malformed_body"),
    (whole(b""), 200, "empty_response"),
    (whole(b'{"choices": [{"message": {"content": ""}}]}'), 200, "empty_response"),
    (whole(b'{"error": {"message": "no", "code": 500}}'), 500, "server_error"),
    (whole(b"\x1f\x8b", more="Content-Encoding: gzip\r\n"), 200, "wrong_content_encoding"),
    (STREAM_HEAD + token("", "stop") + DONE + STREAM_END, 200, "empty_response"),
    (STREAM_HEAD + STREAM_END, 200, "stream_ended_early"),
    (STREAM_HEAD + token("Hel") + STREAM_END, 200, "stream_ended_early"),
    (STREAM_HEAD + token("Hel") + chunk(b"data: {oops\n\n") + STREAM_END, None, "malformed_stream"),
    (STREAM_HEAD + token("Hel") + chunk(b'data: {"error": {"message": "died"}}\n\n') + STREAM_END, None, "stream_error"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", None, "protocol_error"),
    (STREAM_HEAD + token("Hel") + b"zz\r\n", 200, "protocol_error"),
]


@pytest.mark.parametrize(("reply", "code", "kind"), REPLIES)
def test_each_kind_of_bad_reply_has_its_error_type(
    raw_server: MakeServer, reply: bytes, code: int | None, kind: str
) -> None:
    exchange, _ = exchange_with(raw_server(reply))
    assert error_of(exchange) == (code, kind)
    if b"Hel" in reply:
        assert exchange.text == "Hel"
        assert len(exchange.token_s) == 1


def test_an_event_that_is_not_json_is_skipped_in_a_stream_that_ends_well(raw_server: MakeServer) -> None:
    reply = STREAM_HEAD + token("Hel") + chunk(b"data: {oops\n\n") + token("lo") + DONE + STREAM_END
    exchange, _ = exchange_with(raw_server(reply))
    assert (exchange.error, exchange.text, exchange.skipped_events) == (None, "Hello", 1)


@pytest.mark.parametrize(
    "reply",
    [
        STREAM_HEAD + token("", "stop") + DONE + STREAM_END,
        whole(b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}'),
    ],
)
def test_a_whole_reply_that_says_nothing_is_a_message_where_that_is_asked_for(raw_server: MakeServer, reply: bytes) -> None:
    exchange, _ = exchange_with(raw_server(reply), empty_ok=True)
    assert exchange.error is None
    assert exchange.message == {"role": "assistant", "content": ""}


def test_a_stream_cut_before_its_first_word_is_an_error_all_the_same(raw_server: MakeServer) -> None:
    exchange, _ = exchange_with(raw_server(STREAM_HEAD + STREAM_END), empty_ok=True)
    assert error_of(exchange) == (200, "stream_ended_early")


@pytest.mark.parametrize(("reset", "kind"), [(False, "connection_closed"), (True, "connection_reset")])
def test_a_stream_cut_by_the_connection_keeps_its_text(raw_server: MakeServer, reset: bool, kind: str) -> None:
    exchange, _ = exchange_with(raw_server(closing(STREAM_HEAD, token("Hel"), reset=reset)))
    assert error_of(exchange) == (200, kind)
    assert (exchange.text, exchange.streamed, len(exchange.token_s)) == ("Hel", True, 1)


@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_hangs_up_without_an_answer_is_an_error(raw_server: MakeServer, reset: bool) -> None:
    exchange, server = exchange_with(raw_server(closing(reset=reset)))
    assert error_of(exchange) == (None, "connection_reset" if reset else "connection_closed")
    assert len(server.requests) == 1  # only a kept connection is worth a second try


def test_a_reply_that_is_complete_but_for_its_framing_is_no_error(raw_server: MakeServer) -> None:
    exchange, _ = exchange_with(raw_server(closing(GOOD_STREAM.removesuffix(STREAM_END))))
    assert exchange.error is None
    assert exchange.text == "Hello"


def test_a_stream_without_done_but_with_a_finish_reason_is_whole(raw_server: MakeServer) -> None:
    exchange, _ = exchange_with(raw_server(STREAM_HEAD + token("Hello", "stop") + STREAM_END))
    assert (exchange.error, exchange.text) == (None, "Hello")


@pytest.mark.parametrize(("pieces", "code", "text"), [((), None, ""), ((STREAM_HEAD, token("Hel")), 200, "Hel")])
def test_a_hanging_server_times_out(raw_server: MakeServer, pieces: tuple[bytes, ...], code: int | None, text: str) -> None:
    exchange, _ = exchange_with(raw_server(hanging(*pieces)), timeout_s=0.05)
    assert error_of(exchange) == (code, "timeout")
    assert exchange.text == text
    assert exchange.end_s is not None
    assert exchange.end_s - exchange.start_s >= 0.049


def test_nobody_listening_and_no_such_host_are_told_apart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        port = taken.getsockname()[1]

        async def main() -> None:
            for url, kind in ((f"127.0.0.1:{port}", "connection_refused"), ("no-such-host.invalid:1", "dns_error")):
                target = HttpTarget(url)
                assert error_of(await target.send(Call("/chat/completions", BODY))) == (None, kind)
                assert (await probe(target)).error
                await target.close()

        asyncio.run(main())


async def test_tls_to_a_server_that_speaks_none_is_a_tls_error() -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        target = HttpTarget(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=5)
        assert error_of(await target.send(Call("/chat/completions", BODY))) == (None, "tls_error")
        await target.close()


@every_transport
async def test_cancelling_closes_the_connection(raw_server: MakeServer, transport: Any) -> None:
    begun, hung_up = asyncio.Event(), asyncio.Event()

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + token("Hel"))
        begun.set()
        while not writer.is_closing():
            await asyncio.sleep(0.005)
            writer.write(token("lo"))
        hung_up.set()

    async with raw_server(answer) as server:
        target = HttpTarget(server.url, transport=transport())
        task = asyncio.create_task(target.send(Call("/chat/completions", BODY)))
        await asyncio.wait_for(begun.wait(), 5)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(hung_up.wait(), 5)
        server.answer = closing(GOOD_STREAM)
        assert (await target.send(Call("/chat/completions", BODY))).error is None
        assert server.connections == 2
        await target.close()


@every_transport
@pytest.mark.parametrize(
    ("body", "headers"),
    [({"x": {1, 2}}, {}), ({"x": float("nan")}, {}), (BODY, {"X-A": "a\r\nB: b"}), (BODY, {"X-A": "é"})],
)
def test_what_http_and_json_lack_is_reported_and_not_sent(
    raw_server: MakeServer, body: dict[str, Any], headers: dict[str, str], transport: Any
) -> None:
    server = raw_server(GOOD_STREAM)
    exchange = exchange_of(server, Call("/chat/completions", body, headers), transport=transport())
    assert (error_of(exchange), server.requests) == ((None, "invalid_request"), [])


@pytest.mark.parametrize("header", [("a b", "x"), ("", "x"), ("X-A", "a\nb"), ("X-A", "é")])
def test_headers_that_cannot_be_sent_are_refused_at_once(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        HttpTarget("localhost:1", headers=[header])


async def test_works_on_any_httpx_transport() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://localhost:1/v1/chat/completions"
        return httpx.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n',
        )

    target = HttpTarget("localhost:1", transport=httpx.MockTransport(handler))
    exchange = await target.send(Call("/chat/completions", BODY))
    assert (exchange.text, exchange.error, len(exchange.token_s)) == ("a", None, 1)
    await target.close()


def test_a_stream_that_goes_on_after_its_end_is_an_error(raw_server: MakeServer) -> None:
    exchange, _ = exchange_with(raw_server(STREAM_HEAD + token("Hello", "stop") + DONE + token("more") + STREAM_END))
    assert error_of(exchange) == (None, "data_after_end")


@pytest.mark.parametrize(
    "usage",
    [
        {"completion_tokens": "1e23"},
        {"completion_tokens": "100000000000000000000000"},
        {"completion_tokens": "1" + "0" * 400},
        {"prompt_tokens": "-1"},
        {"prompt_tokens_details": '{"cached_tokens": -3}'},
        {"completion_tokens_details": '{"reasoning_tokens": 2.5}'},
        {"total_tokens": "NaN"},
        {"completion_tokens": "true"},
        {"completion_tokens": "[" * 900 + "]" * 900},
    ],
)
def test_a_usage_that_nobody_can_mean_is_an_error_and_not_counted(raw_server: MakeServer, usage: dict[str, str]) -> None:
    counts = ",".join(f'"{name}":{value}' for name, value in ({"prompt_tokens": "5", "total_tokens": "7"} | usage).items())
    body = '{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{' + counts + "}}"
    exchange, _ = exchange_with(raw_server(whole(body.encode())))
    assert error_of(exchange) == (200, "absurd_usage")
    assert exchange.usage is None
    assert exchange.error is not None
    assert exchange.error.message.startswith("usage says ")


def test_counts_may_be_null_and_whole_floats_and_others_may_be_anything(raw_server: MakeServer) -> None:
    usage = '{"prompt_tokens":5.0,"completion_tokens":null,"cost":-0.25,"created":1764340000,"prompt_tokens_details":null}'
    body = '{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":' + usage + "}"
    exchange, _ = exchange_with(raw_server(whole(body.encode())))
    assert exchange.error is None
    assert exchange.usage is not None
    assert usage_counts(exchange.usage) == {"usage_prompt_tokens": 5}


@pytest.mark.parametrize("field", ["input_tokens", "cache_read_input_tokens", "output_tokens"])
def test_parts_of_a_sum_do_not_hide_a_negative_one(field: str) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 30} | {field: -5}
    found = absurd_count(messages_usage(usage))
    assert found is not None
    assert found[1] == -5


def nested(count: int) -> str:
    return "[" * count + "1" + "]" * count


@pytest.mark.parametrize("depth", [300, 900, 970, 200_000])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_nested_deep_is_an_error_of_that_request(raw_server: MakeServer, depth: int, streamed: bool) -> None:
    call = '{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"},"more":' + nested(depth) + "}"
    value = '{"choices":[{"index":0,"%s":{"content":"hi","tool_calls":[%s]},"finish_reason":"stop"}]}'
    body = (value % ("delta" if streamed else "message", call)).encode()
    if streamed:
        body = STREAM_HEAD + chunk(b"data: " + body + b"\n\n") + DONE + STREAM_END

    async def main() -> list[Exchange]:
        async with raw_server(body if streamed else whole(body)) as server:
            target = HttpTarget(server.url)
            first = await target.send(Call("/chat/completions", BODY))
            second = await target.send(Call("/chat/completions", BODY | {"messages": [first.message or {}]}))
            await target.close()
            return [first, second]

    first, second = asyncio.run(main())
    assert (first.error is None) == (depth < 950)
    assert second.end_s is not None  # sent back, it is nested deeper: an error of that request, if it cannot be written


def test_an_error_nested_deep_is_told_as_text(raw_server: MakeServer) -> None:
    body = b'{"error":' + nested(200_000).encode() + b"}"
    reply = b"HTTP/1.1 500 Oh\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    exchange, _ = exchange_with(raw_server(reply + body))
    assert error_of(exchange) == (500, "http_error")


@every_transport
@pytest.mark.parametrize("pieces", [1, 500_000])
def test_a_reply_has_a_limit_of_memory(raw_server: MakeServer, pieces: int, transport: Any) -> None:
    text = b"x" * (2_000_000 // pieces)

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(text) * pieces)
        await writer.drain()

    exchange, _ = exchange_with(raw_server(answer), transport=transport(), most_reply_bytes=1 << 20)
    assert error_of(exchange) == (200, "protocol_error")
    assert exchange.error is not None
    assert exchange.error.message == "the reply has more than 1 MiB"


def test_the_timeout_holds_while_the_reply_comes(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(token("more"))
            await writer.drain()
            await asyncio.sleep(0.001)

    exchange, _ = exchange_with(raw_server(answer), timeout_s=0.2)
    assert error_of(exchange) == (200, "timeout")
    assert exchange.text.startswith("moremore")


@pytest.mark.parametrize(
    ("form", "reply"),
    [
        (ChatReply, {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": [], "function": {"name": "f"}}]}}]}),
        (ResponsesReply, {"type": "response.output_item.done", "item": {"id": {}, "type": "function_call"}}),
        (MessagesReply, {"type": "content_block_delta", "index": [], "delta": {"type": "text_delta", "text": "a"}}),
        (ResponsesReply, {"type": "response.completed", "response": {"status": "incomplete", "incomplete_details": [1]}}),
    ],
)
def test_values_of_other_types_than_the_apis_are_an_error_of_that_request(
    raw_server: MakeServer, form: type[ReplyReader], reply: dict[str, Any]
) -> None:
    body = STREAM_HEAD + chunk(b"data: " + json.dumps(reply).encode() + b"\n\n") + STREAM_END
    exchange = exchange_of(raw_server(body), Call("/chat/completions", BODY, new_reply=form))
    assert error_of(exchange)[1] in ("malformed_stream", "stream_ended_early", "empty_response")


def test_headers_without_end_are_an_error_and_not_kept(raw_server: MakeServer) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(100):
            writer.write(b"x: " + b"y" * 50_000 + b"\r\n")
            await writer.drain()

    exchange, _ = exchange_with(raw_server(answer))
    assert error_of(exchange) == (None, "protocol_error")
    assert exchange.error is not None
    assert exchange.error.message == "the headers of the reply have more than 1 MiB"


def test_the_start_is_when_the_request_leaves_and_not_when_its_body_is_written(
    raw_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0

    def slow(body: Any) -> bytes:
        nonlocal now_s
        now_s += 5.0
        return json.dumps(body).encode()

    monkeypatch.setattr("llmirage_client.targets.http.encode_body", slow)
    monkeypatch.setattr("llmirage_client.targets.http.run_clock", lambda loop: lambda: now_s)
    exchange, _ = exchange_with(raw_server(GOOD_STREAM))
    assert exchange.start_s == 105.0
