"""KV that a request takes from another one, as outside routers ask: when it comes, and who frees it. Times by hand."""

import math

import pytest
from cluster_requests import request, tokens
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.lifecycle.lifecycle import Action
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.limits import FirstToken, Role
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router

SENT_S = 1.8  # 9 tokens of 4 bytes at 20 bytes/s: the decode instance computes the last one
LINK = KVLink(20.0, latency_s=0.5)


def instance(index: int, role: Role, first_token: FirstToken = "decode", kv_tokens: int = 1000) -> Instance:
    return Instance(index, ConstantStep(1.0), EngineLimits(kv_tokens=kv_tokens, first_token=first_token), role)


def build(link: KVLink = LINK, roles: tuple[Role, ...] = ("prefill", "decode"), **limits: object) -> Cluster:
    instances = [instance(index, role, **limits) for index, role in enumerate(roles)]  # type: ignore[arg-type]
    pools = [InstancePool(str(each.index), [each], make_router("round_robin"), each.role, None, 4.0) for each in instances]
    return Cluster(pools=pools, kv_link=link)


def pair(output: int = 3, prompt: int = 1) -> tuple[Request, Request]:
    """Two requests of one prompt, for instances 0 and 1."""
    holder, taker = request(prompt, output=1), request(prompt, output=output)
    holder.id, taker.id = 1, 2
    holder.only_instance, holder.keeps_kv = 0, True
    taker.only_instance, taker.kv_from = 1, holder
    return holder, taker


def used(cluster: Cluster) -> list[int]:
    return [state.kv_used_tokens for state in cluster.snapshot()]


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("both", "both")])
def test_kv_is_kept_until_it_has_been_taken(roles: tuple[Role, Role]) -> None:
    cluster = build(roles=roles)
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    assert tokens(cluster) == [(1.0, 0, 1)]
    assert (used(cluster), holder.finished_s, cluster.next_event_time()) == ([10, 0], 1.0, math.inf)
    cluster.submit(taker, 5.0)
    arrival_s = 5.0 + SENT_S + 0.5
    assert tokens(cluster, arrival_s) == []
    assert used(cluster)[0] == 0
    assert tokens(cluster) == [(arrival_s + 1 + number, 1, 2) for number in range(3)]
    assert (taker.cached_tokens, taker.external_tokens, taker.first_token_s) == (9, 9, arrival_s + 1)
    assert used(cluster) == [0, 0]


@pytest.mark.parametrize(
    ("taken_s", "arrival_s"),
    [
        (0.5, 1.0 + SENT_S + 0.5),  # at once, as SGLang's router does: it waits for the prefill
        (1.2, 1.2 + SENT_S + 0.3),  # the router took 0.2 s of the 0.5 s
        (9.0, 9.0 + SENT_S),
    ],
)
def test_a_routers_own_time_passes_in_the_handoff(taken_s: float, arrival_s: float) -> None:
    cluster = build(KVLink(20.0, latency_s=0.5, handoff_s=0.5))
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.submit(taker, taken_s)
    cluster.advance(math.inf)
    assert taker.joined_s == pytest.approx(arrival_s)


def test_an_outside_router_as_fast_as_the_clusters_own_gets_the_same_times() -> None:
    inside, outside = build(), build()
    one = request(1)
    inside.submit(one, 0.0)
    inside.advance(math.inf)
    holder, taker = pair(one.output_tokens)
    outside.submit(taker, 0.0)
    outside.submit(holder, 0.0)
    outside.advance(math.inf)
    assert (taker.joined_s, taker.first_token_s, taker.finished_s) == (one.joined_s, one.first_token_s, one.finished_s)
    assert inside.transfers == outside.transfers


@pytest.mark.parametrize(("output", "times"), [(3, [0.0, 1.0, 2.0]), (1, [1.0])])
def test_the_first_token_comes_with_the_kv_where_the_engine_sends_it(output: int, times: list[float]) -> None:
    cluster = build(first_token="admission")
    holder, taker = pair(output)
    cluster.submit(holder, 0.0)
    cluster.submit(taker, 2.0)
    arrival_s = 2.0 + SENT_S + 0.5
    assert tokens(cluster)[1:] == [(pytest.approx(arrival_s + after_s), 1, 2) for after_s in times]


def test_kv_of_another_process_comes_over_a_link_of_its_own() -> None:
    cluster = build(roles=("both", "both"))
    for number, sender in enumerate((-2, -2, -3)):
        foreign = Request(-1, None, None)
        foreign.instance = sender
        taker = request(number, output=1)
        taker.only_instance, taker.kv_from = 1, foreign
        cluster.submit(taker, 0.0)
        cluster.advance(0.0)
    assert [time_s for time_s, _, _ in tokens(cluster)] == [SENT_S + 1.5, SENT_S + 1.5, pytest.approx(2 * SENT_S + 1.5)]


def test_what_is_not_taken_is_released_once() -> None:
    cluster = build()
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.advance(math.inf)
    for _ in range(2):
        cluster.release(holder, 100.0)
        assert (used(cluster), holder.keeps_kv) == ([0, 0], False)
    cluster.submit(taker, 101.0)
    assert (taker.failed, tokens(cluster)) == (True, [(101.0, -1, 2)])


def test_kv_is_taken_once() -> None:
    cluster = build()
    holder, taker = pair()
    again = request(1)
    again.only_instance, again.kv_from = 1, holder
    for each in (holder, taker, again):
        cluster.submit(each, 0.0)
    assert (again.failed, taker.failed) == (True, False)
    cluster.advance(math.inf)
    assert taker.produced == 3


@pytest.mark.parametrize("cancel_s", [0.5, 1.0, 2.0, 3.25, 3.35, 4.5])
@pytest.mark.parametrize("which", ["holder", "taker"])
def test_cancelling_frees_both_sides_at_any_moment(cancel_s: float, which: str) -> None:
    cluster = build()
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.submit(taker, 0.25)
    cluster.cancel(holder if which == "holder" else taker, cancel_s)
    cluster.advance(math.inf)
    if which == "taker" and cancel_s < 1.0:
        cluster.release(holder, 10.0)  # nobody will take it
    assert taker.failed == (which == "holder" and cancel_s < 1.0)
    assert (used(cluster), cluster.next_event_time()) == ([0, 0], math.inf)
    assert taker.produced == 3 or taker.failed or taker.cancelled


@pytest.mark.parametrize("at_s", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("instance", [0, 1])
def test_a_crash_of_either_side_fails_the_request(at_s: float, instance: int) -> None:
    cluster = build()
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.submit(taker, 0.0)
    cluster.advance(at_s)
    cluster.act("crash", instance, at_s)
    cluster.advance(math.inf)
    assert (taker.failed, taker.produced) == (True, 0)
    cluster.release(holder, 10.0)
    assert (used(cluster), cluster.next_event_time()) == ([0, 0], math.inf)


@pytest.mark.parametrize(("action", "state"), [("stop", "draining"), ("crash", "down")])
def test_an_instance_stays_until_its_kv_is_taken(action: Action, state: str) -> None:
    cluster = build(roles=("both", "both"))
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.advance(2.0)
    cluster.act(action, 0, 2.0)
    cluster.advance(3.0)
    assert cluster.snapshot_of(0).state == state
    cluster.submit(taker, 3.0)
    cluster.advance(math.inf)
    assert (cluster.snapshot_of(0).state, taker.failed) == ("down", action == "crash")


def test_kv_waits_for_room_where_it_goes() -> None:
    cluster = build(roles=("both", "both"), kv_tokens=20)
    first, second = pair(8), pair(2, prompt=2)
    for holder, taker in (first, second):
        cluster.submit(holder, 0.0)
        cluster.submit(taker, 0.0)
    cluster.advance(math.inf)
    assert [taker.produced for _, taker in (first, second)] == [8, 2]
    assert second[1].joined_s == first[1].finished_s


def test_fixed_times_hand_over_too() -> None:
    limits = EngineLimits(kv_tokens=1000)
    instances: list[InstanceBase] = [FixedInstance(index, 1.0, 0.25, limits) for index in range(2)]
    pool = InstancePool("all", instances, make_router("round_robin"), kv_bytes_per_token=4.0)
    cluster = Cluster(pools=[pool], kv_link=LINK)
    holder, taker = pair()
    cluster.submit(holder, 0.0)
    cluster.submit(taker, 0.0)
    arrival_s = 1.0 + SENT_S + 0.5
    assert tokens(cluster) == [(1.0, 0, 1), *[(arrival_s + 0.25 * number, 1, 2) for number in (1, 2, 3)]]
    assert (used(cluster), taker.cached_tokens) == ([0, 0], 9)
