"""Streams in intervals of several tokens, as clients see them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-8B"
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 11},
    "completions": {"prompt": "Hello", "max_tokens": 11},
    "responses": {"input": "Hello", "max_output_tokens": 16},
    "messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 11},
}


async def timed_events(app: LlmirageApp, path: str, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    parts = (await RawAnswer().ask(app, path, body)).parts
    lines = [(time_s, line) for time_s, part in parts for line in part.decode().split("\n")]
    return [(time_s, json.loads(line[6:])) for time_s, line in lines if line.startswith("data: {")]


def spoken(path: str, **settings: Any) -> list[tuple[float, str]]:
    """When the chunks with text came, and their texts. A token takes 10 ms, the first one 100."""
    app = create_app(ClusterConfig(model=MODEL, ttft_ms=100.0, itl_ms=10.0, **settings))
    asked = {"model": MODEL, "stream": True, **ASKED[path]}
    events = virtual_time.run(timed_events(app, f"/v1/{path}", asked))
    return [(time_s, text) for time_s, event in events if (text := text_of(event))]


def text_of(event: dict[str, Any]) -> str:
    delta = event.get("delta", "")
    if isinstance(delta, dict):  # Messages
        return str(delta.get("text", ""))
    if delta:  # Responses
        return str(delta)
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in event.get("choices", ()))


@pytest.mark.parametrize("path", ASKED)
def test_the_first_token_comes_at_once_and_the_others_together(path: str) -> None:
    plain = spoken(path)
    for settings, ends in (
        ({"stream_interval": 4}, [1, 5, 9]),
        ({"stream_interval": 4, "engine": "sglang"}, [1, 5, 9]),
        ({"stream_interval": 4, "engine": "trtllm"}, [1, 4, 8]),
    ):
        total = 16 if path == "responses" else 11
        ends = [*ends, *range(ends[-1] + 4, total, 4), total]
        found = spoken(path, **settings)
        assert [time_s for time_s, _ in found] == pytest.approx([0.09 + 0.01 * end for end in ends])
        assert "".join(text for _, text in found) == "".join(text for _, text in plain)
        pieces = [text for _, text in plain]
        assert len(pieces) == total
        assert [text for _, text in found] == ["".join(pieces[a:b]) for a, b in pairwise([0, *ends])]


def test_a_call_of_a_tool_comes_in_the_same_chunks() -> None:
    cities = {"type": "string", "enum": ["Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"]}
    form = {"type": "object", "properties": {"city": cities}, "required": ["city"]}
    function = {"name": "weather", "parameters": form}
    asked = {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 200}
    app = create_app(ClusterConfig(model=MODEL, stream_interval=5))
    body = {"model": MODEL, "stream": True, **ASKED["chat/completions"], **asked}
    events = [event for _, event in virtual_time.run(timed_events(app, "/v1/chat/completions", body))]
    calls = [call for event in events for choice in event["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert isinstance(json.loads("".join(call["function"]["arguments"] for call in calls)), dict)
    assert 3 < len(calls) < 12


def test_replies_in_one_piece_are_what_they_were() -> None:
    asked = {"model": MODEL, **ASKED["completions"]}
    [(plain_s, plain)], [(time_s, body)] = (
        virtual_time.run(
            RawAnswer().ask(create_app(ClusterConfig(model=MODEL, ttft_ms=100.0, **settings)), "/v1/completions", asked)
        ).parts
        for settings in ({}, {"stream_interval": 10})
    )
    assert (time_s, json.loads(body)["choices"]) == (plain_s, json.loads(plain)["choices"])


def test_a_chunk_has_the_log_probabilities_of_all_its_tokens() -> None:
    app = create_app(ClusterConfig(model=MODEL, ttft_ms=100.0, itl_ms=10.0, stream_interval=4))
    body = {"model": MODEL, "stream": True, **ASKED["responses"], "include": ["message.output_text.logprobs"]}
    events = [event for _, event in virtual_time.run(timed_events(app, "/v1/responses", body))]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [1, 4, 4, 4, 3]
    for event in deltas:
        assert "".join(entry["token"] for entry in event["logprobs"]) == event["delta"]


def test_a_frame_of_sglangs_own_endpoint_is_a_chunk() -> None:
    app = create_app(ClusterConfig(model=MODEL, engine="sglang", ttft_ms=100.0, itl_ms=10.0, stream_interval=4))
    asked = {"text": "Hello", "sampling_params": {"max_new_tokens": 11}, "stream": True}
    events = virtual_time.run(timed_events(app, "/generate", asked))
    assert [event["meta_info"]["completion_tokens"] for _, event in events] == [1, 5, 9, 11]
