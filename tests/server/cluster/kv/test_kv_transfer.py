"""Prefill here, decode there: when the KV arrives, and who holds memory until then. Times computed by hand."""

import math

import numpy as np
import pytest
from cluster_requests import tokens
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.arrivals import FrontEnd
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.handoffs import KVLink, KVTransfers, TransferSnapshot
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router

TTFT_S, ITL_S = 1.0, 0.25
BYTES = 4.0  # a token


def request(number: int, prompt: int = 10, output: int = 3) -> Request:
    ids = np.arange(100 * number, 100 * number + prompt, dtype=np.int32)
    return Request(number, ids, np.arange(output, dtype=np.int32) + 5000)


def build(link: KVLink, prefill: int = 1, decode: int = 1, kv_tokens: int = 1000, state_bytes: float = 0.0) -> Cluster:
    limits = EngineLimits(kv_tokens=kv_tokens)
    front: list[InstanceBase] = [FixedInstance(i, TTFT_S, ITL_S, limits, "prefill") for i in range(prefill)]
    back: list[InstanceBase] = [FixedInstance(prefill + i, TTFT_S, ITL_S, limits, "decode") for i in range(decode)]
    pools = [
        InstancePool("front", front, make_router("round_robin"), "prefill", None, BYTES, state_bytes),
        InstancePool("back", back, make_router("round_robin"), "decode"),
    ]
    return Cluster(pools=pools, kv_link=link)


def test_a_request_is_seen_behind_the_tokens_that_its_decode_instance_sends() -> None:
    """The router tells both sides at once; one process of the decode instance sends tokens and takes requests."""

    def finished_s(output_s: float, fast_forward: bool) -> float:
        limits, front_end = EngineLimits(kv_tokens=1000), FrontEnd(output_s=output_s)
        front: list[InstanceBase] = [FixedInstance(0, TTFT_S, ITL_S, limits, "prefill")]
        back = Instance(1, ConstantStep(1.0), limits, "decode", front_end=front_end, fast_forward=fast_forward)
        pools = [
            InstancePool("front", front, make_router("round_robin"), "prefill", None, BYTES),
            InstancePool("back", [back], make_router("round_robin"), "decode"),
        ]
        cluster = Cluster(pools=pools, kv_link=KVLink(bytes_per_s=1e9))
        first, second = request(0, output=101), request(1)
        cluster.submit(first, 0.0)
        tokens(cluster, 50.0)
        cluster.submit(second, 50.0)
        tokens(cluster)
        return second.finished_s

    for fast_forward in (False, True):
        assert finished_s(0.0, fast_forward) == finished_s(0.4, fast_forward) < 55  # steps take a second
        assert 98 < finished_s(2.0, fast_forward) < 105  # about 50 tokens came by then, two seconds each


def test_the_first_token_comes_from_the_prefill_and_the_others_after_the_transfer() -> None:
    cluster = build(KVLink(bytes_per_s=20.0, latency_s=0.5))
    one = request(0)
    cluster.submit(one, 0.0)
    # 10 tokens of 4 bytes at 20 bytes/s take 2 s, and 0.5 s more to arrive
    assert tokens(cluster) == [(1.0, 0, 0), (3.75, 1, 0), (4.0, 1, 0)]
    assert (one.first_token_s, one.placed_s, one.finished_s, one.instance) == (1.0, 3.5, 4.0, 1)
    assert cluster.transfers == TransferSnapshot(in_flight=0, done=1, tokens=10, bytes=40.0)


def test_a_request_of_one_token_is_not_handed_over() -> None:
    cluster = build(KVLink(1.0))
    cluster.submit(request(0, output=1), 0.0)
    assert tokens(cluster) == [(1.0, 0, 0)]
    assert cluster.transfers.done == 0


def test_until_the_kv_has_arrived_the_prefill_side_holds_it() -> None:
    cluster = build(KVLink(20.0, latency_s=0.5))
    cluster.submit(request(0), 0.0)
    cluster.advance(3.4)
    front, back = cluster.snapshot()
    assert (front.kv_used_tokens, front.sending, back.kv_used_tokens, back.receiving) == (10, 1, 0, 1)
    assert cluster.transfers == TransferSnapshot(1, 0, 0, 0.0)
    cluster.advance(3.5)
    front, back = cluster.snapshot()
    assert (front.kv_used_tokens, front.sending, front.cached_tokens) == (0, 0, 10)
    assert (back.kv_used_tokens, back.receiving) == (10, 0)


def test_transfers_of_one_sender_go_one_after_the_other() -> None:
    cluster = build(KVLink(20.0), prefill=2)
    for i in range(3):  # the first and the third on instance 0
        cluster.submit(request(i, output=2), 0.0)
    assert tokens(cluster)[3:] == [(3.25, 2, 0), (3.25, 2, 1), (5.25, 2, 2)]


def test_one_link_for_the_cluster_serves_in_the_order_in_which_prefills_end() -> None:
    cluster = build(KVLink(20.0, scope="cluster"), prefill=2)
    for i in range(3):
        cluster.submit(request(i, output=2), 0.0)
    # all prefills end at 1 s, those of instance 0 first
    assert tokens(cluster)[3:] == [(3.25, 2, 0), (5.25, 2, 2), (7.25, 2, 1)]


def test_latency_does_not_occupy_the_link() -> None:
    cluster = build(KVLink(20.0, latency_s=10.0))
    for i in range(2):
        cluster.submit(request(i, output=2), 0.0)
    assert [time_s for time_s, _, _ in tokens(cluster)[2:]] == [13.25, 15.25]


def test_without_a_limit_the_decode_goes_on_at_once() -> None:
    cluster = build(KVLink(math.inf))
    cluster.submit(request(0), 0.0)
    assert tokens(cluster) == [(1.0, 0, 0), (1.25, 1, 0), (1.5, 1, 0)]


def test_state_that_does_not_grow_travels_as_well() -> None:
    cluster = build(KVLink(20.0), state_bytes=20.0)
    cluster.submit(request(0), 0.0)
    assert tokens(cluster)[1][0] == 1.0 + 60.0 / 20.0 + 0.25
    assert cluster.transfers.bytes == 60.0


def test_what_the_decode_side_has_cached_is_not_sent() -> None:
    for skip, sent in ((True, 4), (False, 14)):
        cluster = build(KVLink(20.0, skip_cached=skip))
        cluster.submit(request(0), 0.0)
        cluster.advance(math.inf)
        done = cluster.transfers.tokens
        cluster.submit(request(0, prompt=14), 100.0)
        cluster.advance(math.inf)
        assert cluster.transfers.tokens - done == sent


@pytest.mark.parametrize(("chunk_tokens", "arrival_s"), [(0, 1.5), (3, 1.125), (10, 1.5), (100, 1.5)])
def test_chunks_travel_while_the_next_ones_are_computed(chunk_tokens: int, arrival_s: float) -> None:
    """10 tokens in 0.5 s after a prefill of 1 s: of 4 chunks only the last one is behind it."""
    cluster = build(KVLink(80.0, chunk_tokens=chunk_tokens))
    cluster.submit(request(0), 0.0)
    assert tokens(cluster)[1][0] == arrival_s + 0.25


@pytest.mark.parametrize(
    ("layers", "bytes_per_s", "arrival_s"),
    [
        (1, 20.0, 3.0),  # nothing overlaps
        (4, 20.0, 2.0),  # 2 s of transfer began with the prefill at 0: its tail is exposed
        (4, 80.0, 1.125),  # 0.5 s of transfer: only the last of the 4 layers
        (4, math.inf, 1.0),
    ],
)
def test_layers_travel_while_the_prefill_computes(layers: int, bytes_per_s: float, arrival_s: float) -> None:
    cluster = build(KVLink(bytes_per_s, layers=layers))
    one = request(0)
    cluster.submit(one, 0.0)
    cluster.advance(math.inf)
    assert one.placed_s == arrival_s


def test_overlapping_transfers_still_share_the_link() -> None:
    cluster = build(KVLink(20.0, layers=4))
    one, two = request(0), request(1)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    cluster.advance(math.inf)
    assert (one.placed_s, two.placed_s) == (2.0, 4.0)


@pytest.mark.parametrize("cancel_s", [0.5, 1.0, 2.0, 3.0, 3.1, 3.25, 3.3])
def test_cancelling_frees_both_sides_at_any_moment(cancel_s: float) -> None:
    cluster = build(KVLink(20.0))
    one, two = request(0), request(1)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    cluster.cancel(one, cancel_s)
    assert one.cancelled
    cluster.advance(math.inf)
    assert [state.kv_used_tokens for state in cluster.snapshot()] == [0, 0]
    assert two.placed_s == (5.0 if cancel_s >= 1.0 else 3.0)  # what is on the link keeps its time
    assert cluster.transfers.in_flight == 0
    assert cluster.transfers.done == (2 if cancel_s >= 3.0 else 1)
    assert cluster.next_event_time() == math.inf


# --- room on the decode side -------------------------------------------------------------------------------------------


def crowded(*events: LifecycleEvent) -> tuple[Cluster, Request, Request]:
    """Two prompts of 60 tokens, prefilled at 1 s, for a decode instance with room for 100."""
    front = [FixedInstance(0, TTFT_S, ITL_S, EngineLimits(kv_tokens=1000), "prefill")]
    back = [Instance(1, ConstantStep(1.0), EngineLimits(kv_tokens=100), "decode")]
    pools = [
        InstancePool("front", front, make_router("round_robin"), "prefill", None, BYTES),
        InstancePool("back", back, make_router("round_robin"), "decode"),
    ]
    cluster = Cluster(pools=pools, kv_link=KVLink(240.0), events=events)  # a prompt a second
    one, two = request(1, 60), request(2, 60)
    cluster.submit(one, 0.0)
    cluster.submit(two, 0.0)
    return cluster, one, two


def test_kv_stays_on_the_prefill_side_until_the_decode_side_has_room() -> None:
    cluster, one, two = crowded()
    for at, used, in_flight in ((1.5, 120, 1), (2.0, 60, 0), (3.5, 60, 0), (4.0, 60, 1), (5.0, 0, 0)):
        cluster.advance(at)
        assert (cluster.snapshot()[0].kv_used_tokens, cluster.transfers.in_flight) == (used, in_flight)
    cluster.advance(math.inf)
    assert (one.placed_s, one.finished_s) == (2.0, 4.0)
    assert (two.placed_s, two.finished_s) == (5.0, 7.0)


def test_cancelling_makes_room() -> None:
    cluster, one, two = crowded()
    cluster.cancel(one, 2.5)
    cluster.advance(math.inf)
    assert two.placed_s == 3.5


def test_cancelling_what_travels_makes_room() -> None:
    cluster, one, two = crowded()
    cluster.cancel(one, 1.5)
    cluster.advance(math.inf)
    assert two.placed_s == 3.0  # behind what is on the link


def test_what_waits_for_room_can_be_cancelled() -> None:
    cluster, one, two = crowded()
    cluster.cancel(two, 2.5)
    assert cluster.snapshot()[0].kv_used_tokens == 0
    cluster.advance(math.inf)
    assert (one.finished_s, two.produced, cluster.transfers.done) == (4.0, 1, 1)


def test_what_waits_for_room_on_an_instance_that_crashes_waits_for_another() -> None:
    cluster, one, two = crowded(LifecycleEvent(2.5, 1, "crash", restart_after_s=10.0))
    cluster.advance(2.5)
    assert cluster.waiting == 1  # two; one begins again with a prefill
    cluster.advance(math.inf)
    # two goes first, at 12.5; one, with two tokens since its second prefill, when that has finished
    assert (two.placed_s, two.finished_s) == (13.5, 15.5)
    assert (one.placed_s, one.finished_s) == (15.5 + 61 / 60, 16.5 + 61 / 60)
    assert (one.failed, two.failed, cluster.transfers.done) == (False, False, 3)


def test_a_dropped_transfer_never_arrives() -> None:
    transfers = KVTransfers(KVLink(1.0))
    one, two = request(0), request(1)
    transfers.send(one, 0, 2, 1, 3.0, 0.0, 0.0)
    transfers.send(two, 1, 2, 1, 5.0, 0.0, 0.0)
    assert transfers.next_s == 3.0
    transfers.drop(one)
    assert transfers.next_s == 5.0
    transfers.send(one, 1, 2, 1, 1.0, 0.0, 0.0)  # again, from elsewhere
    assert [transfers.take().request, transfers.take().request] == [two, one]
    assert transfers.next_s == math.inf
    assert transfers.snapshot() == TransferSnapshot(0, 2, 2, 6.0)


def test_a_link_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="KV link") as caught:
        KVLink(0.0, -1.0, "node", 0)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "KV link: bytes_per_s must be above 0, not 0.0; latency_s must be a number of seconds from 0 up, not -1.0; "
        "unknown scope 'node': choose one of sender, cluster; layers must be at least 1, not 0"
    )
