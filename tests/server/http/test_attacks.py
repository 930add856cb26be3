"""Small requests that ask for more work than a server has time for: each gets an answer after a bounded number of steps."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import attacks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from large_bodies import large
from raw_asgi import RawAnswer

from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.replies.structured.budget import CURRENT, FULL, Budget
from llmirage_server.service.prompts import MOST_CHOICES, EncodedPrompt
from llmirage_shared.wire.sampling import Sampling

from ..conftest import Api


async def _never() -> Any:
    await asyncio.Event().wait()


class CountedBudget(Budget):
    """Remembers what was spent of each budget."""

    __slots__ = ("steps",)
    made: list[CountedBudget] = []  # noqa: RUF012

    def __init__(self, steps: int, part: str = "", tokens: int | None = None) -> None:
        super().__init__(steps, part, tokens)
        self.steps = steps
        self.made.append(self)

    @property
    def spent(self) -> int:
        return self.steps - max(0, self.left)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Api]:
    """An API on whose event loop every step outside a budget is an error."""
    token = CURRENT.set(Budget(0, "outside a budget"))
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmirage_server.http.exchange.Budget", CountedBudget)
        yield Api(runner)
    CURRENT.reset(token)


@given(st.integers(0, 2**40))
def test_an_attack_gets_an_answer_in_bounded_steps(guarded: Api, seed: int) -> None:
    path, body = attacks.attack(random.Random(seed))
    CountedBudget.made.clear()
    response = guarded.post(path, body)
    assert response.status_code in (200, 400, 413), response.text
    assert sum(budget.spent for budget in CountedBudget.made) <= 2 * FULL
    if response.status_code == 400:
        error = response.json()["error"]
        assert len(error["message"]) < 1_000


def too_long(api: Api, path: str, body: dict[str, Any]) -> tuple[str, str]:
    response = api.post(path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    return error.get("param"), error["message"]


LONG: Any = {"type": "string", "minLength": 10**9}
WIDE: Any = {"type": "string", "enum": [f"{number}" for number in range(60)]}
for _ in range(12):
    WIDE = {"anyOf": [WIDE, {**WIDE}]}
USER = [{"role": "user", "content": "Call it."}]


def function(name: str, parameters: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"tools": [function("a", {}), function("b", WIDE)]}, "tools[1].function.parameters"),
        (
            "/v1/chat/completions",
            {"tools": [function("a", LONG)], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": LONG}}},
            "response_format",
        ),
        ("/v1/chat/completions", {"guided_regex": "a{1000000000}"}, "guided_regex"),
        ("/v1/chat/completions", {"guided_grammar": 'start: (""~1000000)~1000000'}, "guided_grammar"),
    ],
)
def test_the_field_that_asks_for_too_much_is_told(guarded: Api, path: str, fields: Any, param: str) -> None:
    found, message = too_long(guarded, path, {"model": "m", "messages": USER, **fields})
    assert found == param
    assert "takes more work than this server does for one request" in message


def test_what_fits_the_budget_but_not_max_tokens_is_cut(guarded: Api) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "minLength": 50_000}}}
    choice = guarded.chat(response_format=form, max_tokens=20).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) < 400


def test_choices_are_limited(guarded: Api) -> None:
    assert guarded.complete(["x"] * 8, n=MOST_CHOICES // 8, max_tokens=1).status_code == 200
    for prompts, n in ((8, 128 + 1), (MOST_CHOICES + 1, 1), (9, 128)):
        response = guarded.complete(["x"] * prompts, n=n, max_tokens=1)
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("n", "prompt")
    assert guarded.complete(["x"] * 60, best_of=20, max_tokens=1).status_code == 400
    generate = {"text": ["x"] * 9, "sampling_params": {"n": 128, "max_new_tokens": 1}}
    assert guarded.post("/generate", generate).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"model": "bge-m3", "input": ["x"] * 2049}, "input"),
        ("/rerank", {"model": "bge-m3", "query": "x", "documents": ["x"] * 2049}, "documents"),
        ("/score", {"model": "bge-m3", "text_1": "x", "text_2": ["x"] * 2049}, "text_2"),
        ("/v1/moderations", {"input": ["x"] * 2049}, "input"),
    ],
)
def test_inputs_are_limited(guarded: Api, path: str, body: Any, param: str) -> None:
    response = guarded.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "2048" in response.json()["error"]["message"]


def longest_turn_s(api: Api, work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """The CPU time of the longest turn of the loop while some work is done."""

    async def measured() -> float:
        working, longest_s = asyncio.ensure_future(work()), 0.0
        while not working.done():
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began_s)
        await working
        return longest_s

    gc.freeze()  # a collection would walk what all tests before keep
    return api._runner.run(measured())


def test_reading_checking_and_planning_take_turns(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body just below what goes to a thread takes several turns; a small one is done with in its first."""
    turns = []

    async def counted() -> None:
        turns.append(1)

    monkeypatch.setattr("llmirage_server.http.exchange.turn", counted)
    taken = []
    for properties in (1, 2_200):
        schema = {"type": "object", "properties": {f"p{place}": {"enum": [[]] * 8} for place in range(properties)}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        content = json.dumps(
            {"model": "m", "messages": USER, "max_tokens": 5, "tools": tools}, separators=(",", ":")
        ).encode()
        assert len(content) < LARGE_BYTES
        api._runner.run(RawAnswer().ask(api.app, "/v1/chat/completions", content))
        taken.append(len(turns))
    assert taken[1] >= 2 * taken[0] + 3


def test_planning_in_slices_lets_others_run(api: Api) -> None:
    async def generate() -> None:
        service = api.app.service
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        served = service.models.find(service.models.served[0])
        prompts = [EncodedPrompt(np.zeros(1, dtype=np.int32), "x")] * 8
        await service.generate(prompts, Sampling(max_tokens=50, n=128), served, HttpExchange(scope, _never), "prompt")

    assert longest_turn_s(api, generate) < 0.05


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (
            "/v1/chat/completions",
            {"model": "m", "messages": USER, "max_tokens": 3_000, "ignore_eos": True, "stream": True},
            100,
        ),
        ("/v1/embeddings", {"model": "bge-m3", "input": ["some text"] * 1_000}, 10),
    ],
)
def test_requests_that_come_and_go_together_take_many_turns(api: Api, path: str, body: Any, count: int) -> None:
    content = json.dumps(body).encode()
    api._runner.run(RawAnswer().ask(api.app, path, content))

    async def ask() -> None:
        asked = [asyncio.ensure_future(RawAnswer().ask(api.app, path, content)) for _ in range(count)]
        await asyncio.sleep(1.0)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    assert longest_turn_s(api, ask) < 0.05


@pytest.mark.parametrize("seed", [0, 1, 2, 6, 7, 8, 12, 13, 15])  # of the other seeds below 16, the bodies are as these
def test_a_large_body_holds_the_event_loop_for_less_than_a_tenth_of_a_second(
    api: Api, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = large(random.Random(seed), 0.6)
    api.post(*large(random.Random(seed), 0.001))  # imports what such a request needs
    longest_s = 0.0
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def measured(handle: asyncio.Handle) -> None:
        nonlocal longest_s
        began_s = time.thread_time()
        run(handle)
        longest_s = max(longest_s, time.thread_time() - began_s)

    content, answer = json.dumps(body).encode(), RawAnswer()
    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    gc.freeze()  # a collection would walk what all tests before keep
    api._runner.run(answer.ask(api.app, path, content))
    monkeypatch.undo()
    assert answer.status in (200, 400, 404, 413)
    assert longest_s < 0.1, (path, len(content))
