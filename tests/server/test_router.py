"""Where requests go, policy by policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from llmirage_server.cluster import router as router_module
from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instance import Instance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.router import ROUTERS, make_router


class OneSecondSteps:
    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return 1.0


class Routed:
    """A cluster of equal instances, and where it put each request."""

    def __init__(self, policy: str, instances: int, seed: int = 0, max_num_seqs: int = 1000) -> None:
        limits = EngineLimits(kv_tokens=1_000_000, max_num_seqs=max_num_seqs)
        self.cluster = Cluster([Instance(i, OneSecondSteps(), limits) for i in range(instances)], make_router(policy, seed))
        self._requests = 0

    def put(self, prompt: int | np.ndarray = 10, now: float = 0.0, key: str | None = None, output: int = 5) -> Request:
        self._requests += 1
        first = 10_000 * self._requests
        ids = np.arange(first, first + prompt, dtype=np.int32) if isinstance(prompt, int) else prompt
        request = Request(self._requests, ids, np.arange(output, dtype=np.int32), session_key=key)
        self.cluster.submit(request, now)
        return request

    def places(self, n: int) -> list[int]:
        return [self.put().instance for _ in range(n)]


def test_round_robin_goes_around() -> None:
    assert Routed("round_robin", 3).places(7) == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_fair_and_repeats_with_its_seed() -> None:
    places = Routed("random", 4, seed=7).places(400)
    assert places == Routed("random", 4, seed=7).places(400)
    assert places != Routed("random", 4, seed=8).places(400)
    assert all(70 < places.count(i) < 130 for i in range(4))


def test_least_loaded_takes_equals_in_rotation() -> None:
    assert Routed("least_loaded", 3).places(6) == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_a_waiting_request_as_four_running_ones() -> None:
    routed = Routed("least_loaded", 2, max_num_seqs=2)
    assert routed.places(4) == [0, 1, 0, 1]
    routed.cluster.advance(0.5)  # all of them run: 2 and 2
    assert routed.put(now=0.5).instance == 0  # waits there: 6 against 2
    assert routed.put(now=0.5).instance == 1
    assert [s.running for s in routed.cluster.snapshot()] == [2, 2]
    assert [s.waiting for s in routed.cluster.snapshot()] == [1, 1]


def test_least_loaded_goes_where_requests_have_finished() -> None:
    routed = Routed("least_loaded", 2)
    for output in (50, 1, 50):
        routed.put(output=output)
    assert [routed.put(now=now, output=50).instance for now in (10.0, 12.0)] == [1, 1]


def test_sessions_stay_where_they_began_however_loaded() -> None:
    routed = Routed("session", 3)
    first = {key: routed.put(key=key).instance for key in ("a", "b", "c")}
    assert sorted(first.values()) == [0, 1, 2]
    assert {routed.put(key="a").instance for _ in range(20)} == {first["a"]}
    assert routed.put(key="b").instance == first["b"]
    assert routed.put().instance != first["a"]  # no key: the least loaded


def test_sessions_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "_REMEMBERED_SESSIONS", 2)
    routed = Routed("session", 2)
    assert routed.put(key="a").instance == 0
    routed.put(key="b")
    routed.put(key="a")
    routed.put(key="c")  # forgets b, not a
    assert [routed.put(key="a").instance for _ in range(3)] == [0, 0, 0]
    assert list(routed.cluster._router._placed) == ["c", "a"]  # type: ignore[attr-defined]


def test_prefix_goes_to_the_longest_match_until_that_instance_is_too_busy() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(1000, output=1)
    turns = [np.append(root.prompt, np.int32(i)) for i in range(2)]
    other = routed.put(1500, now=10.0, output=100)
    assert (root.instance, other.instance) == (0, 1)
    follower = routed.put(turns[0], now=10.0, output=1)  # 2 against 1500 + 2002
    routed.cluster.advance(20.0)
    assert (follower.instance, follower.cached_tokens) == (0, 1000)
    big = routed.put(6000, now=20.0, output=100)
    assert big.instance == 0
    assert routed.put(turns[1], now=20.0).instance == 1  # 6002 against 1510 + 2002


def test_prefix_keeps_forks_that_come_together_with_their_root() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(1000, output=1)
    forks = [routed.put(np.append(root.prompt, np.int32(i)), now=10.0) for i in range(6)]
    routed.cluster.advance(20.0)
    assert {fork.instance for fork in forks} == {root.instance}
    assert {fork.cached_tokens for fork in forks} == {1000}


def test_prefix_keeps_a_fork_with_its_running_root() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(1000, output=100)
    fork = routed.put(np.append(root.prompt, np.int32(1)), now=10.0)
    assert (root.instance, fork.instance) == (0, 0)  # about 1000 in use and 2 to add, against 2002 to add


def test_prefix_forgets_the_work_that_is_done() -> None:
    routed = Routed("prefix", 2)
    assert [routed.put(300, output=1).instance, routed.put(100, output=1).instance] == [0, 1]
    assert routed.put(10, now=10.0).instance == 0


def test_prefix_spreads_prompts_that_no_one_knows() -> None:
    assert Routed("prefix", 3).places(6) == [0, 1, 2, 0, 1, 2]


def test_prefix_gives_up_affinity_when_the_instances_are_out_of_balance() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(5000, output=1)
    places = [routed.put(np.append(root.prompt, np.int32(i)), now=10.0).instance for i in range(67)]
    assert places == [0] * 65 + [1] + [0]


def test_an_unknown_router_is_answered_with_the_choices() -> None:
    with pytest.raises(
        ValueError, match="unknown router 'lru': choose one of round_robin, random, least_loaded, session, prefix"
    ):
        make_router("lru")


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_policy_serves_a_single_instance(policy: str) -> None:
    assert Routed(policy, 1).places(5) == [0] * 5
