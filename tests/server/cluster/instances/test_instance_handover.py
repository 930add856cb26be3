"""Prefill here, decode there, and crashes: what one instance does of it. A step takes 1 s + 1/1024 s per prompt token +
1/64 s per decoding sequence; a fixed first token takes 0.5 s, each further one 0.25 s."""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits, FirstToken, Role
from llmirage_server.cluster.request import Request, StepEnd


class LinearModel:
    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return step_s(sum(new for new, _ in prefill), len(decode_contexts))


def step_s(prefill_tokens: int, decoding: int) -> float:
    return 1 + prefill_tokens / 1024 + decoding / 64


def batching(role: Role, kv_tokens: int = 10_000, **limits: int) -> Instance:
    return Instance(0, LinearModel(), EngineLimits(kv_tokens=kv_tokens, max_num_seqs=8, **limits), role)


def pair(first_token: FirstToken) -> list[Instance]:
    """A prefill and a decode instance."""
    limits = EngineLimits(kv_tokens=10_000, first_token=first_token)
    return [Instance(0, LinearModel(), limits, role) for role in get_args(Role)[1:]]


def fixed(role: Role) -> FixedInstance:
    return FixedInstance(0, 0.5, 0.25, EngineLimits(kv_tokens=10_000), role)


def request(number: int, prompt: int, output: int, produced: int = 0) -> Request:
    first = 100_000 * number
    made = Request(
        number,
        np.arange(first, first + prompt, dtype=np.int32),
        np.arange(first + 50_000, first + 50_000 + output, dtype=np.int32),
    )
    made.produced = produced
    return made


def run(instance: InstanceBase, to: float = math.inf) -> list[StepEnd]:
    ends = []
    while instance.next_event_s <= to and instance.next_event_s < math.inf:
        end = instance.advance()
        if end is not None:
            ends.append(end)
    return ends


def times(ends: list[StepEnd]) -> list[tuple[float, list[int]]]:
    return [(end.time_s, [each.id for each in end.emitted]) for end in ends]


@pytest.mark.parametrize("make", [batching, fixed])
def test_a_prefill_instance_hands_over_after_the_first_token_and_keeps_the_kv_until_it_has_left(make) -> None:  # type: ignore[no-untyped-def]
    instance = make("prefill")
    first, single = request(1, 100, 5), request(2, 50, 1)
    instance.submit(first, 0.0)
    instance.submit(single, 0.0)
    [end] = run(instance)
    assert end.time_s == first.first_token_s == (step_s(150, 0) if make is batching else 0.5)
    assert (end.emitted, end.handed_over) == ([first, single], [first])
    assert (first.produced, single.produced, single.finished_s) == (1, 1, end.time_s)
    assert math.isnan(first.finished_s)
    assert (instance.running, instance.waiting, instance.next_event_s) == (0, 0, math.inf)
    assert instance.kv_used_tokens == 100
    instance.release_transferred(first, end.time_s + 1)
    assert (instance.kv_used_tokens, instance.next_event_s) == (0, math.inf)
    assert instance.match(first.prompt.tobytes()) == 100


@pytest.mark.parametrize("make", [batching, fixed])
def test_what_was_handed_over_can_be_cancelled(make) -> None:  # type: ignore[no-untyped-def]
    instance = make("prefill")
    first = request(1, 100, 5)
    instance.submit(first, 0.0)
    run(instance)
    instance.cancel(first, 10.0)
    assert (instance.kv_used_tokens, instance.evacuate(0.0)) == (0, [])


def test_a_first_token_that_is_shown_on_admission_comes_as_the_first_step_of_the_decode_instance_begins() -> None:
    prefill, decode = pair("admission")
    first, single = request(1, 100, 3), request(2, 50, 1)
    prefill.submit(first, 0.0)
    prefill.submit(single, 0.0)
    [end] = run(prefill)
    assert (end.emitted, end.handed_over) == ([single], [first])  # who needs no second token needs no decode instance
    assert (first.produced, math.isnan(first.first_token_s)) == (0, True)
    decode.receive(first, 5.0)
    step = step_s(0, 1)
    assert times(run(decode)) == [(5.0, [1]), (5.0 + step, [1]), (5.0 + 2 * step, [1])]
    assert (first.first_token_s, first.finished_s, first.produced) == (5.0, 5.0 + 2 * step, 3)


def test_a_first_token_that_the_decode_instance_computes_comes_at_the_end_of_its_first_step() -> None:
    prefill, decode = pair("decode")
    first, single = request(1, 100, 3), request(2, 50, 1)
    prefill.submit(first, 0.0)
    prefill.submit(single, 0.0)
    [end] = run(prefill)
    assert (end.emitted, end.handed_over) == ([], [first, single])
    assert (first.produced, math.isnan(first.first_token_s)) == (0, True)
    decode.receive(first, 5.0)
    decode.receive(single, 5.0)
    run(decode)
    t1 = 5.0 + step_s(0, 2)
    assert (first.first_token_s, first.finished_s) == (t1, t1 + 2 * step_s(0, 1))
    assert (single.first_token_s, single.finished_s, single.produced) == (t1, t1, 1)


def test_a_lost_first_token_that_nobody_has_seen_is_computed_again() -> None:
    prefill, _ = pair("admission")
    first = request(1, 100, 3)
    prefill.submit(first, 0.0)
    run(prefill)
    assert prefill.evacuate(2.0) == [first]
    prefill.submit(first, 3.0)
    [end] = run(prefill)
    assert (end.time_s, end.handed_over, first.produced) == (3.0 + step_s(100, 0), [first], 0)


def test_a_prefill_instance_full_of_transfers_stands_still_and_starts_when_the_first_has_gone() -> None:
    instance = batching("prefill", kv_tokens=100)
    first, second, third = request(1, 60, 2), request(2, 50, 1), request(3, 10, 1)
    instance.submit(first, 0.0)
    assert times(run(instance)) == [(step_s(60, 0), [1])]
    instance.submit(second, 2.0)
    assert run(instance) == []
    assert (instance.next_event_s, instance.waiting, instance.running) == (math.inf, 1, 0)
    instance.submit(third, 3.0)  # does not overtake
    assert run(instance) == []
    instance.release_transferred(first, 7.0)
    assert times(run(instance)) == [(7.0 + step_s(60, 0), [2, 3])]


def test_the_handed_over_take_no_batch_slot() -> None:
    instance = Instance(0, LinearModel(), EngineLimits(kv_tokens=1000, max_num_seqs=1, max_num_batched_tokens=64), "prefill")
    for i in (1, 2):
        instance.submit(request(i, 10, 2), 0.0)
    assert [end.handed_over[0].id for end in run(instance)] == [1, 2]
    assert instance.kv_used_tokens == 20


def test_a_decode_instance_goes_on_without_a_prefill() -> None:
    model, steps = LinearModel(), []

    class Recording:
        def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
            steps.append((list(prefill), list(decode_contexts)))
            return model.step_s(prefill, decode_contexts)

    instance = Instance(0, Recording(), EngineLimits(kv_tokens=1000), "decode")
    first, second = request(1, 100, 3, produced=1), request(2, 40, 3, produced=2)
    instance.receive(first, 5.0)
    instance.receive(second, 5.0)
    t1 = 5.0 + step_s(0, 2)
    assert times(run(instance)) == [(t1, [1, 2]), (t1 + step_s(0, 1), [1])]
    assert steps == [([], [100, 41]), ([], [101])]
    assert (first.produced, first.finished_s, second.finished_s) == (3, t1 + step_s(0, 1), t1)
    assert math.isnan(first.admitted_s)  # that was elsewhere
    assert math.isnan(first.first_token_s)
    assert instance.snapshot().prefix_query_tokens == 0
    assert instance.kv_used_tokens == 0


def test_what_arrives_waits_for_a_slot_and_for_memory_and_shares_what_is_there() -> None:
    instance = batching("decode", kv_tokens=150)
    first, second = request(1, 100, 3, produced=1), request(2, 60, 3, produced=1)
    again = Request(3, first.prompt, np.arange(2, dtype=np.int32))
    again.produced = 1
    for each in (first, again, second):
        instance.receive(each, 0.0)
    run(instance, 0.5)
    assert (instance.running, instance.waiting) == (2, 1)
    assert instance.kv_used_tokens == 102  # the prompt once, and the token in flight of each
    run(instance)
    assert second.finished_s > first.finished_s > again.finished_s


def test_a_preempted_sequence_whose_kv_had_arrived_is_computed_here() -> None:
    instance = batching("decode", kv_tokens=20, enable_prefix_caching=False)
    first, second = request(1, 8, 7, produced=1), request(2, 8, 7, produced=1)
    instance.receive(first, 0.0)
    instance.receive(second, 0.0)
    # Two decoding steps fill 20 tokens; then the second gives way until the first has gone, and recomputes 11 tokens.
    t = [0.0]
    for prefill, decoding in ((0, 2), (0, 2), (0, 1), (0, 1), (0, 1), (0, 1), (11, 0), (0, 1), (0, 1), (0, 1)):
        t.append(t[-1] + step_s(prefill, decoding))
    assert times(run(instance)) == [(t[i], [1, 2] if i < 3 else [1] if i < 7 else [2]) for i in range(1, 11)]
    assert (first.preemptions, second.preemptions) == (0, 1)


def test_a_request_that_was_served_elsewhere_recomputes_what_it_had_produced() -> None:
    instance = batching("both")
    moved = request(1, 100, 10, produced=4)
    moved.admitted_s = 1.0
    moved.first_token_s = 2.0
    instance.submit(moved, 5.0)
    ends = run(instance)
    assert times(ends)[0] == (5.0 + step_s(104, 0), [1])
    assert (len(ends), moved.produced, moved.admitted_s, moved.first_token_s) == (6, 10, 1.0, 2.0)


@pytest.mark.parametrize("make", [batching, fixed])
def test_a_crash_loses_the_kv_and_the_step_in_flight_and_gives_back_the_unfinished(make) -> None:  # type: ignore[no-untyped-def]
    instance = make("both")
    first, done, late = request(1, 100, 5), request(2, 50, 1), request(3, 10, 1)
    instance.submit(first, 0.0)
    instance.submit(done, 0.0)
    [end] = run(instance, 1.2 if make is batching else 0.6)
    instance.submit(late, 1.3)
    assert instance.evacuate(0.0) == [first, late]
    assert (instance.running, instance.waiting, instance.kv_used_tokens) == (0, 0, 0)
    assert (instance.next_event_s, instance.match(first.prompt.tobytes())) == (math.inf, 0)
    assert instance.snapshot().prefix_query_tokens == (150 if make is batching else 160)  # counters only grow
    instance.submit(first, 100.0)
    [again, *_] = run(instance)
    assert times([again]) == [(100.0 + (step_s(101, 0) if make is batching else 0.5), [1])]
    assert first.first_token_s == end.time_s


@pytest.mark.parametrize("make", [batching, fixed])
def test_a_crash_gives_back_what_was_handed_over_and_has_not_left(make) -> None:  # type: ignore[no-untyped-def]
    instance = make("prefill")
    first, second = request(1, 100, 5), request(2, 100, 5)
    instance.submit(first, 0.0)
    instance.submit(second, 0.0)
    run(instance)
    instance.release_transferred(first, 2.0)
    assert instance.evacuate(0.0) == [second]


def test_fixed_times_go_on_from_the_arrival_of_the_kv_by_multiplication() -> None:
    instance = FixedInstance(0, 0.2, 0.01, EngineLimits(kv_tokens=1000), "decode")
    first = request(1, 100, 50, produced=1)
    instance.receive(first, 0.3)
    assert instance.match(first.prompt.tobytes()) == 100
    # The first token after the arrival is due one ITL later, the others count from it.
    assert times(run(instance)) == [((0.3 + 0.01) + i * 0.01, [1]) for i in range(49)]
    assert first.finished_s == (0.3 + 0.01) + 48 * 0.01
    assert instance.kv_used_tokens == 0
