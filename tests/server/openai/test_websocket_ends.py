"""WebSocket connections that do not go well, in process: errors, limits, keys, faults, ends."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from sockets import Socket, kinds, order, played

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.commands.record_actions import RecordingProxy
from llmirage_server.config import ClusterConfig
from llmirage_server.openai.responses.endpoint import ResponsesHandler
from llmirage_server.openai.responses.socket_frames import EventFrames
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_shared import virtual_time
from llmirage_shared.wire.output import encoded


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
        ({"type": "response.create", "model": "m", "input": "x", "max_output_tokens": 15}, "max_output_tokens", ">= 16"),
        ({"type": "response.create", "model": "m", "input": "x", "background": True}, "background", "not supported over"),
        ({"type": "response.create", "model": "m", "input": "x", "nonsense": 1}, "nonsense", "Unknown parameter"),
        ({"type": "response.create", "model": "m", "input": "x", "generate": False, "top_p": 3}, "top_p", "maximum"),
    ],
)
def test_what_cannot_be_served_is_an_error_event_and_the_connection_goes_on(sent: Any, param: Any, told: str) -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await socket.send(sent)
        [event] = await socket.response()
        await socket.create(max_output_tokens=16)
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
        busy = len(app.service.responses.requests())
        socket.leave()
        await asyncio.sleep(0.1)
        return busy, len(app.service.responses.requests()), [entry.outcome for entry in app.journal.entries]

    assert played(talk) == (2, 0, ["complete", "client_left", "client_left"])


def test_a_connection_ends_at_its_limit_after_the_response_in_progress() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        await asyncio.sleep(29.9)
        await socket.create(max_output_tokens=30, ignore_eos=True, stream_id="a")
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
        await socket.create(max_output_tokens=16)
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
            await right.create(max_output_tokens=16)
            served = (await right.response())[-1]["type"]
        async with Socket(app, "/v1/chat/completions") as elsewhere:
            return none.refused, served, elsewhere.accepted

    refused, served, elsewhere = virtual_time.run(play())
    assert refused[0] == 401
    assert (served, elsewhere) == ("response.incomplete", None)


def test_the_journal_has_each_response_with_its_tokens() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create("Hello there", max_output_tokens=16)
        await socket.response()
        await socket.send("{")
        await socket.response()
        return [entry.shown() for entry in app.journal.entries]

    upgrade, response, error = played(talk)
    assert (upgrade["method"], upgrade["status"], upgrade["outcome"]) == ("GET", 101, "complete")
    assert (response["method"], response["path"], response["status"]) == ("WS", "/v1/responses", 200)
    assert (response["user"], response["output_tokens"], response["stream"]) == ("Hello there", 16, True)
    assert response["ttft_ms"] == pytest.approx(100)
    assert error["status"] == 400


def test_rate_limits_are_errors_with_the_headers_that_clients_look_for() -> None:
    async def talk(socket: Socket, _: Any) -> Any:
        for _ in range(2):
            await socket.create(max_output_tokens=16)
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
        app.close()
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
        await socket.create(max_output_tokens=16, stream_id="a")
        last = (await socket.response())[-1]
        await socket.create(max_output_tokens=16)
        return last, (await socket.response())[-1]["type"], [entry.fault for entry in app.journal.entries]

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


async def test_the_fault_in_a_header_of_the_upgrade_meets_each_response() -> None:
    async def play() -> Any:
        app = create_app(ClusterConfig(ttft_ms=1.0, itl_ms=1.0, allow_fault_header=True))
        async with Socket(app, headers={"x-llmirage-fault": "error_event; after_tokens=2"}) as socket:
            for _ in range(2):
                await socket.create(max_output_tokens=16)
                yield (await socket.response())[-1]["type"]

    assert [each async for each in play()] == ["response.failed"] * 2


def test_recordings_answer_frames_too(tmp_path: Path) -> None:
    kinds_of = ("response.created", "response.output_text.delta", "response.completed")
    events = [b"event: %s\ndata: %s\n\n" % (kind.encode(), encoded({"type": kind})) for kind in kinds_of]
    recorded = {"model": "m", "input": "Hello", "stream": True}
    headers = {"content-type": "text/event-stream"}
    RecordingWriter(tmp_path).write(
        Recording("POST", "/v1/responses", recorded, 200, headers, [Chunk(5.0, each) for each in events], True, None)
    )

    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        await socket.create(stream_id="a")
        replayed = await socket.response()
        await socket.create("Bye")
        return replayed, (await socket.response())[-1]["error"]["code"], app.journal.entries[1].rule

    replayed, missed, rule = played(talk, replay=str(tmp_path))
    assert [(event["type"], event["stream_id"]) for event in replayed] == [(kind, "a") for kind in kinds_of]
    assert missed == "no_recording"
    assert rule.endswith(".yaml")


def test_a_recording_proxy_takes_no_connections(tmp_path: Path) -> None:
    class Nobody:
        key = None

        async def answer(self, *_: Any) -> Any:
            raise AssertionError("asked")

        async def close(self) -> None: ...

    proxy = RecordingProxy(Nobody(), ExchangeRecorder(RecordingWriter(tmp_path), (), lambda _: None))

    async def play() -> int:
        transport = httpx.ASGITransport(proxy)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"connection": "Upgrade", "upgrade": "WebSocket"}
            return (await client.get("/v1/responses", headers=headers)).status_code

    assert asyncio.run(play()) == 426


def test_errors_of_the_server_are_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ResponsesHandler, "_generation", None)
            await socket.create()
            [first] = await socket.response()
        await socket.create(max_output_tokens=16)
        assert (await socket.response())[-1]["type"] == "response.incomplete"
        monkeypatch.setattr(EventFrames, "_event", None)
        await socket.create()
        return first, await socket.event(), socket.closed

    first, end, code = played(talk)
    assert (first["status"], first["error"]["type"]) == (500, "server_error")
    assert (end, code) == ({}, 1011)
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR", "ERROR"]


def test_a_fault_may_meet_the_upgrade_itself() -> None:
    async def talk(socket: Socket, app: LlmirageApp) -> Any:
        return socket.refused

    status, _, error = played(talk, prepare=order({"kind": "status", "status": 426, "endpoint": "responses"}))
    assert (status, error["message"]) == (426, "Upgrade Required.")
