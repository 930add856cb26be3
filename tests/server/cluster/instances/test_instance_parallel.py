"""Attention data parallelism and pipeline stages, to the second."""

import math
from typing import Any

import pytest


def test_ranks_run_in_lockstep_at_the_pace_of_the_slowest(lab: Any) -> None:
    engine = lab(ranks=2)
    engine.submit(100, 2)
    engine.submit(10, 3)
    t1 = engine.seconds(100, 0)
    t2 = t1 + engine.seconds(0, 1)
    assert engine.run() == [(t1, [1, 2]), (t2, [1, 2]), (t2 + engine.seconds(0, 1), [2])]
    assert engine.steps == [
        [([(100, 0)], []), ([(10, 0)], [])],
        [([], [100]), ([], [10])],
        [([], []), ([], [11])],  # nothing to do on the first: it runs along
    ]


def test_a_request_goes_to_the_rank_with_the_least_load_and_equals_take_turns(lab: Any) -> None:
    engine = lab(ranks=3, max_num_seqs=1)
    for _ in range(3):
        engine.submit(10, 9)
    engine.run(0.5)
    assert [len(rank.running) for rank in engine.instance.schedulers] == [1, 1, 1]
    for _ in range(4):
        engine.submit(10, 1, now=0.5)
    assert [len(rank.waiting) for rank in engine.instance.schedulers] == [2, 1, 1]
    assert (engine.instance.running, engine.instance.waiting) == (3, 4)
    ranks = engine.instance.rank_snapshots()
    assert [(one.rank, one.running, one.waiting) for one in ranks] == [(0, 1, 2), (1, 1, 1), (2, 1, 1)]


@pytest.mark.parametrize(("scheduler", "waiting"), [("sglang", [2, 1]), ("trtllm", [1, 2]), ("vllm", [1, 2])])
def test_sglang_takes_turns_whatever_the_load(lab: Any, scheduler: str, waiting: list[int]) -> None:
    engine = lab(ranks=2, scheduler=scheduler)
    engine.submit(10, 9)
    engine.submit(10, 1)
    engine.run(3.5)
    for _ in range(3):
        engine.submit(10, 1, now=3.5)
    assert [len(rank.waiting) for rank in engine.instance.schedulers] == waiting


@pytest.mark.parametrize(("scheduler", "waiting"), [("trtllm", [0, 3]), ("vllm", [1, 2])])
def test_a_waiting_request_counts_as_one_under_tensorrt_llm(lab: Any, scheduler: str, waiting: list[int]) -> None:
    engine = lab(ranks=2, scheduler=scheduler)
    for _ in range(3):
        engine.submit(10, 9)
        engine.submit(10, 1)
    engine.run(3.5)
    for _ in range(3):
        engine.submit(10, 1, now=3.5)
    assert [len(rank.waiting) for rank in engine.instance.schedulers] == waiting


def test_the_cached_prefix_may_decide_on_the_rank(lab: Any) -> None:
    engine = lab(ranks=2, data_parallel_balance="prefix")
    engine.submit(10, 1)
    known = engine.submit(100, 1)
    engine.run()
    again = engine.submit(known.prompt, 1, now=10.0)
    assert engine.instance.match(known.prompt.tobytes()) == 100
    engine.run()
    assert again.cached_tokens == 99
    assert engine.steps[-1] == [([], []), ([(1, 99)], [])]


def test_kv_memory_is_counted_over_all_ranks_and_a_request_must_fit_one(lab: Any) -> None:
    engine = lab(ranks=2, kv_tokens=100)
    assert (engine.instance.kv_total_tokens, engine.instance.max_request_tokens) == (200, 101)
    engine.submit(60, 2)
    engine.submit(60, 2)
    engine.run(0.5)
    assert (engine.instance.kv_used_tokens, engine.instance.running) == (120, 2)
    engine.submit(30, 2, now=0.5)  # on one of them
    engine.run(1.5)
    ranks = engine.instance.rank_snapshots()
    assert [(one.kv_used_tokens, one.kv_total_tokens, one.prefix_query_tokens) for one in ranks] == [
        (91, 100, 90), (61, 100, 60)
    ]  # fmt: skip
    assert len(engine.instance.evacuate(1.5)) == 3
    assert (engine.instance.kv_used_tokens, engine.instance.next_event_s) == (0, math.inf)


def test_one_sequence_alone_leaves_bubbles(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 2.0))
    engine.submit(64, 3)
    assert engine.run() == [(3.0, [1]), (6.0, [1]), (9.0, [1])]


def test_sequences_in_different_steps_fill_the_stages(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0))
    engine.submit(64, 3)
    engine.submit(64, 3, now=0.5)
    assert engine.run() == [(2.0, [1]), (3.0, [2]), (4.0, [1]), (5.0, [2]), (6.0, [1]), (7.0, [2])]
    assert engine.batches[2:4] == [([], [64]), ([], [64])]


def test_sequences_that_were_scheduled_together_stay_together(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0))
    engine.submit(64, 3)
    engine.submit(64, 3)
    assert engine.run() == [(2.0, [1, 2]), (4.0, [1, 2]), (6.0, [1, 2])]


def test_the_slowest_stage_sets_the_pace(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 2.0))
    engine.submit(64, 3)
    engine.submit(64, 2, now=0.5)
    # The first ends at 3; the second leaves the first stage at 2, waits, and has the other from 3 to 5. By then the first
    # one's next step has left the first stage, and so on.
    assert engine.run() == [(3.0, [1]), (5.0, [2]), (7.0, [1]), (9.0, [2]), (11.0, [1])]


@pytest.mark.parametrize(("scheduler", "together"), [("trtllm", 1), ("vllm", 2)])
def test_tensorrt_llm_keeps_the_micro_batches_of_a_pipeline_apart(lab: Any, scheduler: str, together: int) -> None:
    engine = lab(stage_seconds=(3.0, 0.1, 0.1), scheduler=scheduler)
    for now in (0.0, 0.5, 3.5):
        engine.submit(64, 4, now=now)
    engine.run()
    # At 6 the first could go on and the third could start: in slots of their own, or in one step
    assert max(len(prefill) + len(decodes) for prefill, decodes in engine.batches) == together


def test_a_micro_batch_has_its_share_of_the_sequences(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0), scheduler="trtllm", max_num_seqs=4)
    for _ in range(4):
        engine.submit(64, 2)
    engine.run()
    assert engine.batches == [([(64, 0)] * 2, [])] * 2 + [([], [64, 64])] * 2


def test_an_empty_slot_of_a_pipeline_is_passed_over(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 2.0), scheduler="trtllm")
    engine.submit(64, 3)
    assert engine.run() == [(3.0, [1]), (6.0, [1]), (9.0, [1])]


def test_the_chunks_of_a_prompt_follow_each_other_through_the_stages(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0, 1.0), max_num_batched_tokens=64)
    engine.submit(192, 2)
    assert engine.run() == [(5.0, [1]), (8.0, [1])]  # not 9: the third chunk leaves two seconds after the first
    assert engine.batches == [([(64, 0)], []), ([(64, 64)], []), ([(64, 128)], []), ([], [192])]


def test_what_arrives_while_the_first_stage_is_free_starts_at_once(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 3.0))
    engine.submit(64, 2)
    engine.submit(64, 1, now=2.5)
    assert engine.run() == [(4.0, [1]), (7.0, [2]), (10.0, [1])]


def test_no_more_steps_are_in_flight_than_stages(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 3.0))
    for now in (0.0, 0.5, 1.5):
        engine.submit(64, 1, now=now)
    assert engine.run() == [(4.0, [1]), (7.0, [2]), (10.0, [3])]
    assert engine.batches == [([(64, 0)], [])] * 3
    # The third would have found the first stage free at 2, but entered at 4, when the first had left the pipeline.
    engine = lab(stage_seconds=(1.0, 3.0))
    for now in (0.0, 0.5, 1.5, 3.5):
        engine.submit(64, 1, now=now)
    engine.run()
    assert engine.batches[2] == ([(64, 0), (64, 0)], [])


def test_what_is_in_flight_is_not_preempted(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0), kv_tokens=20, enable_prefix_caching=False)
    first = engine.submit(8, 6)
    second = engine.submit(8, 6, now=0.5)
    assert len(engine.run()) == 12
    assert (first.produced, second.produced) == (6, 6)
    assert first.preemptions + second.preemptions == 1


def test_cancelling_what_is_in_flight_keeps_the_times_of_the_others(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0))
    first = engine.submit(64, 3)
    engine.submit(64, 3)
    engine.run(0.5)
    first.cancelled = True
    engine.instance.cancel(first, 0.5)
    assert engine.instance.kv_used_tokens == 64
    assert engine.run() == [(2.0, [2]), (4.0, [2]), (6.0, [2])]


def test_a_crash_empties_the_pipeline(lab: Any) -> None:
    engine = lab(stage_seconds=(1.0, 1.0))
    first, second = engine.submit(64, 3), engine.submit(64, 3, now=0.5)
    engine.run(2.5)
    assert engine.instance.evacuate(0.0) == [first, second]
    assert engine.instance.next_event_s == math.inf
    engine.instance.submit(second, 2.75)  # at once, the stages are free
    assert engine.run() == [(4.75, [2]), (6.75, [2]), (8.75, [2])]


def test_ranks_and_stages_go_together(lab: Any) -> None:
    engine = lab(ranks=2, stage_seconds=(1.0, 1.0))
    for _ in range(3):
        engine.submit(64, 2)
    engine.submit(64, 2, now=0.5)
    assert engine.run() == [(2.0, [1, 3, 2]), (3.0, [4]), (4.0, [1, 3, 2]), (5.0, [4])]


def test_the_front_end_shows_a_request_to_the_scheduler_later(lab: Any) -> None:
    engine = lab(front_end_s=0.25)
    first = engine.submit(64, 1, now=1.0)
    second = engine.submit(64, 1, now=1.125)
    assert (engine.instance.waiting, engine.instance.next_event_s) == (2, 1.25)
    engine.instance.cancel(second, 1.2)
    assert engine.run() == [(1.25 + engine.seconds(64, 0), [1])]
    assert (first.admitted_s, engine.instance.next_event_s) == (1.25, math.inf)
    moved = engine.request(64, 2, now=1.0, produced=1)  # came to the cluster long ago
    engine.instance.submit(moved, 8.0)
    assert engine.run() == [(8.0 + engine.seconds(65, 0), [3])]
