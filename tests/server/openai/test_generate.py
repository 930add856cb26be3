"""vLLM's tokens in, tokens out: what a prompt's rendering is posted to."""

from collections.abc import Callable
from typing import Any

import pytest
from event_streams import json_events
from faulty import ask, new_app

from llmirage_shared import virtual_time

from ..conftest import Api

PATH, CHAT_PATH = "/inference/v1/generate", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "word " * 300}]
SIX = {"token_ids": [100, 200, 300], "sampling_params": {"max_tokens": 6, "ignore_eos": True}}


@pytest.fixture
def vllm(make_api: Callable[..., Api]) -> Api:
    return make_api(dialect="vllm")


@pytest.mark.parametrize("first", [CHAT_PATH, PATH])
def test_a_rendered_prompt_costs_the_cluster_what_its_chat_costs(make_api: Callable[..., Api], first: str) -> None:
    api = make_api(dialect="vllm", ttft_ms=None, itl_ms=None, speed=float("inf"))
    chat = {"model": "m", "messages": MESSAGES, "max_tokens": 20, "ignore_eos": True}
    bodies = {CHAT_PATH: chat, PATH: api.post(f"{CHAT_PATH}/render", chat).json()}
    new, *again = [api.post(path, bodies[path]).json() for path in (first, *bodies)]
    assert new["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again[0]["usage"] == again[1]["usage"]
    assert again[1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 250
    assert (again[1]["usage"]["completion_tokens"], len(again[1]["choices"][0]["token_ids"])) == (20, 20)
    assert again[1]["request_id"] == f"generate-tokens-{bodies[PATH]['request_id']}"
    times = [entry["duration_s"] for entry in api.request("GET", "/llmirage/journal").json()["entries"][-2:]]
    assert times[0] == pytest.approx(times[1], rel=1e-6) != 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 57}}}}, "57"),
        ({"guided_choice": ["yes"]}, "yes"),
        ({"structured_outputs": {"regex": "a[b]c"}}, "abc"),
        ({"guided_grammar": 'start: "x"'}, "x"),
    ],
)
def test_what_is_rendered_says_how_to_generate(vllm: Api, fields: dict[str, Any], text: str) -> None:
    chat = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **fields}
    rendered = vllm.post(f"{CHAT_PATH}/render", chat).json()
    [choice] = vllm.post(PATH, {**rendered, "output_mode": "text"}).json()["choices"]
    assert (choice["text"], len(choice["logprobs"]["content"][0]["top_logprobs"])) == (text, 2)


def test_a_stream_brings_the_tokens_of_the_whole_answer(vllm: Api) -> None:
    params = {**SIX["sampling_params"], "n": 2, "seed": 3, "logprobs": 2}
    body = {**SIX, "sampling_params": params, "return_token_ids": True, "output_mode": "text"}
    whole = vllm.post(PATH, body).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = vllm.post(PATH, {**body, "stream": True, "stream_options": options}).text
    *chunks, last = json_events(text)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], whole["usage"]["total_tokens"])
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [whole["prompt_token_ids"]]
    for choice in whole["choices"]:
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert [id_ for part in parts for id_ in part["token_ids"]] == choice["token_ids"]
        assert "".join([part["text"] for part in parts]) == choice["text"]
        assert [entry for part in parts for entry in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert [part["finish_reason"] for part in parts] == [*[None] * 5, choice["finish_reason"]]


@pytest.mark.parametrize(("most", "told"), [(0, 1), (3, 3)])
def test_log_probabilities_name_tokens_by_their_ids(vllm: Api, most: int, told: int) -> None:
    answer = vllm.post(PATH, {**SIX, "sampling_params": {"logprobs": most, "prompt_logprobs": 1, "max_tokens": 6}}).json()
    assert (answer["prompt_logprobs"][0], len(answer["prompt_logprobs"])) == (None, 3)
    choice = answer["choices"][0]
    for id_, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token_id", "logprob", "rank")}
        assert (entry["token_id"], len({each["rank"] for each in entry["top_logprobs"]})) == (id_, told)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"token_ids": "text"}, 400, "token_ids"),
        ({"token_ids": [1, -1]}, 400, "token_ids[1]"),
        ({"token_ids": [1] * 300_000}, 400, "token_ids"),
        ({"sampling_params": {"n": 0}}, 400, "sampling_params.n"),
        ({"sampling_params": {"max_tokens": 2, "min_tokens": 3}}, 400, "min_tokens"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, 400, "sampling_params.detokenize"),
        ({"model": ""}, 404, "model"),
    ],
)
def test_a_wrong_field_is_named_in_the_form_of_vllm(vllm: Api, fields: Any, status: int, param: str) -> None:
    error = vllm.post(PATH, SIX | fields).json()["error"]
    assert (error["code"], error["param"]) == (status, param), error


def test_only_the_dialect_of_vllm_has_it_and_faults_count_its_tokens(api: Api) -> None:
    assert api.post(PATH, SIX).status_code == 404
    reply = virtual_time.run(ask(new_app(dialect="vllm"), "cut; after_tokens=2", PATH, **SIX, stream=True))
    assert (reply.status, len(reply.events), reply.error is None) == (200, 2, False)
