"""Prefill and decode engines as outside routers ask them: vLLM's kv_transfer_params, SGLang's bootstrap rooms."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig, KvTransferConfig, PoolConfig
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-8B"
PREFILL, DECODE = 9000, 9001
WANTED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
PROMPT = "word " * 2000  # 2,001 tokens


def made(engine: str = "vllm", *roles: str, **transfer: Any) -> LlmirageApp:
    pools = [PoolConfig(name=role, role=role, model=MODEL, instances=1, engine=engine) for role in roles]  # type: ignore[arg-type]
    settings: dict[str, Any] = {"pools": tuple(pools)} if roles else {"model": MODEL, "engine": engine, "instances": 1}
    app = create_app(ClusterConfig(**settings, kv_transfer=KvTransferConfig(**transfer) if transfer else None))
    app.ports = {PREFILL + number: (number, -1) for number in range(len(roles))}
    return app


def apart(engine: str = "vllm", **more: Any) -> LlmirageApp:
    return made(engine, "prefill", "decode", **more)


async def ask(app: LlmirageApp, port: int = 80, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 20, "ignore_eos": True} | fields
    if not path.startswith("/v1/chat") and path != "/generate":
        body = {"prompt": PROMPT} | body
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://test:{port}") as client:
        return await client.post(path, json=body)


def now() -> float:
    return asyncio.get_running_loop().time()


async def two_steps(app: LlmirageApp, **fields: Any) -> tuple[dict[str, Any], httpx.Response]:
    """Ask as vLLM's routers do: the prefill engine first, then the decode engine with what that has said."""
    first = await ask(app, PREFILL, kv_transfer_params=WANTED, **fields)
    assert (first.status_code, first.json()["usage"]["completion_tokens"]) == (200, 1)
    params = first.json()["kv_transfer_params"]
    return params, await ask(app, DECODE, kv_transfer_params=params, **fields)


def used(app: LlmirageApp) -> list[int]:
    return [one.kv_used_tokens for one in app.driver.snapshot()]


def test_a_router_that_asks_one_after_the_other_gets_the_clusters_own_times() -> None:
    async def outside() -> tuple[dict[str, Any], httpx.Response, float]:
        params, answer = await two_steps(app)
        return params, answer, now()

    async def inside() -> tuple[httpx.Response, float]:
        return await ask(apart()), now()

    app = apart()
    params, answer, end_s = virtual_time.run(outside())
    own, own_end_s = virtual_time.run(inside())
    assert end_s == pytest.approx(own_end_s, rel=1e-9)
    assert answer.json()["choices"] == own.json()["choices"]
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == own.json()["usage"]["prompt_tokens"] - 1
    assert {name: params[name] for name in ("do_remote_prefill", "do_remote_decode", "tp_size", "remote_num_tokens")} == {
        "do_remote_prefill": True, "do_remote_decode": False, "tp_size": 1, "remote_num_tokens": 2001,
    }  # fmt: skip
    assert (len(params["remote_block_ids"][0]), params["remote_host"]) == (126, "test")
    assert "kv_transfer_params" not in answer.json()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("what", ["again", "unknown", "expired"])
async def test_kv_that_is_not_there_is_an_error_or_computed_again(what: str, policy: str) -> None:
    app = apart(load_failure=policy)
    params = (await ask(app, PREFILL, kv_transfer_params=WANTED)).json()["kv_transfer_params"]
    if what == "again":
        assert (await ask(app, DECODE, kv_transfer_params=params)).status_code == 200
    elif what == "unknown":
        params["remote_request_id"] = "other"
    else:
        assert used(app)[0] > 2000
        await asyncio.sleep(500)
        assert used(app)[0] == 0
    answer = await ask(app, DECODE, kv_transfer_params=params, prompt="different " * 500)
    assert answer.status_code == (500 if policy == "fail" else 200)
    if policy == "fail":
        assert "could not be loaded" in answer.json()["error"]["message"]
    else:
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_kv_is_kept_for_the_time_that_is_set() -> None:
    app = apart(timeout_s=10)
    await ask(app, PREFILL, kv_transfer_params=WANTED)
    found = []
    for _ in range(2):
        await asyncio.sleep(9)
        found.append(used(app)[0] > 0)
    assert found == [True, False]


@pytest.mark.parametrize(
    ("engine", "prefill", "decode"),
    [
        ("sglang", {"bootstrap_room": 7, "bootstrap_host": "h", "bootstrap_port": 8998}, None),
        (
            "vllm",
            {"kv_transfer_params": {"do_remote_decode": True, "transfer_id": "t"}},
            {"kv_transfer_params": {"do_remote_prefill": True, "transfer_id": "t"}},
        ),
    ],
)
@pytest.mark.parametrize("order", [(PREFILL, DECODE), (DECODE, PREFILL)])
def test_a_router_that_asks_both_at_once_gets_the_clusters_own_times(
    engine: str, prefill: dict[str, Any], decode: dict[str, Any] | None, order: tuple[int, int]
) -> None:
    async def outside() -> tuple[dict[int, httpx.Response], float]:
        fields = {PREFILL: prefill, DECODE: decode or prefill}
        for port in (PREFILL, DECODE):
            if engine == "vllm" and port == DECODE:
                fields[port]["kv_transfer_params"]["remote_engine_id"] = app.service.handoffs.engine_id(0)  # type: ignore[union-attr]
        answers = await asyncio.gather(*[ask(app, port, **fields[port]) for port in order])
        return dict(zip(order, answers, strict=True)), now()

    async def inside() -> float:
        await ask(apart(engine))
        return now()

    app = apart(engine)
    answers, end_s = virtual_time.run(outside())
    assert [answers[port].json()["usage"]["completion_tokens"] for port in (PREFILL, DECODE)] == [1, 20]
    assert end_s == pytest.approx(virtual_time.run(inside()), rel=1e-9)
    assert app.driver.cluster.transfers.done == 1


async def test_who_waits_for_a_prefill_that_does_not_come_gets_an_error() -> None:
    app = apart("sglang")
    assert (await ask(app, DECODE, bootstrap_room=1)).status_code, now() == (500, 300.0)


async def test_a_client_that_leaves_the_decode_engine_frees_the_prefill_engine() -> None:
    app = apart()
    params = (await ask(app, PREFILL, kv_transfer_params=WANTED)).json()["kv_transfer_params"]
    asked = asyncio.ensure_future(ask(app, DECODE, kv_transfer_params=params))
    await asyncio.sleep(0.05)  # less than the hand-off
    assert used(app)[0] > 0
    asked.cancel()
    await asyncio.sleep(1)
    assert used(app) == [0, 0]


async def test_engines_in_processes_of_their_own_hand_over_by_their_own_link() -> None:
    one, other = made(), made(handoff_ms=1000, mode="both")
    params = (await ask(one, kv_transfer_params=WANTED)).json()["kv_transfer_params"]
    start_s = now()
    assert used(one)[0] > 2000
    answer = await ask(other, kv_transfer_params=params, max_tokens=1)
    took_s = now() - start_s
    await asyncio.sleep(1)
    assert used(one) == [0]  # nobody tells it that the KV has arrived
    link = other.kv_link
    sent_s = link.latency_s + 2000 * other.deployment.kv_bytes_per_token / link.bytes_per_s
    assert sent_s < took_s < sent_s + 0.02  # a step with one token of the prompt
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 2000
    assert start_s < 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"kv_transfer_params": 1}, 400),
        ({"kv_transfer_params": WANTED, "n": 2}, 400),
        ({"kv_transfer_params": WANTED, "prompt": ["a", "b"]}, 400),
        ({"kv_transfer_params": {}}, 200),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, 200),  # not complete: as vLLM, it computes
        ({"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [1], "remote_request_id": ["x"]}}, 200),
        ({"bootstrap_room": "x"}, 400),
        ({"bootstrap_room": [1, 2]}, 400),
        ({"bootstrap_room": None}, 200),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, Any], status: int) -> None:
    assert virtual_time.run(ask(apart("sglang"), PREFILL, **fields)).status_code == status


async def test_two_prefills_cannot_have_one_name() -> None:
    app = apart()
    fields = {"kv_transfer_params": {"do_remote_decode": True, "transfer_id": "t"}}
    assert [(await ask(app, PREFILL, **fields)).status_code for _ in range(2)] == [200, 409]


@pytest.mark.parametrize("mode", ["both", "prefill", "decode"])
def test_a_room_needs_a_role(mode: str | None) -> None:
    app = made("sglang", mode=mode)
    answer = virtual_time.run(ask(app, bootstrap_room=5)).json()
    assert answer["usage"]["completion_tokens"] == (1 if mode == "prefill" else 20)
    assert app.driver.cluster.transfers.done == (mode == "decode")


async def test_a_batch_has_a_room_for_each_prompt() -> None:
    app = apart("sglang")
    fields = {"text": ["one " * 50, "two " * 50], "bootstrap_room": [1, 2], "sampling_params": {"max_new_tokens": 5}}
    answers = await asyncio.gather(*[ask(app, port, "/generate", **fields) for port in (DECODE, PREFILL)])
    assert [[one["meta_info"]["completion_tokens"] for one in answer.json()] for answer in answers] == [[5, 5], [1, 1]]


def test_a_decode_engine_serves_whole_requests_too() -> None:
    answer = virtual_time.run(ask(apart(), DECODE))
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 20)


def test_at_any_speed_nothing_is_lost_or_kept(make_api: Callable[..., Any], runner: asyncio.Runner) -> None:
    async def many() -> list[int]:
        found = await asyncio.gather(*[two_steps(app, prompt=f"{number} " * 300) for number in range(20)])
        return [answer.status_code for _, answer in found]

    settings = {"ttft_ms": None, "itl_ms": None, "speed": float("inf"), "pools": apart().config.pools}
    app = make_api(**settings).app
    app.ports = {PREFILL: (0, -1), DECODE: (1, -1)}
    assert runner.run(many()) == [200] * 20
    assert used(app) == [0, 0]


def test_sglangs_metrics_tell_the_half_of_the_work() -> None:
    async def metrics(app: LlmirageApp, port: int) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://test:{port}") as client:
            return (await client.get("/metrics")).text

    app = apart("sglang")
    told = [virtual_time.run(metrics(app, port)) for port in (PREFILL, DECODE, 80)]
    found = [{role for role in ("unified", "prefill", "decode") if f'engine_type="{role}"' in text} for text in told]
    assert found == [{"prefill"}, {"decode"}, {"prefill", "decode", "unified"}]
