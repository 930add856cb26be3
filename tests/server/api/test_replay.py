"""`serve --replay`: when events leave, what answers a request without a recording, and what passes through an upstream."""

from __future__ import annotations

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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_server.api.relay import ForwardedRequest
from llmirage_server.api.upstream import HttpUpstream
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_shared import virtual_time

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = HELLO | {"stream": True}


def said(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()


# A role, two events of one time, a pause, the end.
EVENTS = [(100.0, said("")), (100.0, said("one")), (350.0, said(" two three four")), (350.0, b"data: [DONE]\n\n")]


def write(folder: Path, body: Any = STREAM, path: str = CHAT, ended: str | None = None, answer: bytes | None = None) -> Path:
    headers = {"content-type": "text/event-stream" if answer is None else "application/json", "retry-after": "3"}
    chunks = [Chunk(at_ms, data) for at_ms, data in EVENTS] if answer is None else [Chunk(350.0, answer)]
    return RecordingWriter(folder).write(Recording("POST", path, body, 200, headers, chunks, answer is None, ended))


def replaying(folder: Path, **settings: Any) -> LlmirageApp:
    return create_app(ClusterConfig(**({"ttft_ms": 40.0, "itl_ms": 10.0, "replay": str(folder)} | settings)))


class Sent:
    """What an application sent for one request, and when."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.times_ms: list[float] = []
        self.complete = False

    async def ask(
        self, app: ASGIApp, body: Any, path: str = CHAT, headers: Any = (), leaves_ms: float | None = None
    ) -> Sent:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await (loop.create_future() if leaves_ms is None else asyncio.sleep(leaves_ms / 1000))
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])
                return
            if message["body"]:
                self.times_ms.append(round((loop.time() - started_s) * 1000, 6))
            self.body += message["body"]
            self.complete = not message.get("more_body")

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "raw_path": b"", "query_string": b""}
        await app(scope, receive, send)
        return self


def ask(app: ASGIApp, body: Any = STREAM, path: str = CHAT, **options: Any) -> Sent:
    return virtual_time.run(Sent().ask(app, body, path, **options))


WHOLE_STREAM = b"".join(data for _, data in EVENTS)


@pytest.mark.parametrize(
    ("settings", "times_ms"),
    [
        ({"replay_timing": "recorded"}, [100.0, 350.0]),
        ({"replay_timing": "recorded", "speed": 10.0}, [10.0, 35.0]),
        ({"replay_timing": "none"}, [0.0]),
        # The first token after 40 ms, with what comes before it; then " two three four", which are 3, and the end.
        ({"replay_timing": "cluster"}, [40.0, 70.0]),
    ],
)
def test_events_leave_at_the_times_asked_for(tmp_path: Path, settings: Any, times_ms: list[float]) -> None:
    write(tmp_path)
    sent = ask(replaying(tmp_path, **settings))
    assert (sent.status, sent.complete, sent.body) == (200, True, WHOLE_STREAM)
    assert sent.times_ms == pytest.approx(times_ms)
    assert sent.headers[b"content-type"].startswith(b"text/event-stream")
    assert sent.headers[b"retry-after"] == b"3"


@pytest.mark.parametrize(("timing", "at_ms"), [("recorded", 350.0), ("none", 0.0), ("cluster", 60.0)])
def test_a_whole_response_leaves_when_it_is_complete(tmp_path: Path, timing: str, at_ms: float) -> None:
    answer = b'{"choices":[{"message":{"content":"one two three"}}]}'
    write(tmp_path, HELLO, answer=answer)
    sent = ask(replaying(tmp_path, replay_timing=timing), HELLO)
    assert (sent.body, sent.times_ms) == (answer, [pytest.approx(at_ms)])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_unknown", "stream": True}),
        ("/v1/messages", {"messages": HELLO["messages"], "max_tokens": 5, "stream": True}),
        ("/v1/embeddings", {"input": ["Hi", "Ho"]}),
        (CHAT, {"messages": "of no form that is known", "stream": True}),
    ],
)
def test_the_cluster_gives_every_api_its_time(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    body = {"model": "m", **body}
    write(tmp_path, body, path)
    sent = ask(replaying(tmp_path, replay_timing="cluster"), body, path)
    assert (sent.complete, sent.body) == (True, WHOLE_STREAM)
    assert sent.times_ms[0] == pytest.approx(40.0)


def test_a_long_stream_at_the_clusters_pace_has_no_pings_of_its_own(tmp_path: Path) -> None:
    """Nor does it end where the context of the cluster's model does: the recorded one may have a longer one."""
    events = [said(f" {number}") for number in range(2_000)]
    chunks = [Chunk(0.0, event) for event in events]
    RecordingWriter(tmp_path).write(
        Recording("POST", CHAT, STREAM, 200, {"content-type": "text/event-stream"}, chunks, True)
    )
    sent = ask(replaying(tmp_path, replay_timing="cluster", max_model_len=1_900))
    assert (sent.complete, sent.body) == (True, b"".join(events))
    assert sent.times_ms[-1] > 15_000  # pings are sent every 15 s


def test_a_response_that_was_cut_is_cut_again(tmp_path: Path) -> None:
    write(tmp_path, ended="the upstream broke off")
    sent = ask(replaying(tmp_path))
    assert (sent.body, sent.complete) == (WHOLE_STREAM, False)


def test_a_replay_ends_when_its_client_leaves(tmp_path: Path) -> None:
    write(tmp_path)
    app = replaying(tmp_path)
    sent = ask(app, leaves_ms=200.0)
    assert (sent.times_ms, sent.complete) == ([100.0], False)
    assert [(entry.outcome, entry.rule) for entry in app.service.journal.entries] == [
        ("client_left", recordings_in(tmp_path)[0].name + ".yaml")
    ]


# --- requests without a recording ---


def test_a_miss_is_an_error_that_names_the_nearest_recording(tmp_path: Path) -> None:
    write(tmp_path)
    sent = ask(replaying(tmp_path), STREAM | {"messages": [{"role": "user", "content": "Bye"}]})
    error = json.loads(sent.body)["error"]
    assert (sent.status, error["code"]) == (404, "no_recording")
    assert f"{recordings_in(tmp_path)[0].name}.yaml, differs at messages[0].content" in error["message"]


@pytest.mark.parametrize("timing", ["none", "cluster"])
def test_the_journal_says_what_was_asked_without_keys(tmp_path: Path, timing: str) -> None:
    write(tmp_path)
    app = replaying(tmp_path, replay_timing=timing)
    ask(app)
    ask(
        app,
        HELLO | {"messages": [{"role": "user", "content": "my key is 0123456789"}]},
        headers=[(b"x-api-key", b"0123456789")],
    )
    entries = [(entry.model, entry.user, entry.stream, entry.status) for entry in app.service.journal.entries]
    assert entries == [("m", "Hello", True, 200), ("m", "my key is REDACTED", False, 404)]


def test_a_miss_may_be_generated(tmp_path: Path) -> None:
    write(tmp_path)
    app = replaying(tmp_path, on_miss="generated")
    other = STREAM | {"max_tokens": 3, "messages": [{"role": "user", "content": "Bye"}]}
    compressed = gzip.compress(json.dumps(other).encode())
    sent = ask(app, compressed, headers=[(b"content-encoding", b"gzip")])
    assert (sent.status, sent.complete) == (200, True)
    assert sent.body.endswith(b"data: [DONE]\n\n")
    assert ask(app).body == WHOLE_STREAM


def test_other_endpoints_are_served_as_ever(tmp_path: Path) -> None:
    write(tmp_path)
    assert ask(replaying(tmp_path), {"prompt": "x"}, "/tokenize").status == 200


def test_a_body_that_is_not_json_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert ask(replaying(tmp_path), b"{").status == 400


def test_what_is_redacted_in_a_recording_is_redacted_in_the_request_too(tmp_path: Path) -> None:
    body = STREAM | {"messages": [{"role": "user", "content": "my key is REDACTED"}]}
    write(tmp_path, body)
    asked = STREAM | {"messages": [{"role": "user", "content": "my key is 0123456789"}]}
    headers = [(b"authorization", b"Bearer 0123456789")]
    assert ask(replaying(tmp_path), asked, headers=headers).body == WHOLE_STREAM


@pytest.mark.parametrize("deep", [100, 600, 800, 900, 950, 5000])
def test_a_request_of_any_depth_is_missed_or_refused(tmp_path: Path, deep: int) -> None:
    write(tmp_path)
    for form in (b'{"metadata":%b}', b'{"messages":%b}', b'{"messages":[{"role":"user","content":%b}]}'):
        assert ask(replaying(tmp_path), form % (b"[" * deep + b"]" * deep)).status in (400, 404)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        replaying(tmp_path / "none")
    deep = write(tmp_path)
    deep.write_text(deep.read_text().replace("content: Hello", "content: " + "[" * 2000 + "]" * 2000))
    with pytest.raises(ConfigError, match="a recording's request is nested too deep"):
        replaying(tmp_path)
    deep.unlink()
    (tmp_path / "odd.yaml").write_text("a: b")
    with pytest.raises(ConfigError, match=r"odd.yaml: is no recording"):
        replaying(tmp_path)
    with pytest.raises(ConfigError, match="--upstream"):
        replaying(tmp_path, on_miss="record")
    for url in ("api.openai.com", "ftp://x", "https://me:pw@x"):
        with pytest.raises(ConfigError, match="upstream"):
            ClusterConfig(upstream=url)


def test_no_endpoint_shows_the_key_of_the_upstream() -> None:
    app = create_app(ClusterConfig(upstream="https://x.test", upstream_key="topsecret1"))

    async def shown(path: str) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return (await client.get(path)).text

    for path in ("/server_info", "/get_server_info"):
        text = asyncio.run(shown(path))
        assert "x.test" in text
        assert "topsecret1" not in text


# --- the upstream ---


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
        sent = await Sent().ask(proxy, body, path, headers)
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
def test_what_is_nested_too_deep_for_a_file_passes_and_is_told(
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
    sent = await Sent().ask(app, STREAM)
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
        first = await Sent().ask(app, STREAM)
        app.replay.close()
        upstream.pieces = (b"changed",)
        return [first, await Sent().ask(app, STREAM)]

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
    await Sent().ask(app, body)
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


def test_a_recording_with_what_is_taken_for_a_key_today_is_found(tmp_path: Path) -> None:
    """It may be of an earlier version, or written by hand."""
    body = STREAM | {"messages": [{"role": "user", "content": "use sk-abcdefgh12345678"}]}
    write(tmp_path, body)
    assert ask(replaying(tmp_path), body).body == WHOLE_STREAM


def test_a_disk_that_is_full_does_not_end_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with caplog.at_level(logging.ERROR):
        assert record(FakeUpstream(WHOLE_STREAM), tmp_path).body == WHOLE_STREAM
    assert "No space left on device" in caplog.text
