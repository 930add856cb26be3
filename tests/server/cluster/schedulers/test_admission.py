"""Nobody waits who could run: every engine admits the head of the queue while memory, a slot and the budget are free."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_models import ConstantStep

from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.schedulers import Scheduler, Step

PROMPTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.03, 0.2]), st.integers(1, 60), st.integers(1, 12)), min_size=3, max_size=16
)


def _missed(scheduler: Scheduler, step: Step, preempted: bool) -> bool:
    """Whether a step starts nobody though the head of the queue fits, whatever those who run may still need."""
    limits, waiting = scheduler.limits, scheduler.waiting
    if step.prefill or preempted or scheduler.prefilling or not waiting or scheduler.size >= limits.max_num_seqs:
        return False
    page, head = scheduler.kv.page_size, waiting[0]
    needed = sum(page + each.max_tokens for each in (*scheduler.running, head)) + (scheduler.size + 2) * page
    budget = limits.max_num_batched_tokens - step.decodes
    least = page if limits.enable_chunked_prefill else head.tokens
    return needed <= scheduler.kv.capacity_tokens and budget >= least


WAITS: dict[str, dict[str, Any]] = {
    "sglang": {"prefill_decode_interval": 3},
    "trtllm": {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.9},
}


@pytest.mark.parametrize(("engine", "waits"), [("vllm", 0), ("sglang", 0), ("trtllm", 0), ("sglang", 3), ("trtllm", 3)])
@given(arrivals=PROMPTS, data=st.data())
def test_admission_never_stalls_with_room(
    engine: str, waits: int, arrivals: list[tuple[float, int, int]], data: Any
) -> None:
    """waits: for how many steps at most prompts are held back on purpose."""
    page = data.draw(st.sampled_from([1, 4, 8]), "page")
    seqs = data.draw(st.integers(1, 12), "slots")
    limits = EngineLimits(
        kv_tokens=data.draw(st.integers(80 // page + 1, 500 // page)) * page,
        page_size=page,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, page) + data.draw(st.integers(60, 120)),
        enable_prefix_caching=data.draw(st.booleans()),
        enable_chunked_prefill=data.draw(st.booleans()),
        scheduler=engine,
        **(WAITS[engine] if waits else {}),
    )
    instance = Instance(0, ConstantStep(0.01), limits)
    [scheduler] = instance.schedulers
    schedule, stalls, longest = scheduler.schedule, [], 0

    def watched(now: float) -> Step:
        nonlocal longest
        before = scheduler.preemptions
        step = schedule(now)
        if _missed(scheduler, step, scheduler.preemptions > before):
            stalls.append((now, [each.tokens for each in scheduler.waiting], scheduler.kv.room_tokens))
        else:
            stalls.clear()
        longest = max(longest, len(stalls))
        return step

    scheduler.schedule = watched  # type: ignore[method-assign]
    now = 0.0
    for i, (gap, prompt, output) in enumerate(arrivals):
        now += gap
        while instance.next_event_s <= now:
            instance.advance()
        tokens = np.arange(100 * i, 100 * i + prompt + output, dtype=np.int32)
        instance.submit(Request(i, tokens[:prompt], tokens[prompt:]), now)
    while instance.unfinished:
        instance.advance()
    assert longest <= waits


def test_a_prompt_that_does_not_fit_holds_up_nobody_ahead_of_it() -> None:
    """TensorRT-LLM without prefix caching: the head had no block left of the step's budget, the next one no memory."""
    limits = EngineLimits(
        kv_tokens=120,
        page_size=8,
        max_num_seqs=8,
        max_num_batched_tokens=44,
        enable_prefix_caching=False,
        scheduler="trtllm",
    )
    instance = Instance(0, ConstantStep(0.01), limits)
    requests = [Request(i, np.zeros(n, np.int32), np.zeros(8, np.int32)) for i, n in enumerate((40, 8, 60))]
    for request in requests:
        instance.submit(request, 0.0)
    while instance.unfinished:
        instance.advance()
    assert requests[1].admitted_s == pytest.approx(0.01)  # the second step, not the end of the first request
