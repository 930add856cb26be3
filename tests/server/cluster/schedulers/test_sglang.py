"""SGLang's rules: prompts first, an estimate of what memory will be needed, retraction, the longest cached prefix first."""

from functools import partial
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def sglang(lab: Any) -> Any:
    return partial(lab, scheduler="sglang")


def test_those_who_decode_stand_still_while_prompts_are_computed(sglang: Any) -> None:
    engine = sglang()
    engine.submit(100, 3)
    engine.submit(50, 2, now=0.5)
    t1 = engine.seconds(100, 0)
    t2 = t1 + engine.seconds(50, 0)
    t3 = t2 + engine.seconds(0, 2)
    assert engine.run() == [(t1, [1]), (t2, [2]), (t3, [1, 2]), (t3 + engine.seconds(0, 1), [1])]
    assert engine.batches == [([(100, 0)], []), ([(50, 0)], []), ([], [100, 50]), ([], [101])]


def test_with_mixed_chunks_they_go_along_and_count_in_the_chunk_size(sglang: Any) -> None:
    engine = sglang(enable_mixed_chunk=True, max_num_batched_tokens=100)
    engine.submit(100, 4)
    engine.submit(110, 2, now=0.5)
    t1 = engine.seconds(100, 0)
    t2 = t1 + engine.seconds(99, 1)
    t3 = t2 + engine.seconds(11, 1)
    t4 = t3 + engine.seconds(0, 2)
    assert engine.run() == [(t1, [1]), (t2, [1]), (t3, [2, 1]), (t4, [1, 2])]
    assert engine.batches == [([(100, 0)], []), ([(99, 0)], [100]), ([(11, 99)], [101]), ([], [102, 110])]


def test_the_prompt_that_does_not_fit_whole_is_cut_and_goes_on_in_the_next_step(sglang: Any) -> None:
    engine = sglang(max_num_batched_tokens=64)
    engine.submit(100, 2)
    engine.submit(30, 2)
    assert [ids for _, ids in engine.run()] == [[1], [2], [1, 2]]
    assert engine.batches == [([(64, 0)], []), ([(36, 64), (28, 0)], []), ([(2, 28)], []), ([], [100, 30])]


def test_chunks_are_whole_pages(sglang: Any) -> None:
    engine = sglang(max_num_batched_tokens=70, page_size=16)
    engine.submit(100, 1)
    engine.run()
    assert engine.batches == [([(64, 0)], []), ([(36, 64)], [])]


def test_without_chunks_a_prompt_of_any_length_goes_through_alone(sglang: Any) -> None:
    engine = sglang(enable_chunked_prefill=False, max_prefill_tokens=50)
    for prompt in (30, 100, 20, 20):
        engine.submit(prompt, 1)
    engine.run()
    assert engine.batches == [([(30, 0)], []), ([(100, 0)], []), ([(20, 0), (20, 0)], [])]


def test_a_prompt_waits_until_the_memory_holds_it_and_what_all_may_still_produce(sglang: Any) -> None:
    engine = sglang(kv_tokens=100, enable_prefix_caching=False)
    first = engine.submit(40, 31)
    second = engine.submit(29, 10, now=0.5)
    engine.run()
    # It wants 29 + 10 + 1 of the 60 that are free, of which 0.7 * 30 are reserved: 40 >= 39. Nobody asks again before
    # the first one has left.
    assert second.admitted_s == first.finished_s
    engine = sglang(kv_tokens=100, enable_prefix_caching=False)
    first = engine.submit(40, 31)
    second = engine.submit(28, 10, now=0.5)  # wants 39 - and 39 is not less than 39
    third = engine.submit(27, 10, now=0.6)
    engine.run()
    assert second.admitted_s == third.admitted_s == first.finished_s


def test_what_is_allowed_counts_not_what_will_be_produced(sglang: Any) -> None:
    engine = sglang(kv_tokens=100, enable_prefix_caching=False)
    first = engine.submit(40, 3, max_tokens=31)
    second = engine.submit(10, 2, max_tokens=29, now=0.5)  # wants 10 + 29 + 1
    engine.run()
    assert second.admitted_s == first.finished_s
    engine = sglang(kv_tokens=100, enable_prefix_caching=False)
    first = engine.submit(40, 3, max_tokens=31)
    second = engine.submit(10, 2, max_tokens=27, now=0.5)  # wants 38 of 39
    engine.run()
    assert second.admitted_s == engine.seconds(40, 0)


def test_the_reserved_share_falls_with_every_decoding_step_and_starts_anew_when_all_have_left(sglang: Any) -> None:
    engine = sglang()
    engine.submit(10, 101)
    engine.run()
    [scheduler] = engine.instance.schedulers
    assert scheduler.new_token_ratio == pytest.approx(0.7 - 100 * 0.7 * 0.86 / 600)
    engine.submit(10, 801, now=1000.0)
    assert scheduler.new_token_ratio == 0.7
    engine.run()
    assert scheduler.new_token_ratio == pytest.approx(0.7 * 0.14)
    assert sglang(schedule_conservativeness=2.0).instance.schedulers[0].new_token_ratio == 1.0


def test_decoding_that_does_not_fit_retracts_whoever_has_produced_least_and_queues_it_last(sglang: Any) -> None:
    engine = sglang(kv_tokens=40, enable_prefix_caching=False, schedule_conservativeness=0.5)
    first = engine.submit(8, 24)
    second = engine.submit(8, 14, now=1.5)  # wants 23 of 32 - 1 - 0.35 * 22
    third = engine.submit(1, 1, now=2.5)
    ends = [ids for _, ids in engine.run()]
    # 9 + 8 tokens of KV when both decode (the third goes in between and out): eleven steps later 39 are held.
    assert engine.batches[:4] == [([(8, 0)], []), ([], [8]), ([(8, 0)], []), ([(1, 0)], [])]
    assert engine.batches[4:16] == [*(([], [9 + i, 8 + i]) for i in range(11)), ([], [20])]
    # Alone to the end: its 24th token comes of the KV of the 30 before. Then the second computes 20 tokens again.
    assert engine.batches[16:] == [*(([], [21 + i]) for i in range(10)), ([(20, 0)], []), ([], [20])]
    assert ends == [[1], [1], [2], [3], *([1, 2],) * 11, *([1],) * 11, [2], [2]]
    assert (first.preemptions, second.preemptions, third.preemptions) == (0, 1, 0)
    assert engine.instance.kv_used_tokens == 0


def test_of_equals_the_longest_prompt_is_retracted_and_found_again_in_the_cache(sglang: Any) -> None:
    engine = sglang(kv_tokens=60, schedule_conservativeness=0.2)
    engine.submit(6, 30)
    long = engine.submit(12, 30, now=0.5)  # wants 43 of 54 - 0.14 * 29
    engine.run()
    decodes = [contexts for _, contexts in engine.batches if len(contexts) == 2]
    # 6 + 12 tokens of KV: 21 steps make it 60.
    assert decodes == [[6 + i, 12 + i] for i in range(21)]
    assert long.preemptions == 1
    # Its prompt stayed in the cache; of that, the first one's last tokens evicted what they needed.
    again = next(chunks[0] for chunks, _ in engine.batches[3:] if chunks)
    assert again == (22, 12)


def test_the_longest_cached_prefix_goes_first(sglang: Any) -> None:
    for policy, order in (("lpm", [3, 2]), ("fcfs", [2, 3])):
        engine = sglang(schedule_policy=policy, max_num_seqs=1)
        known = engine.submit(100, 1)
        engine.submit(60, 1, now=0.5)
        engine.submit(np.concatenate([known.prompt[:50], np.arange(10, dtype=np.int32)]), 1, now=0.5)
        assert [ids for _, ids in engine.run()] == [[1], *([number] for number in order)]


def test_of_prompts_that_begin_alike_one_goes_first_and_the_others_find_its_prefix(sglang: Any) -> None:
    engine = sglang(schedule_policy="lpm", max_num_seqs=2)
    first = engine.submit(60, 1)
    alike = engine.submit(np.concatenate([first.prompt[:40], np.arange(20, dtype=np.int32)]), 1)
    other = engine.submit(60, 1)
    engine.run()
    assert engine.batches == [([(60, 0), (60, 0)], []), ([(20, 40)], [])]
    assert (first.admitted_s, other.admitted_s, alike.cached_tokens) == (0.0, 0.0, 40)


def test_a_queue_of_more_than_128_is_served_as_it_came(sglang: Any) -> None:
    for waiting, cached_first in ((128, True), (129, False)):
        engine = sglang(schedule_policy="lpm", max_num_seqs=1)
        known = engine.submit(50, 1)
        engine.run()
        for _ in range(waiting - 1):
            engine.submit(3, 1, now=10.0)
        last = engine.submit(known.prompt, 1, now=10.0)
        engine.run(11.5)
        assert (last.produced == 1) is cached_first


def test_kv_that_arrives_takes_memory_and_a_place_in_the_next_decoding_step(sglang: Any) -> None:
    engine = sglang("decode", kv_tokens=100)
    first, second = engine.request(40, 30, produced=1), engine.request(40, 30, produced=1)
    engine.instance.receive(first, 0.0)
    engine.instance.receive(second, 0.0)
    engine.run(0.5)
    assert engine.batches == [([], [40])]  # the second wants 41 + 29 + 1 of the 60 left
    engine.run()
    assert engine.batches[29] == ([], [40])
    assert (first.produced, second.produced) == (30, 30)


def test_a_request_too_large_for_the_estimate_runs_when_nobody_else_does(sglang: Any) -> None:
    engine = sglang(kv_tokens=40)
    request = engine.submit(20, 21)
    engine.run()
    assert request.produced == 21
