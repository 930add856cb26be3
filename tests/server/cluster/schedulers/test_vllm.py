"""What vLLM's V1 scheduler does beyond the cases of test_instance.py: caps on long prompts, priorities, draft tokens."""

from typing import Any


def test_a_long_prompt_takes_no_more_of_a_step_than_the_threshold(lab: Any) -> None:
    engine = lab(long_prefill_token_threshold=64)
    engine.submit(150, 1)
    engine.submit(30, 3)
    t1 = engine.seconds(94, 0)
    t2 = t1 + engine.seconds(64, 1)
    t3 = t2 + engine.seconds(22, 1)
    assert engine.run() == [(t1, [2]), (t2, [2]), (t3, [1, 2])]
    assert engine.batches == [([(64, 0), (30, 0)], []), ([(64, 64)], [30]), ([(22, 128)], [31])]


def test_chunks_end_where_recurrent_states_are_stored(lab: Any) -> None:
    engine = lab(recurrent_states=True, page_size=32)
    for prompt in (150, 96, 20):  # the last whole page ends at 128, 96 and 0
        engine.submit(prompt, 1)
        engine.run()
    assert engine.batches == [([(128, 0)], []), ([(22, 128)], []), ([(96, 0)], []), ([(20, 0)], [])]


def test_a_step_that_cannot_end_a_page_stores_no_state_and_goes_on(lab: Any) -> None:
    engine = lab(recurrent_states=True, page_size=32, max_num_batched_tokens=70)
    engine.submit(150, 1)
    engine.run()
    assert engine.batches == [([(64, 0)], []), ([(64, 64)], []), ([(22, 128)], [])]
    engine = lab(recurrent_states=True, page_size=32, max_num_batched_tokens=20)
    engine.submit(50, 1)
    engine.run()
    assert engine.batches == [([(20, 0)], []), ([(12, 20)], []), ([(18, 32)], [])]


def test_without_a_prefix_cache_no_state_is_stored(lab: Any) -> None:
    engine = lab(recurrent_states=True, page_size=32, enable_prefix_caching=False)
    engine.submit(90, 1)
    engine.run()
    assert engine.batches == [([(90, 0)], [])]


def test_with_priorities_the_lowest_value_goes_first_and_equals_as_they_came(lab: Any) -> None:
    engine = lab(schedule_policy="priority", max_num_seqs=1)
    for priority in (2, 0, 1, 0):
        engine.submit(8, 1, priority=priority)
    assert [ids for _, ids in engine.run()] == [[2], [4], [3], [1]]


def test_without_priorities_their_values_mean_nothing(lab: Any) -> None:
    engine = lab(max_num_seqs=1)
    for priority in (2, 0):
        engine.submit(8, 1, priority=priority)
    assert [ids for _, ids in engine.run()] == [[1], [2]]


def test_with_priorities_the_highest_value_gives_way_even_if_it_is_in_the_step_already(lab: Any) -> None:
    engine = lab(schedule_policy="priority", kv_tokens=20, enable_prefix_caching=False)
    first = engine.submit(8, 6, priority=5)
    second = engine.submit(8, 6, now=0.5)
    ends = [ids for _, ids in engine.run()]
    # Fourth step: the first one took the last token of KV; it is taken back for the second, and 11 tokens are lost.
    assert ends == [[1], [1, 2], [1, 2], [2], [2], [2], [2], [1], [1], [1]]
    assert engine.batches[2:5] == [([], [9, 8]), ([], [9]), ([], [10])]
    assert engine.batches[7:] == [([(11, 0)], []), ([], [11]), ([], [12])]
    assert (first.preemptions, second.preemptions) == (1, 0)


def test_a_chunk_of_the_victim_is_taken_back_as_well(lab: Any) -> None:
    engine = lab(schedule_policy="priority", long_prefill_token_threshold=4, kv_tokens=22, enable_prefix_caching=False)
    engine.submit(18, 1, priority=5)
    engine.submit(4, 10)
    engine.run()
    # Fourth step: the chunk up to 16 tokens fits, but leaves nothing for the second one's seventh token of KV.
    assert engine.batches[:5] == [([(4, 0), (4, 0)], []), ([(4, 4)], [4]), ([(4, 8)], [5]), ([], [6]), ([], [7])]
    assert engine.batches[10] == ([(4, 0)], [])  # when the second one has finished
    assert engine.instance.snapshot().preemptions == 1


def test_draft_tokens_count_in_the_budget_and_the_last_in_line_gets_fewer_or_none(lab: Any) -> None:
    engine = lab(num_speculative_tokens=3, acceptance_rate=1.0, max_num_seqs=3, max_num_batched_tokens=10)
    for _ in range(3):
        engine.submit(3, 9)
    ends = [ids for _, ids in engine.run()]
    # After the prompts each wants four tokens a step: 4 + 4 + 2 of the budget of ten.
    assert engine.batches[:3] == [([(3, 0), (3, 0), (3, 0)], []), ([], [3, 3, 3]), ([], [7, 7, 5])]
    assert ends == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [3]]  # 1 + 4 + 4 tokens, and the third 1 + 2 + 2 + 4


def test_no_draft_goes_beyond_the_output(lab: Any) -> None:
    engine = lab(num_speculative_tokens=3, acceptance_rate=1.0, kv_tokens=20)
    request = engine.submit(11, 10)  # 20 tokens of KV: all there are
    ends = engine.run()
    assert [contexts for _, contexts in engine.batches] == [[], [11], [15], [19]]
    assert (len(ends), request.produced, request.finished_s) == (4, 10, ends[-1][0])


def test_refused_drafts_give_their_memory_back(lab: Any) -> None:
    engine = lab(num_speculative_tokens=4, acceptance_rate=0.0, page_size=2)
    engine.submit(10, 4)
    end_s = engine.seconds(10, 0) + engine.seconds(0, 1)
    engine.run(end_s - 0.5)
    assert engine.instance.kv_used_tokens == 14  # the decoding one, and as many drafts as the output has room for
    engine.run(end_s)
    assert engine.instance.kv_used_tokens == 12  # 11 in whole pages
    engine.run()
    assert [contexts for _, contexts in engine.batches] == [[], [10], [11], [12]]
    assert engine.instance.kv_used_tokens == 0


def test_step_ends_say_how_many_tokens_they_brought_if_not_one_each(lab: Any) -> None:
    engine = lab(num_speculative_tokens=3, acceptance_rate=1.0)
    engine.instance.submit(engine.request(8, 6), 0.0)
    found = []
    while engine.instance.next_event_s < float("inf"):
        if (end := engine.instance.advance()) is not None:
            found.append((end.tokens, end.emitted[0].produced))
    assert found == [(0, 1), (4, 5), (0, 6)]


def test_what_was_taken_back_is_not_remembered_as_computed(lab: Any) -> None:
    engine = lab(schedule_policy="priority", kv_tokens=25, num_speculative_tokens=3)
    engine.submit(8, 16, priority=5)
    engine.submit(8, 16, now=0.5)
    while not engine.instance.snapshot().preemptions:
        engine.instance.advance()
    # Fourth step: 10 + 4 and 9 + 4 tokens do not fit. The first one leaves its 10, the second one has 8 in the cache.
    assert engine.instance.snapshot().cached_tokens == 18
    assert engine.batches[2] == ([], [9, 8])
