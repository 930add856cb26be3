"""The gateway's queue: who waits at the router, in which order they leave it, and who is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from drawn_clusters import LinearModel, request

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router
from llmirage_server.cluster.routers.gateway_queue import FlowControl


def build(rule: FlowControl, instances: int = 1, router: str = "round_robin", **limits: Any) -> Cluster:
    limits = {"kv_tokens": 1000, "max_num_seqs": 1} | limits
    made = [Instance(i, LinearModel(), EngineLimits(**limits)) for i in range(instances)]
    return Cluster(made, make_router(router, 3), flow_control=rule)


@pytest.fixture
def ask() -> Callable[..., Request]:
    """Submit a request; its ids are those of no other."""
    numbers = iter(range(1, 1000))

    def submitted(cluster: Cluster, now: float, objective: str = "", fairness_id: str = "", **fields: Any) -> Request:
        number = next(numbers)
        made = request(number, [1000 + number] * fields.pop("prompt", 8), fields.pop("output", 3))
        made.objective, made.fairness_id = objective, fairness_id
        for name, value in fields.items():
            setattr(made, name, value)
        cluster.submit(made, now)
        return made

    return submitted


def test_bands_go_by_priority_and_flows_take_turns(ask: Callable[..., Request]) -> None:
    cluster = build(FlowControl({"chat": 1, "batch": -1}, queue_depth=2, sheddable_max_requests=0))
    for _ in range(3):
        ask(cluster, 0.0)
        cluster.advance(1e-9)
    a1, a2, a3, b1 = (ask(cluster, 0.001, "", flow) for flow in "aaab")
    gone = ask(cluster, 0.001, "", "b")
    chat = ask(cluster, 0.002, "chat", "a")
    cluster.cancel(gone, 0.002)
    shed, named = ask(cluster, 0.002, "batch"), ask(cluster, 0.002, "batch", only_instance=0)
    assert (shed.failed, shed.dropped, named.failed, named.placed_s) == (True, "RejectedCapacity", False, 0.002)
    waiting = {("a", 0): (3, 96), ("b", 0): (1, 32), ("a", 1): (1, 32)}
    assert cluster.gateway.readings(0.002) == [(None, 1.5, waiting)]
    assert cluster.waiting == 5
    cluster.advance(math.inf)
    queued = [a1, a2, a3, b1, chat]
    assert sorted(queued, key=lambda one: one.placed_s) == [chat, a1, b1, a2, a3]
    assert len({one.placed_s for one in queued}) == 5  # each as one more has left the instance's queue
    assert all(one.produced == 3 for one in queued)
    assert (gone.produced, cluster.waiting, cluster.gateway.readings(1.0)) == (0, 0, [(None, 0.0, {})])
    stays = {key[1:]: stay.count for key, stay in cluster.gateway.durations.items()}
    dropped = {("", -1, "RejectedCapacity"): 1, ("b", 0, "EvictedContextCancelled"): 1}
    sent = {("", 0, "Dispatched"): 3, ("a", 0, "Dispatched"): 3, ("b", 0, "Dispatched"): 1, ("a", 1, "Dispatched"): 1}
    assert stays == dropped | sent
    assert not ask(cluster, 10.0, "batch").failed


def test_memory_in_use_saturates_too(ask: Callable[..., Request]) -> None:
    cluster = build(FlowControl(kv_utilization=0.5), kv_tokens=100, page_size=1, max_num_seqs=8)
    large = ask(cluster, 0.0, prompt=60, output=5)
    cluster.advance(0.01)
    after = ask(cluster, 0.01)
    cluster.advance(math.inf)
    assert after.placed_s == large.finished_s


def test_the_router_chooses_among_those_that_are_not_saturated(ask: Callable[..., Request]) -> None:
    """Saturation is that of all instances in the mean."""
    cluster = build(FlowControl(queue_depth=2), 2, "session")
    placed = [ask(cluster, 0.0, session_key="one").instance for _ in range(5)]
    assert sorted(placed[:4]) == [0, 0, 1, 1]
    assert placed[0] == placed[1]
    assert placed[4] == -1


def test_who_waits_moves_on_when_instances_go_and_come(ask: Callable[..., Request]) -> None:
    cluster = build(FlowControl(queue_depth=1))
    asked = [ask(cluster, 0.0) for _ in range(4)]
    cluster.act("crash", 0, 0.005, 1.0)
    assert cluster.gateway.readings(0.005)[0].saturation == 1  # as there is no instance
    cluster.advance(math.inf)
    assert [one.produced for one in asked] == [3] * 4


def test_an_instance_that_starts_takes_who_waits(ask: Callable[..., Request]) -> None:
    cluster = build(FlowControl(queue_depth=1), 2)
    cluster.act("stop", 1, 0.0)
    asked = [ask(cluster, 0.0) for _ in range(3)]
    cluster.advance(0.001)  # one runs, one waits there
    cluster.act("start", 1, 0.001)
    cluster.advance(0.002)
    assert [(one.instance, one.placed_s) for one in asked[1:]] == [(0, asked[1].placed_s), (1, 0.001)]


@pytest.mark.parametrize(
    ("rule", "crash", "dropped"),
    [
        ({"request_ttl_s": 0.01}, False, {"EvictedTTL": [2, 3]}),
        ({"request_ttl_s": 0.01}, True, {"EvictedNoEndpoints": [0, 1, 2, 3]}),
        ({"max_requests": 1}, False, {"RejectedCapacity": [3]}),
        ({"max_requests": 1}, True, {"RejectedCapacity": [3], "EvictedNoEndpoints": [0, 1, 2]}),
        ({"max_bytes": 40}, False, {"RejectedCapacity": [3]}),
        ({"request_ttl_s": math.inf}, False, {}),
    ],
)
def test_who_waits_too_long_or_finds_no_room_is_dropped(
    ask: Callable[..., Request], rule: dict[str, Any], crash: bool, dropped: dict[str, list[int]]
) -> None:
    """One runs and one waits at the instance."""
    cluster = build(FlowControl(queue_depth=1, **rule))
    asked = [ask(cluster, 0.0, output=50)]
    cluster.advance(1e-9)
    asked += [ask(cluster, 0.001, output=50) for _ in range(3)]
    if crash:
        cluster.act("crash", 0, 0.002, 100.0)
    ends = [(end.time_s, request) for end in cluster.advance(math.inf) for request in end.emitted if request.dropped]
    assert {request for _, request in ends} == {one for one in asked if one.dropped}
    late_s = [time_s - one.arrival_s for time_s, one in ends if one.dropped.startswith("Evicted")]
    assert late_s == pytest.approx([rule.get("request_ttl_s", 60.0)] * len(late_s), abs=0.0021)
    found: dict[str, list[int]] = {}
    for place, one in enumerate(asked):
        assert one.failed == bool(one.dropped) == (one.produced < 50)
        if one.dropped:
            found.setdefault(one.dropped, []).append(place)
    assert found == dropped
    assert (cluster.waiting, cluster.next_event_time()) == (0, math.inf)


@pytest.mark.parametrize(("ordering", "order"), [("fcfs", [0, 1, 2, 3]), ("slo-deadline", [3, 1, 0, 2])])
def test_deadlines_order_the_requests_of_a_flow(ask: Callable[..., Request], ordering: Any, order: list[int]) -> None:
    cluster = build(FlowControl(queue_depth=1, ordering=ordering))
    for _ in range(2):
        ask(cluster, 0.0)
        cluster.advance(1e-9)
    slos = (math.inf, 0.5, math.inf, 0.2)
    asked = [ask(cluster, 0.001 + place / 1e6, slo_ttft_s=slo) for place, slo in enumerate(slos)]
    cluster.advance(math.inf)
    assert sorted(range(4), key=lambda place: asked[place].placed_s) == order
