"""The live page over HTTP: the document, the stream of states, the speed, and who may not call."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from cluster_requests import request

from llmirage_server.admin import live
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_server.telemetry.live_page import LiveCluster, Watch

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


@pytest.fixture
def app() -> LlmirageApp:
    return create_app(ClusterConfig(ttft_ms=0.0, itl_ms=0.0), page=True)


def client(app: LlmirageApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def asked(app: LlmirageApp, method: str, path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client(app) as http:
            return await http.request(method, path, **options)

    return asyncio.run(send())


async def states(app: LlmirageApp, count: int, between: Callable[[int], Any]) -> list[dict[str, Any]]:
    """The first states of the stream, read as the server sends them; `between` may act after each."""
    found: list[dict[str, Any]] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        for event in message.get("body", b"").decode().split("\n\n"):
            if event:
                found.append(json.loads(event.removeprefix("data: ")))
                await between(len(found))
                if len(found) == count:
                    gone.set()

    scope = {"type": "http", "method": "GET", "path": "/llmirage/live", "query_string": b"", "headers": [], "state": {}}
    await asyncio.wait_for(app({**scope, "asgi": {"spec_version": "2.3"}}, receive, send), 10)
    return found


def told(state: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Some fields of each request of a state."""
    return [tuple(entry[name] for name in names) for entry in state["requests"]]


def test_the_page_is_one_small_file_that_loads_nothing_from_elsewhere(app: LlmirageApp) -> None:
    answer = asked(app, "GET", "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert len(answer.content) < 150_000
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//|url\(|@import|innerHTML""", answer.text)
    assert "default-src 'none'" in answer.text
    assert asked(create_app(), "GET", "/").status_code == 404


def test_the_page_of_the_api_shows_each_operation(app: LlmirageApp) -> None:
    answer = asked(app, "GET", "/docs")
    document = asked(app, "GET", "/openapi.json").json()
    assert answer.status_code == 200
    for path in document["paths"]:
        assert f"<code>{path}</code>" in answer.text
    for name in document["components"]["schemas"]:
        assert f'<details id="{name}">' in answer.text
    assert "script-src 'sha256-" in answer.text


def test_states_have_facts_first_and_then_changed_requests_alone(app: LlmirageApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)

    async def chat(after: int) -> None:
        if after in (1, 2):
            body = {"model": MODEL, "messages": [{"role": "user", "content": f"Number {after}"}], "max_tokens": 7}
            async with client(app) as http:
                assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    first, second, third, fourth = asyncio.run(states(app, 4, chat))
    assert first["server"]["models"] == [MODEL]
    assert first["server"]["facts"]["cluster"].startswith("2 instances of Qwen/Qwen3-30B-A3B-Instruct-2507 on 1x H100 SXM")
    assert [one["index"] for one in first["instances"]] == [0, 1]
    assert first["requests"] == []
    assert first["totals"] == {"tokens": 0, "requests": 0}
    assert "server" not in second
    assert [entry["user"] for entry in second["requests"]] == ["Number 1"]
    assert second["totals"] == {"tokens": 7, "requests": 1}
    assert [(entry["number"], entry["user"], entry["outcome"]) for entry in third["requests"]] == [
        (2, "Number 2", "complete")
    ]
    assert fourth["requests"] == []


def test_a_request_that_runs_is_shown_again_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    app = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=40.0), page=True)
    tasks = []

    async def chat(after: int) -> None:
        if after == 1:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
            http = client(app)
            tasks.append(asyncio.create_task(http.post("/v1/completions", json=body)))
            await asyncio.sleep(0.02)
        if after == 2:
            await asyncio.gather(*tasks)

    _, running, ended = asyncio.run(states(app, 3, chat))
    assert [(entry["number"], entry["outcome"]) for entry in running["requests"]] == [(1, "running")]
    assert [(entry["number"], entry["outcome"], entry["output_tokens"]) for entry in ended["requests"]] == [
        (1, "complete", 3)
    ]


def test_readers_are_limited_and_leave_nothing_behind(app: LlmirageApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    monkeypatch.setattr(live, "MOST_READERS", 1)

    async def second_reader(after: int) -> None:
        async with client(app) as http:
            answer = await http.get("/llmirage/live")
            assert answer.status_code == 429
            assert "1 readers watch" in answer.json()["error"]["message"]

    for _ in range(2):  # the second time the first reader has gone
        assert len(asyncio.run(states(app, 2, second_reader))) == 2
    assert not app.service.responses.open


@pytest.mark.parametrize("speed", [0, -1, "fast", True, None, 1e300])
def test_a_speed_that_is_none_is_refused(app: LlmirageApp, speed: Any) -> None:
    answer = asked(app, "POST", "/llmirage/speed", json={"speed": speed})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "speed"


def test_without_waiting_there_is_no_speed_to_change() -> None:
    app = create_app(ClusterConfig(speed=float("inf")), page=True)
    answer = asked(app, "POST", "/llmirage/speed", json={"speed": 2})
    assert answer.status_code == 400
    assert "--speed max" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/llmirage/speed"), ("GET", "/llmirage/live"), ("GET", "/llmirage/journal"),
        ("DELETE", "/llmirage/journal"),
        ("POST", "/reset_prefix_cache"), ("POST", "/sleep"), ("POST", "/wake_up"), ("POST", "/flush_cache"),
    ],
)  # fmt: skip
def test_pages_of_other_servers_may_not_call_what_changes_this_one(app: LlmirageApp, method: str, path: str) -> None:
    answer = asked(app, method, path, headers={"origin": "https://evil.example"}, content=b'{"speed": 5}')
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_origin"
    assert app.driver.speed == 1.0


def test_the_servers_own_page_may(app: LlmirageApp) -> None:
    assert asked(app, "POST", "/llmirage/speed", json={"speed": 5}, headers={"origin": "http://test"}).status_code == 200
    assert app.driver.speed == 5.0


def test_with_keys_the_page_opens_and_its_data_needs_a_key() -> None:
    app = create_app(ClusterConfig(api_key=("sk-one",)), page=True)
    assert asked(app, "GET", "/").status_code == 200
    assert asked(app, "GET", "/llmirage/live").status_code == 401
    assert asked(app, "POST", "/llmirage/speed", json={"speed": 2}).status_code == 401
    key = {"authorization": "Bearer sk-one"}
    assert asked(app, "POST", "/llmirage/speed", json={"speed": 2}, headers=key).status_code == 200
    assert asked(app, "GET", "/llmirage/speed").status_code == 401
    assert asked(app, "GET", "/llmirage/speed", headers=key).json() == {"speed": 2.0}


def test_a_request_comes_again_when_its_body_has_been_read_and_when_it_ends(app: LlmirageApp) -> None:
    watch, journal = Watch(LiveCluster(app.config, app.pools, app.journal, app.faults, app.service.responses)), app.journal
    journal.begin(entry := JournalEntry("POST", "/v1/chat/completions", None, ()))

    def users() -> list[str]:
        return [request["user"] for request in watch.next(0.0)["requests"]]

    assert [users(), users()] == [[""], []]
    entry.asked(MODEL, "Hi", "", (), (), stream=True)
    assert [users(), users()] == [["Hi"], []]
    journal.end(entry, 200, "complete", 1.0)
    assert [users(), users()] == [["Hi"], []]


def test_the_faults_in_force_are_in_each_state(app: LlmirageApp) -> None:
    watch = Watch(LiveCluster(app.config, app.pools, app.journal, app.faults, app.service.responses))
    assert watch.next(0.0)["faults"] == []
    asked(app, "POST", "/llmirage/faults", json={"kind": "status", "key": "sk-secret"})
    asked(app, "POST", "/v1/models", headers={"authorization": "Bearer sk-secret"}, json={})
    asked(app, "POST", "/v1/chat/completions", headers={"authorization": "Bearer sk-secret"}, json={})
    [fault] = watch.next(1.0)["faults"]
    assert (fault["kind"], fault["happened"], fault["key"]) == ("status", 1, "[redacted]")


def test_the_last_decision_of_autoscaling_is_in_each_state() -> None:
    app = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=1e4, scale_on_concurrency=1.0), page=True)
    watch = Watch(LiveCluster(app.config, app.pools, app.journal, app.faults, app.service.responses))
    assert watch.next(0.0)["scaling"] == []
    for number in range(2):
        app.driver.cluster.submit(request(number, 9), 0.0)
    app.driver.cluster.advance(15.0)
    assert watch.next(1.0)["scaling"] == ["default: 2 of 1 instances wanted, concurrency above target"]
