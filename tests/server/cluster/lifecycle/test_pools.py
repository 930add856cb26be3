"""Which pool, and which instance of it, serves a request."""

import math

import numpy as np
import pytest

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.lifecycle.pools import InstancePool, Pools
from llmirage_server.cluster.limits import Role
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router


def instances(first: int, n: int, role: Role = "both", kv_tokens: int = 1000) -> list[FixedInstance]:
    made = [FixedInstance(first + i, 1.0, 0.1, EngineLimits(kv_tokens=kv_tokens), role) for i in range(n)]
    for each in made:
        each.max_request_tokens = kv_tokens + 1
    return made


def request(number: int, model: str | None = None, output: int = 3) -> Request:
    return Request(number, np.array([number, 1], np.int32), np.arange(output, dtype=np.int32), model=model)


def pool(name: str, first: int, n: int, model: str | None = None, role: Role = "both") -> InstancePool:
    return InstancePool(name, instances(first, n, role), make_router("round_robin"), role, model, kv_bytes_per_token=2.0)


def submitted(cluster: Cluster, *models: str | None) -> list[int]:
    """The instances that requests for these models go to."""
    requests = [request(i, model) for i, model in enumerate(models)]
    for each in requests:
        cluster.submit(each, 0.0)
    return [each.instance for each in requests]


def test_a_request_goes_to_the_pool_of_its_model() -> None:
    cluster = Cluster(pools=[pool("small", 0, 2, "8b"), pool("large", 2, 1, "70b")])
    assert submitted(cluster, "70b", "8b", "8b", "8b", "70b") == [2, 0, 1, 0, 2]
    assert cluster.models == ("8b", "70b")


def test_a_request_for_no_model_goes_to_that_of_the_first_pool() -> None:
    cluster = Cluster(pools=[pool("small", 0, 1, "8b"), pool("large", 1, 1, "70b")])
    assert submitted(cluster, None, None) == [0, 0]


def test_a_pool_without_a_model_serves_what_no_other_is_named_for() -> None:
    cluster = Cluster(pools=[pool("small", 0, 1, "8b"), pool("any", 1, 1)])
    assert submitted(cluster, "8b", "unheard-of") == [0, 1]


def test_a_model_that_no_pool_serves_is_refused() -> None:
    cluster = Cluster(pools=[pool("small", 0, 1, "8b"), pool("large", 1, 1, "70b")])
    with pytest.raises(ValueError, match="no pool serves the model '3b': there are pools for 8b, 70b"):
        cluster.submit(request(0, "3b"), 0.0)


def test_the_longest_request_is_that_of_the_smallest_instance_of_its_model() -> None:
    small = InstancePool("small", instances(0, 1, kv_tokens=50), make_router("random"), model="8b")
    mixed = InstancePool(
        "mixed", [*instances(1, 1, kv_tokens=80), *instances(2, 1, kv_tokens=70)], make_router("random"), model="70b"
    )
    cluster = Cluster(pools=[small, mixed])
    pools = Pools([small, mixed])
    assert pools.serving("8b").max_request_tokens == pools.serving(None).max_request_tokens == 51
    assert pools.serving("70b").max_request_tokens == 71
    assert cluster.max_request_tokens == 51
    cluster.submit(request(0, "70b", output=60), 0.0)
    with pytest.raises(ValueError, match="room for 51 tokens"):
        cluster.submit(request(1, "8b", output=60), 0.0)


def test_pools_with_the_same_router_are_one_list_to_it() -> None:
    router = make_router("round_robin")
    cluster = Cluster(pools=[InstancePool("h100", instances(0, 2), router), InstancePool("h200", instances(2, 1), router)])
    assert submitted(cluster, *[None] * 5) == [0, 1, 2, 0, 1]
    assert [state.pool for state in cluster.snapshot()] == ["h100", "h100", "h200"]


def test_between_pools_of_one_model_with_routers_of_their_own_the_load_per_instance_decides() -> None:
    cluster = Cluster(pools=[pool("h100", 0, 2, "8b"), pool("h200", 2, 1, "8b")])
    # loads before each: 0|0, 0.5|0, 0.5|1, 1|1, 1.5|1
    assert submitted(cluster, *["8b"] * 5) == [0, 2, 1, 0, 2]


def test_a_snapshot_names_pool_role_and_model() -> None:
    cluster = Cluster(
        pools=[pool("front", 0, 1, "8b", "prefill"), pool("back", 1, 1, "8b", "decode")], kv_link=KVLink(math.inf)
    )
    assert [(state.index, state.pool, state.role, state.model, state.state) for state in cluster.snapshot()] == [
        (0, "front", "prefill", "8b", "up"),
        (1, "back", "decode", "8b", "up"),
    ]


def test_a_pool_without_its_partner_is_refused() -> None:
    with pytest.raises(ValueError, match="prefill pool 'a' has no partner: there is no decode pool for the model '8b'"):
        Cluster(pools=[pool("a", 0, 1, "8b", "prefill"), pool("b", 1, 1, "70b")], kv_link=KVLink(1.0))
    with pytest.raises(ValueError, match="decode pool 'b' has no partner: there is no prefill pool"):
        Cluster(pools=[pool("a", 0, 1), pool("b", 1, 1, None, "decode")], kv_link=KVLink(1.0))
    with pytest.raises(ValueError, match="need a KV link"):
        Cluster(pools=[pool("a", 0, 1, None, "prefill"), pool("b", 1, 1, None, "decode")])


def test_everything_that_does_not_fit_together_is_named_at_once() -> None:
    pools = [
        InstancePool("a", instances(0, 1), make_router("random"), "prefill"),
        InstancePool("a", instances(5, 1), make_router("random")),
        InstancePool("c", [], make_router("random")),
    ]
    with pytest.raises(ValueError, match="two pools are called 'a'") as caught:
        Cluster(pools=pools, kv_link=KVLink(1.0))
    assert str(caught.value).split("; ") == [
        "two pools are called 'a'",
        "pool 'a' is for prefill, but its instance 0 is for both",
        "prefill pool 'a' needs kv_bytes_per_token above 0, to time what it hands over",
        "pool 'a': instance 5 should be number 1, instances are numbered over the whole cluster",
        "pool 'c' has no instance",
        "prefill pool 'a' has no partner: there is no decode pool",
    ]


def test_a_cluster_without_any_instance_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one instance"):
        Cluster(pools=[InstancePool("a", [], make_router("random"))])
    with pytest.raises(ValueError, match="at least one instance"):
        Cluster()
