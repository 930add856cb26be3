"""Which of openai-python's calls a fault meets: every condition, every way of ordering one, in virtual time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty import MODEL, new_app
from sdks import openai

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_shared import virtual_time

httpx2 = pytest.importorskip("httpx2")

HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETION, EMBEDDING = "chat", "completion", "embedding"


async def outcome(app: LlmirageApp, kind: str = CHAT, key: str = "x", **options: Any) -> int | str:
    """What the SDK tells of one call without retries: the reply's finish reason, the status of an error, or its name."""
    http = httpx2.AsyncClient(transport=MemoryTransport(app))
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key=key, max_retries=0, http_client=http) as sdk:
        given: dict[str, Any] = {"model": MODEL} | options
        try:
            if kind == EMBEDDING:
                return (await sdk.embeddings.create(input="Hi", **given)).object
            if kind == COMPLETION:
                return (await sdk.completions.create(prompt="Hi", max_tokens=3, **given)).choices[0].finish_reason
            made = await sdk.chat.completions.create(messages=HI, max_tokens=3, **given)
            if not options.get("stream"):
                return str(made.choices[0].finish_reason)
            return [chunk.choices[0].finish_reason async for chunk in made if chunk.choices][-1] or "no reason"
        except openai.APIStatusError as error:
            return error.status_code
        except openai.APIConnectionError as error:
            return type(error.__cause__).__name__


def outcomes(
    app: LlmirageApp, faults: Sequence[Any], calls: Sequence[dict[str, Any]], gap_s: float = 0.0
) -> list[int | str]:
    """Of calls, one after the other, while these faults, added at run time, are in force."""

    async def main() -> list[int | str]:
        http = httpx2.AsyncClient(transport=MemoryTransport(app))
        async with openai.AsyncOpenAI(base_url="http://test/llmirage", api_key="x", http_client=http) as sdk:
            if faults:
                await sdk.post("/faults", body={"faults": list(faults)}, cast_to=object)
        found = []
        for call in calls:
            found.append(await outcome(app, **call))
            await asyncio.sleep(gap_s)
        return found

    return virtual_time.run(main())


def hits(fault: str, calls: Sequence[dict[str, Any]], gap_s: float = 0.0, **settings: Any) -> list[bool]:
    found = outcomes(new_app(**settings), [f"status; status=503; {fault}"], calls, gap_s)
    assert set(found) <= {503, "length", "list"}
    return [one == 503 for one in found]


def test_by_model() -> None:
    assert hits("model=gpt-*", [{"model": "gpt-4o"}, {"model": "o3"}]) == [True, False]
    assert hits("model=gpt-4o", [{"model": "gpt-4o"}, {"model": "gpt-4o-mini"}]) == [True, False]


def test_by_endpoint() -> None:
    calls = [{"kind": kind} for kind in (CHAT, COMPLETION, EMBEDDING)]
    assert hits("endpoint=completions", calls) == [False, True, False]
    assert hits("endpoint=/v1/*", calls) == [True, True, True]


def test_by_key() -> None:
    assert hits("key=sk-a", [{"key": "sk-a"}, {"key": "sk-b"}]) == [True, False]


def test_by_instance() -> None:
    assert hits("instance=1", [{}] * 4, router="round_robin") == [False, True, False, True]


def test_the_first_n() -> None:
    assert hits("times=2", [{}] * 4) == [True, True, False, False]


def test_by_probability_drawn_by_the_seed() -> None:
    drawn = [hits("probability=0.4", [{}] * 50, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 10 <= sum(drawn[0]) <= 30


def test_by_a_window_of_time() -> None:
    assert hits("from_s=12; until_s=32", [{}] * 5, gap_s=10) == [False, False, True, True, False]


def test_after_bytes() -> None:
    assert outcomes(new_app(), ["cut; after_bytes=300"], [{"stream": True}]) == ["RemoteProtocolError"]
    assert outcomes(new_app(), ["cut; after_bytes=500; clean=true"], [{"stream": True}]) == ["no reason"]


async def test_a_crash_of_the_instance() -> None:
    """The stream of the request that it takes along ends with an error event, which the SDK raises."""
    app = new_app(on_crash="fail", instances=1)
    with pytest.raises(openai.APIError) as caught:
        await outcome(app, stream=True, extra_headers={"X-Llmirage-Fault": "crash; after_tokens=1"})
    assert "lost" in caught.value.message


def test_by_header_only_where_it_is_allowed() -> None:
    calls = [{"extra_headers": {"X-Llmirage-Fault": "status; status=418"}}, {}]
    assert outcomes(new_app(), [], calls) == [418, "length"]
    assert outcomes(new_app(allow_fault_header=False), [], calls) == ["length", "length"]


def test_by_the_rule_of_a_script() -> None:
    rule = {"when": {"user": "Hi"}, "reply": ["Hello", {"fault": "status; status=529"}, "Hello"]}
    app = create_app(ClusterConfig(ttft_ms=1.0, itl_ms=1.0), script={"rules": [rule]})
    assert outcomes(app, [], [{}] * 3) == ["stop", 529, "stop"]


def test_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults:\n  - {kind: status, status: 502, times: 1}\n  - {kind: reset, times: 1}\n")
    app = create_app(ClusterConfig(ttft_ms=1.0, itl_ms=1.0, faults=str(path)))
    assert outcomes(app, [], [{}] * 3) == [502, "ReadError", "length"]
