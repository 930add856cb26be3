"""Fields of vLLM and SGLang that say what is generated and what is told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B"
END = 100_000  # no id of this is ever generated


def ids_of(api: Any, **fields: Any) -> tuple[list[int], str]:
    choice = api.chat("Tell me more", max_tokens=60, return_token_ids=True, **fields).json()["choices"][0]
    return choice["token_ids"], choice["message"]["content"]


def events(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_a_stop_token_ends_the_reply_and_shows_nothing(api: Any) -> None:
    ids, text = ids_of(api)
    place = 17
    stop = ids[place]
    first = ids.index(stop)
    body = api.chat("Tell me more", max_tokens=60, stop_token_ids=[END, stop], return_token_ids=True).json()
    choice = body["choices"][0]
    assert choice["token_ids"] == ids[: first + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert body["usage"]["completion_tokens"] == first + 1
    before = "".join(api.post("/detokenize", {"tokens": ids[:first]}).json()["prompt"])
    assert choice["message"]["content"] == before
    with_it = api.chat("Tell me more", max_tokens=60, stop_token_ids=[stop], include_stop_str_in_output=True).json()
    assert (
        with_it["choices"][0]["message"]["content"] == api.post("/detokenize", {"tokens": ids[: first + 1]}).json()["prompt"]
    )
    assert text.startswith(with_it["choices"][0]["message"]["content"])


def test_a_stop_token_ends_a_stream_too_and_min_tokens_holds_it_off(api: Any) -> None:
    ids, _ = ids_of(api)
    stop = ids[0]
    chunks = events(api.chat("Tell me more", max_tokens=60, stop_token_ids=[stop], stream=True))
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [{}]
    later = api.chat("Tell me more", max_tokens=60, min_tokens=5, stop_token_ids=ids, return_token_ids=True).json()
    assert later["choices"][0]["token_ids"] == ids[:6]


def test_completions_and_sglang_stop_at_tokens(api: Any) -> None:
    ids = api.complete("Once", max_tokens=30, return_token_ids=True).json()["choices"][0]["token_ids"]
    choice = api.complete("Once", max_tokens=30, stop_token_ids=[ids[9]], return_token_ids=True).json()["choices"][0]
    assert choice["token_ids"] == ids[: ids.index(ids[9]) + 1]
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 30, "stop_token_ids": [ids[9]]}}
    meta = api.post("/generate", body).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": ids[9]}
    assert meta["completion_tokens"] == ids.index(ids[9]) + 1


def test_the_end_of_the_turn_is_text_only_where_both_fields_ask_for_it(api: Any) -> None:
    plain = api.chat("Hello").json()["choices"][0]["message"]["content"]
    assert api.chat("Hello", skip_special_tokens=False).json()["choices"][0]["message"]["content"] == plain
    shown = api.chat("Hello", skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown.json()["choices"][0]["message"]["content"] == plain + "<|end_of_turn|>"


def test_verbosity_decides_how_long_a_reply_is_that_ends_by_itself(api: Any) -> None:
    low, medium, high = [
        api.chat("Hello", verbosity=word).json()["usage"]["completion_tokens"] for word in ("low", "medium", "high")
    ]
    assert low < medium < high
    assert api.chat("Hello").json()["usage"]["completion_tokens"] == medium
    assert api.chat("Hello", verbosity="high", max_tokens=7).json()["usage"]["completion_tokens"] == 7
    responses = [
        api.post("/v1/responses", {"model": MODEL, "input": "Hello", "text": {"verbosity": word}}).json()["usage"]
        for word in ("low", "high")
    ]
    assert responses[0]["output_tokens"] < responses[1]["output_tokens"]


@pytest.mark.parametrize(("asked", "served"), [(None, "default"), ("auto", "default"), ("flex", "flex")])
def test_the_service_tier_that_was_asked_for_is_told(api: Any, asked: str | None, served: str) -> None:
    assert api.chat(max_tokens=2, service_tier=asked).json()["service_tier"] == served
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(api.chat(max_tokens=2, service_tier=asked, **options))
    assert {chunk["service_tier"] for chunk in chunks} == {served}


SAID = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two"}]


def prompt_of(api: Any, **fields: Any) -> list[int]:
    tokens: list[int] = api.post("/tokenize", {"messages": SAID, **fields}).json()["tokens"]
    return tokens


def test_a_prompt_ends_where_it_shall(api: Any) -> None:
    whole, closed = prompt_of(api), prompt_of(api, add_generation_prompt=False)
    opened = prompt_of(api, continue_final_message=True)
    assert whole[:-1] == closed
    assert closed[:-1] == opened
    text = api.post("/detokenize", {"tokens": opened}).json()["prompt"]
    assert text.endswith("One, two")


def test_a_chat_continues_its_last_message(api: Any) -> None:
    body = {"model": MODEL, "messages": SAID, "max_tokens": 5}
    usual = api.post("/v1/chat/completions", body).json()
    continued = api.post("/v1/chat/completions", body | {"continue_final_message": True}).json()
    assert continued["usage"]["prompt_tokens"] == usual["usage"]["prompt_tokens"] - 2
    assert continued["choices"][0]["message"]["content"] != usual["choices"][0]["message"]["content"]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    for path, more in (("/v1/chat/completions", body), ("/tokenize", {"messages": SAID})):
        error = api.post(path, more | both).json()["error"]
        assert error["message"] == "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
