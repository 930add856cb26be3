"""What sliding windows show of a steady batch, against clipping every context by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_server.cluster.instances.steady_batch import SteadyBatch
from llmirage_server.cluster.instances.windowed_steps import WindowedSteps
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.request import Request

pytestmark = pytest.mark.interpreted  # `Asked` is no SteadySteps


class Asked:
    """Stands for `SteadySteps` and writes down what it is asked: the sums of each step, and what its windows show."""

    windows = (4, 10)

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, tuple[int, ...]]] = []

    def step_s(self, prefill: Any, decodes: int, context_sum: int, longest: int, shown: tuple[int, ...]) -> float:
        self.steps.append((decodes, context_sum, longest, shown))
        return 1.0

    def run(self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, steps: int) -> None:
        self.run_shown(ends, decodes, context_sum, longest, start_s, [()] * steps)

    def run_shown(self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, shown: Any) -> None:
        self.steps += [(decodes, context_sum + i * decodes, longest + i, seen) for i, seen in enumerate(shown)]


def shown(contexts: list[int]) -> tuple[int, ...]:
    """By hand: of the windows of 4 and of 10 tokens."""
    if min(contexts) >= 10:
        return ()
    narrow, wide = ([min(context, window) for context in contexts] for window in (4, 10))
    return sum(narrow), max(narrow), sum(wide), max(wide)


@settings(max_examples=100, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    before=st.integers(0, 5),
    later=st.integers(0, 5),
    steps=st.integers(1, 15),
)
def test_windows_show_what_they_show_of_each_context(contexts: list[int], before: int, later: int, steps: int) -> None:
    batch, asked = SteadyBatch(16), Asked()
    batch.step = 70
    for number, context in enumerate(contexts):
        request = Request(number, np.zeros(context, dtype=np.int32), np.zeros(50, dtype=np.int32))
        request.produced = 1  # so that its context in the next step is the prompt
        batch.join(Sequence(request), 69)
    batch.step += before  # as after steps in which all of them had a token
    batch.context_sum += before * batch.size
    at = [[context + before + step for context in contexts] for step in range(later + steps)]

    timing = WindowedSteps(asked, batch)  # type: ignore[arg-type]
    assert timing.step_s([], batch.size, batch.context_sum, batch.longest) == 1.0
    timing.run([], batch.size, sum(at[later]), max(at[later]), 0.0, steps)
    wanted = [(len(each), sum(each), max(each), shown(each)) for each in [at[0], *at[later:]]]
    # Where nobody is below a window, to say what they show says no more than to say nothing.
    full = (4 * len(contexts), 4, 10 * len(contexts), 10)
    assert [(*sums, () if seen == full else seen) for *sums, seen in asked.steps] == wanted


def test_windows_show_nothing_of_an_empty_batch() -> None:
    asked = Asked()
    timing = WindowedSteps(asked, SteadyBatch(16))  # type: ignore[arg-type]
    timing.step_s([(5, 0)], 0, 0, 0)
    assert asked.steps == [(0, 0, 0, ())]
