"""Stored objects of any size: they are read, answered and counted as bodies of requests are."""

import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from api_errors import assert_error
from listening import Listening

from llmirage_server.commands.http_protocol import ConnectionLimits
from llmirage_server.http import bodies
from llmirage_server.http.byte_budget import ByteBudget

MIB = 1 << 20


def image(size: int) -> list[dict[str, Any]]:
    part = {"type": "input_image", "image_url": "data:image/png;base64,iVBO" + "A" * size}
    return [{"type": "message", "role": "user", "content": [part]}]


def asked(size: int, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": image(size), "max_output_tokens": 16} | fields


def test_a_conversation_of_large_items_costs_a_turn_what_it_adds(make_api: Callable[..., Any]) -> None:
    api = make_api(state_mib=8)
    talk = api.post("/v1/conversations", {}).json()["id"]
    added = [api.post(f"/v1/conversations/{talk}/items", {"items": image(MIB)}).json()["data"][0] for _ in range(12)]
    assert len(api.app.store.read("conversation", talk)) < 10_000
    assert api.app.store.bytes_kept() <= 8 * MIB
    newest = api.request("GET", f"/v1/conversations/{talk}/items?limit=2").json()
    assert [each["id"] for each in newest["data"]] == [each["id"] for each in reversed(added[-2:])]
    assert newest["data"][0] == added[-1]
    small = [api.post(f"/v1/conversations/{talk}/items", {"items": image(4)}).json()["data"][0] for _ in range(3)]
    page = api.request("GET", f"/v1/conversations/{talk}/items?limit=3&after={small[0]['id']}&order=asc").json()
    assert page["data"] == small[1:]
    assert_error(api.post("/v1/responses", asked(4, conversation=talk)), 404, "conversation_id", None, "state_mib")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_what_a_request_refers_to_is_at_most_as_large_as_a_body(make_api: Callable[..., Any], path: str) -> None:
    api = make_api(max_body_mib=1)
    before, statuses = None, []
    for _ in range(4):
        if path == "/v1/responses":
            body = asked(300_000, previous_response_id=before)
        else:
            source = {"type": "base64", "media_type": "image/png", "data": "iVBO" + "A" * 300_000}
            message = {"role": "user", "content": [{"type": "image", "source": source}]}
            thread = {"type": "new"} if before is None else {"type": "continue", "previous_message_id": before}
            body = {"model": "m", "messages": [message], "max_tokens": 16, "thread": thread}
        answer = api.post(path, body)
        statuses.append(answer.status_code)
        before = answer.json().get("id", before)
    assert statuses == [200, 200, 200, 413]
    assert "max_body_mib" in answer.text


URL = {"url": "data:image/png;base64,iVBO" + "A" * 3 * MIB}
SHOWN = {"role": "user", "content": [{"type": "image_url", "image_url": URL}]}
KEPT = [
    ("/v1/responses", asked(3 * MIB), "{}"),
    ("/v1/responses", asked(3 * MIB), "{}/input_items"),
    ("/v1/conversations", {"items": image(3 * MIB)}, "{}/items"),
    ("/v1/chat/completions", {"model": "m", "store": True, "max_tokens": 1, "messages": [SHOWN]}, "{}/messages"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "shown"), KEPT)
def test_a_large_object_is_read_in_a_thread(
    api: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, shown: str
) -> None:
    read: list[int] = []
    monkeypatch.setattr(
        bodies, "kept_object", lambda data, read_it=bodies.kept_object: read.append(len(data)) or read_it(data)
    )
    made = api.post(path, body).json()
    answer = api.request("GET", f"{path}/{shown.format(made['id'])}")
    assert answer.status_code == 200, answer.text
    assert len(answer.content) > 3 * MIB or shown == "{}"
    assert [size > 3 * MIB for size in read] == [True]


def unread(listening: Listening, request: bytes) -> socket.socket:
    """A client that asks and reads nothing."""
    connection = listening.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(request)
    return connection


def test_large_answers_that_nobody_reads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ByteBudget(32 * MIB)
    with Listening(ConnectionLimits(most=99, unread=budget), small_buffers=True) as listening:
        made = httpx.post(f"{listening.url}/v1/responses", json=asked(6 * MIB), timeout=30).json()
        request = f"GET /v1/responses/{made['id']}/input_items HTTP/1.1\r\nhost: a\r\n\r\n".encode()
        connections: list[socket.socket] = []
        for number in (1, 2):
            connections.append(unread(listening, request))
            until_s = time.monotonic() + 20
            while budget.taken < number * 6 * MIB and time.monotonic() < until_s:
                time.sleep(0.02)
            assert number * 6 * MIB <= budget.taken < number * 7 * MIB
        with unread(listening, request) as third:
            assert third.recv(20).startswith(b"HTTP/1.1 503")
        for connection in connections:
            connection.close()
        until_s = time.monotonic() + 20
        while budget.taken and time.monotonic() < until_s:
            time.sleep(0.02)
        assert not budget.taken


@pytest.mark.parametrize("field", ["stream", "background"])
def test_what_each_event_repeats_is_bounded(api: Any, field: str) -> None:
    for size, status in ((3 * MIB, 200), (5 * MIB, 400)):
        answer = api.post("/v1/responses", asked(4, **{field: True, "user": "x" * size}))
        assert answer.status_code == status, answer.text[:500]
