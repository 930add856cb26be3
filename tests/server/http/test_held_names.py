"""What a server keeps beyond requests is counted and bounded: names that clients give, streams, prompts that were sent."""

import asyncio
import gc
import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_asgi import MODEL, Connection, fixed_app

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.http.access import RateLimits, short_name
from llmirage_server.openai.responses import endpoint
from llmirage_server.openai.responses.socket_frames import EventFrames, SocketOutbox
from llmirage_server.service import generation
from llmirage_shared import virtual_time


def held(api: Any) -> dict[str, float]:
    text = api.request("GET", "/metrics").text
    found = re.findall(r'^llmirage:held_bytes{holder="(.*)"} (\S+)$', text, re.MULTILINE)
    return {holder: float(count) for holder, count in found}


@given(st.text(max_size=300), st.text(max_size=300))
def test_short_names_tell_names_apart_and_stay(one: str, other: str) -> None:
    one, other = one * 3, other * 3
    assert len(short_name(one)) <= 128
    assert (short_name(one) == short_name(other)) == (one == other)
    assert short_name(short_name(one)) == short_name(one)
    assert short_name(one[:100]) == one[:100]


def test_long_names_of_sessions_are_not_kept(make_api: Any) -> None:
    api = make_api(router="session", instances=2)
    api.chat(user="warm" * 100_000, max_tokens=1)
    tracemalloc.start()
    try:
        for number in range(20):
            assert api.chat(user=f"{number}" + "x" * 400_000, max_tokens=1).status_code == 200
        assert held(api)["journal"] > 8_000_000  # whole requests, up to a limit of their own
        api.request("DELETE", "/llmirage/journal")
        gc.collect()  # the requests of the client
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000  # the names have 8,000,000
    assert held(api)["routers"] == 21 * 384
    assert held(api)["journal"] == 0


def test_a_session_stays_together_by_a_long_name(make_api: Any) -> None:
    api = make_api(router="session", instances=4)
    for _ in range(5):
        for name in ("a" * 1000, "a" * 1001):
            api.chat(user=name, max_tokens=1)
    assert held(api)["routers"] == 2 * 384


def test_long_keys_are_not_kept(make_api: Any) -> None:
    api = make_api(rate_limit=1000)
    for number in range(10):
        key = {"authorization": f"Bearer {number}" + "k" * 20_000}
        body = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "prompt": "a", "max_tokens": 1}
        assert api.post("/v1/completions", body, headers=key).status_code == 200
    limits = api.app.face.limits
    assert isinstance(limits, RateLimits)
    assert max(map(len, limits._accounts)) <= 128
    assert held(api)["rate_limits"] == 10 * 1024


@pytest.mark.parametrize("most", [64 << 20, 20_000])
async def test_streams_that_nobody_reads_share_their_room(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(generation, "_MOST_ALL_PENDING", most)
    app = fixed_app()
    streams, asked = 10, {"max_tokens": 600, "ignore_eos": True}
    connections = [Connection(app, **asked) for _ in range(streams)]
    tasks = [asyncio.create_task(connection.run()) for connection in connections]
    await asyncio.sleep(0.25)
    for connection in connections:
        connection.writable.clear()
    await asyncio.sleep(60)
    held = app.held_bytes()["streams"]
    for connection in connections:
        connection.writable.set()
    await asyncio.gather(*tasks)
    held_before, after, complete = held, app.held_bytes()["streams"], [connection.complete for connection in connections]
    one_event = 400
    assert streams * 1000 < held_before <= min(most, streams * (64 << 10)) + streams * one_event
    assert after == 0
    assert all(complete)


def test_a_response_waits_for_a_websocket_that_nobody_reads() -> None:
    app = create_app(ClusterConfig(ttft_ms=200, itl_ms=10, exact_length=True, instances=1))

    async def main() -> tuple[list[int], list[str]]:
        connection = Connection(app, "/v1/responses", input="Hello", max_output_tokens=2000)
        outbox = SocketOutbox(connection.send)
        writing = asyncio.create_task(outbox.run())
        answering = asyncio.create_task(connection.run(EventFrames(outbox, None).send))
        await asyncio.sleep(0.25)
        connection.writable.clear()
        held = []
        for _ in range(2):
            await asyncio.sleep(20)  # all tokens are due
            held += [outbox.unsent_bytes, app.held_bytes()["streams"]]
        connection.writable.set()
        await answering
        await outbox.drained()
        writing.cancel()
        return held, [message["text"] for _, message in connection.messages]

    held, texts = virtual_time.run(main())
    assert all(64 << 10 < size < 3 * (64 << 10) for size in held)
    assert len(texts) > 2000
    assert texts[-1].startswith('{"type":"response.incomplete"')
    assert [json.loads(text)["sequence_number"] for text in texts] == list(range(len(texts)))


def background(app: LlmirageApp, **fields: Any) -> Connection:
    return Connection(app, "/v1/responses", **{"input": "Hello", "background": True, "stream": False, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief. " * 1000},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"input": "\U0001f600 \x01" * 300, "metadata": {"echo": "yes"}},
    ],
)
@pytest.mark.parametrize("replies", ["prose", "echo"])
def test_events_in_the_background_count_and_stay_within_what_they_took(
    monkeypatch: pytest.MonkeyPatch, replies: str, fields: dict[str, Any]
) -> None:
    app = create_app(ClusterConfig(ttft_ms=200, itl_ms=10, exact_length=True, replies=replies))
    kept: list[tuple[int, int]] = []
    end = endpoint.BackgroundRun._end

    def watched(run: Any, *last: Any) -> None:
        end(run, *last)
        kept.append((run.bytes_kept(), run.expected_bytes))

    monkeypatch.setattr(endpoint.BackgroundRun, "_end", watched)

    async def main() -> tuple[int, int]:
        await background(app, max_output_tokens=100, **fields).run()
        await asyncio.sleep(0.5)
        under_way = app.held_bytes()["background"]
        await asyncio.sleep(60)
        return under_way, app.held_bytes()["background"]

    under_way, after = virtual_time.run(main())
    [(size, expected)] = kept
    assert 0 < under_way < size <= expected < 8 * size
    assert after == 0


async def test_responses_in_the_background_without_room_for_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_MOST_BACKGROUND_BYTES", 200_000)
    app = create_app(ClusterConfig(ttft_ms=200, itl_ms=10, exact_length=True))
    connections = [background(app, max_output_tokens=100, model=MODEL) for _ in range(8)]
    for connection in connections[:7]:
        await connection.run()
    await asyncio.sleep(60)
    await connections[7].run()
    statuses = [connection.messages[0][1]["status"] for connection in connections]
    assert statuses[0] == statuses[7] == 200
    assert 503 in statuses


def test_prompts_that_a_router_has_sent_count(make_api: Any) -> None:
    api = make_api(router="prefix", instances=2)
    before = held(api)["routers"]
    api.chat("word " * 5000, max_tokens=1)
    assert held(api)["routers"] - before > 4 * 5000


@pytest.mark.parametrize(
    ("most_bytes", "code", "status"), [(1 << 20, None, 400), (96 << 20, "server_busy", 503), (96 << 20, None, 200)]
)
@pytest.mark.parametrize("body", [{"prompt": "x", "max_tokens": 40_000}, {"prompt": [1000] * 49_900, "max_tokens": 2}])
def test_long_replies_find_room_in_the_total_of_requests(
    make_api: Any, monkeypatch: pytest.MonkeyPatch, most_bytes: int, code: str | None, status: int, body: dict[str, Any]
) -> None:
    monkeypatch.setattr("llmirage_server.http.exchange._MOST_PLAN_BYTES", most_bytes)
    api = make_api(max_model_len=50_000, unread_mib=4)
    response = api.post("/v1/completions", {"model": MODEL, "n": 1 if status == 200 else 6, "ignore_eos": True, **body})
    assert response.status_code == status, response.text[:300]
    assert status == 200 or response.json()["error"]["code"] == code
    assert api.app.unread.taken == 0


def test_replies_in_progress_count() -> None:
    app = fixed_app()
    connection = Connection(app, n=2, max_tokens=1_000, ignore_eos=True, stream=True)

    async def during() -> int:
        asked = asyncio.ensure_future(connection.run())
        await asyncio.sleep(2)
        planned = app.held_bytes()["replies"]
        await asked
        return planned

    assert virtual_time.run(during()) > 2 * 1_000 * 16
    assert app.held_bytes()["replies"] == 0
