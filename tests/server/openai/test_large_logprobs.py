"""Answers of very many log probabilities: made while they are written, in a thread, and refused over their limit."""

import json
import tracemalloc
from typing import Any

import pytest

from llmirage_server.http.byte_budget import ByteBudget, Held
from llmirage_server.http.json_pieces import LazyList, written
from llmirage_shared.wire.output import json_text

MESSAGES = [{"role": "user", "content": "Hello"}]


def asked(path: str, tokens: int, top: int, **more: Any) -> dict[str, Any]:
    if path == "/v1/chat/completions":
        fields = {"messages": MESSAGES, "max_tokens": tokens, "logprobs": True, "top_logprobs": top, "ignore_eos": True}
    elif path == "/v1/completions":
        fields = {"prompt": "Hello", "max_tokens": tokens, "logprobs": top, "ignore_eos": True}
    elif path == "/v1/responses":
        fields = {"input": "Hello", "max_output_tokens": tokens, "top_logprobs": top, "store": False}
    else:
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        return {"text": "Hello", "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": top} | more
    return {"model": "m"} | fields | more


WHOLE = ["/v1/chat/completions", "/v1/completions", "/generate"]


@pytest.mark.parametrize("path", WHOLE)
def test_an_answer_over_the_limit_is_refused_before_it_is_generated(make_api: Any, path: str) -> None:
    api = make_api(dialect="sglang", max_model_len=200_000)
    refused = api.post(path, asked(path, 180_000, 5))
    assert refused.status_code == 400
    assert "at most 67108864 are sent in one piece" in refused.text
    assert not api.app.service.driver.snapshot()[0].running


@pytest.mark.parametrize("path", [*WHOLE, "/v1/responses"])
def test_a_large_answer_is_made_in_the_thread_and_never_held_as_objects(make_api: Any, path: str) -> None:
    api = make_api(dialect="sglang", max_model_len=50_000)
    tokens, top = 3000, 5
    api.post(path, asked(path, 5, top))
    tracemalloc.start()
    answer = api.post(path, asked(path, tokens, top))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.status_code == 200
    assert peak_bytes < 6 * len(answer.content) + 8_000_000
    found = json.loads(answer.content)
    if path == "/v1/chat/completions":
        entries = found["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == found["choices"][0]["message"]["content"]
        assert {len(entry["top_logprobs"]) for entry in entries} == {top}
    elif path == "/generate":
        assert len(found["meta_info"]["output_top_logprobs"]) == tokens
    elif path == "/v1/completions":
        lists = found["choices"][0]["logprobs"]
        assert len({len(values) for values in lists.values()}) == 1


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/responses", {"stream": True}),
        ("/v1/responses", {"store": True}),
        ("/v1/chat/completions", {"store": True}),
        ("/generate", {"stream": True}),
    ],
)
def test_what_is_written_at_once_has_a_smaller_limit(make_api: Any, path: str, more: dict[str, Any]) -> None:
    api = make_api(dialect="sglang" if path == "/generate" else "openai", max_model_len=50_000, exact_length=True)
    refused = api.post(path, asked(path, 20_000, 20, **more))
    assert refused.status_code == 400
    assert "at most 1048576 are sent" in refused.text


def test_large_answers_find_room_in_the_total_of_requests(make_api: Any) -> None:
    api = make_api(max_model_len=50_000, unread_mib=4)
    refused = api.post("/v1/chat/completions", asked("/v1/chat/completions", 4_000, 20))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
    assert api.app.unread.taken == 0
    assert Held(ByteBudget()).takes(1)


def test_a_lazy_list_is_written_as_a_list() -> None:
    lazy = LazyList(lambda place: {"n": place, "of": "ä" * place}, range(5))
    value = {"a": lazy, "b": [lazy[1:3]], "c": LazyList(str, [])}
    plain = {"a": list(lazy), "b": [list(lazy)[1:3]], "c": []}
    assert b"".join(written(value)).decode() == json_text(value) == json_text(plain)
    assert lazy == list(lazy)
    assert lazy[-1] == {"n": 4, "of": "ääää"}
    assert not value["c"]
