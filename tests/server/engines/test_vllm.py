"""What vLLM has beside the API: state of the engine, prefix caches, sleep."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
WORDS = "word " * 300


def cached(api: Any, **fields: Any) -> int:
    usage = api.complete(WORDS, max_tokens=2, **fields).json()["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_small_questions_have_small_answers(api: Any) -> None:
    for method in ("GET", "HEAD", "POST"):
        assert (api.request(method, "/ping").status_code, api.request(method, "/ping").content) == (200, b"")
    assert set(api.request("GET", "/version").json()) == {"version"}
    assert api.request("GET", "/load").json() == {"server_load": 0}
    assert api.request("GET", "/is_sleeping").json() == {"is_sleeping": False}
    assert api.request("POST", "/version").status_code == 405
    assert api.request("GET", "/tokenize").status_code == 405


@pytest.mark.parametrize("settings", [{}, {"ttft_ms": None, "itl_ms": None, "speed": float("inf")}])
def test_reset_prefix_cache_makes_the_next_prompt_new(make_api: Callable[..., Any], settings: dict[str, Any]) -> None:
    api = make_api(dialect="vllm", **settings)
    assert cached(api) == 0
    assert cached(api) >= 250
    assert api.request("POST", "/reset_prefix_cache").status_code == 200
    assert cached(api) == 0
    assert cached(api) >= 250


def test_reset_before_any_request_is_fine(make_api: Callable[..., Any]) -> None:
    assert make_api().request("POST", "/reset_prefix_cache").status_code == 200


def test_server_info_shows_the_settings_and_the_instances(make_api: Callable[..., Any]) -> None:
    told = make_api(speed=float("inf"), seed=7).request("GET", "/server_info").json()
    assert told["vllm_config"]["model"] == MODEL
    assert (told["vllm_config"]["seed"], told["vllm_config"]["speed"]) == (7, "max")
    assert [instance["index"] for instance in told["instances"]] == [0, 1]
    assert told["instances"][0]["kv_total_tokens"] > 100_000
    [pool] = told["deployment"]
    assert (pool["model"], pool["gpu"], pool["engine"], pool["weights"]) == (MODEL, "h100_sxm", "vllm", "fp8")
    assert (pool["tensor_parallel_size"], pool["expert_parallel_size"], pool["instances"]) == (1, 1, 2)


def test_a_sleeping_server_refuses_until_it_wakes(make_api: Callable[..., Any]) -> None:
    api = make_api()
    cached(api)
    assert api.request("POST", "/sleep?level=1").status_code == 200
    assert api.request("GET", "/is_sleeping").json() == {"is_sleeping": True}
    refused = api.chat()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert api.request("POST", "/wake_up").status_code == 200
    assert cached(api) == 0  # sleeping costs the caches
    assert api.request("GET", "/is_sleeping").json() == {"is_sleeping": False}
    assert api.request("POST", "/sleep?level=9").status_code == 400


def test_load_counts_what_is_under_way_and_sleep_ends_it(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    api = make_api(ttft_ms=60_000.0)

    async def scenario() -> tuple[Any, Any, Any]:
        async with api.client() as client:
            body = json.dumps({"model": MODEL, "prompt": "Hello"})
            waiting = asyncio.ensure_future(client.post("/v1/completions", content=body))
            while not (busy := (await client.get("/load")).json())["server_load"]:
                await asyncio.sleep(0.01)
            await client.post("/sleep")
            return busy, await waiting, (await client.get("/load")).json()

    busy, ended, idle = runner.run(scenario())
    assert (busy, idle) == ({"server_load": 1}, {"server_load": 0})
    assert ended.status_code == 503
