"""Responses over WebSocket, in process: events, lanes, contexts."""

import asyncio
import sys
from collections import Counter
from random import Random
from typing import Any

import pytest
from sockets import Socket, kinds, played
from valid_bodies import mutated, valid_bodies

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.openai.responses import websocket


def test_events_are_those_of_a_stream_over_http(api: Any) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        assert socket.accepted is not None
        assert socket.accepted["x-request-id"].startswith("req_")
        await socket.create(max_output_tokens=16)
        return await socket.response()

    events = played(talk)
    body = {"model": "m", "store": False, "input": "Hello", "max_output_tokens": 16, "stream": True}
    streamed = [line[7:] for line in api.post("/v1/responses", body).text.splitlines() if line.startswith("event: ")]
    assert kinds(events) == streamed
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "stream_id" not in str(events)
    assert events[-1]["response"]["store"] is False


def test_a_response_continues_from_the_last_one_that_only_the_connection_knows() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        usages, previous = [], None
        for text in ("My name is Ada.", "And what is yours?", "Good."):
            await socket.create(
                text, max_output_tokens=16, **({} if previous is None else {"previous_response_id": previous})
            )
            response = (await socket.response())[-1]["response"]
            first, previous = previous or response["id"], response["id"]
            usages.append(response["usage"]["input_tokens"])
        await socket.create("Older?", previous_response_id=first)
        old = await socket.response()
        return usages, old, app.store.keys("response")

    usages, [old], kept = played(talk)
    assert usages[0] < usages[1] < usages[2]
    assert (old["status"], old["error"]["code"]) == (400, "previous_response_not_found")
    assert kept == []


def test_a_stored_response_is_found_by_other_connections_and_over_http(make_api: Any) -> None:
    api = make_api()

    async def talk() -> str:
        async with Socket(api.app) as socket:
            await socket.create("One", store=True, max_output_tokens=16)
            first = (await socket.response())[-1]["response"]["id"]
        async with Socket(api.app) as socket:
            await socket.create("Two", previous_response_id=first, max_output_tokens=16)
            assert (await socket.response())[-1]["type"] == "response.incomplete"
        return first

    assert api.request("GET", f"/v1/responses/{api._runner.run(talk())}").json()["status"] == "incomplete"


def test_a_response_of_another_connection_is_not_found() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create(max_output_tokens=16)
        first = (await socket.response())[-1]["response"]["id"]
        async with Socket(app) as other:
            await other.create(previous_response_id=first)
            return await other.response()

    [event] = played(talk)
    assert event["error"]["message"].startswith("Previous response with id 'resp_")
    assert event["error"]["param"] == "previous_response_id"


def test_a_failed_continuation_of_its_lane_forgets_what_it_continued_and_a_failed_fork_does_not() -> None:
    wrong = [{"type": "function_call_output", "call_id": "call_none", "output": "?"}]

    async def talk(socket: Socket, _: Any) -> Any:
        await socket.create(max_output_tokens=16, stream_id="a")
        first = (await socket.response())[-1]["response"]["id"]
        found = []
        for lane, given in (("b", wrong), ("b", "Go on"), ("a", wrong), ("a", "Go on")):
            await socket.create(given, previous_response_id=first, stream_id=lane, max_output_tokens=16)
            last = (await socket.response())[-1]
            assert last["stream_id"] == lane
            found.append(last["type"] if last["type"] != "error" else last["error"]["message"].split()[0])
        return found

    assert played(talk) == ["No", "response.incomplete", "No", "Previous"]


def test_a_lane_is_served_in_order_and_lanes_together() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        for lane in ("a", "a", "b", None):
            await socket.create(max_output_tokens=20, stream_id=lane)
        ended, begun = [], []
        while len(ended) < 4:
            event = await socket.event()
            if event["type"] == "response.created":
                begun.append((event.get("stream_id"), asyncio.get_running_loop().time()))
            if event["type"] == "response.incomplete":
                ended.append((event.get("stream_id"), asyncio.get_running_loop().time()))
        return begun, ended

    begun, ended = played(talk)
    start_s = begun[0][1]
    assert [lane for lane, _ in begun] == ["a", "b", None, "a"]
    assert [round(at_s - start_s, 2) for _, at_s in begun] == [0, 0, 0, 0.29]
    assert [(lane, round(at_s - start_s, 2)) for lane, at_s in ended] == [
        ("a", 0.29),
        ("b", 0.29),
        (None, 0.29),
        ("a", 0.58),
    ]


def test_at_most_sixteen_responses_are_in_flight_and_the_others_wait() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        for lane in range(20):
            await socket.create(max_output_tokens=16, stream_id=f"lane-{lane}")
        most, ended = 0, 0
        while ended < 20:
            ended += (await socket.event())["type"] == "response.incomplete"
            most = max(most, len(app.service.responses.requests()))
        return most

    assert played(talk) == 16


def test_names_of_lanes_are_checked_and_counted() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        codes = []
        for name in ("", "x" * 257, "a b", 5):
            await socket.create(stream_id=name)
            [event] = await socket.response()
            assert "stream_id" not in event
            codes.append(event["error"]["code"])
        for lane in range(33):
            await socket.create(stream_id=f"l.{lane}", max_output_tokens=16)
            last = (await socket.response())[-1]
        await socket.create(max_output_tokens=16)
        return codes, last, (await socket.response())[-1]

    codes, last, unnamed = played(talk, ttft_ms=0.0)
    assert codes == ["invalid_stream_id"] * 4
    assert (last["stream_id"], last["error"]["code"]) == ("l.32", "websocket_stream_limit_reached")
    assert unnamed["type"] == "response.incomplete"


def test_a_warm_up_costs_the_prefill_and_the_next_response_finds_its_prompt_cached() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create("Read this. " * 500, generate=False, instructions="Be brief.")
        warm = await socket.response()
        first = warm[-1]["response"]
        await socket.create("Now answer.", previous_response_id=first["id"], instructions="Be brief.", max_output_tokens=16)
        return warm, (await socket.response())[-1]["response"], list(app.journal.entries)

    warm, response, entries = played(talk)
    assert kinds(warm) == ["response.created", "response.in_progress", "response.completed"]
    assert warm[-1]["response"]["output"] == []
    read = warm[-1]["response"]["usage"]
    assert read["output_tokens"] == 0
    assert read["input_tokens"] > 1500
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= read["input_tokens"] - 130
    assert [entry.output_tokens for entry in entries] == [0, 0, 16]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
def test_an_engines_dialect_counts_cached_tokens_as_its_radix_tree_has_them(dialect: Any) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        for _ in range(2):
            await socket.create("Read this. " * 200, max_output_tokens=16)
            usage = (await socket.response())[-1]["response"]["usage"]
        await socket.create(max_output_tokens=-1)
        return usage, await socket.response()

    usage, [refused] = played(talk, dialect=dialect, instances=1)
    assert 0 < usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] <= 64
    assert usage["input_tokens_details"]["cached_tokens"] < 1024  # of which the vendor reports none
    assert refused["error"]["param"] == "max_output_tokens"


def test_a_frame_with_the_context_that_it_continues_is_at_most_as_large_as_a_body() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 700_000}
        large = [{"role": "user", "content": [image]}]
        await socket.create(large, max_output_tokens=16)
        first = (await socket.response())[-1]["response"]["id"]
        await socket.create(large, previous_response_id=first, max_output_tokens=16)
        return await socket.response()

    [refused] = played(talk, max_body_mib=1)
    assert (refused["status"], refused["error"]["code"]) == (413, "request_too_large")


def test_a_full_queue_is_read_no_further_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_MOST_QUEUED", 4)

    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        for _ in range(10):
            await socket.create(max_output_tokens=16)
        await asyncio.sleep(0.05)
        waiting = socket._to_app.qsize()
        for _ in range(10):
            last = (await socket.response())[-1]
        return waiting, last["type"]

    assert played(talk) == (10 - 1 - 4, "response.incomplete")


def test_contexts_of_connections_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CACHE_MIB", 0)

    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        async with Socket(app) as other:
            ids = []
            for each in (socket, other):
                await each.create(max_output_tokens=16)
                ids.append((await each.response())[-1]["response"]["id"])
            found = []
            for each, previous in zip((socket, other), ids, strict=True):
                await each.create(previous_response_id=previous, max_output_tokens=16)
                found.append((await each.response())[-1]["type"])
            return found

    assert played(talk) == ["error", "response.incomplete"]


ENVELOPE: dict[str, Any] = {"type": "response.create", "stream_id": "a", "generate": True, "previous_response_id": None}


async def send_all(number: int, seed: int) -> Counter[str]:
    """What came of so many mutated events, by its kind."""
    random, came = Random(seed), Counter[str]()
    valid = [body for path, body in valid_bodies() if path == "/v1/responses"]
    app = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=0.0))
    async with Socket(app) as socket:
        last: str | None = None
        for _ in range(number):
            given = {key: value for key, value in ENVELOPE.items() if random.random() < 0.7}
            body = {
                **random.choice(valid),
                **given,
                "type": "response.create",
                "previous_response_id": random.choice((None, last)),
            }
            event = mutated({key: value for key, value in body.items() if key != "background"}, random)
            await socket.send(event)
            end = (await socket.response())[-1]
            assert end, (event, socket.closed)
            assert end.get("status", 400) < 500, (event, end)
            came[end["type"]] += 1
            last = end["response"]["id"] if "response" in end else last
        assert app.service.responses.metrics.errors == 0
        assert not app.service.responses.requests()
    return came


@pytest.mark.parametrize("seed", range(2))
def test_a_mutated_event_is_answered_or_refused(seed: int) -> None:
    came = asyncio.run(send_all(150, seed))
    assert came["error"] > 20
    assert came["response.completed"] + came["response.incomplete"] > 20


if __name__ == "__main__":
    print(asyncio.run(send_all(int(sys.argv[1]), int([*sys.argv, "0"][2]))))
