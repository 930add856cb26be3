"""TensorRT-LLM's rules: capacity first (no eviction, or as full as it gets), then who runs in this step."""

from functools import partial
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def trtllm(lab: Any) -> Any:
    return partial(lab, scheduler="trtllm", page_size=4)


def test_a_request_starts_when_all_that_it_may_produce_fits_beside_what_others_may(trtllm: Any) -> None:
    engine = trtllm(kv_tokens=40)
    engine.submit(8, 6, max_tokens=20)  # 28 tokens in whole blocks
    engine.submit(8, 4)  # 12
    engine.submit(4, 1)  # 8: waits for the second to end, though 24 tokens of KV are free
    assert [ids for _, ids in engine.run()] == [[1, 2], [1, 2], [1, 2], [1, 2], [1, 3], [1]]
    assert engine.batches == [
        ([(8, 0), (8, 0)], []),
        ([], [8, 8]),
        ([], [9, 9]),
        ([], [10, 10]),
        ([(4, 0)], [11]),
        ([], [12]),
    ]


def test_max_utilization_starts_whatever_prompt_fits(trtllm: Any) -> None:
    engine = trtllm(kv_tokens=40, capacity_scheduler_policy="max_utilization")
    engine.submit(8, 6, max_tokens=20)
    engine.submit(8, 4)
    engine.submit(4, 1)
    engine.run()
    assert engine.batches[0] == ([(8, 0), (8, 0), (4, 0)], [])


def test_max_utilization_pauses_the_last_started_and_starts_nobody_meanwhile(trtllm: Any) -> None:
    engine = trtllm(kv_tokens=20, page_size=1, capacity_scheduler_policy="max_utilization", enable_prefix_caching=False)
    first, second, third = engine.submit(8, 6), engine.submit(8, 6), engine.submit(5, 1)
    ends = [ids for _, ids in engine.run()]
    # 20 tokens of KV are held in the third step; the second gives way, and waits in front of the third.
    assert ends == [[1, 2], [1, 2], [1, 2], [1], [1], [1], [2, 3], [2], [2]]
    assert engine.batches[3] == ([], [10])
    assert engine.batches[6] == ([(11, 0), (5, 0)], [])
    assert (first.preemptions, second.preemptions, third.preemptions) == (0, 1, 0)


def test_no_eviction_never_pauses(trtllm: Any) -> None:
    engine = trtllm(kv_tokens=20, page_size=1, enable_prefix_caching=False)
    first, second = engine.submit(8, 6), engine.submit(8, 6)
    engine.run()
    assert (second.preemptions, second.admitted_s) == (0, first.finished_s)


def test_prompts_are_cut_to_whole_blocks_and_a_short_one_passes_where_no_block_fits(trtllm: Any) -> None:
    engine = trtllm(max_num_batched_tokens=10)
    for prompt in (9, 9, 1):
        engine.submit(prompt, 3)
    assert [ids for _, ids in engine.run()] == [[1, 3], [1, 3], [1, 3, 2], [2], [2]]
    assert engine.batches[:3] == [([(9, 0), (1, 0)], []), ([(8, 0)], [9, 1]), ([(1, 8)], [10, 2])]


def test_without_chunked_context_a_prompt_waits_for_a_step_with_room_for_all_of_it(trtllm: Any) -> None:
    engine = trtllm(max_num_batched_tokens=10, enable_chunked_prefill=False)
    engine.submit(9, 2)
    engine.submit(9, 1)
    engine.submit(1, 1)  # nobody overtakes
    engine.run()
    assert engine.batches == [([(9, 0)], []), ([(9, 0)], [9]), ([(1, 0)], [])]


def test_a_prompt_whose_next_block_is_being_computed_waits_for_it(trtllm: Any) -> None:
    engine = trtllm()
    first = engine.submit(40, 2)
    alike = engine.submit(first.prompt, 1)
    engine.submit(8, 1)
    engine.run()
    assert engine.batches == [([(40, 0), (8, 0)], []), ([(4, 36)], [40])]
    assert alike.cached_tokens == 36
    apart = trtllm(enable_prefix_caching=False)
    first = apart.submit(40, 2)
    apart.submit(first.prompt, 1)
    apart.run()
    assert apart.batches[0] == ([(40, 0), (40, 0)], [])


def test_the_reserve_counts_cached_blocks_once(trtllm: Any) -> None:
    engine = trtllm(kv_tokens=64)
    first = engine.submit(32, 1)
    engine.run()
    second = engine.submit(np.concatenate([first.prompt, np.arange(4, dtype=np.int32)]), 12, now=10.0)  # 48: 16 new
    third = engine.submit(np.concatenate([first.prompt, np.arange(9, 13, dtype=np.int32)]), 12, now=10.0)  # 16 new
    engine.run(11.0)
    assert (second.admitted_s, third.admitted_s) == (10.0, 10.0)
    engine.run()
    assert (second.produced, third.produced, engine.instance.snapshot().preemptions) == (12, 12, 0)


def test_those_who_generate_go_first_and_the_rest_of_the_budget_goes_to_prompts(trtllm: Any) -> None:
    engine = trtllm(max_num_batched_tokens=12)
    engine.submit(4, 5)
    engine.submit(4, 5)
    engine.submit(20, 1, now=0.5)
    engine.run()
    assert engine.batches[:4] == [([(4, 0), (4, 0)], []), ([(8, 0)], [4, 4]), ([(8, 8)], [5, 5]), ([(4, 16)], [6, 6])]


def test_draft_tokens_take_budget(trtllm: Any) -> None:
    engine = trtllm(num_speculative_tokens=3, acceptance_rate=1.0, max_num_batched_tokens=10)
    for _ in range(3):
        engine.submit(3, 9)
    assert [ids for _, ids in engine.run()] == [[1, 2, 3], [1, 2], [1, 2], [3], [3]]  # two of them at a time


def test_on_a_prefill_instance_only_the_prompt_is_reserved(trtllm: Any) -> None:
    for role, ends in (("prefill", [[1, 2]]), ("both", [[1], *([1],) * 19, [2], *([2],) * 19])):
        engine = trtllm(role, kv_tokens=40)
        engine.submit(20, 20)
        engine.submit(20, 20)
        assert [ids for _, ids in engine.run()] == ends


def test_a_cut_prompt_that_finds_no_memory_gives_way_itself_to_those_in_the_step(trtllm: Any) -> None:
    options = {"page_size": 1, "capacity_scheduler_policy": "max_utilization", "enable_prefix_caching": False}
    engine = trtllm(kv_tokens=26, max_num_batched_tokens=10, **options)
    engine.submit(8, 9)
    long = engine.submit(14, 1)
    engine.run()
    # Chunks of 2, 9 and 3 tokens; before the last one 10 + 11 tokens are held, and 24 after it: it fits.
    assert engine.batches[:3] == [([(8, 0), (2, 0)], []), ([(9, 2)], [8]), ([(3, 11)], [9])]
    assert long.preemptions == 0
    engine = trtllm(kv_tokens=23, max_num_batched_tokens=10, **options)
    first = engine.submit(8, 9)
    long = engine.submit(14, 1)
    engine.run()
    # One token less than that: it is paused, and starts again when the first one has left its 16 tokens.
    assert engine.batches[2] == ([], [9])
    assert (long.preemptions, first.preemptions, long.admitted_s) == (1, 0, 0.0)
    assert engine.batches[9:] == [([(10, 0)], []), ([(4, 10)], [])]
