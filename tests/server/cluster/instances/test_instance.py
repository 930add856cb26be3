"""Continuous batching, step by step. A step takes 1 s + 1/1024 s per prompt token + 1/64 s per decoding sequence, so that
every time below is exact in binary."""

from collections.abc import Sequence

import numpy as np
import pytest

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.request import Sequence as KVSequence
from llmirage_server.cluster.routers import make_router


def step_s(prefill_tokens: int, decoding: int) -> float:
    return 1 + prefill_tokens / 1024 + decoding / 64


class RecordingModel:
    def __init__(self) -> None:
        self.steps: list[tuple[list[tuple[int, int]], list[int]]] = []

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        self.steps.append((list(prefill), list(decode_contexts)))
        return step_s(sum(new for new, _ in prefill), len(decode_contexts))


class Engine:
    """One instance, its step model, and requests whose tokens no other request shares."""

    def __init__(
        self,
        kv_tokens: int = 10_000,
        *,
        max_num_seqs: int = 8,
        budget: int = 1000,
        page_size: int = 1,
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
    ) -> None:
        limits = EngineLimits(
            kv_tokens=kv_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            page_size=page_size,
            enable_prefix_caching=prefix_caching,
            enable_chunked_prefill=chunked_prefill,
        )
        self.model = RecordingModel()
        self.cluster = Cluster([Instance(0, self.model, limits)], make_router("round_robin"))
        self._requests = 0

    def submit(self, prompt: int | np.ndarray, output: int, now: float = 0.0) -> Request:
        self._requests += 1
        first = 100_000 * self._requests
        ids = np.arange(first, first + prompt, dtype=np.int32) if isinstance(prompt, int) else prompt
        request = Request(self._requests, ids, np.arange(first + 50_000, first + 50_000 + output, dtype=np.int32))
        self.cluster.submit(request, now)
        return request

    def run(self, to: float = float("inf")) -> list[tuple[float, list[int]]]:
        return [(end.time_s, [request.id for request in end.emitted]) for end in self.cluster.advance(to)]

    @property
    def kv_used(self) -> int:
        return self.cluster.snapshot()[0].kv_used_tokens

    @property
    def cached(self) -> int:
        return self.cluster.snapshot()[0].cached_tokens


def test_a_prefill_only_step() -> None:
    engine = Engine()
    request = engine.submit(100, 1, now=0.5)
    end = 0.5 + step_s(100, 0)
    assert engine.run() == [(end, [1])]
    assert engine.model.steps == [([(100, 0)], [])]
    assert (request.arrival_s, request.admitted_s, request.first_token_s, request.finished_s) == (0.5, 0.5, end, end)
    assert (request.instance, request.produced, request.cached_tokens) == (0, 1, 0)
    assert engine.cluster.next_event_time() == float("inf")


def test_mixed_steps_decode_first_and_fill_the_budget_with_a_prompt_chunk() -> None:
    engine = Engine(budget=128)
    engine.submit(64, 3)
    engine.submit(200, 1, now=0.25)  # arrives during the first step
    t1 = step_s(64, 0)
    t2 = t1 + step_s(127, 1)
    t3 = t2 + step_s(73, 1)
    assert engine.run() == [(t1, [1]), (t2, [1]), (t3, [1, 2])]
    assert engine.model.steps == [([(64, 0)], []), ([(127, 0)], [64]), ([(73, 127)], [65])]


def test_two_prompts_share_the_budget_of_a_step() -> None:
    engine = Engine(budget=150)
    engine.submit(100, 2)
    engine.submit(100, 1)
    t1 = step_s(150, 0)
    t2 = t1 + step_s(50, 1)
    assert engine.run() == [(t1, [1]), (t2, [1, 2])]
    assert engine.model.steps == [([(100, 0), (50, 0)], []), ([(50, 50)], [100])]


def test_without_chunked_prefill_a_prompt_waits_for_a_step_with_room_for_all_of_it() -> None:
    engine = Engine(budget=150, chunked_prefill=False)
    engine.submit(100, 2)
    engine.submit(100, 1)
    engine.run()
    assert engine.model.steps == [([(100, 0)], []), ([(100, 0)], [100])]


def test_decoding_contexts_grow_by_one() -> None:
    engine = Engine()
    engine.submit(10, 4)
    engine.run()
    assert engine.model.steps == [([(10, 0)], []), ([], [10]), ([], [11]), ([], [12])]


def test_arrivals_at_one_instant_share_a_step_and_later_ones_wait_for_its_end() -> None:
    engine = Engine()
    engine.submit(8, 1, now=1.0)
    engine.run(to=1.0)
    engine.submit(8, 1, now=1.0)
    engine.submit(8, 1, now=1.5)
    t1 = 1.0 + step_s(16, 0)
    assert engine.run(to=t1) == [(t1, [1, 2])]
    engine.submit(8, 1, now=t1)  # as the step ends: in time for the next one
    assert engine.run() == [(t1 + step_s(16, 0), [3, 4])]


def test_max_num_seqs_admits_first_come_first_served() -> None:
    engine = Engine(max_num_seqs=1)
    first, second = engine.submit(8, 2), engine.submit(4, 1)
    engine.run()
    assert engine.model.steps == [([(8, 0)], []), ([], [8]), ([(4, 0)], [])]
    assert second.admitted_s == first.finished_s


def test_a_full_cache_preempts_the_last_admitted_which_recomputes_prompt_and_reply() -> None:
    engine = Engine(kv_tokens=20, prefix_caching=False)
    first, second = engine.submit(8, 6), engine.submit(8, 6)
    t = [0.0]
    for prefill, decoding in ((16, 0), (0, 2), (0, 2), (0, 1), (0, 1), (0, 1), (11, 0), (0, 1), (0, 1)):
        t.append(t[-1] + step_s(prefill, decoding))
    assert engine.run() == [
        (t[1], [1, 2]),
        (t[2], [1, 2]),
        (t[3], [1, 2]),  # 20 tokens of KV: full
        (t[4], [1]),  # the second gives way
        (t[5], [1]),  # 12 held: its 11 tokens do not fit
        (t[6], [1]),
        (t[7], [2]),  # 8 of the prompt and 3 produced are computed again
        (t[8], [2]),
        (t[9], [2]),
    ]
    assert engine.model.steps[3] == ([], [10])
    assert engine.model.steps[6:] == [([(11, 0)], []), ([], [11]), ([], [12])]
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert (second.first_token_s, second.admitted_s) == (t[1], 0.0)
    assert engine.cluster.snapshot()[0].preemptions == 1
    assert engine.kv_used == 0


def test_a_preempted_sequence_finds_in_the_cache_what_was_not_evicted() -> None:
    engine = Engine(kv_tokens=20)
    engine.submit(8, 6)
    second = engine.submit(8, 6)
    engine.run()
    # Its 10 computed tokens stayed behind; the first one's next 3 tokens evicted the tail of them.
    assert engine.model.steps[6] == ([(4, 7)], [])
    assert second.produced == 6
    assert second.cached_tokens == 0  # what the first admission found


def test_the_generated_tokens_of_a_preempted_sequence_are_found_again() -> None:
    engine = Engine(kv_tokens=20)
    engine.submit(8, 4)
    engine.submit(8, 6)
    engine.run()
    # Of 10 computed tokens, 8 of them prompt, the first sequence's last one evicted a single one.
    assert engine.model.steps[3:5] == [([], [10]), ([(2, 9)], [])]


def test_a_preempted_sequence_goes_before_those_who_wait() -> None:
    engine = Engine(kv_tokens=20, max_num_seqs=2, prefix_caching=False)
    engine.submit(8, 6)
    second, third = engine.submit(8, 6), engine.submit(1, 1)
    engine.run()
    assert second.preemptions == 1
    assert engine.model.steps[6] == ([(11, 0), (1, 0)], [])
    assert third.admitted_s > second.first_token_s


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    engine = Engine(kv_tokens=19)
    output = np.arange(500, 512, dtype=np.int32)
    prompt = np.arange(8, dtype=np.int32)
    first = Request(1, np.concatenate([prompt, output[:3]]), np.arange(900, 909, dtype=np.int32))
    second = Request(2, prompt, output)
    engine.cluster.submit(first, 0.0)
    engine.cluster.submit(second, 0.0)
    engine.run()
    # The second gives way in the sixth step. 11 of its 12 computed tokens are the first one's prompt, held by it anyway,
    # so that it would fit again at once; it is admitted in the next step.
    assert engine.model.steps[4:7] == [([], [14, 11]), ([], [15]), ([(1, 12)], [16])]


@pytest.mark.interpreted
def test_a_head_of_the_queue_that_does_not_fit_is_not_looked_up_again_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    acquire = KVCache.acquire

    def counting(kv: KVCache, sequence: KVSequence) -> None:
        looked_up.append(sequence)
        acquire(kv, sequence)

    monkeypatch.setattr(KVCache, "acquire", counting)
    engine = Engine(kv_tokens=100)
    engine.submit(50, 40)
    engine.submit(60, 1)
    engine.run()
    # Once for the first; for the second in the first step, after the first prompt's commit, and at its admission.
    assert len(looked_up) == 4


def test_a_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    engine = Engine(kv_tokens=100, budget=32)
    first = engine.submit(50, 2)
    second = engine.submit(60, 1)
    engine.submit(1, 1)  # does not overtake
    engine.run()
    assert engine.model.steps == [([(32, 0)], []), ([(18, 32)], []), ([], [50]), ([(32, 0)], []), ([(28, 32), (1, 0)], [])]
    assert second.admitted_s == first.finished_s


def test_the_next_turn_hits_the_prompt_and_what_was_generated() -> None:
    engine = Engine()
    first = engine.submit(10, 5)
    engine.run()
    turn = np.concatenate([first.prompt, first.output, np.array([1, 2, 3], dtype=np.int32)])
    second = engine.submit(turn, 1, now=100.0)
    engine.run()
    assert second.cached_tokens == 15  # all ten of the prompt and all five generated ones
    assert engine.model.steps[-1] == ([(3, 15)], [])


def test_pages_of_sixteen_hit_whole_pages_only() -> None:
    engine = Engine(page_size=16)
    first = engine.submit(20, 13)
    engine.run()
    assert engine.cached == 32
    second = engine.submit(np.concatenate([first.prompt, first.output[:5]]), 1, now=100.0)
    third = engine.submit(np.concatenate([first.prompt, first.output]), 1, now=200.0)
    engine.run()
    assert (second.cached_tokens, third.cached_tokens) == (16, 32)


@pytest.mark.parametrize(("page_size", "cached"), [(1, 31), (16, 16)])
def test_the_last_prompt_token_is_always_computed(page_size: int, cached: int) -> None:
    engine = Engine(page_size=page_size)
    first = engine.submit(32, 1)
    second = engine.submit(first.prompt, 1, now=100.0)
    engine.run()
    assert second.cached_tokens == cached
    assert engine.model.steps[-1] == ([(32 - cached, cached)], [])


def test_a_prompt_is_seen_by_others_from_the_end_of_the_step_that_computes_it() -> None:
    engine = Engine(budget=40)
    first = engine.submit(60, 5)
    engine.run(to=0.5)
    during_first_chunk = engine.submit(first.prompt, 1, now=0.5)
    engine.run()
    # Admitted with what the second step leaves of the budget, when the first chunk of 40 is known.
    assert engine.model.steps[:2] == [([(40, 0)], []), ([(20, 40), (20, 40)], [])]
    assert during_first_chunk.cached_tokens == 40


def test_a_prompt_computed_twice_at_once_is_held_once() -> None:
    engine = Engine()
    first = engine.submit(50, 3)
    engine.submit(first.prompt, 3)
    t1 = step_s(100, 0)
    engine.run(to=0.5)
    assert engine.kv_used == 100
    engine.run(to=t1)
    assert engine.kv_used == 50


def test_prefix_caching_can_be_off() -> None:
    engine = Engine(prefix_caching=False)
    first = engine.submit(50, 3)
    again = engine.submit(first.prompt, 3, now=100.0)
    engine.run()
    assert again.cached_tokens == 0
    assert engine.cached == 0
    assert engine.kv_used == 0


def test_cancelling_in_mid_prefill_frees_the_cache_at_once_and_keeps_the_end_of_the_step() -> None:
    engine = Engine(budget=128)
    first = engine.submit(300, 1)
    second = engine.submit(10, 1, now=0.25)
    t1 = step_s(128, 0)
    t2 = t1 + step_s(128, 0)
    assert engine.run(to=t1 + 0.5) == []
    assert engine.kv_used == 256
    engine.cluster.cancel(first, t1 + 0.5)
    assert engine.kv_used == 0
    assert engine.cached == 128  # the first chunk was computed
    assert engine.cluster.next_event_time() == t2
    assert engine.run() == [(t2 + step_s(10, 0), [2])]
    assert (first.cancelled, first.produced) == (True, 0)
    assert second.admitted_s == t2


def test_cancelling_in_mid_decode_takes_the_sequence_out_of_the_step_in_flight() -> None:
    engine = Engine()
    first, second = engine.submit(8, 3), engine.submit(8, 3)
    t1 = step_s(16, 0)
    t2 = t1 + step_s(0, 2)
    engine.run(to=t1 + 0.5)
    engine.cluster.cancel(second, t1 + 0.5)
    engine.cluster.cancel(second, t1 + 0.5)
    assert engine.kv_used == 9
    assert engine.run() == [(t2, [1]), (t2 + step_s(0, 1), [1])]
    assert (first.produced, second.produced, second.cancelled) == (3, 1, True)
    engine.cluster.cancel(first, 100.0)
    assert not first.cancelled  # it had finished


def test_cancelling_a_waiting_request() -> None:
    engine = Engine(max_num_seqs=1)
    engine.submit(8, 1)
    second = engine.submit(8, 1)
    engine.run(to=0.5)
    engine.cluster.cancel(second, 0.5)
    assert engine.run() == [(step_s(8, 0), [1])]
    assert engine.cluster.next_event_time() == float("inf")


def test_a_reading_is_the_changing_part_of_a_snapshot() -> None:
    engine = Engine(kv_tokens=300, max_num_seqs=2, page_size=16)
    for _ in range(4):
        engine.submit(100, 60)
    for to in (0.0, 3.0, 40.0, 90.0, 200.0):
        engine.run(to)
        (reading,), (snapshot,) = engine.cluster.readings(), engine.cluster.snapshot()
        assert reading == tuple(getattr(snapshot, name) for name in reading._fields)
    assert reading.preemptions > 0
    assert reading.busy_s > 0


def test_an_idle_instance_starts_when_work_arrives_again() -> None:
    engine = Engine()
    cancelled = engine.submit(8, 1, now=1.0)
    engine.cluster.cancel(cancelled, 1.0)
    assert engine.cluster.next_event_time() == float("inf")
    engine.submit(8, 1, now=5.0)
    assert engine.run() == [(5.0 + step_s(8, 0), [2])]


def test_a_request_that_can_never_finish_is_refused() -> None:
    engine = Engine(kv_tokens=20)
    engine.submit(15, 6)
    with pytest.raises(ValueError, match=r"15 prompt and 7 output tokens can never finish.*room for 21"):
        engine.submit(15, 7)
    assert len(engine.run()) == 6


def test_limits_that_make_no_sense_are_all_named() -> None:
    with pytest.raises(ValueError, match="kv_tokens must be at least 1, not 0; max_num_seqs must be at least 1, not -1"):
        EngineLimits(kv_tokens=0, max_num_seqs=-1)
    with pytest.raises(ValueError, match="page_size 16 is larger than the KV cache of 8 tokens"):
        EngineLimits(kv_tokens=8, page_size=16)
    with pytest.raises(ValueError, match="max_num_batched_tokens 128 is smaller than max_num_seqs 256"):
        EngineLimits(kv_tokens=1000, max_num_batched_tokens=128)
    assert EngineLimits(kv_tokens=1000, page_size=16).max_request_tokens == 993
    assert EngineLimits(kv_tokens=10_000, enable_chunked_prefill=False).max_request_tokens == 8193
