"""`serve --replay` and `record` before an upstream: what passes through, what is recorded of it, and its failures."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from recorded import URL, proxy_before, recordings_in
from replayed import CHAT, EVENTS, HELLO, STREAM, WHOLE_STREAM, Sent, answered, ask, replaying, said
from starlette.types import ASGIApp, Receive, Scope, Send

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.http.relay import ForwardedRequest
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingWriter


class FakeUpstream:
    """Sends a response piece by piece, and keeps the request."""

    def __init__(self, *pieces: bytes, status: int = 200, headers: Any = (), cut: bool = False) -> None:
        self.pieces, self.status, self.cut = pieces, status, cut
        self.headers = [(b"content-type", b"text/event-stream"), *headers]
        self.scope: Scope = {}
        self.body = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.body = scope, (await receive())["body"]
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self.cut:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def record(
    app: ASGIApp, folder: Path, body: Any = STREAM, key: str | None = None, headers: Any = (), path: str = CHAT
) -> Sent:
    async def main() -> Sent:
        proxy = proxy_before(app, folder, key)
        sent = await answered(proxy, body, path, headers=headers)
        await proxy.close()
        return sent

    return asyncio.run(main())


def test_what_is_compressed_is_recorded_and_passed_on_plain(tmp_path: Path) -> None:
    upstream = FakeUpstream(gzip.compress(WHOLE_STREAM), headers=[(b"content-encoding", b"gzip"), (b"set-cookie", b"a=b")])
    compressed = gzip.compress(json.dumps(STREAM).encode())
    sent = record(upstream, tmp_path, compressed, headers=[(b"content-encoding", b"gzip")])
    assert (sent.body, b"content-encoding" in sent.headers) == (WHOLE_STREAM, False)
    assert sent.headers[b"set-cookie"] == b"a=b"
    assert json.loads(upstream.body) == STREAM
    assert dict(upstream.scope["headers"])[b"accept-encoding"] == b"identity"
    [recording] = recordings_in(tmp_path)
    assert (recording.body, recording.data) == (STREAM, WHOLE_STREAM)
    assert [chunk.data for chunk in recording.chunks] == [data for _, data in EVENTS]
    assert dict(recording.headers) == {"content-type": "text/event-stream"}


@pytest.mark.parametrize("status", [400, 429, 500])
def test_errors_of_the_upstream_pass_and_are_recorded(tmp_path: Path, status: int) -> None:
    error = b'{\n  "error": {"message": "no"}\n}\n'
    upstream = FakeUpstream(error, status=status, headers=[(b"content-type", b"application/json"), (b"retry-after", b"7")])
    upstream.headers.pop(0)
    assert (record(upstream, tmp_path).body, record(upstream, tmp_path).status) == (error, status)
    sent = ask(replaying(tmp_path))
    assert (sent.status, sent.body, sent.headers[b"retry-after"]) == (status, error, b"7")


@pytest.mark.parametrize(
    "given", [(b"authorization", b"Bearer mine1234"), (b"x-api-key", b"mine1234"), (b"api-key", b"mine1234")]
)
def test_the_key_for_the_upstream_takes_the_place_of_the_clients(tmp_path: Path, given: tuple[bytes, bytes]) -> None:
    upstream = FakeUpstream(said("theirs12 or mine1234"))
    record(upstream, tmp_path, key="theirs12", headers=[given])
    assert dict(upstream.scope["headers"])[given[0]] == given[1].replace(b"mine1234", b"theirs12")
    assert not any(b"theirs12" in path.read_bytes() or b"mine1234" in path.read_bytes() for path in tmp_path.iterdir())
    record(upstream, tmp_path, headers=[given])
    assert dict(upstream.scope["headers"])[given[0]] == given[1]


def test_only_exchanges_with_models_are_recorded(tmp_path: Path) -> None:
    for path in ("/v1/models", "/v1/files"):
        assert record(FakeUpstream(b"x"), tmp_path, path=path).body == b"x"
    for body in (b"not json", b"[1]", b'"x"', b"null"):
        assert record(FakeUpstream(b"x"), tmp_path, body).body == b"x"
    assert not recordings_in(tmp_path)


DEEP = b"[" * 450 + b"]" * 450


@pytest.mark.parametrize("body", [DEEP, b'{"messages":%b}' % DEEP])
def test_nesting_too_deep_for_a_file_passes_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    request: Any = HELLO if body == DEEP else body
    upstream = FakeUpstream(body)
    upstream.headers = [(b"content-type", b"application/json")]
    assert record(upstream, tmp_path, request).body == body
    assert "An exchange was not recorded: its JSON is nested too deep" in caplog.text


ODD = [
    b'{"a":"\\ud800 \\u00e9"}',
    b'{"data":"' + b"x" * 600_000 + b'"}',
    b"<html>\xff</html>",
    b'{"a":1,"a":2}',
    b'{"<<":{"yes":"no","1":"1e3","on":"2026-01-01","=":"=","":" lead","x":"~"}}',
    b'{"a":1.0,"b":1e5,"c":-0.0,"d":12345678901234567890}',
]


@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
def test_an_odd_response_is_replayed_byte_for_byte(tmp_path: Path, answer: bytes) -> None:
    upstream = FakeUpstream(answer)
    upstream.headers = [(b"content-type", b"application/json")]
    record(upstream, tmp_path, HELLO)
    assert ask(replaying(tmp_path, replay_timing="none"), HELLO).body == answer


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://api.openai.com", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
        ("https://x.test/v1beta/openai", "https://x.test/v1beta/openai/v1/chat/completions"),
    ],
)
def test_the_version_of_the_path_stands_once(url: str, asked: str) -> None:
    seen: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200)

    upstream = HttpUpstream(url, transport=httpx.MockTransport(respond))
    asyncio.run(upstream.answer(ForwardedRequest("POST", CHAT, [(b"host", b"here")], b"{}")))
    assert seen == [asked]


async def broken() -> AsyncIterator[bytes]:
    yield WHOLE_STREAM[:150]
    raise httpx.ReadError("gone")


def test_an_upstream_that_breaks_off(tmp_path: Path) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=broken())

    folder = tmp_path / "new"
    sent = asyncio.run(recorded_anew(folder, httpx.MockTransport(respond)))
    assert (sent.status, sent.body, sent.complete) == (200, WHOLE_STREAM[:150], False)
    [recording] = recordings_in(folder)
    assert (recording.ended, recording.data) == ("the upstream broke off", WHOLE_STREAM[:150])


async def recorded_anew(folder: Path, transport: httpx.AsyncBaseTransport) -> Sent:
    """A response of the upstream to a request that has no recording."""
    app = replaying(folder, on_miss="record", upstream=URL)
    assert app.replay is not None
    app.replay._upstream = HttpUpstream(URL, transport=transport)
    sent = await answered(app, STREAM)
    app.replay.close()
    return sent


def test_an_upstream_that_does_not_answer_is_a_502(tmp_path: Path) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    sent = asyncio.run(recorded_anew(tmp_path, httpx.MockTransport(respond)))
    assert sent.status == 502
    assert b"ConnectError refused" in sent.body
    assert not recordings_in(tmp_path)


def test_what_was_recorded_anew_answers_from_then_on(tmp_path: Path) -> None:
    async def main() -> list[Sent]:
        app = replaying(tmp_path, on_miss="record", upstream=URL, replay_timing="none")
        upstream = FakeUpstream(WHOLE_STREAM)
        app.replay._upstream = HttpUpstream(URL, transport=httpx.ASGITransport(upstream))
        first = await answered(app, STREAM)
        app.replay.close()
        upstream.pieces = (b"changed",)
        return [first, await answered(app, STREAM)]

    assert [sent.body for sent in asyncio.run(main())] == [WHOLE_STREAM, WHOLE_STREAM]


def test_what_is_encoded_unasked_passes_and_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No key could be found in it."""
    upstream = FakeUpstream(b"\x1b\x2a", headers=[(b"content-encoding", b"br")])
    sent = record(upstream, tmp_path)
    assert (sent.body, sent.headers[b"content-encoding"]) == (b"\x1b\x2a", b"br")
    assert not recordings_in(tmp_path)
    assert "was not recorded: it is encoded as br" in caplog.text


def test_what_counts_in_a_replay_counts_for_the_names_of_new_recordings_too(tmp_path: Path) -> None:
    """Otherwise a recording of a later run took the place of one that answers another request."""
    for temperature in (0, 1):
        upstream = FakeUpstream(b'{"temperature":%d}' % temperature, headers=[])
        app = replaying(tmp_path, on_miss="record", upstream=URL, replay_match=("messages", "temperature"))
        asyncio.run(recorded_by(app, upstream, HELLO | {"temperature": temperature}))
    app = replaying(tmp_path, replay_match=("messages", "temperature"))
    assert [ask(app, HELLO | {"temperature": value}).body[-2:] for value in (0, 1)] == [b"0}", b"1}"]


async def recorded_by(app: LlmirageApp, upstream: ASGIApp, body: Any) -> None:
    assert app.replay is not None
    app.replay._upstream = HttpUpstream(URL, transport=httpx.ASGITransport(upstream))
    await answered(app, body)
    app.replay.close()


def test_recording_again_replaces_all_recordings_of_a_request(tmp_path: Path) -> None:
    other = HELLO | {"model": "other"}
    for run, answers in enumerate(("ab", "c")):
        writer = RecordingWriter(tmp_path)
        for answer in answers:
            writer.write(Recording("POST", CHAT, HELLO, 200, {}, [Chunk(0.0, answer.encode())]))
        if not run:
            writer.write(Recording("POST", CHAT, other, 200, {}, [Chunk(0.0, b"x")]))
    assert sorted(recording.data for recording in recordings_in(tmp_path)) == [b"c", b"x"]


def test_no_endpoint_shows_the_key_of_the_upstream() -> None:
    app = create_app(ClusterConfig(upstream="https://x.test", upstream_key="topsecret1"))

    async def shown(path: str) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return (await client.get(path)).text

    for path in ("/server_info", "/get_server_info"):
        text = asyncio.run(shown(path))
        assert "x.test" in text
        assert "topsecret1" not in text


def test_a_disk_that_is_full_does_not_end_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with caplog.at_level(logging.ERROR):
        assert record(FakeUpstream(WHOLE_STREAM), tmp_path).body == WHOLE_STREAM
    assert "No space left on device" in caplog.text
