"""Routers of production stacks, unchanged, before a fleet: vllm-router and sglang-router, where they are installed."""

import contextlib
import importlib.util
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import serving

INSTANCES = 8
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
STARTS_S = 40.0
POLICIES = {
    "vllm_router": "random round_robin power_of_two cache_aware consistent_hash sticky_least_loaded",
    "sglang_router": "random round_robin power_of_two cache_aware manual",
}
STICKY = ("cache_aware", "consistent_hash", "sticky_least_loaded", "manual")  # they keep a conversation at its engine


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URLs of a fleet, the routed one first."""
    listed = tmp_path_factory.mktemp("fleet") / "urls"
    flags = ("--fleet", "--instances", str(INSTANCES), "--engine", "vllm", "--speed", "50", "--set", f"fleet_file={listed}")
    with serving(*flags) as url:
        urls = [url.removesuffix("/v1"), *listed.read_text().split()]
        yield [each.replace("localhost", "127.0.0.1") for each in urls]


@contextlib.contextmanager
def routed(module: str, policy: str, workers: list[str], *more: str) -> Iterator[str]:
    """The URL of a router before these workers, if there are any. more: arguments of the router."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics_port = (str(each.getsockname()[1]) for each in (one, other))
    ports = ("--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics_port)
    command = [sys.executable, "-m", f"{module}.launch_router", "--policy", policy, *ports, *more]
    command += ["--worker-urls", *workers] if workers else []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + STARTS_S
    try:
        while time.monotonic() < until_s and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.kill()  # some finish connections first, for half a minute
        process.wait(10)


def served(url: str) -> int:
    """Requests that an engine has completed."""
    text = httpx.get(f"{url}/metrics").text
    pattern = r'^(?:vllm:request_success_total\{finished_reason="(?:stop|length)"|sglang:num_requests_total)\S* (\S+)$'
    return int(sum(map(float, re.findall(pattern, text, re.MULTILINE))))


def ask(url: str, text: str, model: str = MODEL, session: str = "", **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8} | fields
    headers = {"X-SMG-Routing-Key": session, "X-Session-ID": session} if session else {}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def await_engines(url: str, model: str = MODEL) -> None:
    """Wait until a router has found engines."""
    until_s = time.monotonic() + STARTS_S
    while ask(url, "Hello", model).status_code != 200 and time.monotonic() < until_s:
        time.sleep(0.5)


@pytest.mark.parametrize(("module", "policy"), [(name, each) for name in POLICIES for each in POLICIES[name].split()])
def test_each_policy_of_a_router_serves_a_fleet(fleet: list[str], module: str, policy: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    workers = fleet[1:]
    before, cached = [served(worker) for worker in workers], []
    with routed(module, policy, workers) as url, ThreadPoolExecutor(8) as threads:

        def turn(turns: int, number: int) -> int:
            said = " ".join(f"{policy} {number} {each} " * 100 for each in range(turns))
            answer = ask(url, said, session=f"{policy} {number}")
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        for turns in (1, 2, 3):
            cached += list(threads.map(partial(turn, turns), range(16)))
    by_worker = [served(worker) - done for worker, done in zip(workers, before, strict=True)]
    assert sum(by_worker) == 48
    if policy == "round_robin":
        assert max(by_worker) <= 8  # two threads of a router may take the same turn
    if policy in STICKY:
        assert [tokens > 300 for tokens in cached[16:]].count(True) >= 30


@pytest.mark.parametrize("module", POLICIES)
def test_a_router_gives_up_an_engine_that_refuses(fleet: list[str], module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    own, *workers = fleet
    limits = ("--cb-failure-threshold", "2", "--cb-timeout-duration-secs", "60", "--retry-initial-backoff-ms", "10")
    refusing = {"kind": "status", "status": 503, "instance": 3, "endpoint": "chat"}
    with routed(module, "round_robin", workers, *limits) as url:
        httpx.post(f"{own}/llmirage/faults", json=refusing)
        answers = [ask(url, f"Question {number}").status_code for number in range(40)]
        [fault] = httpx.get(f"{own}/llmirage/faults").json()["faults"]
        httpx.delete(f"{own}/llmirage/faults")
    assert answers == [200] * 40  # retries go elsewhere
    assert 2 <= fault["happened"] <= 3  # until the circuit breaker opened


@pytest.mark.parametrize("module", POLICIES)
def test_a_router_survives_the_loss_of_an_engine(fleet: list[str], module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    own, *workers = fleet
    with routed(module, "round_robin", workers) as url:
        assert [ask(url, f"Question {number}").status_code for number in range(8)] == [200] * 8
        before = served(workers[0])
        httpx.post(f"{own}/llmirage/instances", json={"instance": 0, "action": "crash"})
        answers = [ask(url, f"More {number}").status_code for number in range(24)]
        assert answers.count(200) >= 20  # what is not retried fails until the router has noticed
        httpx.post(f"{own}/llmirage/instances", json={"instance": 0, "action": "start"})
        time.sleep(1)  # until its port is open again
        assert served(workers[0]) == before


@pytest.mark.parametrize("module", POLICIES)
def test_a_router_ends_requests_at_an_engine_that_hangs(fleet: list[str], module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    own, *workers = fleet
    hanging = {"kind": "ttft", "added_s": 6000, "instance": 3, "endpoint": "chat"}  # of the cluster, at 50 times the speed
    limits = ("--request-timeout-secs", "2", "--disable-retries")
    with routed(module, "round_robin", workers, *limits) as url, ThreadPoolExecutor(16) as threads:
        await_engines(url)
        httpx.post(f"{own}/llmirage/faults", json=hanging)
        try:
            answers = list(threads.map(lambda number: ask(url, f"Question {number}").status_code, range(16)))
        finally:
            httpx.delete(f"{own}/llmirage/faults")
    assert 13 <= answers.count(200) < 16
    assert set(answers) <= {200, 500, 502, 503, 504}


@pytest.mark.parametrize(
    ("engine", "module", "mode", "more"),
    [
        ("vllm", "vllm_router", "--vllm-pd-disaggregation", ()),
        ("vllm", "vllm_router", "--vllm-pd-disaggregation", ("--kv-connector", "mooncake")),
        ("vllm", "vllm_router", "--vllm-pd-disaggregation", ("--vllm-discovery-address",)),
        ("sglang", "sglang_router", "--pd-disaggregation", ()),
    ],
)
def test_a_router_hands_prompts_from_prefill_to_decode_engines(
    tmp_path: Path, engine: str, module: str, mode: str, more: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    listed, cluster = tmp_path / "urls", tmp_path / "cluster.yaml"
    pools = "".join(f"  - {{name: {role}, role: {role}, instances: 2}}\n" for role in ("prefill", "decode"))
    cluster.write_text(f"model: Qwen/Qwen3-8B\nengine: {engine}\npools:\n{pools}")
    flags, discovered = ["--set", f"fleet_file={listed}"], "--vllm-discovery-address" in more
    if discovered:
        more = (*more, address := f"127.0.0.1:{free_ports(1)}")
        flags += ["--set", f"discovery_address={address}"]
    with serving("--fleet", "--cluster", str(cluster), "--speed", "20", *flags) as own:
        workers = listed.read_text().replace("localhost", "127.0.0.1").split()
        halves = [part for url in workers[:2] for part in ("--prefill", url, url.rpartition(":")[2])]
        halves += [part for url in workers[2:] for part in ("--decode", url)]
        halves = [] if discovered else halves
        with routed(module, "round_robin", [], mode, *halves, *more) as url, ThreadPoolExecutor(8) as threads:
            await_engines(url, "Qwen/Qwen3-8B")
            time.sleep(3 if discovered else 0)
            before = [served(worker) for worker in workers]

            def asked(number: int) -> tuple[int, int]:
                fields = {"stream": True, "stream_options": {"include_usage": True}} if number % 2 else {}
                answer = ask(url, f"{number} " * 500, "Qwen/Qwen3-8B", **fields)
                return answer.status_code, int(re.findall(r'"completion_tokens":(\d+)', answer.text)[-1])

            assert list(threads.map(asked, range(60))) == [(200, 8)] * 60
        shares = [served(worker) - done for worker, done in zip(workers, before, strict=True)]
        assert (sum(shares[:2]), sum(shares[2:])) == (60, 60)
        assert min(shares) >= 25  # two threads of a router may take the same turn
        journal = httpx.get(own.replace("/v1", "/llmirage/journal?limit=200")).json()["entries"]
        journal = [entry for entry in journal if entry["prompt_tokens"] > 100]
        assert [entry["output_tokens"] for entry in journal].count(1) == 60
        taken = [entry["prompt_tokens"] - entry["cached_tokens"] for entry in journal if entry["output_tokens"] == 8]
        assert max(taken) <= 1  # the decode engines computed no prompt
        for worker in workers[:2]:
            assert httpx.get(f"{worker}/load").json() == {"server_load": 0}


@pytest.mark.parametrize(
    ("engine", "module", "more"),
    [("vllm", "vllm_router", ("--intra-node-data-parallel-size", "2")), ("sglang", "sglang_router", ("--dp-aware",))],
)
def test_a_router_reaches_the_ranks_of_an_engine(tmp_path: Path, engine: str, module: str, more: tuple[str, ...]) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    listed = tmp_path / "urls"
    shape = {"data_parallel_size": 2, "expert_parallel_size": 2, "data_parallel_balance": "prefix", "fleet_file": listed}
    settings = [part for name, value in shape.items() for part in ("--set", f"{name}={value}")]
    with serving("--fleet", "--instances", "1", "--engine", engine, "--speed", "50", *settings):
        worker = listed.read_text().replace("localhost", "127.0.0.1").strip()
        with routed(module, "round_robin", [worker], *more) as url:
            answers = [ask(url, "word " * 500).json()["usage"] for _ in range(4)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers]
    assert [tokens > 400 for tokens in cached] == [False, False, True, True]  # each rank has a cache of its own


def test_a_router_follows_the_caches_by_their_events(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm_router") is None or importlib.util.find_spec("zmq") is None:
        pytest.skip("vllm_router or pyzmq is not installed")
    listed, events, replays = tmp_path / "urls", free_ports(3), free_ports(3)
    settings = (f"fleet_file={listed}", f"kv_events_port={events}", f"kv_events_replay_port={replays}")
    flags = [part for each in settings for part in ("--set", each)]
    with serving("--fleet", "--instances", "3", "--engine", "vllm", "--speed", "50", *flags):
        workers = listed.read_text().replace("localhost", "127.0.0.1").split()
        more = ["--kv-event-block-size", "16", "--kv-event-model", MODEL]
        for number, worker in enumerate(workers):
            more += ["--kv-event-source", f"{worker}=tcp://127.0.0.1:{events + number}"]
            more += ["--kv-event-replay-source", f"{worker}=tcp://127.0.0.1:{replays + number}"]
        with routed("vllm_router", "kv_aware", workers, *more) as url:
            for topic in ("ships", "trains"):
                for number in range(5):
                    assert ask(url, f"All about {topic}. " * 200 + f"Question {number}").status_code == 200
                    time.sleep(0.2)  # for the events
            hits = [cached(worker) for worker in workers]
        assert sum(hits) > 7 * 800  # of 8 prompts of more than 800 tokens that had been there before


def free_ports(count: int) -> int:
    """Return the first of as many free ports."""
    while True:
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError, OverflowError):
            first = opened.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            for number in range(1, count):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
            return port


def cached(url: str) -> float:
    """Tokens that an engine found in its prefix cache."""
    text = httpx.get(f"{url}/metrics").text
    return sum(map(float, re.findall(r"^vllm:prefix_cache_hits_total\S* (\S+)$", text, re.MULTILINE)))
