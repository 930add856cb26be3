"""What the API remembers: bounded in memory, lasting in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmirage_server.api.state import MemoryState, SqliteState, State
from llmirage_server.config import ConfigError


@pytest.fixture(params=["memory", "sqlite"])
def state(request: Any, tmp_path: Path) -> State:
    return MemoryState() if request.param == "memory" else SqliteState(tmp_path / "state.db")


def test_objects_are_kept_by_kind_and_key(state: State) -> None:
    state.put("response", "a", {"n": 1})
    state.put("response", "b", {"n": 2})
    state.put("conversation", "a", {"n": 3})
    state.put("response", "a", {"n": 4})
    assert state.get("response", "a") == {"n": 4}
    assert state.get("conversation", "a") == {"n": 3}
    assert state.get("completion", "a") is None
    assert state.all("response") == [{"n": 4}, {"n": 2}]
    assert state.delete("response", "a")
    assert not state.delete("response", "a")
    assert state.all("response") == [{"n": 2}]


def test_what_is_got_is_a_copy(state: State) -> None:
    state.put("response", "a", {"list": []})
    found = state.get("response", "a")
    assert found is not None
    found["list"].append(1)
    assert state.get("response", "a") == {"list": []}


def test_memory_forgets_what_was_not_used_for_longest() -> None:
    state = MemoryState(most_bytes=100)
    for key in "abc":
        state.put("response", key, {"text": "x" * 20})
    assert state.get("response", "a") is not None
    state.put("response", "d", {"text": "x" * 20})
    assert [key for key in "abcd" if state.get("response", key)] == ["a", "c", "d"]
    assert len(state.all("response")) == 3


def test_a_file_outlives_the_server(make_api: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    body = {"model": "Qwen/Qwen3-30B-A3B", "input": "Hello", "max_output_tokens": 4}
    first = make_api(state=path).post("/v1/responses", body).json()
    again = make_api(state=path)
    assert again.request("GET", f"/v1/responses/{first['id']}").json() == first
    follow = again.post("/v1/responses", body | {"previous_response_id": first["id"]})
    assert follow.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_a_file_that_is_no_database_is_refused(make_api: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("this is not a database, and long enough to be told from one")
    with pytest.raises(ConfigError, match="cannot be used as a state file"):
        make_api(state=str(path))
