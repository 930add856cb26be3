"""Prompts that wait though they could be computed: settings of each engine, worked out by hand."""

from functools import partial
from typing import Any

import pytest


def chunks(engine: Any, rank: int = 0) -> list[int]:
    """Prompt tokens that a rank computed, step by step."""
    return [sum(new for new, _ in step[rank][0]) for step in engine.steps]


def decoding(engine: Any, rank: int = 0) -> list[int]:
    """How many decoded on a rank, step by step."""
    return [len(step[rank][1]) for step in engine.steps]


def test_sglang_decodes_for_an_interval_after_each_step_with_prompts(lab: Any) -> None:
    engine = lab(scheduler="sglang", prefill_decode_interval=2, max_num_batched_tokens=64)
    engine.submit(10, 12)
    engine.submit(100, 2, 0.5)  # in two chunks, while the first decodes
    engine.submit(10, 2, 0.5)
    engine.run()
    assert chunks(engine) == [10, 0, 0, 64, 0, 0, 46, 0, 0, 0, 0, 0, 0, 0]
    assert decoding(engine) == [0, 1, 1, 0, 1, 1, 0, 3, 1, 1, 1, 1, 1, 1]


def test_without_the_interval_prompts_come_first(lab: Any) -> None:
    engine = lab(scheduler="sglang", max_num_batched_tokens=64)
    engine.submit(10, 5)
    engine.submit(100, 2, 0.5)
    engine.run()
    assert chunks(engine) == [10, 64, 36, 0, 0, 0, 0]


def test_sglang_waits_for_nobody_where_nobody_decodes(lab: Any) -> None:
    engine = lab(scheduler="sglang", prefill_decode_interval=5, max_num_batched_tokens=64)
    engine.submit(100, 1)
    engine.submit(100, 1)
    engine.run()
    assert chunks(engine) == [64, 64, 64, 8]


def test_the_interval_of_sglang_counts_on_all_ranks(lab: Any) -> None:
    engine = lab(scheduler="sglang", prefill_decode_interval=2, ranks=2)
    engine.submit(10, 6)  # rank 0
    engine.submit(20, 6, 0.5)  # rank 1, which has nobody who decodes
    engine.run()
    assert chunks(engine, 0) == [10, 0, 0, 0, 0, 0, 0, 0, 0][: len(engine.steps)]
    assert chunks(engine, 1)[:5] == [0, 0, 0, 20, 0]


def test_vllm_computes_prompts_in_every_nth_step_of_all_ranks(lab: Any) -> None:
    engine = lab(prefill_schedule_interval=4, ranks=2, max_num_batched_tokens=64)
    engine.submit(10, 12)  # rank 0
    engine.submit(20, 12)  # rank 1
    engine.submit(100, 2, 0.5)  # rank 0: two chunks, both in steps of their own
    engine.run()
    assert chunks(engine, 0)[:10] == [10, 0, 0, 0, 63, 0, 0, 0, 37, 0]
    assert chunks(engine, 1)[:2] == [20, 0]
    assert decoding(engine, 0)[1:9] == [1] * 8


def test_a_rank_of_vllm_on_which_nobody_decodes_does_not_wait(lab: Any) -> None:
    engine = lab(prefill_schedule_interval=4, ranks=2)
    engine.submit(10, 12)  # rank 0
    engine.submit(20, 3, 0.5)  # rank 1
    engine.run()
    assert chunks(engine, 1)[:3] == [0, 20, 0]


def test_a_rank_of_vllm_with_a_backlog_does_not_wait(lab: Any) -> None:
    """After the first step one is left in the queue: the next steps compute prompts, until the queue is empty after one."""
    engine = lab(prefill_schedule_interval=4, ranks=2, max_num_batched_tokens=64, data_parallel_balance="round_robin")
    for prompt in (60, 1, 60, 1, 30):
        engine.submit(prompt, 12)  # every other one on rank 0: 60, 60, 30
    engine.submit(5, 2, 0.5)  # rank 1
    engine.submit(7, 2, 0.6)  # rank 0, behind its backlog
    engine.run()
    assert chunks(engine, 0)[:5] == [64, 63, 30, 0, 0]


def test_the_first_prompt_after_all_were_idle_does_not_wait(lab: Any) -> None:
    engine = lab(prefill_schedule_interval=4, ranks=2, data_parallel_balance="round_robin")
    engine.submit(10, 3)  # rank 0
    engine.submit(10, 9, 50.0)  # rank 1
    engine.submit(10, 9, 50.0)  # rank 0
    engine.submit(10, 9, 50.5)  # rank 1: from then on it is the fourth step that has prompts again
    engine.run()
    assert chunks(engine, 0)[:9] == [10, 0, 0, 10, 0, 0, 0, 0, 0]
    assert chunks(engine, 1)[:9] == [0, 0, 0, 10, 0, 0, 0, 10, 0]


@pytest.fixture
def trtllm(lab: Any) -> Any:
    return partial(lab, scheduler="trtllm", max_num_batched_tokens=100)


def test_tensorrt_llm_waits_for_fuller_steps(trtllm: Any) -> None:
    waits = {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5}
    engine = trtllm(**waits)
    engine.submit(10, 12)
    engine.submit(20, 2, 0.5)  # with who decodes 21 of the 50 tokens that would do: three steps, then it goes
    engine.run()
    assert chunks(engine)[:6] == [10, 0, 0, 0, 20, 0]
    engine = trtllm(**waits)
    engine.submit(10, 12)
    engine.submit(20, 2, 0.5)
    engine.submit(29, 2, 1.5)  # with it they are 50
    engine.run()
    assert chunks(engine)[:4] == [10, 0, 49, 0]


def test_one_of_the_two_settings_alone_has_no_effect(trtllm: Any) -> None:
    for waits in ({"batch_wait_timeout_iters": 3}, {"batch_wait_max_tokens_ratio": 0.5}):
        engine = trtllm(**waits)
        engine.submit(10, 12)
        engine.submit(20, 2, 0.5)
        engine.run()
        assert chunks(engine)[:3] == [10, 20, 0]


def test_what_is_cached_or_does_not_fit_makes_no_step_fuller(trtllm: Any) -> None:
    engine = trtllm(batch_wait_timeout_iters=3, batch_wait_max_tokens_ratio=0.5, kv_tokens=100)
    engine.submit(10, 12)
    engine.submit(20, 2, 0.5)
    engine.submit(70, 2, 0.5)  # no memory beside the others
    engine.run()
    assert chunks(engine)[:5] == [10, 0, 0, 0, 20]


BALANCE: dict[str, Any] = {"attention_dp_enable_balance": True, "attention_dp_timeout_iters": 4, "ranks": 2}


def test_without_balance_a_prompt_of_one_rank_stalls_the_others(trtllm: Any) -> None:
    engine = trtllm(ranks=2)
    engine.submit(10, 9)  # rank 0
    engine.submit(10, 9)  # rank 1
    engine.submit(50, 2, 0.5)  # rank 0
    engine.run()
    assert chunks(engine, 0)[:3] == [10, 50, 0]
    assert chunks(engine, 1)[:3] == [10, 0, 0]


def test_with_balance_prompts_wait_for_those_of_other_ranks(trtllm: Any) -> None:
    engine = trtllm(**BALANCE, attention_dp_batching_wait_iters=0)
    engine.submit(10, 9)  # rank 0
    engine.submit(10, 9)  # rank 1
    engine.submit(50, 2, 0.5)  # rank 0: from the second step on it waits
    engine.submit(40, 2, 2.5)  # rank 1: both are in the fourth
    engine.run()
    assert chunks(engine, 0)[:5] == [10, 0, 0, 50, 0]
    assert chunks(engine, 1)[:5] == [10, 0, 0, 40, 0]


def test_with_balance_they_wait_no_longer_than_the_timeout(trtllm: Any) -> None:
    engine = trtllm(**BALANCE, attention_dp_batching_wait_iters=0)
    engine.submit(10, 9)  # rank 0
    engine.submit(10, 9)  # rank 1
    engine.submit(50, 2, 0.5)  # rank 0
    engine.run()
    assert chunks(engine, 0)[:6] == [10, 0, 0, 0, 50, 0]  # the fourth step without prompts on all ranks would time out


def test_when_all_ranks_have_prompts_they_wait_for_more(trtllm: Any) -> None:
    engine = trtllm(**BALANCE, attention_dp_batching_wait_iters=2)
    engine.submit(10, 9)
    engine.submit(10, 9)
    engine.submit(30, 2, 0.5)  # rank 0
    engine.submit(30, 2, 0.5)  # rank 1
    engine.submit(20, 2, 1.5)  # rank 0
    engine.run()
    assert chunks(engine, 0)[:5] == [10, 0, 0, 50, 0]
    assert chunks(engine, 1)[:5] == [10, 0, 0, 30, 0]


def test_with_balance_nobody_waits_while_a_rank_has_nothing_to_decode(trtllm: Any) -> None:
    engine = trtllm(**BALANCE)
    engine.submit(10, 9)  # rank 0
    engine.submit(50, 2, 0.5)  # rank 1
    engine.run()
    assert chunks(engine, 1)[:3] == [0, 50, 0]
