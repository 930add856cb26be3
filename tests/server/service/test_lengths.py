"""Replies end by themselves: `max_tokens` is a limit in every API, and exact lengths are asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
ORDINARY = "Explain in your own words what a harbour is for, and who works there in the morning"
SUM = "What is 2+2?"


@dataclass(frozen=True)
class Endpoint:
    """path, limit: of the API. body: a request by its text. ended: of a response, why it ended and its tokens."""

    path: str
    limit: str
    body: Callable[[str], dict[str, Any]]
    ended: Callable[[dict[str, Any]], tuple[str, int]]
    reasons: tuple[str, str]  # by itself, by the limit


def _of_choice(response: dict[str, Any]) -> tuple[str, int]:
    return response["choices"][0]["finish_reason"], response["usage"]["completion_tokens"]


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ENDPOINTS = {
    "chat": Endpoint("/v1/chat/completions", "max_completion_tokens", lambda text: {"messages": _said(text)}, _of_choice,
                     ("stop", "length")),
    "completions": Endpoint("/v1/completions", "max_tokens", lambda text: {"prompt": text}, _of_choice, ("stop", "length")),
    "responses": Endpoint(
        "/v1/responses", "max_output_tokens", lambda text: {"input": text},
        lambda response: (response["status"], response["usage"]["output_tokens"]), ("completed", "incomplete")),
    "messages": Endpoint(
        "/v1/messages", "max_tokens", lambda text: {"messages": _said(text)},
        lambda response: (response["stop_reason"], response["usage"]["output_tokens"]), ("end_turn", "max_tokens")),
}  # fmt: skip


def ended(api: Any, endpoint: Endpoint, limit: int, text: str = ORDINARY, **fields: Any) -> tuple[str, int]:
    answer = api.post(endpoint.path, {"model": MODEL, **endpoint.body(text), endpoint.limit: limit, **fields})
    assert answer.status_code == 200, answer.text
    return endpoint.ended(answer.json())


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_limit_is_no_wish(name: str, api: Any) -> None:
    endpoint = ENDPOINTS[name]
    by_itself, by_limit = endpoint.reasons
    reason, tokens = ended(api, endpoint, 128_000)
    assert reason == by_itself
    assert 20 < tokens < 1000
    assert ended(api, endpoint, tokens) == (by_itself, tokens)
    assert ended(api, endpoint, tokens - 1) == (by_limit, tokens - 1)
    assert ended(api, endpoint, 300, SUM)[0] == by_itself
    assert ended(api, endpoint, 600, ignore_eos=True) == (by_limit, 600)
    assert ended(api, endpoint, 600, SUM, min_tokens=600) == (by_limit, 600)
    assert 400 <= ended(api, endpoint, 600, SUM, min_tokens=400)[1] <= 600


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_server_of_exact_lengths_gives_what_the_limit_says(name: str, make_api: Any) -> None:
    endpoint = ENDPOINTS[name]
    assert ended(make_api(exact_length=True), endpoint, 700, SUM) == (endpoint.reasons[1], 700)


def test_generate_of_sglang_ends_by_itself(api: Any, make_api: Any) -> None:
    def generated(api: Any, **params: Any) -> tuple[str, int]:
        meta = api.post("/generate", {"text": ORDINARY, "sampling_params": params}).json()["meta_info"]
        return meta["finish_reason"]["type"], meta["completion_tokens"]

    reason, tokens = generated(api, max_new_tokens=4000)
    assert reason == "stop"
    assert tokens < 1000
    assert generated(api, max_new_tokens=4000, ignore_eos=True) == ("length", 4000)
    assert generated(api, max_new_tokens=1200, min_new_tokens=1200) == ("length", 1200)
    assert generated(make_api(exact_length=True), max_new_tokens=1200) == ("length", 1200)


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high"])
def test_thoughts_end_by_themselves_too(effort: str, api: Any) -> None:
    trivial, ordinary = (
        api.post(
            "/v1/responses", {"model": MODEL, "input": text, "reasoning": {"effort": effort}, "max_output_tokens": limit}
        ).json()
        for text, limit in ((SUM, 1000), (ORDINARY, 100_000))
    )
    assert (trivial["status"], ordinary["status"]) == ("completed", "completed")
    budget = {"minimal": 32, "low": 128, "medium": 512, "high": 2048}[effort]
    thought = [each["usage"]["output_tokens_details"]["reasoning_tokens"] for each in (trivial, ordinary)]
    assert 0 < thought[0] <= budget / 5 + 30
    assert budget / 8 < thought[1] <= budget + 30


def test_a_budget_of_thoughts_is_no_wish(api: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 31_999}
    assert ended(api, ENDPOINTS["messages"], 32_000, thinking=thinking)[1] < 2000
    assert ended(api, ENDPOINTS["messages"], 32_000, SUM, thinking=thinking)[1] < 400


def test_a_form_that_is_shown_is_as_long_as_min_tokens_says(api: Any) -> None:
    form = "Respond in the following format:\nVerdict: <yes or no>"
    messages = [{"role": "system", "content": form}, *_said("Is it open?")]
    body = {"model": MODEL, "messages": messages, "max_tokens": 90}
    short = api.post("/v1/chat/completions", body).json()
    long = api.post("/v1/chat/completions", body | {"min_tokens": 90}).json()
    said = short["choices"][0]["message"]["content"]
    assert said.startswith("Verdict: ")
    assert (_of_choice(short)[0], _of_choice(long)) == ("stop", ("length", 90))
    assert long["choices"][0]["message"]["content"].startswith(said)
