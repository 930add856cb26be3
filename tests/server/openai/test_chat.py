"""POST /v1/chat/completions: the objects, the usage, the stream."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from event_streams import json_events

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def events(response: Any) -> list[Any]:
    """The data of every event of a stream, parsed; [DONE] stays a string."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def streamed_text(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def test_the_object_has_every_required_key(api: Any) -> None:
    body = api.chat(max_tokens=5).json()
    assert set(body) == {"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"}
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"], body["service_tier"]) == ("chat.completion", MODEL, "default")
    assert body["system_fingerprint"].startswith("fp_")
    [choice] = body["choices"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    message = choice["message"]
    assert set(message) == {"role", "content", "refusal", "annotations"}
    assert (message["role"], message["refusal"]) == ("assistant", None)


def test_usage_counts_prompt_reply_and_cached_tokens(make_api: Any) -> None:
    api = make_api(instances=1, lenient=True)
    first = api.chat("Tell me about the sea.", max_tokens=7).json()["usage"]
    assert first["completion_tokens"] == 7
    assert first["total_tokens"] == first["prompt_tokens"] + 7
    assert first["prompt_tokens_details"] == {"cached_tokens": 0, "audio_tokens": 0}
    assert first["completion_tokens_details"]["reasoning_tokens"] == 0
    second = api.chat("Tell me about the sea.", max_tokens=7).json()["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1  # one is left to compute


def test_the_next_turn_finds_prompt_and_reply_in_the_cache(make_api: Any) -> None:
    api = make_api(instances=1, lenient=True)
    question = {"role": "user", "content": "What is a mirage?"}
    first = api.post("/v1/chat/completions", {"model": MODEL, "messages": [question], "max_tokens": 20}).json()
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    follow_up = {"model": MODEL, "messages": [question, answer, {"role": "user", "content": "Why?"}], "max_tokens": 2}
    usage = api.post("/v1/chat/completions", follow_up).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == first["usage"]["total_tokens"]


def test_the_stream_opens_with_the_role_and_ends_with_the_reason_and_done(api: Any) -> None:
    chunks = events(api.chat(max_tokens=4, stream=True))
    assert chunks[-1] == "[DONE]"
    first, *middle, last = chunks[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert len(middle) == 4
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks[:-1])
    assert all("usage" not in chunk for chunk in chunks[:-1])
    heads = {(c["id"], c["object"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks[:-1]}
    assert len(heads) == 1
    assert heads.pop()[1] == "chat.completion.chunk"


def test_include_usage_adds_null_to_every_chunk_and_one_chunk_without_choices(api: Any) -> None:
    chunks = events(api.chat("usage?", max_tokens=3, stream=True, stream_options={"include_usage": True}))
    *chunks, usage, done = chunks
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["id"] == chunks[0]["id"]


def test_streamed_and_whole_replies_say_the_same(api: Any) -> None:
    whole = api.chat("Say something", max_tokens=40, seed=3).json()["choices"][0]["message"]["content"]
    assert streamed_text(events(api.chat("Say something", max_tokens=40, seed=3, stream=True))) == whole
    assert api.chat("Say something", max_tokens=40, seed=4).json()["choices"][0]["message"]["content"] != whole


def test_a_server_of_the_same_seed_says_the_same_and_another_seed_something_else(make_api: Any) -> None:
    texts = [make_api(seed=seed).chat("Hi", max_tokens=30).json()["choices"][0]["message"]["content"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_n_choices_differ_and_count_the_prompt_once(api: Any) -> None:
    one = api.chat("many", max_tokens=8).json()
    many = api.chat("many", max_tokens=8, n=3).json()
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in many["choices"]}) == 3
    assert many["choices"][0]["message"] == one["choices"][0]["message"]
    assert many["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert many["usage"]["completion_tokens"] == 24


def test_n_choices_stream_side_by_side(api: Any) -> None:
    whole = api.chat("many", max_tokens=8, n=3).json()
    chunks = events(api.chat("many", max_tokens=8, n=3, stream=True))
    assert chunks.count("[DONE]") == 1
    for choice in whole["choices"]:
        assert streamed_text(chunks, choice["index"]) == choice["message"]["content"]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert reasons.count("length") == 3


def test_both_names_of_the_token_limit_may_say_the_same(make_api: Any) -> None:
    api = make_api(lenient=True)
    for fields in ({"max_tokens": 4}, {"max_completion_tokens": 4}, {"max_tokens": 4, "max_completion_tokens": 4}):
        assert api.chat(**fields).json()["usage"]["completion_tokens"] == 4


def test_without_max_tokens_the_reply_ends_by_itself(api: Any) -> None:
    body = api.chat("How long?").json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] > 1


def test_min_tokens_and_ignore_eos_keep_the_reply_going(api: Any) -> None:
    natural = api.chat("How long?").json()["usage"]["completion_tokens"]
    assert api.chat("How long?", min_tokens=natural + 50).json()["usage"]["completion_tokens"] >= natural + 50
    endless = api.chat("How long?", ignore_eos=True, max_tokens=natural + 70).json()
    assert endless["usage"]["completion_tokens"] == natural + 70
    assert endless["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_text_before_it_also_in_a_stream(api: Any) -> None:
    whole = api.chat("stop", max_tokens=60).json()["choices"][0]["message"]["content"]
    stop = whole[40:46]
    cut = whole[: whole.index(stop)]
    body = api.chat("stop", max_tokens=60, stop=[stop]).json()
    assert body["choices"][0]["message"]["content"] == cut
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == stop
    chunks = events(api.chat("stop", max_tokens=60, stop=stop, stream=True))
    assert streamed_text(chunks) == cut
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


def test_tools_count_as_prompt_tokens_and_the_reply_is_text(api: Any) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    plain = api.chat("tools", max_tokens=3).json()
    tools = api.chat("tools", max_tokens=3, tools=[tool], tool_choice="auto").json()
    assert tools["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 5
    assert "tool_calls" not in tools["choices"][0]["message"]


def test_content_parts_are_read_as_their_text(api: Any) -> None:
    whole = api.chat("one\ntwo", max_tokens=3).json()["usage"]["prompt_tokens"]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert api.chat(parts, max_tokens=3).json()["usage"]["prompt_tokens"] == whole
    image = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    assert api.chat(image, max_tokens=3).status_code == 200


def test_echo_replies_repeat_the_user(make_api: Any) -> None:
    api = make_api(replies="echo")
    assert api.chat("Hello, mirage! 😀").json()["choices"][0]["message"]["content"] == "Hello, mirage! 😀"
    assert streamed_text(events(api.chat("Hello, mirage! 😀", stream=True))) == "Hello, mirage! 😀"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_long_prompt_is_read_off_the_loop_with_the_same_result(api: Any, path: str) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 400  # more than LONG_CHARACTERS
    encoder = api._runner.run(api.app.service.text.get()).encoder
    if path == "completions":
        tokens = api.complete(text, max_tokens=1).json()["usage"]["prompt_tokens"]
        assert tokens == len(encoder.tokenizer.encode(text))
    else:
        tokens = api.chat(text, max_tokens=1).json()["usage"]["prompt_tokens"]
        assert tokens == len(encoder.encode_chat([{"role": "user", "content": text}]))


PATHS = ("/v1/chat/completions", "/v1/completions")


def chunks(api: Any, path: str, **fields: Any) -> list[dict[str, Any]]:
    said = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"prompt": "Hello"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "m", "max_tokens": 12, "stream": True, "stream_options": options, **said, **fields}
    return json_events(api.post(path, body).text)


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


def test_a_router_gets_the_tokens_of_a_prompt_without_an_answer(make_api: Callable[..., Any]) -> None:
    api = make_api(dialect="vllm", max_model_len=1000)
    messages = [{"role": "user", "content": "Hello"}]
    chat = {"model": MODEL, "messages": messages, "temperature": 0.5, "stop": ["x"], "stream": True}
    found = api.post("/v1/chat/completions/render", chat).json()
    ids = api.post("/tokenize", {"model": MODEL, "messages": messages}).json()["tokens"]
    assert (found["token_ids"], found["model"], found["stream"], found["features"]) == (ids, MODEL, True, None)
    params = found["sampling_params"]
    assert (params["temperature"], params["stop"], params["max_tokens"]) == (0.5, ["x"], 1000 - len(ids))
    texts = ["Hello there", "You"]
    prompts = api.post("/v1/completions/render", {"model": MODEL, "prompt": texts, "max_tokens": 5}).json()
    told = [api.post("/tokenize", {"model": MODEL, "prompt": text}).json()["tokens"] for text in texts]
    assert [prompt["token_ids"] for prompt in prompts] == told
    assert {prompt["sampling_params"]["max_tokens"] for prompt in prompts} == {5}
    assert not any(entry.get("output_tokens") for entry in api.request("GET", "/llmirage/journal").json()["entries"])
    assert api.post("/v1/chat/completions/render", chat | {"messages": []}).status_code == 400
