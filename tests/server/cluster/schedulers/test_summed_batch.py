"""A batch known by sums: what it says of its contexts, against the contexts themselves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, Sequence
from llmirage_server.cluster.schedulers.batch import Step
from llmirage_server.cluster.schedulers.summed_batch import SummedBatch


def decoding(contexts: list[int]) -> tuple[SummedBatch, list[Sequence]]:
    """A batch whose sequences have these contexts in its next step."""
    kv = KVCache(EngineLimits(kv_tokens=10_000))
    batch, step = SummedBatch(kv, reserves=True), Step()
    for number, context in enumerate(contexts):
        request = Request(number, np.zeros(context, dtype=np.int32), np.zeros(50, dtype=np.int32))
        sequence = Sequence(request)
        sequence.admission, sequence.computed, sequence.expected = number + 1, context, context + 50
        step.prompts_done.append(sequence)
    assert batch.advance(step, 0.0, [], False) is None  # the first tokens come with the prompts
    return batch, step.prompts_done


@given(
    contexts=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    before=st.integers(0, 5),
    later=st.integers(0, 5),
    steps=st.integers(1, 15),
    window=st.sampled_from([4, 10]),
)
def test_windows_clip_each_context_by_itself(contexts: list[int], before: int, later: int, steps: int, window: int) -> None:
    batch, _ = decoding(contexts)
    batch.pass_steps(before, [float(step) for step in range(before)])
    now = [context + before for context in contexts]
    assert (batch.decodes, batch.context_sum, batch.longest(), batch.shortest()) == (len(now), sum(now), max(now), min(now))
    assert batch.clipped(window, later, steps) == [
        sum(min(context + later + step, window) for context in now) for step in range(steps)
    ]


@given(
    contexts=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    passed=st.integers(0, 40),
    most=st.integers(0, 60),
    gone=st.integers(0, 7),
)
def test_sums_are_those_of_the_sequences_themselves(contexts: list[int], passed: int, most: int, gone: int) -> None:
    batch, sequences = decoding(contexts)
    batch.pass_steps(passed, [float(step) for step in range(passed)])
    left = batch.in_order()
    assert left == sequences
    if gone < len(sequences):
        batch.remove(left.pop(gone))
    assert [(each.computed, each.tokens) for each in left] == [
        (context + passed, context + passed + 1) for number, context in enumerate(contexts) if number != gone
    ]
    assert batch.tokens_to_come(most) == sum(min(each.expected - each.tokens, most) for each in left)
    assert batch.promised_tokens() == sum(each.expected - each.computed for each in left)
    assert batch.take_done() == []


def test_an_empty_batch_has_no_contexts() -> None:
    batch, [only] = decoding([7])
    batch.refresh(only)
    batch.remove(only)
    assert (batch.decodes, batch.context_sum, batch.longest(), batch.shortest()) == (0, 0, 0, 0)
    assert batch.contexts(None) == []
