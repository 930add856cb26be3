"""The shares of several workers are, together, the run of one: roots, ids, ticks, slots, seats and caps."""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.arrivals import Slots
from llmirage_client.load.options import Share
from llmirage_client.load.plan import own_gaps
from llmirage_client.workload.rates import RateSeries, unit_gaps
from llmirage_client.workload.session import Session, Workload

SHARES = st.integers(1, 9).flatmap(lambda of: st.integers(0, of - 1).map(lambda index: Share(index, of)))


@given(st.integers(1, 9), st.integers(0, 50), st.integers(0, 50))
def test_parts_add_up_to_the_whole(of: int, count: int, start: int) -> None:
    parts = [Share(index, of).part(count, start) for index in range(of)]
    assert sum(parts) == count
    assert max(parts) - min(parts) <= 1


@given(SHARES, st.integers(0, 50), st.integers(0, 50))
def test_a_part_is_what_is_picked_and_has_its_places(share: Share, count: int, start: int) -> None:
    own = [place for place in range(start, start + count) if share.has(place)]
    assert len(own) == share.part(count, start)
    assert list(share.pick(range(count))) == [place for place in range(count) if share.has(place)]
    assert share.has(share.first(start))
    assert start <= share.first(start) < start + share.of


def test_alone_it_has_everything() -> None:
    assert Share().part(7, 3) == 7
    assert Share().first(5) == 5
    assert list(Share().pick("abc")) == ["a", "b", "c"]


@pytest.mark.parametrize("pattern", ["constant", "poisson", "gamma"])
def test_gaps_of_all_shares_give_the_ticks_of_the_whole(pattern: Any) -> None:
    def ticks(index: int, of: int, count: int) -> list[float]:
        first, gaps = own_gaps(unit_gaps(pattern, 0.5, random.Random(3)), Share(index, of))
        return list(itertools.accumulate(itertools.islice(gaps, count - 1), initial=first))

    together = sorted(tick for index in range(3) for tick in ticks(index, 3, 20))
    assert together == pytest.approx(ticks(0, 1, 60))


def test_slots_open_at_the_ramps_own_times() -> None:
    shares = [Slots(5, 8.0, Share(index, 2)) for index in range(2)]
    opened: list[float] = []
    for slots in shares:
        slots.open(0.0)
        for time_s in (0.0, 2.0, 4.0, 6.0, 8.0):
            if slots.free(time_s):
                slots.taken += 1
                opened.append(time_s)
    assert sorted(opened) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert not any(slots.free(100.0) for slots in shares)


def singles(bench: Any, count: int) -> Workload:
    names = [f"n{number:02d}" for number in range(count)]
    return bench.workload(*(Session(name, (bench.turn(f"{name}@0.01"),)) for name in names))  # type: ignore[no-any-return]


def sent(bench: Any, flow: Workload, of: int, **options: Any) -> tuple[list[tuple[str, str, float]], list[Any]]:
    """(label, request id, start) of everything that `of` workers send, and their results."""
    found, results = [], []
    for index in range(of):
        result, target = bench.run(flow, share=Share(index, of), **options)
        results.append(result)
        found += [(s.label, s.call.headers["X-Request-ID"], s.start_s) for s in target.sent]
    return sorted(found, key=lambda one: (one[2], one[1])), results


LOADS: list[dict[str, Any]] = [
    {"request_rate_per_s": 5.0, "arrival_pattern": "constant"},
    {"request_rate_per_s": 5.0},
    {"request_rate_per_s": 5.0, "arrival_pattern": "gamma", "arrival_smoothness": 0.4, "speed": 4.0},
    {"request_rate_per_s": 5.0, "request_rate_ramp_s": 6.0},
    {"request_rate_series": RateSeries(((0.0, 0.0), (2.0, 4.0), (3.0, 1.0), (9.0, 8.0)))},
    {"request_rate_per_s": 2.0, "num_conversations": 57, "sampling": "random"},
    {"request_rate_per_s": 2.0, "num_conversations": 57, "sampling": "shuffle", "first_root": 11},
    {"request_rate_per_s": 2.0, "request_count": 13},
    {"user_rate_per_s": 3.0, "num_users": 6, "num_conversations": 40},
]


@pytest.mark.parametrize("options", LOADS, ids=lambda options: " ".join(map(str, options.values()))[:40])
@pytest.mark.parametrize("of", [2, 3])
def test_the_union_of_the_shares_is_the_run(bench: Any, options: dict[str, Any], of: int) -> None:
    flow = singles(bench, 23)
    whole, _ = sent(bench, flow, 1, **options)
    shares, _ = sent(bench, flow, of, **options)
    assert len(whole) > 10
    assert [(label, request) for label, request, _ in sorted(shares, key=lambda one: one[1])] == [
        (label, request) for label, request, _ in sorted(whole, key=lambda one: one[1])
    ]
    assert [start for *_, start in shares] == pytest.approx([start for *_, start in whole], abs=1e-6)


def test_a_schedule_is_kept_by_all_shares_together(bench: Any) -> None:
    times = (0.0, 0.7, 0.2, 5.0, 5.0, 3.3)
    flow = bench.workload(*(Session(f"n{t}{i}", (bench.turn(f"{i}"),), arrival_s=t) for i, t in enumerate(times)))
    options = {"fixed_schedule": True, "schedule_start_s": 0.1, "schedule_speedup": 2.0}
    whole, _ = sent(bench, flow, 1, **options)
    shares, _ = sent(bench, flow, 2, **options)
    assert sorted(shares) == sorted(whole)
    assert len(whole) == 5


def tree(bench: Any, name: str) -> list[Session]:
    fork, kid = Session(f"{name}f", (bench.turn(f"{name}f"),)), Session(f"{name}k", (bench.turn(f"{name}k"),))
    root = Session(
        name,
        (
            bench.turn(f"{name}0", branches=(bench.fork(f"{name}f"), bench.spawn(f"{name}k", join_at=1))),
            bench.turn(f"{name}1", delay_s=0.5),
        ),
    )
    return [root, fork, kid]


@pytest.mark.parametrize("of", [2, 3])
def test_trees_stay_whole_and_keep_their_ids(bench: Any, of: int) -> None:
    flow = bench.workload(*(session for name in "abcdefg" for session in tree(bench, name)))
    whole, one = sent(bench, flow, 1, concurrency=3, warmup_num_conversations=3)
    shares, several = sent(bench, flow, of, concurrency=3, warmup_num_conversations=3)
    assert Counter(request for _, request, _ in shares) == Counter(request for _, request, _ in whole)
    homes = [{r.root_correlation_id for r in result.records if r.phase == "profiling"} for result in several]
    assert all(not a & b for a, b in itertools.combinations(homes, 2))
    assert sum(r.branch_stats.children_completed for r in several) == one[0].branch_stats.children_completed == 14
    numbers = [(r.session_num, r.correlation_id) for result in several for r in result.records]
    assert len({number for number, _ in numbers}) == len(set(numbers))


@pytest.mark.parametrize("warm_up", [{"warmup_request_count": 5}, {"warmup_duration_s": 1.5}])
def test_after_any_warm_up_shares_have_no_conversation_in_common(bench: Any, warm_up: dict[str, Any]) -> None:
    flow = singles(bench, 60)
    _, several = sent(bench, flow, 3, concurrency=4, num_conversations=20, **warm_up)
    names = [r.conversation_id for result in several for r in result.records if r.phase == "profiling"]
    assert len(names) == 20 == len(set(names))
    if "warmup_request_count" in warm_up:
        assert sum(r.phase == "warmup" for result in several for r in result.records) == 5


@given(st.integers(1, 12), st.integers(1, 5))
def test_a_cap_on_requests_is_met_exactly(bench: Any, cap: int, of: int) -> None:
    flow = bench.workload(*(session for name in "abc" for session in tree(bench, name)))
    _, several = sent(bench, flow, of, concurrency=5, request_count=cap)
    assert sum(len(result.records) for result in several) == cap


def test_a_share_without_a_slot_ends_at_once(bench: Any) -> None:
    result, target = bench.run(singles(bench, 4), concurrency=1, share=Share(1, 2))
    assert (result.records, target.sent) == ([], [])
