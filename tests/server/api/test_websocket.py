"""Responses over WebSocket, in process: events, lanes, contexts, errors, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sockets import Socket

from llmirage_server.api.responses import websocket
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.faults.rule import read_rules
from llmirage_shared import virtual_time
from llmirage_shared.yaml_lines import node_of

Talk = Callable[..., Any]


def played(
    talk: Talk, headers: Any = None, prepare: Callable[[LlmirageApp], Any] = lambda app: None, **settings: Any
) -> Any:
    """What a talk over one connection comes to, in virtual time."""

    async def play() -> Any:
        app = create_app(ClusterConfig(**({"ttft_ms": 100.0, "itl_ms": 10.0} | settings)))
        prepare(app)
        async with Socket(app) as socket:
            return await talk(socket, app)

    return virtual_time.run(play())


def order(*faults: Any) -> Callable[[LlmirageApp], None]:
    return lambda app: app.service.faults.add(
        read_rules(node_of(list(faults)), "faults", lambda *told: pytest.fail(str(told)))
    )


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_events_are_those_of_a_stream_over_http(api: Any) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        assert socket.accepted is not None
        assert socket.accepted["x-request-id"].startswith("req_")
        await socket.create(max_output_tokens=5)
        return await socket.response()

    events = played(talk)
    body = {"model": "m", "store": False, "input": "Hello", "max_output_tokens": 5, "stream": True}
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
                text, max_output_tokens=4, **({} if previous is None else {"previous_response_id": previous})
            )
            response = (await socket.response())[-1]["response"]
            first, previous = previous or response["id"], response["id"]
            usages.append(response["usage"]["input_tokens"])
        await socket.create("Older?", previous_response_id=first)
        old = await socket.response()
        return usages, old, app.service.state.all("response")

    usages, [old], kept = played(talk)
    assert usages[0] < usages[1] < usages[2]
    assert (old["status"], old["error"]["code"]) == (400, "previous_response_not_found")
    assert kept == []


def test_a_stored_response_is_found_by_other_connections_and_over_http(make_api: Any) -> None:
    api = make_api()

    async def talk() -> str:
        async with Socket(api.app) as socket:
            await socket.create("One", store=True, max_output_tokens=4)
            first = (await socket.response())[-1]["response"]["id"]
        async with Socket(api.app) as socket:
            await socket.create("Two", previous_response_id=first, max_output_tokens=4)
            assert (await socket.response())[-1]["type"] == "response.incomplete"
        return first

    assert api.request("GET", f"/v1/responses/{api._runner.run(talk())}").json()["status"] == "incomplete"


def test_a_response_of_another_connection_is_not_found() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create(max_output_tokens=4)
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
        await socket.create(max_output_tokens=4, stream_id="a")
        first = (await socket.response())[-1]["response"]["id"]
        found = []
        for lane, given in (("b", wrong), ("b", "Go on"), ("a", wrong), ("a", "Go on")):
            await socket.create(given, previous_response_id=first, stream_id=lane, max_output_tokens=4)
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
            await socket.create(max_output_tokens=10, stream_id=f"lane-{lane}")
        most, ended = 0, 0
        while ended < 20:
            ended += (await socket.event())["type"] == "response.incomplete"
            most = max(most, len(app.service.requests_under_way()))
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
            await socket.create(stream_id=f"l.{lane}", max_output_tokens=1)
            last = (await socket.response())[-1]
        await socket.create(max_output_tokens=1)
        return codes, last, (await socket.response())[-1]

    codes, last, unnamed = played(talk, ttft_ms=0.0)
    assert codes == ["invalid_stream_id"] * 4
    assert (last["stream_id"], last["error"]["code"]) == ("l.32", "websocket_stream_limit_reached")
    assert unnamed["type"] == "response.incomplete"


def test_a_warm_up_costs_the_prefill_and_the_next_response_finds_its_prompt_cached() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create("Read this. " * 50, generate=False, instructions="Be brief.")
        warm = await socket.response()
        first = warm[-1]["response"]
        await socket.create("Now answer.", previous_response_id=first["id"], instructions="Be brief.", max_output_tokens=3)
        return warm, (await socket.response())[-1]["response"], list(app.service.journal.entries)

    warm, response, entries = played(talk)
    assert kinds(warm) == ["response.created", "response.in_progress", "response.completed"]
    assert warm[-1]["response"]["output"] == []
    read = warm[-1]["response"]["usage"]
    assert read["output_tokens"] == 0
    assert read["input_tokens"] > 150
    assert response["usage"]["input_tokens_details"]["cached_tokens"] > 150
    assert [entry.output_tokens for entry in entries] == [0, 0, 3]


@pytest.mark.parametrize(
    ("sent", "param", "told"),
    [
        ("{", None, "We could not parse"),
        ("[]", None, "must be an object"),
        (b"{}", None, "text frames"),
        ({}, "type", "Missing required parameter: 'type'."),
        ({"type": 5}, "type", "expected a string"),
        ({"type": "response.cancel"}, "type", "Supported values are: 'response.create' and 'response.steer'."),
        ({"type": "response.create", "input": "x"}, "model", "Missing required parameter: 'model'."),
        ({"type": "response.create", "model": "m"}, "input", "Missing required parameter: 'input'."),
        ({"type": "response.create", "model": "m", "input": "x", "generate": 1}, "generate", "expected a boolean"),
        ({"type": "response.create", "model": "m", "input": "x", "background": True}, "background", "not supported over"),
        ({"type": "response.create", "model": "m", "input": "x", "nonsense": 1}, "nonsense", "Unknown parameter"),
        ({"type": "response.create", "model": "m", "input": "x", "generate": False, "top_p": 3}, "top_p", "maximum"),
    ],
)
def test_what_cannot_be_served_is_an_error_event_and_the_connection_goes_on(sent: Any, param: Any, told: str) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await socket.send(sent)
        [event] = await socket.response()
        await socket.create(max_output_tokens=2)
        return event, (await socket.response())[-1]["type"]

    event, last = played(talk)
    assert set(event) == {"type", "status", "error"}
    assert event["status"] == 400
    assert isinstance(event["error"]["code"], str)  # the Open Responses document has no errors without one
    assert event["error"]["param"] == param
    assert told in event["error"]["message"]
    assert last == "response.incomplete"


def test_steering_is_refused_as_for_models_that_cannot_be_steered() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await socket.send({"type": "response.processed", "response_id": "resp_1"})
        await socket.send({"type": "response.steer", "previous_response_id": "resp_1", "input": "Stop."})
        return await socket.event()

    event = played(talk)
    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == "steering_not_supported"
    assert event["steer"] == {"previous_response_id": "resp_1", "input": "Stop."}


def test_what_leaves_frees_the_cluster() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        for lane in ("a", "b", "b"):
            await socket.create(max_output_tokens=2000, stream_id=lane)
        while (await socket.event())["type"] != "response.output_text.delta":
            pass
        busy = len(app.service.requests_under_way())
        socket.leave()
        await asyncio.sleep(0.1)
        return busy, len(app.service.requests_under_way()), [entry.outcome for entry in app.service.journal.entries]

    assert played(talk) == (2, 0, ["complete", "client_left", "client_left"])


def test_a_connection_ends_at_its_limit_after_the_response_in_progress() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await asyncio.sleep(29.9)
        await socket.create(max_output_tokens=30, stream_id="a")
        await asyncio.sleep(0.15)
        await socket.create(stream_id="b")
        refused = await socket.event()
        while refused["type"] != "error":
            refused = await socket.event()
        rest = await socket.response()
        return refused, rest[-1], await socket.event(), await socket.event(), socket.closed

    refused, ended, last, end, code = played(talk, websocket_limit_s=30.0)
    assert refused["error"]["code"] == last["error"]["code"] == "websocket_connection_limit_reached"
    assert last["error"]["message"].startswith("Responses websocket connection limit reached (30 s).")
    assert ended["type"] == "response.incomplete"
    assert (end, code) == ({}, 1001)


def test_the_usual_limit_is_an_hour() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await asyncio.sleep(3599)
        await socket.create(max_output_tokens=1)
        await socket.response()
        await asyncio.sleep(1)
        return await socket.event()

    assert "(60 minutes)" in played(talk)["error"]["message"]


def test_upgrades_are_refused_with_426_where_no_connections_are_wanted() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        return socket.refused

    status, headers, error = played(talk, websocket_limit_s=0.0)
    assert (status, error["code"], headers["upgrade"]) == (426, "websocket_not_supported", "HTTP/1.1")


def test_an_upgrade_over_plain_http_is_a_426_and_any_other_get_a_405(api: Any) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
    assert api.request("GET", "/v1/responses", headers=upgrade).status_code == 426
    assert api.request("GET", "/v1/responses").status_code == 405


def test_the_key_is_asked_for_once_and_other_paths_take_no_connections() -> None:
    async def play() -> Any:
        app = create_app(ClusterConfig(api_key=("sk-right",)))
        async with Socket(app) as none, Socket(app, headers={"authorization": "Bearer sk-right"}) as right:
            await right.create(max_output_tokens=1)
            served = (await right.response())[-1]["type"]
        async with Socket(app, "/v1/chat/completions") as elsewhere:
            return none.refused, served, elsewhere.accepted

    refused, served, elsewhere = virtual_time.run(play())
    assert refused[0] == 401
    assert (served, elsewhere) == ("response.incomplete", None)


def test_the_journal_has_each_response_with_its_tokens() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create("Hello there", max_output_tokens=3)
        await socket.response()
        await socket.send("{")
        await socket.response()
        return [entry.shown() for entry in app.service.journal.entries]

    upgrade, response, error = played(talk)
    assert (upgrade["method"], upgrade["status"], upgrade["outcome"]) == ("GET", 101, "complete")
    assert (response["method"], response["path"], response["status"]) == ("WS", "/v1/responses", 200)
    assert (response["user"], response["output_tokens"], response["stream"]) == ("Hello there", 3, True)
    assert response["ttft_s"] == pytest.approx(0.1)
    assert error["status"] == 400


def test_rate_limits_are_errors_with_the_headers_that_clients_look_for() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        for _ in range(2):
            await socket.create(max_output_tokens=1)
            last = (await socket.response())[-1]
        return last

    event = played(talk, rate_limit=1)
    assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(event["headers"]["retry-after"]) > 0
    assert event["error"]["headers"] == event["headers"]
    assert event["headers"]["x-ratelimit-limit-requests"] == "1"


def test_a_server_that_ends_says_so_to_its_responses_and_refuses_others() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create(max_output_tokens=2000, stream_id="a")
        while (await socket.event())["type"] != "response.output_text.delta":
            pass
        app.service.close()
        last = (await socket.response())[-1]
        await socket.create()
        return last, (await socket.response())[-1]

    last, refused = played(talk)
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_shutdown")
    assert (refused["status"], refused["error"]["code"]) == (503, "server_shutdown")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "status", "status": 503, "times": 1}, "error"),
        ({"kind": "error_event", "after_tokens": 2, "form": "error", "times": 1}, "error"),
        ({"kind": "error_event", "after_tokens": 2, "times": 1}, "response.failed"),
    ],
)
def test_faults_meet_responses_as_over_http(fault: Any, told: str) -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create(max_output_tokens=5, stream_id="a")
        last = (await socket.response())[-1]
        await socket.create(max_output_tokens=5)
        return last, (await socket.response())[-1]["type"], [entry.fault for entry in app.service.journal.entries]

    last, then, faults = played(talk, prepare=order(fault))
    assert (last["type"], last["stream_id"]) == (told, "a")
    assert (last["error"] if told == "error" else last["response"]["error"])["message"]
    assert then == "response.incomplete"
    assert faults == ["", fault["kind"], ""]


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_response_that_breaks_off_ends_the_connection(fault: str) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await socket.create(max_output_tokens=50)
        events = await socket.response()
        return kinds(events[:-1]), socket.closed

    events, code = played(talk, prepare=order({"kind": fault, "after_tokens": 3}))
    assert events.count("response.output_text.delta") == 3
    assert code == 1011


def test_a_fault_may_meet_the_upgrade_itself() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        return socket.refused

    status, _, error = played(talk, prepare=order({"kind": "status", "status": 426, "endpoint": "responses"}))
    assert (status, error["message"]) == (426, "Upgrade Required.")


def test_a_full_queue_is_read_no_further_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_MOST_QUEUED", 4)

    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        for _ in range(10):
            await socket.create(max_output_tokens=2)
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
                await each.create(max_output_tokens=1)
                ids.append((await each.response())[-1]["response"]["id"])
            found = []
            for each, previous in zip((socket, other), ids, strict=True):
                await each.create(previous_response_id=previous, max_output_tokens=1)
                found.append((await each.response())[-1]["type"])
            return found

    assert played(talk) == ["error", "response.incomplete"]
