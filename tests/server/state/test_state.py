"""What the API remembers: bounded in memory, lasting in a file."""

import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from api_errors import assert_error
from event_streams import json_events
from state_files import left_by_a_kill

from llmirage_server.config import ConfigError
from llmirage_server.state.sqlite import SqliteState
from llmirage_server.state.state import OBJECT_BYTES, MemoryState, State
from llmirage_server.stored import endpoints
from llmirage_shared.wire.errors import state_unavailable

CHAT = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
RESPONSE = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "input": "Hello", "max_output_tokens": 16}


@pytest.fixture(params=["memory", "sqlite"])
def state(request: Any, tmp_path: Path) -> State:
    return MemoryState() if request.param == "memory" else SqliteState(tmp_path / "state.db")


def each(state: State) -> list[Any]:
    return [found for key in state.keys("response") if (found := state.get("response", key)) is not None]


def test_objects_are_kept_by_kind_and_key(state: State) -> None:
    state.put("response", "a", {"n": 1})
    state.put("response", "b", {"n": 2})
    state.put("conversation", "a", {"n": 3})
    state.put("response", "a", {"n": 4})
    assert state.get("response", "a") == {"n": 4}
    assert state.get("conversation", "a") == {"n": 3}
    assert state.get("completion", "a") is None
    assert each(state) == [{"n": 4}, {"n": 2}]
    assert state.delete("response", "a")
    assert not state.delete("response", "a")
    assert each(state) == [{"n": 2}]


def test_what_is_got_is_a_copy(state: State) -> None:
    state.put("response", "a", {"list": []})
    found = state.get("response", "a")
    assert found is not None
    found["list"].append(1)
    assert state.get("response", "a") == {"list": []}


def test_memory_forgets_what_was_not_used_for_longest() -> None:
    state = MemoryState(most_bytes=3 * OBJECT_BYTES + 100)
    for key in "abc":
        state.put("response", key, {"text": "x" * 20})
    assert state.get("response", "a") is not None
    state.put("response", "d", {"text": "x" * 20})
    assert [key for key in "abcd" if state.get("response", key)] == ["a", "c", "d"]
    assert len(each(state)) == 3


def test_a_file_outlives_the_server(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    body = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "input": "Hello", "max_output_tokens": 16}
    first = make_api(state=str(path)).post("/v1/responses", body).json()
    again = make_api(state=str(left_by_a_kill(path)))
    assert again.request("GET", f"/v1/responses/{first['id']}").json() == first
    follow = again.post("/v1/responses", body | {"previous_response_id": first["id"]})
    assert follow.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_a_file_that_is_no_database_is_refused(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("this is not a database, and long enough to be told from one")
    with pytest.raises(ConfigError, match="cannot be used as a state file"):
        make_api(state=str(path))


def test_an_object_takes_its_bytes_not_its_characters() -> None:
    state = MemoryState(most_bytes=4 * OBJECT_BYTES)
    state.put("response", "a", {"text": "\U0001f600" * 100})
    assert 400 + OBJECT_BYTES < state.bytes_kept() < 450 + OBJECT_BYTES
    for number in range(100):
        state.put("item", str(number), {})
        assert state.bytes_kept() <= 4 * OBJECT_BYTES
    assert state.get("response", "a") is None


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_objects_are_forgotten_after_their_time(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    limits: dict[str, Any] = {"ttl_s": 60.0, "clock": clock}
    state: State = MemoryState(**limits) if kind == "memory" else SqliteState(tmp_path / "state.db", **limits)
    state.put("response", "a", {"n": 1})
    clock.now += 50
    state.put("response", "b", {"n": 2})
    clock.now += 50
    assert (state.get("response", "a"), state.get("response", "b")) == (None, {"n": 2})
    assert each(state) == [{"n": 2}]
    state.put("response", "a", {"n": 3})
    assert state.get("response", "a") == {"n": 3}


def test_a_file_keeps_its_size(tmp_path: Path) -> None:
    clock = Clock()
    state = SqliteState(tmp_path / "state.db", most_bytes=1 << 20, clock=clock)
    for number in range(400):
        clock.now += 1
        state.put("response", str(number), {"text": "x" * 20_000})
    assert state.bytes_kept() < (1 << 20) + 64 * 24_000  # looked at after every 64 objects
    assert state.get("response", "0") is None
    assert state.get("response", "399") is not None
    state.put("response", "huge", {"text": "x" * (2 << 20)})
    assert state.get("response", "huge") is not None


def test_who_writes_does_not_wait_until_it_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_merge, merge = threading.Event(), SqliteState._merge
    monkeypatch.setattr(SqliteState, "_merge", lambda *given: may_merge.wait(60) and merge(*given))
    path = tmp_path / "state.db"
    state = SqliteState(path)
    state.put("response", "a", {"text": "x" * 16_000_000})
    assert path.stat().st_size < 1_000_000  # it is in the log, where a kill does not harm it
    may_merge.set()
    until_s = time.monotonic() + 30
    while path.stat().st_size < 16_000_000 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert path.stat().st_size > 16_000_000
    state.close()


def test_a_file_of_before_there_were_limits_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as old:
        old.execute("CREATE TABLE objects (kind TEXT, key TEXT, value TEXT, UNIQUE (kind, key))")
        old.execute("""INSERT INTO objects VALUES ('response', 'a', '{"n":1}')""")
    old.close()
    assert SqliteState(tmp_path / "state.db", ttl_s=60).get("response", "a") == {"n": 1}


def test_a_database_of_another_program_is_refused_and_left_as_it_is(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="cannot be used as a state file: it is a database of another program"):
        make_api(state=str(path))
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_one_sentence(make_api: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be used as a state file: unable to open database file$"):
        make_api(state=str(tmp_path / "no" / "state.db"))


def test_a_locked_file_is_503_and_works_again(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    api = make_api(state=str(path))
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for body in ({}, {"stream": True}, {"background": True}):
            refused = api.post("/v1/responses", RESPONSE | body)
            if body.get("stream"):
                events = json_events(refused.text)
                assert events[-1]["type"] == "response.failed"
                assert events[-1]["response"]["error"]["code"] == "state_unavailable"
            else:
                assert_error(refused, 503, None, "state_unavailable", "The state file cannot be used: database is locked.")
        other.execute("ROLLBACK")
    other.close()
    made = api.post("/v1/responses", RESPONSE)
    assert api.request("GET", f"/v1/responses/{made.json()['id']}").status_code == 200
    assert api.app.service.responses.metrics.errors == 0


def test_a_full_disk_is_503(make_api: Any, tmp_path: Path) -> None:
    api = make_api(state=str(tmp_path / "state.db"))
    made = api.post("/v1/responses", RESPONSE).json()
    api.app.store._db.execute("PRAGMA max_page_count = 1")  # SQLite takes the least that the file has
    assert_error(
        api.post("/v1/responses", RESPONSE | {"input": "x" * 50_000}),
        503, None, "state_unavailable", "The state file cannot be used: database or disk is full.",
    )  # fmt: skip
    assert api.request("GET", f"/v1/responses/{made['id']}").json() == made


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_noticed(
    make_api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    path, aside = tmp_path / "state.db", tmp_path / "aside.db"
    api = make_api(state=str(path))
    made = api.post("/v1/responses", RESPONSE).json()
    path.rename(aside)
    if replaced:
        path.write_bytes(aside.read_bytes())
    said = "The state file cannot be used: it was removed or replaced while the server used it."
    for _ in range(3):
        assert_error(api.post("/v1/responses", RESPONSE), 503, None, "state_unavailable", said)
    assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "ERROR"] == [
        f"The state file {path} was removed or replaced"
    ]
    assert api.post("/v1/chat/completions", CHAT).status_code == 200  # which needs no file
    aside.replace(path)
    assert api.request("GET", f"/v1/responses/{made['id']}").json() == made
    assert api.post("/v1/responses", RESPONSE).status_code == 200


def test_a_second_server_is_refused_until_the_first_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_server.state.sqlite._OPEN_S", 0.1)
    first = SqliteState(tmp_path / "state.db")
    first.put("response", "a", {"n": 1})
    with pytest.raises(OSError, match="cannot be used as a state file: another process uses it"):
        SqliteState(tmp_path / "state.db")
    first.put("response", "b", {"n": 2})
    first.close()
    second = SqliteState(tmp_path / "state.db")
    assert second.keys("response") == ["a", "b"]
    second.close()


def test_a_server_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    first = SqliteState(tmp_path / "state.db")
    threading.Timer(0.2, first.close).start()
    SqliteState(tmp_path / "state.db").close()


def test_what_is_put_together_is_kept_together_or_not_at_all(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")

    def fails() -> None:
        with state.together():
            state.put("response", "a", {"n": 1})
            with state.together():
                state.put("item", "b", {"n": 2})
            assert state.get("item", "b") is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (state.get("response", "a"), state.get("item", "b")) == (None, None)
    with state.together():
        state.put("response", "a", {"n": 3})
    assert state.get("response", "a") == {"n": 3}


def test_a_full_disk_leaves_no_part_of_a_response(make_api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = make_api(state=str(tmp_path / "state.db"))
    state, put = api.app.store, SqliteState.put

    def full(self: SqliteState, kind: Any, key: str, value: dict[str, Any]) -> None:
        if kind == refused:
            raise state_unavailable("database or disk is full")
        put(self, kind, key, value)

    talk = api.post("/v1/conversations", {}).json()["id"]
    monkeypatch.setattr(SqliteState, "put", full)
    last = (("response", {}), ("conversation", {"conversation": talk}), ("running", {"background": True}))
    for refused, body in last:  # noqa: B007  # `full` looks at it
        assert api.post("/v1/responses", RESPONSE | body).status_code == 503
    assert [state.keys(kind) for kind in ("response", "item", "running")] == [[], [], []]
    assert api.request("GET", f"/v1/conversations/{talk}/items").json()["data"] == []


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_file_is_one_sentence(make_api: Any, tmp_path: Path, share: float) -> None:
    """share: of the file that is whole."""
    path = tmp_path / "state.db"
    api = make_api(state=str(path))
    for _ in range(40):
        api.post("/v1/responses", RESPONSE)
    api.app.close()
    content = path.read_bytes()
    whole = max(4096, int(len(content) * share))
    path.write_bytes(content[:whole] + b"\x5a" * (len(content) - whole))
    with pytest.raises(ConfigError, match=r"state file") as refused:
        make_api(state=str(path))
    assert str(refused.value).count("database disk image is malformed") == 1


def test_a_response_in_progress_when_the_server_was_killed_has_failed(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    killed = make_api(state=str(path), ttft_ms=60_000.0)
    made = killed.post("/v1/responses", RESPONSE | {"background": True}).json()
    assert made["status"] == "queued"
    again = make_api(state=str(left_by_a_kill(path)))
    found = again.request("GET", f"/v1/responses/{made['id']}").json()
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert again.post(f"/v1/responses/{made['id']}/cancel", {}).json()["status"] == "failed"
    assert again.app.store.keys("running") == []


@pytest.mark.parametrize("file", [False, True])
def test_a_finished_background_stream_is_resumed_as_it_was_sent(make_api: Any, tmp_path: Path, file: bool) -> None:
    api = make_api(state=str(tmp_path / "state.db")) if file else make_api()
    body = RESPONSE | {"background": True, "stream": True, "reasoning": {"effort": "low", "summary": "auto"}}
    sent = api.post("/v1/responses", body | {"max_output_tokens": 200}).text
    response_id = json.loads(sent.split("data: ")[1].split("\n")[0])["response"]["id"]
    again = api.request("GET", f"/v1/responses/{response_id}", params={"stream": "true"})
    assert again.text == sent
    rest = api.request("GET", f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": "4"}).text
    assert rest == "".join(event + "\n\n" for event in sent.split("\n\n")[5:-1])
    assert "response.reasoning_summary_text.delta" in sent
    api.request("DELETE", f"/v1/responses/{response_id}")
    assert api.app.store.get("events", response_id) is None


def test_what_a_request_brought_is_listed_also_if_it_followed_another(api: Any) -> None:
    first = api.post("/v1/responses", {"model": "m", "input": "One"}).json()
    second = api.post("/v1/responses", {"model": "m", "input": "Two", "previous_response_id": first["id"]}).json()
    listed = api.request("GET", f"/v1/responses/{second['id']}/input_items").json()["data"]
    assert [item["content"][0]["text"] for item in listed] == ["Two"]


def test_a_response_larger_than_the_store_is_kept_until_the_next(make_api: Any) -> None:
    api = make_api(state_mib=1)
    part = {"type": "input_image", "image_url": "data:image/png;base64," + "iVBO" * 300_000}
    stored = api.post("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [part]}]}).json()
    followed = api.post("/v1/responses", {"model": "m", "input": "And?", "previous_response_id": stored["id"]})
    assert followed.status_code == 200, followed.text


def test_items_of_many_responses_can_be_referred_to(api: Any) -> None:
    brought = [{"role": "user", "content": f"{number}"} for number in range(1_200)]
    stored = api.post("/v1/responses", {"model": "m", "input": brought, "max_output_tokens": 16}).json()
    oldest = api.request("GET", f"/v1/responses/{stored['id']}/input_items?order=asc").json()["data"]
    newest = api.request("GET", f"/v1/responses/{stored['id']}/input_items").json()["data"]
    referred = [{"type": "item_reference", "id": item["id"]} for item in (oldest[0], newest[0], stored["output"][-1])]
    assert api.post("/v1/responses", {"model": "m", "input": referred}).status_code == 200
    unknown = api.post("/v1/responses", {"model": "m", "input": [*referred, {"type": "item_reference", "id": "msg_x"}]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "input")


def test_a_conversation_has_only_so_many_items(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MOST_SIZE", 4_000)
    part = {"type": "input_text", "text": ""}
    item = {"role": "user", "content": [part] * 1_100}
    made = api.post("/v1/conversations", {"items": [item]}).json()
    add = f"/v1/conversations/{made['id']}/items"
    assert [api.post(add, {"items": [item]}).status_code for _ in range(2)] == [200, 200]
    refused = api.post(add, {"items": [item]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items")
