"""Conversations in parts: the same items, pages and ends as a plain list has."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from api_errors import assert_error
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.openai.responses import context
from llmirage_server.state import conversation
from llmirage_server.state.conversation import PageEnds, StoredConversation, size_of
from llmirage_server.state.sqlite import SqliteState
from llmirage_server.state.state import MemoryState, State
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.paging import page

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def state(request: Any, tmp_path_factory: pytest.TempPathFactory) -> State:
    return MemoryState() if request.param == "memory" else SqliteState(tmp_path_factory.mktemp("state") / "state.db")


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "_PART_ITEMS", 3)
        yield


def item(number: int) -> dict[str, Any]:
    return {"id": f"msg_{number}", "type": "message", "content": [{"text": "x"}] * (number % 3)}


def found(state: State) -> StoredConversation:
    stored = StoredConversation.find(state, "conv_1")
    assert stored is not None
    return stored


STEPS = st.lists(st.integers(-30, 8), max_size=30)  # items to add, or -n: to remove the item of that number


@given(STEPS, st.integers(1, 100), st.booleans(), st.integers(0, 60), st.integers(1, 40))
def test_parts_are_one_list(state: State, steps: list[int], limit: int, newest: bool, after: int, size: int) -> None:
    places, plain, made = PageEnds(), list[dict[str, Any]](), 0
    StoredConversation.begun(state, {"id": "conv_1"}).append([])
    for step in steps:
        if step >= 0:
            more = [item(made + place) for place in range(step)]
            made += step
            plain += more
            found(state).append(more)
        else:
            there = item(-step) in plain
            assert asyncio.run(found(state).remove(f"msg_{-step}", places)) == there
            plain = [each for each in plain if each["id"] != f"msg_{-step}"]
    assert found(state).size == size_of(plain)
    assert asyncio.run(found(state).newest(10**9)) == plain
    cut = asyncio.run(found(state).newest(size))
    assert cut == plain[len(plain) - len(cut) :]
    assert size_of(cut) <= size < size_of(plain[len(plain) - len(cut) - 1 :]) or cut == plain
    asked = {"limit": str(limit), "order": "desc" if newest else "asc"}
    for key in (None, f"msg_{after}", None):
        query = asked if key is None else asked | {"after": key}
        while True:  # to the last page
            window = asyncio.run(found(state).window(query.get("after"), limit, newest, places))
            shown = page(window, query.get)
            assert shown == page(plain, query.get)
            if not shown["has_more"]:
                break
            query = asked | {"after": shown["last_id"]}
    for number in (0, after):
        there = item(number) if item(number) in plain else None
        assert asyncio.run(found(state).item(f"msg_{number}", places)) == there
    found(state).delete()
    assert StoredConversation.find(state, "conv_1") is None
    assert state.keys("part") == []


def test_a_conversation_of_an_older_file_goes_on(state: State) -> None:
    state.put("conversation", "conv_1", {"object": {"id": "conv_1"}, "items": [item(number) for number in range(20)]})
    found(state).append([item(20)])
    assert asyncio.run(found(state).newest(10**9)) == [item(number) for number in range(21)]


def test_lost_parts_are_told() -> None:
    state = MemoryState(most_bytes=20_000)
    StoredConversation.begun(state, {"id": "conv_1"}).append([])
    for number in range(200):
        found(state).append([item(number)])
    with pytest.raises(ApiError, match="state_mib") as caught:
        asyncio.run(found(state).newest(10**9))
    assert caught.value.status == 404


def test_turns_longer_than_a_prompt(make_api: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(context, "MOST_PARTS", 50)
    api = make_api(state=str(tmp_path / "state.db"))
    talk = api.post("/v1/conversations", {}).json()["id"]
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    said = [{"type": "message", "role": "user", "content": f"{number}"} for number in range(19)]
    output = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    for items in ([call, *said], [*said], [output]):
        assert api.post(f"/v1/conversations/{talk}/items", {"items": items}).status_code == 200
    asked = {"model": MODEL, "input": "Go on", "conversation": talk, "max_output_tokens": 16}
    assert_error(api.post("/v1/responses", asked), 400, "input", None, "too many items")
    made = api.post("/v1/responses", asked | {"truncation": "auto"})
    assert made.status_code == 200, made.text
    listed = api.request("GET", f"/v1/conversations/{talk}/items?limit=100").json()["data"]
    assert len(listed) == 42
    assert listed[1]["content"][0]["text"] == "Go on"
