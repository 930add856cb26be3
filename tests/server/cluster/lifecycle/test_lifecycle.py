"""Instances that start late, stop, crash and come back; times computed by hand."""

import math
from collections.abc import Sequence
from typing import Literal

import pytest
from cluster_requests import request, tokens

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.lifecycle.lifecycle import Lifecycle, LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import Router, RouterError, make_router

TTFT_S, ITL_S = 1.0, 0.25
LIMITS = EngineLimits(kv_tokens=1000)
Event = LifecycleEvent
OnCrash = Literal["reroute", "fail"]


def build(instances: int, *events: Event, on_crash: OnCrash = "reroute") -> Cluster:
    made: list[InstanceBase] = [FixedInstance(i, TTFT_S, ITL_S, LIMITS) for i in range(instances)]
    return Cluster(made, make_router("round_robin"), events=events, on_crash=on_crash)


def apart(*events: Event, decode: int = 2, on_crash: OnCrash = "reroute", link: KVLink | None = None) -> Cluster:
    """Instance 0 prefills, the others decode."""
    pools = [
        InstancePool(
            "front", [FixedInstance(0, TTFT_S, ITL_S, LIMITS, "prefill")], make_router("random"), "prefill", None, 4.0
        ),
        InstancePool(
            "back",
            [FixedInstance(1 + i, TTFT_S, ITL_S, LIMITS, "decode") for i in range(decode)],
            make_router("round_robin"),
            "decode",
        ),
    ]
    return Cluster(pools=pools, kv_link=link or KVLink(20.0), events=events, on_crash=on_crash)


def states(cluster: Cluster) -> list[str]:
    return [state.state for state in cluster.snapshot()]


# --- starting ----------------------------------------------------------------------------------------------------------


def test_an_instance_that_starts_late_gets_no_request_before() -> None:
    cluster = build(2, Event(5.0, 1, "start"))
    requests = [request(i) for i in range(4)]
    assert states(cluster) == ["up", "starting"]
    for each, at in zip(requests, (0.0, 4.9, 5.0, 5.0), strict=True):
        cluster.submit(each, at)
    assert states(cluster) == ["up", "up"]
    assert [each.instance for each in requests[:2]] == [0, 0]
    assert sorted(each.instance for each in requests[2:]) == [0, 1]


def test_requests_wait_in_order_for_the_first_instance() -> None:
    cluster = build(1, Event(3.0, 0, "start"))
    one, two = request(1, 1), request(2, 1)
    cluster.submit(one, 0.0)
    cluster.submit(two, 1.0)
    assert (cluster.waiting, one.instance, cluster.next_event_time()) == (2, -1, 3.0)
    assert tokens(cluster) == [(4.0, 0, 1), (4.0, 0, 2)]
    assert (one.arrival_s, one.placed_s, cluster.waiting) == (0.0, 3.0, 0)


def test_a_request_that_waits_can_be_cancelled() -> None:
    cluster = build(1, Event(3.0, 0, "start"))
    one = request(1)
    cluster.submit(one, 0.0)
    cluster.cancel(one, 1.0)
    assert one.cancelled
    assert (cluster.waiting, cluster.next_event_time(), tokens(cluster)) == (0, math.inf, [])


def test_an_idle_cluster_lets_its_events_happen_when_time_gets_there() -> None:
    cluster = build(2, Event(5.0, 0, "stop"), Event(8.0, 1, "crash"))
    assert cluster.next_event_time() == math.inf
    assert cluster.advance(math.inf) == []
    assert states(cluster) == ["up", "up"]
    cluster.advance(5.0)
    assert states(cluster) == ["down", "up"]
    cluster.advance(100.0)
    assert states(cluster) == ["down", "down"]


# --- stopping ----------------------------------------------------------------------------------------------------------


def test_an_instance_that_stops_finishes_what_it_has() -> None:
    cluster = build(2, Event(0.5, 0, "stop"))
    one, two, three = request(1), request(2), request(3)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.5)
    cluster.submit(three, 0.5)
    assert [each.instance for each in (one, two, three)] == [0, 1, 1]
    assert states(cluster) == ["draining", "up"]
    cluster.advance(math.inf)
    assert one.finished_s == 2.0
    assert states(cluster) == ["down", "up"]


def test_an_instance_that_starts_again_after_a_stop_has_forgotten_its_kv() -> None:
    cluster = build(1, Event(5.0, 0, "stop"), Event(6.0, 0, "start"))
    one, again = request(1), request(1)
    cluster.submit(one, 0.0)
    cluster.submit(again, 7.0)
    assert again.cached_tokens == 0
    cluster.advance(math.inf)
    assert again.finished_s == 9.0


def test_one_that_starts_again_while_it_drains_keeps_its_kv() -> None:
    cluster = build(1, Event(1.25, 0, "stop"), Event(1.5, 0, "start"))
    one, again = request(1), request(1)
    cluster.submit(one, 0.0)
    cluster.submit(again, 1.75)
    assert again.cached_tokens == 9


def test_a_decode_instance_that_stops_takes_what_is_on_its_way() -> None:
    cluster = apart(Event(2.0, 1, "stop"), decode=1)
    one = request(1)
    cluster.submit(one, 0.0)
    cluster.advance(2.5)
    assert states(cluster) == ["up", "draining"]
    cluster.advance(math.inf)
    assert one.finished_s == 4.0
    assert states(cluster) == ["up", "down"]


# --- crashing ----------------------------------------------------------------------------------------------------------


def test_the_requests_of_a_crashed_instance_go_on_elsewhere() -> None:
    cluster = build(2, Event(1.3, 0, "crash"))
    one, two = request(1), request(2)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    # one has two tokens, at 1.0 and 1.25; it computes its KV again and has its third at 1.3 + 1
    assert tokens(cluster)[:5] == [(1.0, 0, 1), (1.0, 1, 2), (1.25, 0, 1), (1.25, 1, 2), (1.5, 1, 2)]
    assert (one.instance, one.placed_s, one.produced, one.finished_s) == (1, 1.3, 5, 2.8)
    assert (one.arrival_s, one.first_token_s, one.failed) == (0.0, 1.0, False)
    assert states(cluster) == ["down", "up"]


def test_a_crash_ends_a_plan_and_its_caller_is_told() -> None:
    cluster = build(2, Event(2.0, 0, "crash"))
    first, second = request(0, 9), request(1, 9)
    first.by_plan = second.by_plan = True
    cluster.submit(first, 0.0)
    cluster.submit(second, 0.0)
    other = second.plan
    ends = [(end.time_s, end.emitted) for end in cluster.advance(2.5)]
    assert ends == [(1.0, [first]), (1.0, [second]), (2.0, [first])]
    assert (first.produced, first.plan, second.plan) == (5, (3.0, 0.25, 5), other)


def test_a_crash_loses_the_kv() -> None:
    cluster = build(1, Event(5.0, 0, "crash", restart_after_s=2.0))
    one, again = request(1), request(1)
    cluster.submit(one, 0.0)
    cluster.advance(5.0)
    state = cluster.snapshot()[0]
    assert (state.state, state.cached_tokens, state.kv_used_tokens) == ("starting", 0, 0)
    cluster.submit(again, 6.0)
    assert (again.instance, cluster.waiting) == (-1, 1)
    cluster.advance(math.inf)
    assert (again.placed_s, again.cached_tokens, again.finished_s) == (7.0, 0, 9.0)


def test_where_so_asked_the_requests_of_a_crashed_instance_fail() -> None:
    cluster = build(2, Event(1.3, 0, "crash"), on_crash="fail")
    one, two = request(1), request(2)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    ends = cluster.advance(1.3)
    assert [(end.time_s, end.instance, end.emitted) for end in ends[4:]] == [(1.3, 0, [one])]
    assert (one.failed, one.produced, one.cancelled) == (True, 2, False)
    assert math.isnan(one.finished_s)
    cluster.cancel(one, 1.4)
    assert not one.cancelled
    cluster.advance(math.inf)
    assert (two.finished_s, one.produced) == (2.0, 2)


def test_what_ends_at_the_instant_of_a_crash_has_ended() -> None:
    cluster = build(1, Event(2.0, 0, "crash"), on_crash="fail")
    one, two = request(1), request(2, 6)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    assert [(end.time_s, [each.id for each in end.emitted]) for end in cluster.advance(math.inf)][-2:] == [
        (2.0, [1, 2]),
        (2.0, [2]),
    ]
    assert (one.finished_s, one.failed, two.failed, two.produced) == (2.0, False, True, 5)


def test_a_request_that_no_instance_will_ever_accept_fails_at_once_and_once() -> None:
    cluster = build(1, Event(1.0, 0, "crash"))
    one, two = request(1), request(2)
    cluster.submit(one, 0.0)
    assert [(end.time_s, end.instance, end.emitted) for end in cluster.advance(math.inf)] == [
        (1.0, 0, [one]),  # its first token
        (1.0, 0, [one]),  # and its end
    ]
    assert (one.failed, one.produced) == (True, 1)
    cluster.submit(two, 4.0)
    assert two.failed
    assert cluster.next_event_time() == 4.0
    assert [(end.time_s, end.instance, end.emitted) for end in cluster.advance(4.0)] == [(4.0, -1, [two])]
    assert cluster.advance(math.inf) == []


def test_a_crashed_instance_that_restarts_serves_what_waited_for_it() -> None:
    cluster = build(1, Event(1.3, 0, "crash", restart_after_s=10.0))
    one = request(1)
    cluster.submit(one, 0.0)
    assert tokens(cluster) == [(1.0, 0, 1), (1.25, 0, 1), (12.3, 0, 1), (12.55, 0, 1), (12.8, 0, 1)]


def test_a_crash_of_what_is_already_down_only_brings_it_back() -> None:
    cluster = build(1, Event(1.0, 0, "stop"), Event(2.0, 0, "crash", restart_after_s=1.0))
    cluster.advance(2.5)
    assert states(cluster) == ["starting"]
    cluster.advance(3.0)
    assert states(cluster) == ["up"]


def test_the_kv_of_a_crashed_prefill_instance_is_computed_again() -> None:
    cluster = apart(Event(2.0, 0, "crash", restart_after_s=0.0))
    one = request(1)
    cluster.submit(one, 0.0)
    # the first token at 1, the transfer to arrive at 3 is lost; prefill from 2 to 3 brings the second token, then 11 tokens
    # of 4 bytes at 20 bytes/s
    assert tokens(cluster)[:3] == [(1.0, 0, 1), (3.0, 0, 1), (3.0 + 2.2 + 0.25, 2, 1)]
    assert (one.produced, one.failed, cluster.transfers.done, cluster.transfers.tokens) == (5, False, 1, 11)


def test_a_crash_frees_the_link() -> None:
    cluster = apart(Event(2.0, 0, "crash", restart_after_s=0.0), link=KVLink(4.0))
    one = request(1)
    cluster.submit(one, 0.0)
    # of a transfer from 1 to 11 nothing is left; the second prefill ends at 3, 11 tokens of 4 bytes at 4 bytes/s
    assert tokens(cluster)[2] == (3.0 + 11.0 + 0.25, 2, 1)


def test_what_streams_during_a_prefill_begins_with_the_one_that_counts() -> None:
    cluster = apart(Event(0.5, 0, "crash", restart_after_s=0.0), link=KVLink(20.0, layers=4))
    one = request(1)
    cluster.submit(one, 0.0)
    cluster.advance(math.inf)
    # the second prefill runs from 0.5 to 1.5; 40 bytes take 2 s
    assert (one.first_token_s, one.finished_s) == (1.5, 2.5 + 4 * ITL_S)


def test_kv_on_its_way_to_a_crashed_decode_instance_is_sent_to_another() -> None:
    cluster = apart(Event(2.0, 1, "crash"), on_crash="fail")
    one = request(1)
    cluster.submit(one, 0.0)
    # sent to 1 from 1.0 to 3.0, then to 2 until 5.0
    assert tokens(cluster)[:2] == [(1.0, 0, 1), (5.25, 2, 1)]
    assert (one.instance, one.failed, one.produced) == (2, False, 5)


def test_what_a_crashed_decode_instance_had_begins_again_with_a_prefill() -> None:
    cluster = apart(Event(3.3, 1, "crash"))
    one = request(1)
    cluster.submit(one, 0.0)
    # second token at 3.25 on instance 1; prefill of 12 tokens until 4.3 brings the third; 12 tokens travel for 2.4 s
    assert tokens(cluster) == [(1.0, 0, 1), (3.25, 1, 1), (4.3, 0, 1), (4.3 + 2.4 + 0.25, 2, 1), (4.3 + 2.4 + 0.5, 2, 1)]


def test_kv_waits_on_the_prefill_side_for_a_decode_instance() -> None:
    cluster = apart(Event(6.0, 1, "start"), decode=1)
    one = request(1)
    cluster.submit(one, 0.0)
    cluster.advance(5.0)
    assert (cluster.waiting, cluster.snapshot()[0].kv_used_tokens) == (1, 10)
    assert tokens(cluster) == [(8.25, 1, 1), (8.5, 1, 1), (8.75, 1, 1), (9.0, 1, 1)]
    assert cluster.snapshot()[0].kv_used_tokens == 0


def test_kv_that_waits_can_be_cancelled() -> None:
    cluster = apart(Event(6.0, 1, "start"), decode=1)
    one = request(1)
    cluster.submit(one, 0.0)
    cluster.cancel(one, 2.0)
    assert (cluster.waiting, cluster.snapshot()[0].kv_used_tokens, cluster.next_event_time()) == (0, 0, 1.0)
    cluster.advance(10.0)
    assert (one.produced, cluster.next_event_time()) == (1, math.inf)


def test_without_any_decode_instance_to_come_the_request_fails_and_frees_its_kv() -> None:
    cluster = apart(Event(0.5, 1, "crash"), decode=1)
    one = request(1)
    cluster.submit(one, 0.0)
    assert [(end.time_s, end.instance, end.emitted) for end in cluster.advance(math.inf)] == [(1.0, 0, [one])] * 2
    assert one.failed
    assert cluster.snapshot()[0].kv_used_tokens == 0


class Broken(Router):
    """Works so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        self.times -= 1
        if self.times < 0:
            raise RouterError("it broke")
        return 0


def test_a_router_that_breaks_makes_fail_what_is_routed_again() -> None:
    made = [FixedInstance(i, TTFT_S, ITL_S, LIMITS) for i in range(2)]
    cluster = Cluster(made, Broken(1), events=[Event(1.3, 0, "crash")])
    one, two = request(1), request(2)
    cluster.submit(one, 0.0)
    with pytest.raises(RouterError):
        cluster.submit(two, 0.5)
    assert [end.emitted for end in cluster.advance(math.inf)] == [[one]] * 3
    assert (one.failed, one.produced, two.failed, two.instance) == (True, 2, False, -1)
    assert cluster.router_errors == ["it broke"]
    assert cluster.next_event_time() == math.inf


def test_a_router_that_breaks_at_the_hand_over_makes_the_request_fail_and_frees_its_kv() -> None:
    pools = [
        InstancePool("front", [FixedInstance(0, TTFT_S, ITL_S, LIMITS, "prefill")], Broken(9), "prefill", None, 4.0),
        InstancePool("back", [FixedInstance(1, TTFT_S, ITL_S, LIMITS, "decode")], Broken(0), "decode"),
    ]
    cluster = Cluster(pools=pools, kv_link=KVLink(20.0))
    one = request(1)
    cluster.submit(one, 0.0)
    assert [end.emitted for end in cluster.advance(math.inf)] == [[one]] * 2
    assert (one.failed, cluster.router_errors, cluster.snapshot()[0].kv_used_tokens) == (True, ["it broke"], 0)


# --- order and refusals ------------------------------------------------------------------------------------------------


def test_events_of_one_instant_happen_in_the_order_given() -> None:
    lifecycle = Lifecycle(1, [Event(1.0, 0, "start"), Event(1.0, 0, "crash"), Event(0.5, 0, "stop")])
    assert [lifecycle.take().action for _ in range(3)] == ["stop", "start", "crash"]
    assert lifecycle.next_s == math.inf
    other = Lifecycle(1, [Event(1.0, 0, "crash", 0.0), Event(1.0, 0, "stop")])
    assert [other.take().action for _ in range(3)] == ["crash", "stop", "start"]


@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_what_an_instant_brings_does_not_depend_on_slices(steps: int) -> None:
    events = [Event(1.0, 0, "crash", 1.0), Event(2.0, 1, "crash"), Event(1.0, 2, "stop"), Event(3.0, 2, "start")]
    cluster = build(3, *events)
    for i in range(7):
        cluster.submit(request(i), 0.5 * i)
    found = []
    while cluster.next_event_time() < math.inf:
        ends = cluster.advance(math.inf, steps)
        found += [(end.time_s, end.instance, [each.id for each in end.emitted]) for end in ends]
    reference = build(3, *events)
    for i in range(7):
        reference.submit(request(i), 0.5 * i)
    assert found == [(end.time_s, end.instance, [each.id for each in end.emitted]) for end in reference.advance(math.inf)]
    assert sum(len(ids) for _, _, ids in found) == 35


def test_events_that_make_no_sense_are_all_named() -> None:
    with pytest.raises(ValueError, match="event 1") as caught:
        build(
            2,
            Event(-1.0, 2, "stop"),
            Event(1.0, 0, "pause"),  # type: ignore[arg-type]
            Event(1.0, 0, "stop", restart_after_s=-1.0),
        )
    assert str(caught.value).split("; ") == [
        "event 1: time_s must be a number of seconds from 0 up, not -1.0",
        "event 1: there is no instance 2: they are numbered 0 to 1",
        "event 2: unknown action 'pause': choose one of start, stop, crash",
        "event 3: restart_after_s belongs to a crash: give a start of its own to an instance that stops",
        "event 3: restart_after_s must be a number of seconds from 0 up, not -1.0",
    ]
