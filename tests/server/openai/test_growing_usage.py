"""`stream_options.continuous_usage_stats`: the usage so far in every chunk, at any speed."""

import json
from typing import Any

import pytest

PATHS = ("/v1/chat/completions", "/v1/completions")


def chunks(api: Any, path: str, **fields: Any) -> list[dict[str, Any]]:
    said = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"prompt": "Hello"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "m", "max_tokens": 12, "stream": True, "stream_options": options, **said, **fields}
    return [json.loads(line[6:]) for line in api.post(path, body).text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("speed", [1.0, float("inf")])
def test_usage_rises_by_a_token_a_chunk(make_api: Any, path: str, speed: float) -> None:
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks(make_api(speed=speed), path) if chunk["choices"]]
    assert counts == sorted(counts)
    assert set(range(1, 13)) <= set(counts)
    assert counts[-1] == 12


@pytest.mark.parametrize("path", PATHS)
def test_each_choice_reports_its_own_tokens_and_the_last_chunk_all(make_api: Any, path: str) -> None:
    sent = chunks(make_api(speed=float("inf")), path, n=3)
    for index in range(3):
        of_choice = [chunk["usage"] for chunk in sent if chunk["choices"] and chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in of_choice]
        assert counts == sorted(counts)
        assert counts[-1] == 12
        assert {usage["total_tokens"] - usage["completion_tokens"] for usage in of_choice} == {
            sent[-1]["usage"]["prompt_tokens"]
        }
    assert sent[-1]["usage"]["completion_tokens"] == 36


@pytest.mark.parametrize("path", PATHS)
def test_choices_are_equal_at_temperature_0_and_differ_above(make_api: Any, path: str) -> None:
    api = make_api()
    said = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"prompt": "Hello"}

    def texts(**fields: Any) -> set[str]:
        choices = api.post(path, {"model": "m", "max_tokens": 12, "n": 3, **said, **fields}).json()["choices"]
        return {choice["message"]["content"] if "chat" in path else choice["text"] for choice in choices}

    assert len(texts(temperature=0)) == 1
    assert len(texts(temperature=0.0, seed=5)) == 1
    assert len(texts(temperature=0.5)) == 3
    assert len(texts()) == 3
