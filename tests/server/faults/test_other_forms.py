"""A fault before a reply that is not this server's own (a recording, an upstream): of whatever form, it is sent."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from faulty import new_app
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.faults.fault import FaultyConnection, InjectedFault, Message, SoFar, read_event
from llmirage_server.faults.kinds import CutFault
from llmirage_server.faults.rule import FAULTS
from llmirage_shared import virtual_time

ALTERING = [kind for name, kind in FAULTS.items() if name not in ("status", "rate_limit", "ttft")]
_KEYS = ["choices", "delta", "message", "content", "type", "response", "usage", "output", "meta_info", "finish_reason", "x"]
_TYPES = st.sampled_from(["content_block_delta", "response.output_text.delta", "response.completed", "message_delta"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | _TYPES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=10,
).map(lambda value: json.dumps(value).encode())
BODIES = JSON | st.binary(max_size=20)
EVENTS = st.tuples(
    st.sampled_from([b"", b"event: message_delta\n", b"event:x\r\n", b": ping\n"]),
    st.sampled_from([b"data: ", b"data:", b""]),
    BODIES | st.just(b"[DONE]"),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b""]),
).map(b"".join)


class Host:
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def crash(self, restart_after_s: float | None) -> None:
        pass


def sent(fault: InjectedFault, kind: bytes, pieces: list[bytes]) -> bytes:
    """What reaches the client of a response in these pieces."""
    out: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        out.append(message)

    async def main() -> None:
        connection = FaultyConnection(lambda: fault, Host(), SoFar(lambda error: error.body()), receive, send)
        await connection.send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for piece in pieces:
            await connection.send({"type": "http.response.body", "body": piece, "more_body": True})
        await connection.send({"type": "http.response.body", "body": b"", "more_body": False})
        assert connection.ended or not out[-1]["more_body"]

    virtual_time.run(main())
    return b"".join([message.get("body", b"") for message in out])


@given(st.sampled_from(ALTERING), st.lists(EVENTS, max_size=5), st.integers(1, 7))
def test_a_stream_of_any_form(kind: type[InjectedFault], events: list[bytes], size: int) -> None:
    whole = b"".join(events)
    got = sent(kind(), b"text/event-stream", [whole[at : at + size] for at in range(0, len(whole), size)])
    if kind.kind in ("stall", "slow_body", "content_type", "crash"):
        assert got == whole


@given(st.sampled_from(ALTERING), BODIES)
def test_a_body_of_any_form(kind: type[InjectedFault], body: bytes) -> None:
    got = sent(kind(), b"application/json", [body])
    if kind.kind in ("stall", "slow_body", "content_type", "crash"):
        assert got == body


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("space", [b" ", b""])
def test_events_of_another_server_are_counted(end: bytes, space: bytes) -> None:
    events = [b'data:%b{"choices": [{"delta": {"content": "%d"}}]}%b' % (space, at, end) for at in range(4)]
    assert sent(CutFault(after_tokens=2, clean=True), b"text/event-stream", events) == b"".join(events[:2])
    assert read_event(b"event:message_stop" + end).name == "message_stop"


@pytest.mark.parametrize("kind", FAULTS)
async def test_what_a_browser_asks_before_it_calls_is_answered(kind: str) -> None:
    app = new_app()
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test") as client:
        more = {"requests_per_min": 1} if kind == "rate_limit" else {}
        fault = {"kind": kind, "endpoint": "/v1/*", **more}
        (await client.post("/llmirage/faults", json=fault)).raise_for_status()
        asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
        answer: Any = await client.options("/v1/chat/completions", headers=asked)
    assert int(answer.status_code) == 200
