"""The cluster as a whole: order, determinism, and what must hold whatever is asked of it."""

import itertools
import math

import pytest
from drawn_clusters import Arrivals, Ends, LinearModel, caches, play, request
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import ROUTERS, make_router


def build(instances: int, limits: EngineLimits, router: str = "round_robin") -> Cluster:
    return Cluster([Instance(i, LinearModel(), limits) for i in range(instances)], make_router(router, 3))


def test_instances_that_end_a_step_at_once_report_by_index() -> None:
    cluster = build(3, EngineLimits(kv_tokens=1000))
    for i in range(6):
        cluster.submit(request(i, [i, i], 2), 0.0)
    ends = cluster.advance(10.0)
    assert [end.instance for end in ends] == [0, 1, 2, 0, 1, 2]
    assert [[each.id for each in end.emitted] for end in ends[:3]] == [[0, 3], [1, 4], [2, 5]]


def test_advance_goes_up_to_and_including_its_time() -> None:
    cluster = build(1, EngineLimits(kv_tokens=1000))
    cluster.submit(request(1, [1, 2], 1), 0.0)
    assert cluster.advance(0.0) == []
    assert cluster.advance(cluster.next_event_time()) == []  # the step is formed
    end_s = cluster.next_event_time()
    assert cluster.advance(math.nextafter(end_s, 0)) == []
    assert [end.time_s for end in cluster.advance(end_s)] == [end_s]
    assert cluster.next_event_time() == math.inf


def test_what_happened_before_a_submission_is_returned_by_the_next_advance() -> None:
    cluster = build(1, EngineLimits(kv_tokens=1000))
    first, second = request(1, [1, 2], 1), request(2, [3, 4], 1)
    cluster.submit(first, 0.0)
    cluster.submit(second, 5.0)
    assert first.finished_s == cluster.next_event_time() < 5.0
    assert [each.id for end in cluster.advance(10.0) for each in end.emitted] == [1, 2]
    assert second.arrival_s == second.admitted_s == 5.0


def test_time_never_goes_back() -> None:
    cluster = build(1, EngineLimits(kv_tokens=1000))
    cluster.advance(5.0)
    late = request(1, [1], 1)
    cluster.submit(late, 4.0)
    assert late.arrival_s == 5.0
    cluster.advance(math.inf)
    assert late.finished_s > 5.0
    later = request(2, [1], 1)
    cluster.submit(later, 0.0)
    assert later.arrival_s == late.finished_s


def test_slices_keep_the_order_and_lose_nothing() -> None:
    def run(max_steps: int | None) -> list[tuple[float, list[int]]]:
        cluster = build(2, EngineLimits(kv_tokens=1000))
        for i in range(8):
            cluster.submit(request(i, range(i, i + 20), 5), 0.001 * i)
        found = []
        while cluster.next_event_time() < math.inf:
            ends = cluster.advance(math.inf, max_steps)
            assert max_steps is None or len(ends) <= max_steps
            found += [(end.time_s, [each.id for each in end.emitted]) for end in ends]
        return found

    whole = run(None)
    assert run(1) == run(3) == whole
    assert whole == sorted(whole, key=lambda end: end[0])
    assert sum(len(ids) for _, ids in whole) == 40


def test_the_next_instant_that_brings_something_comes_whole_and_alone() -> None:
    def run(whole: bool) -> list[tuple[float, int, list[int]]]:
        cluster = build(3, EngineLimits(kv_tokens=1000))
        found = []
        for i in range(9):
            cluster.submit(request(i, range(i % 4, i % 4 + 20), 4), 0.002 * (i // 6))
        while not whole and (ends := cluster.advance_to_next(100.0)):
            assert len({end.time_s for end in ends}) == 1
            assert cluster.next_event_time() > ends[0].time_s
            found += ends
        found += cluster.advance(100.0)
        cluster.submit(last := request(9, [1], 1), 1.0)
        assert last.arrival_s == 100.0
        return [(end.time_s, end.instance, [each.id for each in end.emitted]) for end in found]

    assert run(False) == run(True)
    assert len(run(True)) > 12


def test_what_a_submission_made_happen_comes_with_the_next_instant() -> None:
    cluster = build(2, EngineLimits(kv_tokens=1000))
    first, second = request(1, [1, 2], 1), request(2, [3, 4], 1)
    cluster.submit(first, 0.0)
    cluster.submit(second, 5.0)
    assert [each.id for end in cluster.advance_to_next(10.0) for each in end.emitted] == [1]
    assert [each.id for end in cluster.advance_to_next(10.0) for each in end.emitted] == [2]
    assert cluster.advance_to_next(10.0) == []


@pytest.mark.parametrize(("prompt", "output"), [([], 1), ([1], 0)])
def test_an_empty_request_is_refused(prompt: list[int], output: int) -> None:
    with pytest.raises(ValueError, match="at least one prompt token and one output token"):
        build(1, EngineLimits(kv_tokens=100)).submit(request(1, prompt, output), 0.0)


def test_a_cluster_needs_an_instance() -> None:
    with pytest.raises(ValueError, match="at least one instance"):
        Cluster([], make_router("round_robin"))


def test_cancelling_what_was_never_submitted_does_nothing() -> None:
    cluster = build(1, EngineLimits(kv_tokens=100))
    stranger = request(1, [1], 1)
    cluster.cancel(stranger, 1.0)
    assert not stranger.cancelled


def test_the_snapshot_counts_what_is_there() -> None:
    cluster = build(1, EngineLimits(kv_tokens=1000, max_num_seqs=1))
    cluster.submit(request(1, range(10), 3), 0.0)
    cluster.submit(request(2, range(10), 3), 0.0)
    cluster.advance(0.001)
    state = cluster.snapshot()[0]
    assert (state.index, state.running, state.waiting) == (0, 1, 1)
    assert (state.kv_used_tokens, state.kv_total_tokens, state.cached_tokens) == (10, 1000, 0)
    cluster.advance(math.inf)
    state = cluster.snapshot()[0]
    assert (state.running, state.waiting, state.kv_used_tokens, state.cached_tokens) == (0, 0, 0, 13)
    assert (state.prefix_hit_tokens, state.prefix_query_tokens) == (9, 20)


# --- whatever is asked -------------------------------------------------------------------------------------------------

LIMITS = st.builds(
    lambda pages, page_size, seqs, extra, caching, chunked: EngineLimits(
        kv_tokens=pages * page_size,
        page_size=page_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + extra,
        enable_prefix_caching=caching,
        enable_chunked_prefill=chunked,
    ),
    st.integers(8, 40),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 6),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)
# (seconds since the last one, prompt over a tiny vocabulary, output tokens, cancel after so many seconds)
ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.005, 0.02, 0.1]),
        st.lists(st.integers(0, 1), min_size=1, max_size=20),
        st.integers(1, 12),
        st.none() | st.sampled_from([0.0, 0.01, 0.03, 0.08]),
    ),
    min_size=1,
    max_size=14,
)


def check(cluster: Cluster, requests: list[Request], happened: Ends) -> None:
    times: dict[int, list[float]] = {}
    for time_s, index, numbers, _ in happened:
        for number in numbers:
            assert requests[number].instance == index
            times.setdefault(number, []).append(time_s)
    for each in requests:
        mine = times.get(each.id, [])
        assert len(mine) == each.produced
        assert all(earlier < later for earlier, later in itertools.pairwise(mine))
        if mine:
            assert each.first_token_s == mine[0] > each.admitted_s >= each.arrival_s
        if each.cancelled:
            assert math.isnan(each.finished_s)
            assert each.produced < len(each.output)
        else:
            assert each.produced == len(each.output)
            assert each.finished_s == mine[-1]
        assert 0 <= each.cached_tokens < len(each.prompt)
    assert [time_s for time_s, *_ in happened] == sorted(time_s for time_s, *_ in happened)
    assert cluster.next_event_time() == math.inf
    for instance in cluster._instances:
        if isinstance(instance, Instance):
            assert not instance._sequences
            assert not any(scheduler.prefilling for scheduler in instance.schedulers)
        assert (instance.running, instance.waiting) == (0, 0)
        for kv in caches(instance):
            assert (kv.private_tokens, kv.tree.locked_tokens) == (0, 0)
            assert kv.free_tokens == kv.capacity_tokens - kv.tree.total_tokens
            total = kv.tree.total_tokens
            assert kv.tree.evict(total) == total


@given(limits=LIMITS, arrivals=ARRIVALS, instances=st.integers(1, 3), router=st.sampled_from(sorted(ROUTERS)))
def test_every_request_finishes_once_with_all_its_tokens_or_was_cancelled(
    limits: EngineLimits, arrivals: Arrivals, instances: int, router: str
) -> None:
    cluster = build(instances, limits, router)
    check(cluster, *play(cluster, arrivals))


@given(
    limits=LIMITS,
    arrivals=ARRIVALS,
    router=st.sampled_from(sorted(ROUTERS)),
    stops=st.lists(st.floats(0, 1), max_size=30) | st.just([0.005 * i for i in range(30)]),
)
def test_the_same_requests_get_the_same_times_however_often_the_caller_advances(
    limits: EngineLimits, arrivals: Arrivals, router: str, stops: list[float]
) -> None:
    _, once = play(build(2, limits, router), arrivals)
    _, again = play(build(2, limits, router), arrivals, stops)
    assert once == again


@given(limits=LIMITS, arrivals=ARRIVALS, itl_s=st.sampled_from([0.001, 0.01, 0.05]))
def test_fixed_times_hold_whatever_the_memory_does(limits: EngineLimits, arrivals: Arrivals, itl_s: float) -> None:
    cluster = Cluster([FixedInstance(0, 0.02, itl_s, limits)], make_router("prefix"))
    requests, happened = play(cluster, arrivals)
    check(cluster, requests, happened)
    for each in requests:
        mine = [time_s for time_s, _, numbers, _ in happened if each.id in numbers]
        assert mine == [each.arrival_s + 0.02 + i * itl_s for i in range(each.produced)]


def test_an_overloaded_cluster_preempts_and_still_serves_everyone() -> None:
    cluster = build(2, EngineLimits(kv_tokens=300, max_num_seqs=32, max_num_batched_tokens=64), "least_loaded")
    arrivals: Arrivals = [(0.001, [i % 2, i % 3, *range(i, i + 30)], 40, None) for i in range(60)]
    requests, happened = play(cluster, arrivals)
    check(cluster, requests, happened)
    assert sum(state.preemptions for state in cluster.snapshot()) > 10
    assert sum(each.preemptions for each in requests) == sum(state.preemptions for state in cluster.snapshot())
