"""Step times of a steady batch whose model has sliding windows: `SteadySteps` with what the windows show added.

A context that is shorter than a window grows with every step until it fills it, and counts the same from then on. So while
nobody is below a window, all is as without; else the sums of clipped contexts are worked out for each of the next steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.cluster.instances.steady_batch import SteadyBatch
from llmirage_server.perf.steps.steady import Shown, SteadySteps


class WindowedSteps:
    """The methods of `SteadySteps` that an instance asks, for the steps of this batch from its present one on."""

    def __init__(self, steady: SteadySteps, batch: SteadyBatch) -> None:
        self._steady = steady
        self._batch = batch
        self._widest = steady.windows[-1]

    def step_s(self, prefill: Sequence[tuple[int, int]], decodes: int, context_sum: int, longest: int) -> float:
        shown: Shown = ()
        if decodes and self._batch.shortest < self._widest:
            [shown] = self._shown(self._batch.step, 1)
        return self._steady.step_s(prefill, decodes, context_sum, longest, shown)

    def run(self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, steps: int) -> None:
        batch = self._batch
        later = longest - batch.longest  # steps between the present one and the first of these
        if batch.shortest + later >= self._widest:
            self._steady.run(ends, decodes, context_sum, longest, start_s, steps)
        else:
            shown = self._shown(batch.step + later, steps)
            self._steady.run_shown(ends, decodes, context_sum, longest, start_s, shown)

    def _shown(self, first: int, steps: int) -> list[Shown]:
        """What the windows show at each of so many steps from the first one."""
        batch = self._batch
        longest = batch.longest + first - batch.step
        columns = []
        for window in self._steady.windows:
            columns.append(self._clipped(window, first, steps))
            columns.append([min(longest + step, window) for step in range(steps)])
        return list(zip(*columns, strict=True))

    def _clipped(self, window: int, first: int, steps: int) -> list[int]:
        """The sum of all contexts clipped to a window, at each of so many steps."""
        batch = self._batch
        growth = [0] * (steps + 1)  # by how much the sum grows more than in the step before
        total = window * batch.size
        for base, sequences in batch.bases():
            below = window - (first - base)
            if below > 0:
                total -= sequences * below
                growth[0] += sequences
                if below < steps:
                    growth[below] -= sequences
        sums, grows = [], 0
        for change in growth[:steps]:
            sums.append(total)
            grows += change
            total += grows
        return sums
