"""Each fault as httpx meets it: the reply differs from one without the fault in exactly what the fault says."""

import json
from functools import cache
from typing import Any

import httpx
import pytest
from faulty import ASK, BODIES, CHAT, ITL_S, TTFT_S, HttpxReply, ask, met, new_app

from llmirage_server.faults.rule import FAULTS
from llmirage_shared import virtual_time

USAGE = {"stream_options": {"include_usage": True}}
LAST_S = TTFT_S + 5 * ITL_S  # when the last of six tokens is due

ANTHROPIC = {  # https://docs.anthropic.com/en/api/errors
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@cache
def plain(path: str = CHAT, stream: bool = True) -> HttpxReply:
    return told(None, path, stream)


def told(fault: str | None, path: str = CHAT, stream: bool = True, **options: Any) -> HttpxReply:
    """The reply to a request for usage wherever a stream may have it."""
    more = USAGE if stream and path in (CHAT, "/v1/completions") else {}
    return met(fault, path, stream=stream, **more, **options)


def data(event: bytes) -> Any:
    return json.loads(event.partition(b"data: ")[2])


def content(event: bytes) -> str:
    text: str = data(event)["choices"][0]["delta"]["content"]
    return text


def test_every_fault_has_a_test_here() -> None:
    tested = {name.removeprefix("test_fault_").partition("__")[0] for name in globals() if name.startswith("test_fault_")}
    assert tested == set(FAULTS)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503, 504, 529])
def test_fault_status__in_both_forms(status: int) -> None:
    reply = met(f"status; status={status}; retry_after_s=1.5; message=No")
    assert (reply.status, reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (status, "2", "1500")
    error = json.loads(reply.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] == "No"
    anthropic = json.loads(met(f"status; status={status}", "/v1/messages").body)
    assert anthropic["type"] == "error"
    assert anthropic["error"]["type"] == ANTHROPIC.get(status, "invalid_request_error")


async def test_fault_rate_limit() -> None:
    app = new_app()
    await ask(app, path="/llmirage/faults", kind="rate_limit", requests_per_min=1)
    first, second, other = [await ask(app, key=key) for key in ("a", "a", "b")]
    assert (first.status, second.status, other.status) == (200, 429, 200)
    assert first.headers["x-ratelimit-remaining-requests"] == second.headers["x-ratelimit-remaining-requests"] == "0"
    assert second.headers["retry-after"] == "60"


@pytest.mark.parametrize("stream", [False, True])
def test_fault_ttft(stream: bool) -> None:
    reply = told("ttft; added_s=5", stream=stream)
    assert reply.body == plain(stream=stream).body
    assert [at_s for at_s, _ in reply.pieces] == pytest.approx([at_s + 5 for at_s, _ in plain(stream=stream).pieces])


@pytest.mark.parametrize("path", BODIES)
def test_fault_reset(path: str) -> None:
    before = met("reset", path)
    assert (type(before.error), before.status) == (httpx.ReadError, 0)
    middle = told("reset; after_tokens=2", path)
    assert type(middle.error) is httpx.ReadError
    assert 0 < len(middle.events) < len(plain(path).events)


@pytest.mark.parametrize("path", BODIES)
def test_fault_cut(path: str) -> None:
    reply = told("cut; after_tokens=2", path)
    assert (type(reply.error), reply.status) == (httpx.RemoteProtocolError, 200)
    assert reply.events == plain(path).events[: len(reply.events)]
    with_text = [event for event in reply.events if b"delta" in event and (b'"content":""' not in event)]
    assert len(with_text) == 2 or path == "/v1/completions"
    assert reply.took_s == pytest.approx(TTFT_S + 2 * ITL_S)


def test_fault_cut__after_bytes_and_of_a_whole_reply() -> None:
    assert len(b"".join([piece for _, piece in told("cut; after_bytes=500").pieces])) == 500
    clean = told("cut; after_bytes=500; clean=true")
    assert (len(b"".join([piece for _, piece in clean.pieces])), clean.error) == (500, None)
    whole = met("cut; after_bytes=100")
    assert type(whole.error) is httpx.RemoteProtocolError
    assert len(b"".join([piece for _, piece in whole.pieces])) == 100 < int(whole.headers["content-length"])


def test_fault_cut__clean() -> None:
    reply = told("cut; clean=true; after_tokens=3")
    assert reply.error is None
    assert reply.events == plain().events[:4]  # the first has no token


def test_fault_cut__a_shorter_reply_lacks_its_end() -> None:
    reply = told("cut; after_tokens=100")
    assert type(reply.error) is httpx.RemoteProtocolError
    assert reply.events == plain().events[:7]
    assert b'"finish_reason":null' in reply.events[-1]


def test_fault_stall() -> None:
    reply = told("stall; after_tokens=2; for_s=60")
    assert reply.body == plain().body
    gaps = [after - before for (before, _), (after, _) in zip(reply.pieces, reply.pieces[1:], strict=False)]
    assert max(gaps) == pytest.approx(60, abs=0.1)  # no pings meanwhile
    impatient = told("stall; after_tokens=2; for_s=60", timeout_s=10)
    assert type(impatient.error) is httpx.ReadTimeout
    assert impatient.events == plain().events[:3]


@pytest.mark.parametrize("stream", [False, True])
def test_fault_slow_body(stream: bool) -> None:
    reply = told("slow_body; piece_bytes=50; every_s=2", stream=stream)
    assert reply.body == plain(stream=stream).body
    assert max(len(piece) for _, piece in reply.pieces) == 50
    assert reply.took_s == pytest.approx(2 * len(reply.pieces), abs=0.2)


@pytest.mark.parametrize("path", BODIES)
def test_fault_malformed(path: str) -> None:
    reply = told("malformed; after_tokens=3", path)
    [(broken, whole)] = differing(reply, plain(path))
    assert whole.startswith(broken[:20])
    with pytest.raises(json.JSONDecodeError):
        data(broken)
    with pytest.raises(json.JSONDecodeError):
        json.loads(met("malformed", path).body)


@pytest.mark.parametrize("path", BODIES)
def test_fault_torn_utf8(path: str) -> None:
    reply = told("torn_utf8; after_tokens=3", path)
    [(torn, whole)] = differing(reply, plain(path))
    assert torn.replace(b"\xe2\x82", b"") == whole
    for body in (torn, met("torn_utf8", path).body):
        with pytest.raises(UnicodeDecodeError):
            body.decode()


@pytest.mark.parametrize("path", BODIES)
def test_fault_oversized(path: str) -> None:
    reply = told("oversized; after_tokens=3; extra_bytes=3000000", path)
    [(large, whole)] = differing(reply, plain(path))
    assert large.replace(b"x" * 3_000_000, b"") == whole
    assert len(met("oversized", path).body) == len(plain(path, stream=False).body) + 1_048_576


def test_fault_duplicate_chunk() -> None:
    events = plain().events
    assert told("duplicate_chunk; after_tokens=2").events == [*events[:4], events[3], *events[4:]]


def test_fault_error_event() -> None:
    reply = told("error_event; after_tokens=2; status=529; message=Too much")
    *sent, last = reply.events
    assert (sent, reply.error, reply.status) == (plain().events[:3], None, 200)
    assert data(last) == {"error": {"message": "Too much", "type": "server_error", "param": None, "code": "overloaded"}}


def test_fault_error_event__in_the_other_apis() -> None:
    last = met("error_event; status=529", "/v1/messages", stream=True).events[-1]
    assert last.startswith(b"event: error\n")
    assert data(last)["error"] == {"type": "overloaded_error", "message": "Overloaded."}
    failed = met("error_event; message=Broken", "/v1/responses", stream=True).events
    response = data(failed[-1])["response"]
    assert failed[-1].startswith(b"event: response.failed\n")
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "Broken"})
    assert data(failed[-1])["sequence_number"] == len(failed) - 1
    error = met("error_event; message=Broken; form=error", "/v1/responses", stream=True).events[-1]
    assert error.startswith(b"event: error\n")
    assert data(error) == {"type": "error", "code": "server_error", "message": "Broken", "param": None,
                           "sequence_number": len(failed) - 1}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_fault_missing_done(path: str) -> None:
    reply = told("missing_done", path)
    assert (reply.events, reply.error) == (plain(path).events[:-1], None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_fault_missing_usage(path: str, stream: bool) -> None:
    reply = told("missing_usage", path, stream)
    assert b'"usage"' in plain(path, stream=stream).body
    assert b'"usage"' not in reply.body
    assert len(reply.events) >= len(plain(path, stream=stream).events) - 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        (CHAT, b'"finish_reason":"length"', b'"finish_reason":"content_filter"'),
        ("/v1/completions", b'"finish_reason":"length"', b'"finish_reason":"content_filter"'),
        ("/v1/messages", b'"stop_reason":"max_tokens"', b'"stop_reason":"refusal"'),
        ("/v1/responses", b'"reason":"max_output_tokens"', b'"reason":"content_filter"'),
    ],
)
def test_fault_finish_reason(path: str, right: bytes, wrong: bytes, stream: bool) -> None:
    usual = plain(path, stream=stream).body
    assert usual.count(right) == 1
    assert told("finish_reason", path, stream).body == usual.replace(right, wrong)


def test_fault_finish_reason__of_a_response_that_is_cut() -> None:
    reply = met("finish_reason; reason=stop", "/v1/responses", stream=True)
    assert reply.events[-1].startswith(b"event: response.completed\n")
    assert data(reply.events[-1])["response"]["status"] == "completed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_fault_empty_reply(path: str, stream: bool) -> None:
    reply = told("empty_reply", path, stream)
    word = b"depends" if path == "/v1/completions" else b"efficiency"
    assert word in plain(path, stream=stream).body
    assert word not in reply.body
    assert (reply.status, reply.error) == (200, None)
    assert reply.events[-1] == plain(path).events[-1] or not stream or path == "/v1/responses"


def test_fault_empty_reply__instead_of_a_tool_call() -> None:
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    reply = met("empty_reply", tools=[tool], tool_choice="required", messages=ASK)
    [choice] = json.loads(reply.body)["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "annotations": []}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_fault_empty_body(stream: bool) -> None:
    reply = met("empty_body", stream=stream)
    assert (reply.status, reply.body, reply.error) == (200, b"", None)
    assert reply.headers.get("content-length") == (None if stream else "0")


@pytest.mark.parametrize("stream", [False, True])
def test_fault_content_type(stream: bool) -> None:
    reply = told("content_type; value=text/html", stream=stream)
    assert reply.headers["content-type"] == "text/html"
    assert reply.body == plain(stream=stream).body


@pytest.mark.parametrize(("on_crash", "whole"), [("reroute", True), ("fail", False)])
def test_fault_crash(on_crash: str, whole: bool) -> None:
    async def main() -> tuple[HttpxReply, list[str]]:
        app = new_app(on_crash=on_crash)
        reply = await ask(app, "crash; after_tokens=2; restart_after_s=30", stream=True, **USAGE)
        return reply, sorted(instance.state for instance in app.driver.snapshot())

    reply, states = virtual_time.run(main())
    assert states == ["starting", "up"]
    if whole:
        assert [content(event) for event in reply.events[:7]] == [content(event) for event in plain().events[:7]]
        assert reply.took_s == pytest.approx(LAST_S + TTFT_S, abs=0.03)  # computed again elsewhere
    else:
        assert "lost" in data(reply.events[-1])["error"]["message"]


def differing(one: HttpxReply, other: HttpxReply) -> list[tuple[bytes, bytes]]:
    """The events that are not the same."""
    return [(a, b) for a, b in zip(one.events, other.events, strict=True) if a != b]
