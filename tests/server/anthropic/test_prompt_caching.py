"""`cache_control` in the Messages API: the usage says which tokens were written to the cache, and which were read."""

from typing import Any

import pytest
from event_streams import json_events

LONG = "The harbour is quiet in the morning. " * 250
CACHED = {"type": "ephemeral"}


def usage(api: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}], **fields}
    answer = api.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["usage"]
    return found


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


def test_without_cache_control_nothing_is_written(make_api: Any) -> None:
    found = usage(make_api(), system=LONG)
    assert found["cache_creation_input_tokens"] == 0
    assert found["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    assert found["input_tokens"] > 1024


@pytest.mark.parametrize(
    "fields", [{"messages": [said(LONG, cache_control=CACHED)]}, {"messages": [said(LONG)], "cache_control": CACHED}]
)
def test_a_breakpoint_at_the_end_writes_the_whole_prompt_and_then_reads_it(make_api: Any, fields: Any) -> None:
    api = make_api()
    first, second = usage(api, **fields), usage(api, **fields)
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (0, 0)
    assert first["cache_creation"] == {
        "ephemeral_5m_input_tokens": first["cache_creation_input_tokens"],
        "ephemeral_1h_input_tokens": 0,
    }
    assert first["cache_creation_input_tokens"] > 1024
    assert second["cache_read_input_tokens"] > 1024
    assert second["cache_read_input_tokens"] + second["cache_creation_input_tokens"] == first["cache_creation_input_tokens"]


@pytest.mark.parametrize("where", ["system", "tools", "first message", "after a tool"])
def test_what_follows_the_last_breakpoint_is_not_written(make_api: Any, where: str) -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    tool = {"name": "look", "description": LONG, "input_schema": {"type": "object"}}
    fields: dict[str, Any] = {
        "system": {"system": [{"type": "text", "text": LONG, **hour}]},
        "tools": {"tools": [tool | hour]},
        "first message": {"system": LONG, "messages": [
            said("a", **hour), {"role": "assistant", "content": "b"}, said(LONG)]},
        "after a tool": {"tools": [tool], "messages": [
            said("a"), {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "found", **hour}]},
            said(LONG)]},
    }[where]  # fmt: skip
    found = usage(make_api(), **fields)
    counted = make_api().post("/v1/messages/count_tokens", {"model": "m", "messages": [said("Hello")], **fields}).json()
    created = found["cache_creation_input_tokens"]
    assert found["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": created}
    assert created > 1024
    assert found["input_tokens"] > (1024 if "messages" in fields else 0)
    assert created + found["input_tokens"] == counted["input_tokens"]


def test_streams_say_the_same(make_api: Any) -> None:
    fields = {"messages": [said(LONG, cache_control=CACHED)]}
    whole = usage(make_api(), **fields)
    body = {"model": "m", "max_tokens": 4, "stream": True, **fields}
    events = json_events(make_api().post("/v1/messages", body).text)
    started = events[0]["message"]["usage"]
    assert started["cache_creation"] == whole["cache_creation"]
    assert events[-2]["usage"]["cache_creation_input_tokens"] == whole["cache_creation_input_tokens"]
