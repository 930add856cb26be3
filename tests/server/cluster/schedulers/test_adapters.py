"""LoRA adapters in the engine: who runs together, what is loaded when, and whose KV is whose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Adapter, Request, plain_ids, token_bytes
from llmirage_server.cluster.routers.builtin import RoundRobin

A, B, C = [Adapter(name, number + 1, 16) for number, name in enumerate("abc")]


class Costs:
    """10 s from disk, 3 s from host memory; a hundredth of a second for each adapter of a step and 1 ms for each token."""

    def step_s(self, adapters: Sequence[tuple[int, int]]) -> float:
        return 0.01 * len(adapters) + 0.001 * sum(tokens for _, tokens in adapters)

    def load_s(self, rank: int, from_disk: bool) -> float:
        return 10.0 if from_disk else 3.0


def cluster(loaded: Sequence[Adapter] = (), **limits: Any) -> Cluster:
    found = EngineLimits(**{"kv_tokens": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 512} | limits)
    instance = Instance(0, ConstantStep(1.0), found, fast_forward=True, adapter_costs=Costs(), adapters=loaded)
    return Cluster([instance], RoundRobin())


def ask(cluster: Cluster, number: int, adapter: Adapter | None, output: int = 2, now: float = 0.0) -> Request:
    """All ask for the same 10 tokens."""
    ids = np.arange(100, 110, dtype=np.int32)
    request = Request(number, ids, np.arange(output, dtype=np.int32) + 7, adapter=adapter)
    cluster.submit(request, now)
    return request


def firsts(requests: Sequence[Request]) -> list[float]:
    return [round(request.first_token_s, 3) for request in requests]


@pytest.mark.parametrize(
    ("scheduler", "first_s"), [("vllm", [1.02, 1.02, 1.02, 6.051]), ("sglang", [1.02, 8.062, 8.062, 6.051])]
)
def test_a_request_whose_adapter_has_no_slot_is_passed_by_others(scheduler: str, first_s: list[float]) -> None:
    """One slot: `b` waits until `a` is done, and is loaded. SGLang counts requests without an adapter as one more."""
    engine = cluster([B, A], max_loras=1, max_cpu_loras=2, scheduler=scheduler, enable_prefix_caching=False)
    requests = [ask(engine, number, adapter) for number, adapter in enumerate([A, B, None, None])]
    engine.advance(0.5)
    reading = engine.snapshot()[0].adapters
    assert reading is not None
    assert (reading.running, reading.waiting, reading.most) == (("a",), ("b",), 1)
    engine.advance(math.inf)
    assert firsts([requests[0], *requests[2:], requests[1]]) == first_s


def test_memories_of_gpu_and_host_forget_what_was_not_used_longest() -> None:
    engine = cluster(max_loras=1, max_cpu_loras=2, enable_prefix_caching=False)
    taken, now = [], 0.0
    for number, adapter in enumerate([A, A, B, A, C, A, B]):
        request = ask(engine, number, adapter, output=1, now=now)
        engine.advance(math.inf)
        taken.append(round(request.first_token_s - now, 2))
        now = engine.reached_s
    disk, host, gpu = 11.02, 4.02, 1.02
    assert taken == [disk, gpu, disk, host, disk, host, disk]


def test_loading_on_demand_holds_up_the_next_step_alone() -> None:
    engine = cluster(max_loras=2, max_cpu_loras=2)
    assert engine.load_adapter(A, [0], 0.0) == 10.0
    request = ask(engine, 1, A, now=4.0)
    engine.advance(math.inf)
    assert round(request.first_token_s, 2) == 10.0 + 1.02
    engine.unload_adapter(A, [0], 50.0)
    again = ask(engine, 2, A, now=50.0)
    engine.advance(math.inf)
    assert (again.cached_tokens, round(again.first_token_s, 3)) == (9, 50.0 + 10.0 + 1.011)


def test_each_adapter_has_kv_of_its_own() -> None:
    engine = cluster([A, B], max_loras=2, max_cpu_loras=2)
    cached = []
    for number, adapter in enumerate([None, A, B, A, None]):
        request = ask(engine, number, adapter)
        engine.advance(math.inf)
        cached.append(request.cached_tokens)
        assert request.prompt.tolist() == list(range(100, 110))
    assert cached == [0, 0, 0, 9, 9]


def test_ids_under_an_adapter_lead_back_to_the_plain_ones() -> None:
    plain = token_bytes(np.array([0, 5, 262_207], dtype=np.int32))
    assert plain_ids(C.own_ids(plain)) == (plain, 3)
    assert plain_ids(plain) == (plain, 0)


def test_a_crash_loses_what_was_loaded() -> None:
    engine = cluster([A], max_loras=1)
    engine.act("crash", 0, 0.0, restart_after_s=1.0)
    request = ask(engine, 1, A, now=2.0)
    engine.advance(math.inf)
    assert round(request.first_token_s, 2) == 2.0 + 11.02
