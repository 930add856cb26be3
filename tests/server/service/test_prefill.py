"""Embeddings, scores and moderations: the cluster reads their prompts, which takes its time and fills its caches."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.service.generation import SLICE

WORDS = "some words of a document " * 40
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "bge-m3", "input": WORDS},
    "/rerank": {"model": "bge-m3", "query": "What?", "documents": [WORDS]},
    "/score": {"model": "bge-m3", "text_1": "What?", "text_2": WORDS},
    "/v1/moderations": {"input": WORDS},
}


def metric(api: Any, name: str) -> float:
    text = api.request("GET", "/metrics").text
    return sum(float(line.rsplit(" ", 1)[1]) for line in re.findall(rf"^vllm:{name}\{{.*", text, re.MULTILINE))


@pytest.mark.parametrize("path", BODIES)
def test_the_cluster_reads_the_prompt_and_remembers_it(make_api: Callable[..., Any], path: str) -> None:
    api = make_api(instances=1)
    answer = api.post(path, BODIES[path])
    assert answer.status_code == 200, answer.text
    read = metric(api, "prompt_tokens_total")
    assert 200 <= read <= 210
    usage = answer.json().get("usage")
    assert usage is None or usage["prompt_tokens"] == usage["total_tokens"] == read
    assert metric(api, "prefix_cache_hits_total") == 0
    assert api.post(path, BODIES[path]).status_code == 200
    assert metric(api, "prefix_cache_hits_total") >= 190
    assert metric(api, "request_success_total") == 2


@pytest.mark.parametrize("path", BODIES)
def test_the_answer_comes_when_the_prefill_is_done(make_api: Callable[..., Any], path: str) -> None:
    api = make_api(ttft_ms=60.0)
    api.request("GET", "/health")
    begun_s = time.monotonic()
    assert api.post(path, BODIES[path]).status_code == 200
    assert time.monotonic() - begun_s >= 0.06


def test_every_input_is_a_request_and_a_long_one_is_read_as_far_as_it_fits(make_api: Callable[..., Any]) -> None:
    api = make_api(instances=1, max_model_len=100)
    ids = [[number] * (number * 40) for number in range(1, 5)]
    answer = api.post("/v1/embeddings", {"model": "bge-m3", "input": ids}).json()
    assert answer["usage"] == {"prompt_tokens": 400, "total_tokens": 400}
    assert metric(api, "prompt_tokens_total") == 40 + 80 + 99 + 99
    assert metric(api, "request_success_total") == 4


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_takes_its_request_with_it(make_api: Callable[..., Any], path: str) -> None:
    api = make_api(ttft_ms=60_000.0)

    async def leave() -> int:
        answer = RawAnswer()
        asking = asyncio.ensure_future(answer.ask(api.app, path, BODIES[path]))
        while not api.app.service.responses.under_way:
            await asyncio.sleep(0)
        answer.left.set()
        await asking
        assert answer.status == 0
        return len(api.app.service.responses.under_way)

    assert api._runner.run(leave()) == 0
    assert all(state.running == 0 and state.waiting == 0 for state in api.app.driver.snapshot())


@pytest.mark.parametrize("leaves_after", [None, 1])
def test_many_inputs_reach_the_cluster_in_slices_between_which_the_loop_turns(
    make_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, leaves_after: int | None
) -> None:
    api = make_api(ttft_ms=1.0)
    turns, submitted, times = 0, [], []
    submit = api.app.driver.submit
    answer = RawAnswer()

    def noted(requests: Any, *arguments: Any, **options: Any) -> None:
        requests = list(requests)
        submit(requests, *arguments, **options)
        submitted.append((len(requests), turns))
        times.extend([request.arrival_s for request in requests])
        if len(submitted) == leaves_after:
            answer.left.set()

    async def ask() -> None:
        nonlocal turns
        body = {"model": "bge-m3", "input": [f"text {number}" for number in range(SLICE * 5 + 1)]}
        asking = asyncio.ensure_future(answer.ask(api.app, "/v1/embeddings", body))
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(api.app.driver, "submit", noted)
    monkeypatch.setattr("llmirage_server.http.turns.TURN_S", 0.0)  # as if each slice took long
    api._runner.run(ask())
    counts, at = [count for count, _ in submitted], [turn for _, turn in submitted]
    assert len(set(at)) == len(at)
    assert len(set(times)) == 1
    if leaves_after is None:
        assert counts == [SLICE] * 5 + [1]
        assert len(json.loads(answer.body)["data"]) == SLICE * 5 + 1
    else:
        assert answer.status == 0
        assert set(counts) == {SLICE}
        assert len(counts) < 5
        assert all(state.running == 0 and state.waiting == 0 for state in api.app.driver.snapshot())


def test_a_server_that_sleeps_reads_nothing(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.request("POST", "/sleep")
    assert {api.post(path, body).status_code for path, body in BODIES.items()} == {503}
    api.request("POST", "/wake_up")
    assert {api.post(path, body).status_code for path, body in BODIES.items()} == {200}


def test_of_a_document_only_so_many_tokens_are_read(api: Any) -> None:
    body = {"model": "bge-m3", "query": "Paris", "documents": ["Bananas are yellow. Paris is a city in France."]}
    whole = api.post("/rerank", body).json()
    short = api.post("/rerank", body | {"max_tokens_per_doc": 3}).json()
    assert short["results"][0]["relevance_score"] < whole["results"][0]["relevance_score"]
    assert short["usage"]["prompt_tokens"] == api.post("/tokenize", {"prompt": "Paris"}).json()["count"] + 3
    assert short["results"][0]["document"] == whole["results"][0]["document"]
