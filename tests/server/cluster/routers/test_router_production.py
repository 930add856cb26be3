"""Routers of production stacks, against the numbers of their own unit tests and documents."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Adapter, AdapterReading, Request
from llmirage_server.cluster.routers import ROUTERS, builtin, make_router, production, router_problem
from llmirage_server.cluster.routers.production import LLM_D_SCORERS, LlmD, LlmDPredictedLatency, latency_scores


@dataclass
class Pod:
    """The state of an instance that a router may read. cached: leading tokens of any prompt that it has."""

    index: int
    waiting: int = 0
    running: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 1600
    cached: int = 0
    adapters: AdapterReading | None = None
    limits: EngineLimits = field(default_factory=lambda: EngineLimits(kv_tokens=1600))

    @property
    def unfinished(self) -> int:
        return self.waiting + self.running

    @property
    def load(self) -> int:
        return 4 * self.waiting + self.running

    def match(self, key: bytes) -> int:
        return self.cached


def ask(prompt: int | np.ndarray = 160, session: str | None = None, first: int = 0, output: int = 9) -> Request:
    ids = np.arange(first, first + prompt, dtype=np.int32) if isinstance(prompt, int) else prompt
    return Request(1, ids, np.arange(output, dtype=np.int32), session_key=session)


@pytest.mark.parametrize(("waiting", "scores"), [((10, 5, 0), [0.0, 0.5, 1.0]), ((5, 5), [1.0, 1.0]), ((0, 0), [1.0, 1.0])])
def test_the_queue_scorer_has_the_numbers_of_its_own_test(waiting: tuple[int, ...], scores: list[float]) -> None:
    """TestQueueScorer of the gateway API inference extension."""
    pods: Any = [Pod(place, waiting=count) for place, count in enumerate(waiting)]
    assert LLM_D_SCORERS["queue"](LlmD(), ask(), pods) == scores


def test_the_lora_scorer_prefers_where_the_adapter_runs_then_free_slots_then_where_it_waits() -> None:
    """loraaffinity of the gateway API inference extension."""
    at = [(("x", "a"), ()), (("x",), ()), (("x", "y"), ("a",)), (("x", "y"), ())]
    pods: Any = [Pod(place, adapters=AdapterReading(*names, 2)) for place, names in enumerate(at)]
    asked = ask()
    asked.adapter = Adapter("a", 1, 16)
    assert LLM_D_SCORERS["lora-affinity"](LlmD(), asked, [*pods, Pod(4)]) == [1.0, 0.8, 0.6, 0.0, 0.0]
    assert make_router("llm-d:lora-affinity=1").choose(asked, pods) == 0


def test_the_kv_scorer_is_what_is_free() -> None:
    pods: Any = [Pod(place, kv_used_tokens=used) for place, used in enumerate((1280, 800, 0))]
    assert LLM_D_SCORERS["kv-cache-utilization"](LlmD(), ask(), pods) == pytest.approx([0.2, 0.5, 1.0])


def test_llm_d_weighs_prefix_by_three_and_load_by_two_each() -> None:
    """With the whole prompt there, 3 of 7: more than a queue or a full memory alone, less than both."""
    for waiting, used, expected in ((9, 0, 0), (0, 1500, 0), (9, 1500, 1)):
        router = make_router("llm-d:default")
        pods: Any = [Pod(0), Pod(1, waiting=50)]
        assert router.choose(ask(), pods) == 0
        pods = [Pod(0, waiting=waiting, kv_used_tokens=used), Pod(1)]
        assert router.choose(ask(), pods) == expected


def test_llm_d_looks_at_256_blocks_of_a_prompt_and_forgets_what_does_not_fit() -> None:
    pods: Any = [Pod(place, kv_total_tokens=16 * 300) for place in range(2)]
    router = make_router("llm-d:prefix-cache=1")
    long = np.arange(16 * 256, dtype=np.int32)
    place = router.choose(ask(long), pods)
    assert router.choose(ask(np.append(long, long)), pods) == place
    assert isinstance(router, LlmD)
    router._blocks = [1, 2]
    router._sent[0].update({1: None})
    assert router._prefix(ask(), pods)[0] == 0.5
    for first in range(10_000, 90_000, 10_000):
        router.choose(ask(1000, first=first), pods)
    assert all(len(sent) <= 300 for sent in router._sent.values())


def test_sessions_stay_by_the_session_scorer_alone() -> None:
    pods: Any = [Pod(place) for place in range(4)]
    router = make_router("llm-d:session-affinity=1", 3)
    places = {name: router.choose(ask(session=name), pods) for name in "abcdefgh"}
    assert len(set(places.values())) > 1
    assert all(router.choose(ask(session=name, first=500), pods) == place for name, place in places.items())


@pytest.mark.parametrize(
    ("predicted_ms", "idle", "slo_ms", "scores"),
    [
        ((10, 100), (0, 0), 0, [1.01, 0.01]),  # TestScoreNegativeOnly: headroom of -10 and -100 ms, both 0 to 1
        ((50, 50), (0, 1), 0, [0, 0.51]),  # TestScoreIdlePodPreference: equal deficits, and the busy one is left out
        ((40, 10, 20), (0, 0, 0), 0, [0.01, 1.01, 0.67]),
        ((50, 120), (0, 0), 150, [0.01, 1.01]),  # TestScorePositiveHeadroom: the least headroom first
        ((50, 120, 160), (0, 0, 1), 150, [0.01, 1.01, 0]),
        ((160, 200, 180), (0, 1, 1), 150, [0, 0.01, 1.01]),
    ],
)
def test_the_latency_scorer_has_the_numbers_of_its_own_test(
    predicted_ms: tuple[int, ...], idle: tuple[int, ...], slo_ms: int, scores: list[float]
) -> None:
    assert latency_scores([ms / 1e3 for ms in predicted_ms], [*map(bool, idle)], slo_ms / 1e3) == scores


def test_the_latency_scorer_weighs_kv_queue_and_prefix_until_it_has_samples() -> None:
    """TestScoreCompositeFallback."""
    pods: Any = [Pod(0, kv_used_tokens=320, running=3), Pod(1, kv_used_tokens=1280, waiting=5, running=10)]
    assert LLM_D_SCORERS["latency"](LlmD(), ask(), pods) == [0.6, 0.07]


@pytest.mark.parametrize(
    ("cached", "predicted_s", "kept"),
    [
        ((0.9, 0.85, 0.1), (0.1, 0.12, 0.05), [0, 1]),  # TestFilter_NarrowToSticky
        ((0.1, 0.2, 0.5), (0.01, 0.02, 0.03), [0, 1, 2]),  # TestFilter_NoStickyEndpoints
        ((0.9, 0.1), (5.1, 0.05), [0, 1]),  # TestFilter_TTFTPenaltyBreaksStickiness
        ((0.9, 0.1), None, [0]),
    ],
)
def test_the_affinity_filter_keeps_what_its_own_test_keeps(
    cached: tuple[float, ...], predicted_s: tuple[float, ...] | None, kept: list[int]
) -> None:
    assert LlmDPredictedLatency()._sticky(list(range(len(cached))), 0.8, cached, predicted_s) == kept


@pytest.mark.parametrize("name", ["llm-d:latency", "llm-d:predicted-latency"])
def test_latencies_are_learnt_from_requests_that_are_over(name: str) -> None:
    """A second for each request that waits: a hundred requests at queues of 1 to 4, then two alike but for 9 against 2."""
    router = make_router(name, 1)
    for number in range(120):
        pods: Any = [Pod(place, running=3, waiting=1 + (number + place) % 4) for place in range(2)]
        request = ask(160, first=1000 * number)
        chosen = pods[router.choose(request, pods)]
        request.arrival_s, request.finished_s, request.produced = 0.0, float(chosen.waiting), 9
    pods = [Pod(0, running=3, waiting=9), Pod(1, running=3, waiting=2)]
    chosen_places = [router.choose(ask(160, first=200_000 + 1000 * number), pods) for number in range(100)]
    assert chosen_places.count(1) >= 95
    assert isinstance(router, LlmD)
    predicted_s = router._latencies.predict(ask(160), pods, [0.0, 0.0])
    assert predicted_s == pytest.approx([9, 2], rel=0.02)
    wanted = [ask(160, first=900_000 + 1000 * number) for number in range(100)]
    for request in wanted:
        request.slo_ttft_s = 10.0
    # The one closest to the objective, which either router prefers.
    assert [router.choose(request, pods) for request in wanted].count(0) >= 95


@pytest.mark.parametrize(
    ("slo_s", "running", "kv_used", "admitted"),
    [(5.0, 3, 160, True), (3.0, 3, 160, False), (math.inf, 3, 160, True), (3.0, 0, 160, True), (3.0, 3, 16, True)],
)
def test_a_sheddable_request_needs_an_instance_that_meets_its_objective_or_is_idle_or_cold(
    slo_s: float, running: int, kv_used: int, admitted: bool
) -> None:
    router = LlmDPredictedLatency(1)
    pods: Any = [
        Pod(0, running=3, waiting=4, kv_used_tokens=160),
        Pod(1, running=running, waiting=4, kv_used_tokens=kv_used),
    ]
    request = ask()
    request.slo_ttft_s = slo_s
    assert router.admits(request, pods)  # there are no samples
    for number in range(100):
        before = ask(first=1000 * number)
        router.choose(before, pods)
        before.arrival_s, before.finished_s, before.produced = 0.0, 4.0, 9
    assert router.admits(request, pods) == admitted


def test_the_cost_of_dynamo_is_that_of_its_formula() -> None:
    """Ten blocks of prompt; cached 2, 5 and 8 of them, active 10, 5 and 9: costs of 28, 20 and 21 with the prompt's ten."""
    router = make_router("dynamo:kv")
    pods: Any = [Pod(place) for place in range(3)]
    for place, blocks in enumerate((10, 5, 9)):
        running = ask(16 * blocks, first=1000 * (place + 1))
        only: Any = [pods[place]]
        router.choose(running, only)
        running.produced = 1  # its prefill is over
    for pod, cached in zip(pods, (2, 5, 8), strict=True):
        pod.cached = 16 * cached
    assert router.choose(ask(160), pods) == 1
    again = make_router("dynamo:kv")  # without load the longest match wins
    assert again.choose(ask(160), pods) == 2
    assert again.choose(ask(160), pods) == 2  # equal blocks are active once: 4 + 10 against 5 + 10


def test_dynamo_forgets_blocks_of_requests_that_are_over() -> None:
    router = make_router("dynamo:kv")
    pods: Any = [Pod(0), Pod(1)]
    first = ask(160, output=1)
    assert router.choose(first, pods) == 0
    assert router.choose(ask(32, first=500), pods) == 1
    first.produced = 1
    assert router.choose(ask(16, first=900), pods) == 0


def test_production_stack_follows_the_prefix_whatever_the_load() -> None:
    router = make_router("production-stack:prefixaware", 1)
    pods: Any = [Pod(0), Pod(1)]
    place = router.choose(ask(64), pods)
    pods[place].waiting = 1000
    assert [router.choose(ask(96), pods) for _ in range(8)] == [place] * 8
    short = {router.choose(ask(31, first=5000), pods) for _ in range(40)}
    assert short == {0, 1}


def test_sglang_keeps_affinity_up_to_64_requests_apart() -> None:
    pods: Any = [Pod(0), Pod(1)]
    ours, sglang = make_router("prefix"), make_router("sglang:cache_aware")
    for router in (ours, sglang):
        assert router.choose(ask(), pods) == 0
    pods[0].running = 60
    assert (ours.choose(ask(), pods), sglang.choose(ask(), pods)) == (1, 0)
    pods[0].running = 66
    assert sglang.choose(ask(), pods) == 1


@pytest.mark.parametrize("name", ["llm-d:queue=2,prefix-cache-scorer", *ROUTERS])
def test_names_that_are_known(name: str) -> None:
    assert router_problem(name) is None
    make_router(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [("llm-d:prefx=2", "not 'prefx'"), ("llm-d:queue=much", "must be a number"), ("dynamo", "must be one of")],
)
def test_names_that_are_not(name: str, said: str) -> None:
    assert said in (router_problem(name) or "")
    with pytest.raises(ValueError, match=r"llm-d|dynamo"):
        make_router(name)


def test_memory_of_sent_prompts_and_of_sessions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "_MOST_TOKENS", 640)
    monkeypatch.setattr(builtin, "REMEMBERED_SESSIONS", 3)
    pods: Any = [Pod(0)]
    for name in ("production-stack:prefixaware", "llm-d:session-affinity=1"):
        router = make_router(name)
        for number in range(20):
            router.choose(ask(320, first=1000 * number, session=str(number)), pods)
            if number == 6:
                early = router.bytes_kept()
        assert 0 < router.bytes_kept() <= early
