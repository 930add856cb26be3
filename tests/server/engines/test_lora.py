"""LoRA adapters over HTTP: vLLM's and SGLang's endpoints, models of their names, and what /metrics tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-8B"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = "word " * 200
Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(runner: asyncio.Runner) -> Callable[..., Ask]:
    """A server of two instances; -1 is the routed port."""

    def made(**settings: Any) -> Ask:
        plain = {"model": MODEL, "instances": 2, "engine": "vllm", "speed": float("inf"), "accept_models": "served"}
        app = create_app(ClusterConfig(**plain | {"lora_modules": ("mine=/a",), "max_loras": 2} | settings))
        app.ports = {9000: (0, -1), 9001: (1, -1)}

        async def asked(port: int, path: str, body: Any) -> httpx.Response:
            url = "http://test" if port < 0 else f"http://test:{9000 + port}"
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url) as client:
                return await (client.get(path) if body is None else client.post(path, json=body))

        return lambda port, path, **body: runner.run(asked(port, path, body or None))

    return made


def complete(ask: Ask, port: int, model: str, path: str = "/v1/completions", **fields: Any) -> Any:
    return ask(port, path, model=model, prompt=PROMPT, max_tokens=2, **fields)


def names(ask: Ask, port: int = -1) -> list[str]:
    return [card["id"] for card in ask(port, "/v1/models").json()["data"]]


def test_an_adapter_is_a_model_with_a_parent_and_kv_of_its_own(ask: Callable[..., Ask]) -> None:
    server = ask(instances=1)
    base, card = server(-1, "/v1/models").json()["data"]
    assert [base[key] for key in ("id", "root", "parent")] == [MODEL, MODEL, None]
    assert [card[key] for key in ("id", "root", "parent", "object")] == ["mine", "/a", MODEL, "model"]
    answers = [complete(server, -1, model).json() for model in ("mine", MODEL, "mine", MODEL)]
    assert [answer["model"] for answer in answers] == ["mine", MODEL, "mine", MODEL]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert [count > 0 for count in cached] == [False, False, True, True]
    echoed = server(-1, "/v1/completions", model="mine", prompt="Hello", max_tokens=1, echo=True).json()
    assert echoed["choices"][0]["text"].startswith("Hello")


def test_vllms_endpoints_have_its_statuses_and_texts(ask: Callable[..., Ask]) -> None:
    server = ask()
    said = [
        server(-1, LOAD, lora_name="", lora_path="/x"),
        server(-1, LOAD, lora_name="mine", lora_path="/x"),
        server(-1, UNLOAD, lora_name="other"),
        server(-1, UNLOAD, lora_name=""),
    ]
    assert [(answer.status_code, answer.json()["error"]["type"]) for answer in said] == [
        (400, "InvalidUserInput"), (400, "InvalidUserInput"), (404, "NotFoundError"), (400, "InvalidUserInput"),
    ]  # fmt: skip
    assert said[1].json()["error"]["message"] == (
        "The lora adapter 'mine' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to "
        "True."
    )
    assert said[2].json()["error"]["message"] == "The lora adapter 'other' cannot be found."
    assert server(-1, LOAD, lora_path="/x").status_code == 400
    assert server(-1, LOAD, lora_name="mine", lora_path="/y", load_inplace=True).status_code == 200
    loaded = server(-1, LOAD, lora_name="other", lora_path="/b")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'other' added successfully.")
    assert (names(server), complete(server, -1, "other").status_code) == ([MODEL, "mine", "other"], 200)
    gone = server(-1, UNLOAD, lora_name="other")
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'other' removed successfully.")
    assert (names(server), complete(server, -1, "other").status_code) == ([MODEL, "mine"], 404)


def test_a_port_has_the_adapters_of_its_instance(ask: Callable[..., Ask]) -> None:
    server = ask()
    assert server(1, LOAD, lora_name="other", lora_path="/b").status_code == 200
    assert server(0, UNLOAD, lora_name="mine").status_code == 200
    assert [names(server, port) for port in (0, 1, -1)] == [[MODEL], [MODEL, "mine", "other"], [MODEL]]
    assert [complete(server, port, "other").status_code for port in (0, 1)] == [404, 200]
    assert [complete(server, port, "mine").status_code for port in (0, 1)] == [404, 200]


def test_sglangs_endpoints_and_names(ask: Callable[..., Ask]) -> None:
    server = ask(engine="sglang", lora_modules=())
    assert server(-1, "/load_lora_adapter", lora_name="x", lora_path="/x").json()["success"] is False
    server = ask(engine="sglang", instances=1)
    loaded = server(-1, "/load_lora_adapter", lora_name="x", lora_path="/x", pinned=True)
    known = {"success": True, "error_message": None, "loaded_adapters": {"mine": "/a", "x": "/x"}}
    assert (loaded.status_code, loaded.json()) == (200, known)
    assert server(-1, "/load_lora_adapter", lora_name="x", lora_path="/x").status_code == 400
    cached = [
        complete(server, -1, model, **more).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        for model, more in ((f"{MODEL}:x", {}), (MODEL, {}), ("x", {}), (MODEL, {"lora_path": "x"}), ("mine", {}))
    ]
    assert cached == [False, False, True, True, False]
    assert server(-1, "/unload_lora_adapter", lora_name="x").json()["loaded_adapters"] == {"mine": "/a"}
    assert server(-1, "/unload_lora_adapter", lora_name="x").status_code == 400


def test_metrics_tell_which_adapters_run_and_wait() -> None:
    app = create_app(
        ClusterConfig(model=MODEL, instances=1, engine="vllm", lora_modules=("a=/a", "b=/b"), accept_models="served")
    )

    async def scenario() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            body = {"prompt": "Hello", "max_tokens": 50, "ignore_eos": True}
            asked = [asyncio.ensure_future(client.post("/v1/completions", json=body | {"model": name})) for name in "ab"]
            await asyncio.sleep(0.1)
            text = (await client.get("/metrics")).text
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
            return text

    lines = virtual_time.run(scenario()).splitlines()
    [line] = [line for line in lines if line.startswith("vllm:lora_requests_info{")]
    assert line.startswith('vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",waiting_lora_adapters="b"} ')


def test_loading_takes_the_time_of_its_size_and_a_step_is_slower() -> None:
    app = create_app(ClusterConfig(model=MODEL, instances=1, engine="vllm", enable_lora=True, max_lora_rank=64))

    async def scenario() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for path, body in (
                (LOAD, {"lora_name": "x", "lora_path": "/x"}),
                ("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 100, "ignore_eos": True}),
                ("/v1/completions", {"model": "x", "prompt": "Hello", "max_tokens": 100, "ignore_eos": True}),
            ):
                start_s = loop.time()
                assert (await client.post(path, json=body)).status_code == 200
                times.append(loop.time() - start_s)
        return times

    load_s, base_s, adapted_s = virtual_time.run(scenario())
    assert load_s == pytest.approx(app.deployment.lora.load_s(64, True))
    assert 1.05 < adapted_s / base_s < 1.25


def test_the_rank_is_that_of_the_folder(tmp_path: Path, ask: Callable[..., Ask]) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 32}))
    refused = ask()(-1, LOAD, lora_name="x", lora_path=str(tmp_path))
    assert (refused.status_code, "LoRA rank 32 is greater than max_lora_rank 16" in refused.text) == (400, True)
    with pytest.raises(ConfigError, match="rank 32 is greater"):
        ask(lora_modules=(f"x={tmp_path}",))
    assert ask(lora_modules=(f"x={tmp_path}",), max_lora_rank=32)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lora_modules": ["a"]}, "neither NAME=PATH"), ({"lora_modules": ["a=/a", "a=/b"]}, "name 'a' twice"),
        ({"lora_modules": ['{"name": "a"}']}, "neither NAME=PATH"),
        ({"lora_modules": ['{"nam": "a"}']}, "unknown field 'nam'"),
        ({"lora_modules": ['{"name": "a", "path": "/a", "base_model_name": "y"}']}, "is of 'y'"),
        ({"lora_modules": [f"{MODEL}=/a"]}, "a model has the name"), ({"max_loras": 2}, "needs lora_modules or enable_lora"),
        ({"enable_lora": True, "max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras 2 is less than max_loras 3"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        create_app(make_config(None, {"model": MODEL} | given))


def test_vllms_command_line_is_understood() -> None:
    line = (
        "vllm serve Qwen/Qwen3-8B --enable-lora --max-loras 4 --lora-modules a=/a "
        '\'{"name": "b", "path": "/b", "base_model_name": "Qwen/Qwen3-8B"}\' --max-lora-rank=32'
    )
    app = create_app(ClusterConfig(engine_args=line))
    assert app.service.models.served == [MODEL, "a", "b"]
    assert (app.limits.max_loras, app.deployment.max_lora_rank) == (4, 32)
