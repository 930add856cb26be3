"""A fleet: each port serves as one engine, all of one cluster with one clock."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmirage_server.config import PoolConfig

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
ADMIN = "/llmirage/instances"
VIRTUAL = {"ttft_ms": None, "itl_ms": None, "speed": float("inf")}


class Fleet:
    """The ports of an app: -1 is the routed one."""

    def __init__(self, api: Any, runner: asyncio.Runner, instances: int) -> None:
        self.app = api.app
        self.app.ports = {9000 + number: (number, -1) for number in range(instances)}
        self.run = runner.run

    async def asked(self, port: int, method: str, path: str, **options: Any) -> httpx.Response:
        url = "http://test" if port < 0 else f"http://test:{9000 + port}"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=url) as client:
            return await client.request(method, path, **options)

    def ask(self, port: int, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        return self.run(self.asked(port, method, path, **options))

    def complete(self, port: int, prompt: str = "Hello", model: str = MODEL, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": 4} | fields
        return self.ask(port, "/v1/completions", "POST", json=body)

    def act(self, **body: Any) -> httpx.Response:
        return self.ask(-1, ADMIN, "POST", json=body)

    def states(self) -> list[str]:
        return [one["state"] for one in self.ask(-1, ADMIN).json()["instances"]]


@pytest.fixture
def fleet(make_api: Callable[..., Any], runner: asyncio.Runner) -> Callable[..., Fleet]:
    def made(instances: int = 3, **settings: Any) -> Fleet:
        return Fleet(
            make_api(**(VIRTUAL | {"instances": instances, "lenient": True, "dialect": "vllm"} | settings)),
            runner,
            instances,
        )

    return made


def running(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if line.startswith("vllm:request_success_total") and 'reason="length"' in line
    ]


def test_a_port_serves_by_its_instance_alone(fleet: Callable[..., Fleet]) -> None:
    three = fleet()
    for port in (2, 2, 0):
        assert three.complete(port, "word " * 200).status_code == 200
    served = [sum(float(line.split()[-1]) for line in running(three.ask(port, "/metrics").text)) for port in (0, 1, 2, -1)]
    assert served == [1, 0, 2, 3]
    assert all('engine="0"' in line for line in running(three.ask(2, "/metrics").text))
    assert three.complete(2, "word " * 200).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert three.complete(1, "word " * 200).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(three.ask(1, "/server_info").json()["instances"]) == 1
    assert len(three.ask(-1, "/server_info").json()["instances"]) == 3


def test_the_ports_share_one_clock_and_one_cluster(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2, speed=1000.0)

    async def together() -> list[int]:
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 200_000 // 100, "ignore_eos": True}
        asked = [asyncio.ensure_future(two.asked(port, "POST", "/v1/completions", json=body)) for port in (0, 1, 1)]
        loads = [0]
        while sum(loads) < 3:
            await asyncio.sleep(0.001)
            loads = [(await two.asked(port, "GET", "/load")).json()["server_load"] for port in (0, 1)]
        whole = (await two.asked(-1, "GET", "/load")).json()["server_load"]
        await asyncio.gather(*asked)
        return [*loads, whole]

    assert two.run(together()) == [1, 2, 3]


def test_an_instance_crashes_and_comes_back(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2)
    two.complete(1, "word " * 200)
    assert two.act(instance=1, action="crash").json()["instances"][1]["state"] == "down"
    assert [two.ask(port, "/health").status_code for port in (0, 1, -1)] == [200, 503, 200]
    refused = two.complete(1)
    assert (refused.status_code, "error" in refused.json()) == (503, True)
    assert two.complete(0).status_code == two.complete(-1).status_code == 200
    error = f'reason="error",engine="0",model_name="{MODEL}"}} 1.0'
    assert [error in two.ask(port, "/metrics").text for port in (0, 1)] == [False, True]
    two.act(instance=1, action="start")
    assert two.states() == ["up", "up"]
    again = two.complete(1, "word " * 200)
    assert (again.status_code, again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, 0)


def test_a_crash_ends_what_came_over_that_port_and_moves_the_rest(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2, speed=1.0, itl_ms=5.0, ttft_ms=1.0)

    async def scenario() -> list[httpx.Response]:
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
        asked = [asyncio.ensure_future(two.asked(port, "POST", "/v1/completions", json=body)) for port in (0, -1, -1)]
        while sum(one.running for one in two.app.driver.snapshot()) < 3:
            await asyncio.sleep(0.002)
        await two.asked(-1, "POST", ADMIN, json={"instance": 0, "action": "crash"})
        return await asyncio.gather(*asked)

    assert [answer.status_code for answer in two.run(scenario())] == [503, 200, 200]


def test_a_stopped_instance_finishes_what_it_has(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2, speed=1.0, itl_ms=5.0, ttft_ms=1.0)

    async def scenario() -> tuple[httpx.Response, httpx.Response, list[str]]:
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
        first = asyncio.ensure_future(two.asked(0, "POST", "/v1/completions", json=body))
        while not two.app.driver.snapshot(0)[0].running:
            await asyncio.sleep(0.002)
        told = (await two.asked(-1, "POST", ADMIN, json={"instance": 0, "action": "stop"})).json()["instances"]
        refused = await two.asked(0, "POST", "/v1/completions", json=body)
        return await first, refused, [one["state"] for one in told]

    first, refused, told = two.run(scenario())
    assert (first.status_code, refused.status_code, told) == (200, 503, ["draining", "up"])
    assert two.states() == ["down", "up"]


@pytest.mark.parametrize(
    "body",
    [
        {"instance": 9, "action": "crash"}, {"instance": True, "action": "crash"}, {"instance": -1, "action": "crash"},
        {"instance": 0, "action": "explode"}, {"instance": 0, "action": ["crash"]}, {"action": "stop"}, {"instance": 0},
        {"instance": 0, "action": "stop", "restart_after_s": 1}, {"instance": 0, "action": "crash", "restart_after_s": -1},
        {"instance": 0, "action": "crash", "restart_after_s": "x"},
        {"instance": 10**400, "action": "crash"}, {"instance": 0, "action": "crash", "restart_after_s": 1e400},
    ],
)  # fmt: skip
def test_impossible_actions_are_refused(fleet: Callable[..., Fleet], body: dict[str, Any]) -> None:
    three = fleet()
    answer = three.ask(-1, ADMIN, "POST", content=json.dumps(body).encode())
    assert (answer.status_code, three.states()) == (400, ["up"] * 3)


def test_a_fault_meets_one_instances_port_before_the_cluster_has_the_request(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2)
    for endpoint in ("completions", "/health"):
        two.ask(-1, "/llmirage/faults", "POST", json={"kind": "status", "status": 503, "instance": 1, "endpoint": endpoint})
    assert [two.complete(port).status_code for port in (0, 1)] == [200, 503]
    assert [two.ask(port, "/health").status_code for port in (0, 1, -1)] == [200, 503, 200]


def test_a_port_has_the_models_of_its_pool(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    other = "Qwen/Qwen3-32B"
    fixed = {"ttft_ms": 0.0, "itl_ms": 0.0, "instances": 1}
    pools = (PoolConfig(name="a", model=MODEL, **fixed), PoolConfig(name="b", model=other, **fixed))
    api = make_api(ttft_ms=None, itl_ms=None, pools=pools, lenient=True, accept_models="any")
    two = Fleet(api, runner, 2)
    names = [[card["id"] for card in two.ask(port, "/v1/models").json()["data"]] for port in (0, 1)]
    assert names == [[MODEL], [other]]
    assert [two.complete(port, model=other).status_code for port in (0, 1)] == [404, 200]
    assert [two.complete(port, model="any-name").status_code for port in (0, 1)] == [200, 200]


def test_access_rules_are_those_of_the_routed_port(fleet: Callable[..., Fleet]) -> None:
    one = fleet(1, api_key=("secret",), rate_limit=2)
    key = {"authorization": "Bearer secret"}
    assert one.complete(0).status_code == one.ask(0, ADMIN).status_code == 401
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 1}
    answers = [one.ask(port, "/v1/completions", "POST", json=body, headers=key).status_code for port in (0, -1, 0)]
    assert answers == [200, 200, 429]


def test_a_router_may_name_the_rank(fleet: Callable[..., Fleet]) -> None:
    model = "deepseek-ai/DeepSeek-V3"
    hardware = {"model": model, "gpu": "h200_sxm", "tensor_parallel_size": 1, "data_parallel_size": 8}
    one = fleet(1, **hardware, expert_parallel_size=8, engine="vllm")
    body = {"model": model, "prompt": "word " * 200, "max_tokens": 2}
    caches = one.app.driver.cluster.kv_caches()[0]
    for number in range(3):
        headers = {"x-data-parallel-rank": "5"}
        assert one.ask(0, "/v1/completions", "POST", json=body | {"seed": number}, headers=headers).status_code == 200
    assert [rank for rank, cache in enumerate(caches) if cache.tree.total_tokens] == [5]
    assert one.ask(0, "/v1/completions", "POST", json=body | {"data_parallel_rank": 6}).status_code == 200
    assert [rank for rank, cache in enumerate(caches) if cache.tree.total_tokens] == [5, 6]
    for name, of_ranks in {
        'vllm:request_success_total{finished_reason="length"': [0, 0, 0, 0, 0, 3, 1, 0],
        "vllm:prefix_cache_queries_total{": [0, 0, 0, 0, 0, 603, 201, 0],
    }.items():
        lines = [line for line in one.ask(0, "/metrics").text.splitlines() if line.startswith(name)]
        assert [float(line.split()[-1]) for line in lines] == of_ranks
        assert [line.split('engine="')[1][0] for line in lines] == list("01234567")
    one.app.ports = {9000: (0, 6)}  # that of the rank alone
    assert one.ask(0, "/v1/completions", "POST", json=body, headers={"x-data-parallel-rank": "5"}).status_code == 200
    lines = [line for line in one.ask(0, "/metrics").text.splitlines() if line.startswith("vllm:num_requests_running{")]
    assert lines == [f'vllm:num_requests_running{{engine="6",model_name="{model}"}} 0.0']
    assert 'finished_reason="length",engine="6"' in one.ask(0, "/metrics").text
    one.app.ports = {9000: (0, -1)}
    refused = one.ask(0, "/v1/completions", "POST", json=body, headers={"x-data-parallel-rank": "8"})
    assert (refused.status_code, "0 to 7" in refused.text) == (400, True)
    for ignored in ("x", "-1", "9" * 30):
        assert one.ask(0, "/v1/completions", "POST", json=body, headers={"x-data-parallel-rank": ignored}).status_code == 200


@pytest.mark.parametrize("actions", [["start"], ["crash"], ["start", "crash"], ["stop", "start"]])
def test_who_starts_or_crashes_a_sleeping_engine_ends_its_sleep(fleet: Callable[..., Fleet], actions: list[str]) -> None:
    two = fleet(2)
    two.ask(1, "/sleep", "POST")
    for action in actions:
        assert two.act(instance=1, action=action).status_code == 200
    up = actions[-1] == "start"
    assert not two.ask(1, "/is_sleeping").json()["is_sleeping"]
    assert two.ask(1, "/health").status_code == (200 if up else 503)
    awake = f'vllm:engine_sleep_state{{sleep_state="awake",engine="0",model_name="{MODEL}"}} 1.0'
    assert awake in two.ask(1, "/metrics").text
    two.ask(1, "/wake_up", "POST")  # has nothing to wake
    assert two.complete(1).status_code == (200 if up else 503)
    two.ask(1, "/sleep", "POST")
    assert two.ask(1, "/is_sleeping").json()["is_sleeping"]
    two.ask(1, "/wake_up", "POST")
    assert two.complete(1).status_code == 200


def test_one_engine_sleeps_and_the_others_serve(fleet: Callable[..., Fleet]) -> None:
    two = fleet(2)
    two.complete(1, "word " * 200)
    two.ask(1, "/sleep?level=2", "POST")
    assert [two.ask(port, "/is_sleeping").json()["is_sleeping"] for port in (0, 1, -1)] == [False, True, False]
    assert [two.complete(port).status_code for port in (0, 1, -1)] == [200, 503, 200]
    asleep = f'vllm:engine_sleep_state{{sleep_state="discard_all",engine="0",model_name="{MODEL}"}} 1.0'
    assert [asleep in two.ask(port, "/metrics").text for port in (0, 1)] == [False, True]
    assert two.ask(1, "/health").status_code == 200
    two.ask(1, "/wake_up", "POST")
    again = two.complete(1, "word " * 200)
    assert (again.status_code, again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, 0)
