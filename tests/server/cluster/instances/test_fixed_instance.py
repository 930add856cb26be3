"""Fixed times: token i at arrival + TTFT + i * ITL, to the last bit, with a real prefix cache."""

import numpy as np
import pytest

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router


def cluster(ttft_s: float, itl_s: float, kv_tokens: int = 10_000, max_num_seqs: int = 8) -> Cluster:
    limits = EngineLimits(kv_tokens=kv_tokens, max_num_seqs=max_num_seqs)
    return Cluster([FixedInstance(0, ttft_s, itl_s, limits)], make_router("round_robin"))


def request(number: int, prompt: int, output: int) -> Request:
    first = 100_000 * number
    return Request(number, np.arange(first, first + prompt, dtype=np.int32), np.arange(output, dtype=np.int32))


def times(served: Cluster, to: float = float("inf")) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for end in served.advance(to):
        for each in end.emitted:
            found.setdefault(each.id, []).append(end.time_s)
    return found


def test_every_token_is_due_by_multiplication_not_by_accumulation() -> None:
    served = cluster(0.2, 0.01)
    first = request(1, 10, 100)
    served.submit(first, 0.3)
    assert times(served) == {1: [0.3 + 0.2 + i * 0.01 for i in range(100)]}
    assert (first.admitted_s, first.first_token_s, first.finished_s) == (0.3, 0.5, 0.5 + 99 * 0.01)
    assert served.next_event_time() == float("inf")


def test_of_a_request_that_goes_by_its_plan_the_first_token_and_the_end_are_told() -> None:
    served = cluster(0.2, 0.01)
    by_plan, other, left = request(1, 10, 100), request(2, 10, 100), request(3, 10, 100)
    by_plan.by_plan = left.by_plan = True
    for each in (by_plan, other, left):
        served.submit(each, 0.3)
    plan = by_plan.plan
    assert plan is not None
    assert [plan.due_s(i) for i in range(100)] == [0.3 + 0.2 + i * 0.01 for i in range(100)]
    assert other.plan is None
    before = times(served, 0.75)
    assert before == {1: [0.5], 2: [0.3 + 0.2 + i * 0.01 for i in range(26)], 3: [0.5]}
    served.cancel(left, 0.75)
    assert (left.produced, other.produced) == (26, 26)
    assert [end.time_s for end in served.advance(2.0) if by_plan in end.emitted] == [0.5 + 99 * 0.01]
    assert (by_plan.produced, by_plan.first_token_s, by_plan.finished_s) == (100, 0.5, 0.5 + 99 * 0.01)


def test_requests_do_not_slow_each_other_however_many() -> None:
    served = cluster(0.5, 0.25, max_num_seqs=2)
    for i in range(1, 21):
        served.submit(request(i, 10, 3), float(i))
    assert times(served) == {i: [i + 0.5, i + 0.75, i + 1.0] for i in range(1, 21)}


def test_tokens_due_at_one_instant_come_together_in_the_order_of_submission() -> None:
    served = cluster(0.5, 0.25)
    for i in (1, 2):
        served.submit(request(i, 10, 2), 0.0)
    served.submit(request(3, 10, 1), 0.25)
    ends = [(end.time_s, [each.id for each in end.emitted]) for end in served.advance(10.0)]
    assert ends == [(0.5, [1, 2]), (0.75, [1, 2, 3])]


def test_with_no_delay_at_all_everything_is_due_at_once_in_slices_of_any_size() -> None:
    served = cluster(0.0, 0.0)
    for i in (1, 2, 3):
        served.submit(request(i, 10, 40 * i), 1.0)
    assert served.next_event_time() == 1.0
    slices = []
    while served.next_event_time() < float("inf"):
        slices.append(served.advance(1.0, max_steps=3))
    ends = [end for part in slices for end in part]
    assert {end.time_s for end in ends} == {1.0}
    assert [(end.emitted[0].id, end.tokens) for end in ends] == [
        (1, 32), (1, 8), (2, 32), (2, 32), (2, 16), (3, 32), (3, 32), (3, 32), (3, 24)
    ]  # fmt: skip
    assert [len(part) for part in slices] == [3, 3, 3]


def test_cancelling_stops_the_tokens() -> None:
    served = cluster(0.5, 0.25)
    first, second = request(1, 10, 4), request(2, 10, 2)
    served.submit(first, 0.0)
    served.submit(second, 0.0)
    assert times(served, 0.6) == {1: [0.5], 2: [0.5]}
    served.cancel(first, 0.6)
    assert served.snapshot()[0].kv_used_tokens == 10
    assert times(served) == {2: [0.75]}
    assert (first.produced, served.snapshot()[0].running) == (1, 0)


def test_an_instance_whose_requests_are_all_cancelled_is_idle() -> None:
    served = cluster(0.5, 0.25)
    first = request(1, 10, 4)
    served.submit(first, 0.0)
    served.cancel(first, 0.1)
    assert served.next_event_time() == float("inf")


def test_a_cancelled_request_leaves_no_event_behind() -> None:
    served = cluster(0.5, 0.25)
    first, second = request(1, 10, 1), request(2, 10, 1)
    served.submit(first, 0.0)
    served.submit(second, 0.1)
    served.cancel(second, 0.2)
    assert times(served, 0.5) == {1: [0.5]}
    assert served.next_event_time() == float("inf")


def test_the_next_turn_hits_the_prompt_and_what_was_generated() -> None:
    served = cluster(0.5, 0.25)
    first = request(1, 10, 5)
    served.submit(first, 0.0)
    second = Request(2, np.concatenate([first.prompt, first.output, first.output]), first.output)
    times(served)
    served.submit(second, 10.0)
    assert second.cached_tokens == 15


def test_a_prompt_is_seen_by_others_from_its_first_token_on() -> None:
    served = cluster(0.5, 0.25)
    first = request(1, 10, 5)
    before, after = Request(2, first.prompt, first.output), Request(3, first.prompt, first.output)
    served.submit(first, 0.0)
    served.submit(before, 0.4)
    served.submit(after, 0.5)
    assert (before.cached_tokens, after.cached_tokens) == (0, 9)


def test_what_does_not_fit_is_served_on_time_and_not_remembered() -> None:
    served = cluster(0.5, 0.25, kv_tokens=30)
    big, small = request(1, 100, 3), request(2, 20, 3)
    served.submit(big, 0.0)
    served.submit(small, 0.0)
    assert times(served) == {1: [0.5, 0.75, 1.0], 2: [0.5, 0.75, 1.0]}
    state = served.snapshot()[0]
    assert (state.cached_tokens, state.kv_used_tokens, state.kv_total_tokens) == (23, 0, 30)


@pytest.mark.parametrize(("ttft_s", "itl_s"), [(-0.1, 0.0), (0.1, float("nan")), (float("inf"), 0.1)])
def test_times_must_be_numbers_of_seconds(ttft_s: float, itl_s: float) -> None:
    with pytest.raises(ValueError, match="must be a number of seconds from 0 up"):
        cluster(ttft_s, itl_s)
