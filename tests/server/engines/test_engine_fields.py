"""Fields of vLLM and SGLang that say what is generated and what is told of it."""

from typing import Any

import pytest
from event_streams import json_events

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
END = 100_000  # no id of this is ever generated


def ids_of(api: Any, **fields: Any) -> tuple[list[int], str]:
    choice = api.chat("Tell me more", max_tokens=60, return_token_ids=True, **fields).json()["choices"][0]
    return choice["token_ids"], choice["message"]["content"]


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
    chunks = json_events(api.chat("Tell me more", max_tokens=60, stop_token_ids=[stop], stream=True).text)
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
    chunks = json_events(api.chat(max_tokens=2, service_tier=asked, **options).text)
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


def test_prompt_logprobs_tell_of_every_token_of_the_prompt_but_the_first(api: Any) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello there"}]}),
        ("/v1/completions", {"prompt": "Hello there, all of you"}),
    ):
        answer = api.post(path, {"model": MODEL, "max_tokens": 2, "prompt_logprobs": 2, "return_token_ids": True, **body})
        whole = answer.json()
        place = whole if path.endswith("chat/completions") else whole["choices"][0]
        listed, ids = place["prompt_logprobs"], place["prompt_token_ids"]
        assert len(listed) == len(ids) == whole["usage"]["prompt_tokens"]
        assert listed[0] is None
        for token, entry in zip(ids[1:], listed[1:], strict=True):
            assert str(token) in entry
            assert sorted(known["rank"] for known in entry.values()) == [1, 2]
            assert all(known["logprob"] <= 0 for known in entry.values())
            text = api.post("/detokenize", {"tokens": [token]}).json()["prompt"]
            assert entry[str(token)]["decoded_token"] == text


def test_prompt_logprobs_have_limits(api: Any) -> None:
    assert len(api.chat(max_tokens=2, prompt_logprobs=0).json()["prompt_logprobs"][1]) == 1
    assert "prompt_logprobs" not in api.chat(max_tokens=2).json()
    assert len(api.complete("word " * 1000, prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]) > 1000
    error = api.chat(prompt_logprobs=2, stream=True).json()["error"]
    assert (error["param"], error["message"]) == (
        "prompt_logprobs",
        "`prompt_logprobs` are not available when `stream=True`.",
    )
    assert api.chat(prompt_logprobs=21).json()["error"]["code"] == "integer_above_max_value"


def test_a_suffix_is_a_part_of_the_prompt(api: Any) -> None:
    parts = [api.complete(text).json()["usage"]["prompt_tokens"] for text in ("Once upon", " the end")]
    filled = api.complete("Once upon", suffix=" the end").json()
    assert filled["usage"]["prompt_tokens"] == sum(parts)
    assert filled["choices"][0]["text"] != api.complete("Once upon").json()["choices"][0]["text"]
    assert api.complete("Once upon", suffix="").json()["usage"]["prompt_tokens"] == parts[0]
    assert api.complete("Once upon", suffix="x", echo=True).json()["error"]["param"] == "suffix"


def test_a_prompt_is_cut_to_its_last_tokens(api: Any) -> None:
    ids = list(range(100, 150))
    body = api.complete(ids, truncate_prompt_tokens=7, return_token_ids=True).json()
    assert body["choices"][0]["prompt_token_ids"] == ids[-7:]
    assert body["usage"]["prompt_tokens"] == 7
    assert body["choices"][0]["text"] == api.complete(ids[-7:]).json()["choices"][0]["text"]
    assert api.complete(ids, truncate_prompt_tokens=70).json()["usage"]["prompt_tokens"] == 50
    echoed = api.complete("one two three", truncate_prompt_tokens=1, echo=True, logprobs=1).json()["choices"][0]
    assert echoed["text"].startswith(" three")
    assert "".join(echoed["logprobs"]["tokens"]) == echoed["text"]


def test_a_prompt_is_cut_to_what_fits(make_api: Any) -> None:
    small = make_api(max_model_len=100)
    ids = list(range(100, 500))
    assert small.complete(ids).json()["error"]["code"] == "context_length_exceeded"
    usage = small.complete(ids, truncate_prompt_tokens=-1, max_tokens=20).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (80, 20)


def test_log_probabilities_can_name_tokens_by_their_ids(api: Any) -> None:
    fields = {"max_tokens": 5, "return_token_ids": True, "return_tokens_as_token_ids": True}
    chat = api.chat(logprobs=True, top_logprobs=2, **fields).json()["choices"][0]
    names = [entry["token"] for entry in chat["logprobs"]["content"]]
    assert names == [f"token_id:{token}" for token in chat["token_ids"]]
    assert "".join(bytes(entry["bytes"]).decode() for entry in chat["logprobs"]["content"]) == chat["message"]["content"]
    assert all(
        top["token"].startswith("token_id:") for entry in chat["logprobs"]["content"] for top in entry["top_logprobs"]
    )
    text = api.complete(logprobs=1, **fields).json()["choices"][0]
    assert text["logprobs"]["tokens"] == [f"token_id:{token}" for token in text["token_ids"]]
    plain = api.complete(logprobs=1, max_tokens=5).json()["choices"][0]["logprobs"]
    assert text["logprobs"]["text_offset"] == plain["text_offset"]


def test_a_stream_tells_every_id_once_and_those_of_the_prompt_first(api: Any) -> None:
    fields = {"max_tokens": None, "return_token_ids": True, "reasoning_effort": "minimal"}
    whole = api.chat("Hello", **fields).json()
    first, *chunks = json_events(api.chat("Hello", stream=True, **fields).text)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks)
    told = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
    assert told == whole["choices"][0]["token_ids"]
    hidden = json_events(api.chat("Hello", stream=True, include_reasoning=False, **fields).text)
    assert [token for chunk in hidden for token in chunk["choices"][0].get("token_ids", ())] == told


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"echo": True}, {"echo": True, "max_tokens": 0, "logprobs": 0}])
def test_a_streamed_completion_tells_its_ids_too(api: Any, more: dict[str, Any]) -> None:
    fields = {"max_tokens": 9, "return_token_ids": True, **more}
    whole = api.complete("Once upon 🦜", **fields).json()["choices"][0]
    chunks = [chunk["choices"][0] for chunk in json_events(api.complete("Once upon 🦜", stream=True, **fields).text)]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    told = [token for chunk in chunks for token in chunk["token_ids"]]
    assert told == ([] if more.get("max_tokens") == 0 else whole["token_ids"])
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
