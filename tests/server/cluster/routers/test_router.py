"""Where requests go, policy by policy, through a cluster of equal instances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import ROUTERS, Router, make_router
from llmirage_server.cluster.routers import builtin as session_module


class Routed:
    """A cluster of equal instances, and where it put each request."""

    def __init__(self, policy: str, instances: int, seed: int = 0, max_num_seqs: int = 1000) -> None:
        limits = EngineLimits(kv_tokens=1_000_000, max_num_seqs=max_num_seqs)
        self.router = make_router(policy, seed)
        self.instances = [Instance(i, ConstantStep(1.0), limits) for i in range(instances)]
        self.cluster = Cluster(self.instances, self.router)
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
    monkeypatch.setattr(session_module, "REMEMBERED_SESSIONS", 2)
    routed = Routed("session", 2)
    assert routed.put(key="a").instance == 0
    routed.put(key="b")
    routed.put(key="a")
    routed.put(key="c")  # forgets b, not a
    assert [routed.put(key="a").instance for _ in range(3)] == [0, 0, 0]
    assert list(routed.router.sessions._placed) == ["c", "a"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["session", "llm-d:session-affinity=4,queue=1,running-requests-size=1"])
def test_a_session_is_forgotten_when_no_request_came_for_a_time(policy: str) -> None:
    routed = Routed(policy, 2)
    routed.router.sessions.ttl_s = 30.0  # type: ignore[attr-defined]
    first = routed.put(key="a", output=1000).instance
    for _ in range(9):
        routed.put(key="a", output=1000)
    assert [routed.put(key="a", now=now, output=1000).instance for now in (29.0, 58.0)] == [first, first]
    assert [routed.put(key="a", now=now).instance for now in (88.5, 89.0)] == [1 - first] * 2


def test_a_session_whose_instance_is_gone_is_placed_anew_and_stays_there() -> None:
    routed = Routed("session", 3)
    choose, request = routed.router.choose, routed.put(key="a")
    zero, one, two = routed.instances
    assert choose(request, [zero, one, two]) == 0
    assert choose(request, [one, two]) == 0  # instance 1
    assert choose(request, [zero, one, two]) == 1
    assert choose(request, [one]) == 0


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded"])
def test_the_rotation_goes_by_instances_not_by_their_places_in_the_list(policy: str) -> None:
    routed = Routed(policy, 4)
    request = Request(0, np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32))
    zero, one, two, three = routed.instances

    def chosen(*accepting: Instance) -> int:
        return accepting[routed.router.choose(request, accepting)].index

    assert [chosen(zero, one, two, three) for _ in range(3)] == [0, 1, 2]
    assert chosen(zero, one, three) == 3  # 2 has gone
    assert chosen(one, three) == 1
    assert chosen(zero, two) == 2
    assert chosen(zero, one, two, three) == 3


def test_power_of_two_takes_the_less_loaded_of_two_and_never_the_most_loaded() -> None:
    routed = Routed("power_of_two", 3, seed=3)
    for instance, requests in zip(routed.instances, (9, 0, 5), strict=True):
        for i in range(requests):
            instance.submit(Request(i, np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32)), 0.0)
    request = Request(0, np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32))
    chosen = [routed.router.choose(request, routed.instances) for _ in range(300)]
    assert chosen.count(0) == 0
    assert 160 < chosen.count(1) < 240  # two pairs of three have it


def test_power_of_two_draws_by_the_seed_and_spreads_what_comes() -> None:
    places = Routed("power_of_two", 8, seed=7).places(400)
    assert places == Routed("power_of_two", 8, seed=7).places(400)
    assert places != Routed("power_of_two", 8, seed=8).places(400)
    assert all(45 <= places.count(i) <= 55 for i in range(8))


@pytest.mark.parametrize("policy", ["prefix", "kv_aware"])
@pytest.mark.parametrize("forks", [2, 6])
def test_forks_that_come_together_go_where_their_root_and_its_reply_are(policy: str, forks: int) -> None:
    routed = Routed(policy, 2)
    root = routed.put(100, output=400)  # the reply is most of what they share
    known = np.append(root.prompt, root.output)
    children = [routed.put(np.append(known, np.int32([i, i, i])), now=1000.0) for i in range(forks)]
    routed.cluster.advance(2000.0)
    assert {child.instance for child in children} == {root.instance}
    assert {child.cached_tokens for child in children} == {500}


@pytest.mark.parametrize("policy", ["prefix", "kv_aware"])
def test_prompts_that_no_one_knows_are_spread(policy: str) -> None:
    assert Routed(policy, 3).places(6) == [0, 1, 2, 0, 1, 2]


def test_prefix_follows_a_match_of_more_than_three_tenths_of_the_prompt() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(300, output=1)
    assert routed.put(1000, output=1).instance == 1
    more = np.arange(500_000, 500_700, dtype=np.int32)
    assert routed.put(np.append(root.prompt, more[:699]), output=1).instance == 0  # 300 of 999
    routed = Routed("prefix", 2)
    root = routed.put(300, output=1)
    assert routed.put(np.append(root.prompt, more[:700]), output=1).instance == 1  # 300 of 1000


def test_prefix_follows_the_longest_match_however_loaded_within_bounds() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(1000, output=100)
    places = [routed.put(np.append(root.prompt, np.int32(i)), output=100).instance for i in range(8)]
    assert places == [0] * 8


def test_prefix_takes_the_least_loaded_of_those_that_match_alike() -> None:
    routed = Routed("prefix", 3)
    shared = np.arange(1000, dtype=np.int32)
    request = Request(0, shared, shared[:1])
    for instance in routed.instances[1:]:
        routed.router.choose(request, [instance])  # 1 and 2 have been sent it
    for i, n in ((1, 3), (2, 2)):
        for j in range(n):
            routed.instances[i].submit(Request(j, shared + 5000, shared[:9]), 0.0)
    assert routed.router.choose(request, routed.instances) == 2
    assert routed.router.choose(request, routed.instances[:2]) == 1
    assert routed.router.choose(request, routed.instances[:1]) == 0


def test_prefix_gives_up_affinity_when_the_instances_are_out_of_balance() -> None:
    routed = Routed("prefix", 2)
    root = routed.put(5000, output=1)
    places = [routed.put(np.append(root.prompt, np.int32(i)), now=10.0).instance for i in range(12)]
    assert places == [0] * 9 + [1] * 3  # from then on both have it, and 1 has less to do


def test_prefix_spreads_sessions_that_share_a_system_prompt_and_keeps_each_where_it_is() -> None:
    routed = Routed("prefix", 4)
    system = np.arange(4000, dtype=np.int32)
    first = [np.append(system, np.arange(i * 1000, i * 1000 + 500, dtype=np.int32)) for i in range(10, 74)]
    places = [routed.put(prompt, output=2000).instance for prompt in first]
    assert all(12 <= places.count(i) <= 20 for i in range(4))
    again = [routed.put(np.append(prompt, np.int32(1)), now=1.0).instance for prompt in first]
    assert again == places


@pytest.mark.parametrize("policy", ["prefix", "kv_aware"])
def test_what_an_instance_had_is_forgotten_with_its_kv(policy: str) -> None:
    routed = Routed(policy, 2)
    root = routed.put(1000, output=50)
    assert root.instance == 0
    routed.router.forget(0)
    routed.router.forget(0)
    routed.router.forget(1)  # never had anything
    empty = [Instance(i, ConstantStep(1.0), EngineLimits(kv_tokens=10_000)) for i in range(2)]
    assert routed.router.choose(root, empty) == 1  # its turn: nothing speaks for 0 any more


def test_kv_aware_goes_to_the_longest_match_until_that_instance_is_too_busy() -> None:
    routed = Routed("kv_aware", 2)
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


def test_kv_aware_knows_what_was_evicted() -> None:
    instances = [Instance(i, ConstantStep(1.0), EngineLimits(kv_tokens=1200)) for i in range(2)]
    first, second = (np.arange(i * 10_000, i * 10_000 + 1000, dtype=np.int32) for i in range(2))
    for instance, prompt in ((0, first), (0, second), (1, first[:600])):  # the second drives out 800 tokens of the first
        request = Request(0, prompt, prompt[:1])
        instances[instance].submit(request, 0.0)
        while not request.produced:
            instances[instance].advance()
    router = make_router("kv_aware")
    assert router.choose(Request(1, np.append(first, np.int32(7)), first[:1]), instances) == 1
    router.forget(1)
    assert router.choose(Request(2, np.append(second, np.int32(7)), first[:1]), instances) == 0


def test_kv_aware_keeps_a_fork_with_its_running_root() -> None:
    routed = Routed("kv_aware", 2)
    root = routed.put(1000, output=100)
    fork = routed.put(np.append(root.prompt, np.int32(1)), now=10.0)
    assert (root.instance, fork.instance) == (0, 0)  # about 1000 in use and 2 to add, against 2002 to add


def test_kv_aware_forgets_the_work_that_is_done() -> None:
    routed = Routed("kv_aware", 2)
    assert [routed.put(300, output=1).instance, routed.put(100, output=1).instance] == [0, 1]
    assert routed.put(10, now=10.0).instance == 0


def test_kv_aware_gives_up_affinity_when_the_instances_are_out_of_balance() -> None:
    routed = Routed("kv_aware", 2)
    root = routed.put(5000, output=1)
    places = [routed.put(np.append(root.prompt, np.int32(i)), now=10.0).instance for i in range(67)]
    assert places == [0] * 65 + [1] + [0]


class Holding(Instance):
    """An instance that says what it is told to say."""

    def __init__(self, index: int, waiting: int, running: int, used: int, cached: int) -> None:
        super().__init__(index, ConstantStep(1.0), EngineLimits(kv_tokens=1000))
        self.running, self.unfinished, self.load = running, waiting + running, 4 * waiting + running
        self.facts = (used, cached)

    kv_used_tokens = property(lambda self: self.facts[0])

    def match(self, key: bytes) -> int:
        return self.facts[1]


FEW = st.integers(0, 3)


@given(
    facts=st.lists(st.tuples(FEW, FEW, st.integers(0, 12), st.integers(0, 10)), min_size=1, max_size=6),
    turn=st.integers(0, 5),
)
def test_kv_aware_takes_the_lowest_cost_then_load_then_turn(facts: list[tuple[int, int, int, int]], turn: int) -> None:
    instances = [Holding(i, *each) for i, each in enumerate(facts)]
    router = make_router("kv_aware")
    router._rotation._turn = turn  # type: ignore[attr-defined]
    first = turn if turn < len(facts) else 0
    order = [*range(first, len(facts)), *range(first)]
    ids = np.arange(10, dtype=np.int32)
    expected = min(order, key=lambda i: (facts[i][2] + 2 * (10 - facts[i][3]), 4 * facts[i][0] + facts[i][1]))
    assert router.choose(Request(0, ids, ids), instances) == expected
    assert router._ahead[expected].tokens() == 10 - facts[expected][3]  # type: ignore[attr-defined]


def test_kv_aware_counts_what_a_request_has_produced_elsewhere_as_work() -> None:
    routed = Routed("kv_aware", 2)
    root = routed.put(100, output=50)
    routed.cluster.advance(20.0)
    assert 0 < root.produced < 50
    _, one = routed.instances
    routed.router.choose(root, [one])
    assert routed.router._ahead[1].tokens() == 100 + root.produced  # type: ignore[attr-defined]
    root.produced += 1
    assert routed.router._ahead[1].tokens() == 0  # type: ignore[attr-defined]


def test_an_unknown_router_is_answered_with_the_choices() -> None:
    names = ", ".join(ROUTERS)
    with pytest.raises(ValueError, match=f"unknown router 'lru': choose one of {names}, or module:name of your own$"):
        make_router("lru")
    with pytest.raises(ValueError, match=r"unknown router 'kv-aware' \(did you mean 'kv_aware'\?\)"):
        make_router("kv-aware")


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_policy_says_in_one_line_what_it_chooses(policy: str) -> None:
    assert issubclass(ROUTERS[policy], Router)  # type: ignore[arg-type]
    line = (ROUTERS[policy].__doc__ or "").splitlines()[0]
    assert 15 < len(line) < 121
    assert line.endswith(".")


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_policy_serves_a_single_instance(policy: str) -> None:
    assert Routed(policy, 1).places(5) == [0] * 5


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_policy_repeats_itself_whatever_instances_come_and_go(policy: str) -> None:
    def places() -> list[int]:
        routed, rng, chosen = Routed(policy, 5, seed=1), np.random.default_rng(5), []
        for i in range(200):
            accepting = [instance for instance in routed.instances if rng.random() < 0.7] or routed.instances[:1]
            prompt = rng.integers(0, 3, int(rng.integers(1, 40)), dtype=np.int32)
            request = Request(i, prompt, prompt[:1], session_key=str(rng.integers(20)))
            position = routed.router.choose(request, accepting)
            assert 0 <= position < len(accepting)
            accepting[position].submit(request, 0.0)
            if i % 50 == 49:
                routed.router.forget(int(rng.integers(5)))
            chosen.append(accepting[position].index)
        return chosen

    first = places()
    assert first == places()
    assert set(first) == {0, 1, 2, 3, 4}
