"""Fast-forward: many consecutive steps in which the same sequences decode, computed together."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from llmirage_server.cluster.instances.arrivals import ArrivalQueue
from llmirage_server.cluster.instances.ranks import Ranks
from llmirage_server.cluster.schedulers import Step
from llmirage_server.cluster.schedulers.summed_batch import ENDLESS, SummedBatch
from llmirage_server.cluster.snapshots import StepSpan
from llmirage_server.perf.steps.steady import StepSums

_TIMED = 48  # steps of a run that are timed at once; then as many more as have been timed: most runs are cut short


class FastForward:
    """The run of such steps that an instance is in; `steps` is 0 if there is none.

    In none of its steps is a request admitted or preempted, and none finishes before the last one ends. Their times and
    tokens are accounted for when they are needed; until then schedulers and batches are unchanged.

    start_s: of the first step.
    ends_s: of the first steps, as far as they have been timed.
    begun, over: steps accounted for as begun and as ended.
    sent: steps whose tokens the front end has.
    event_s: when the run needs to be processed.
    event_steps: steps ended then, or 0: more are to be timed.
    decoding: the batches of ranks that are not empty.
    """

    def __init__(self, ranks: Ranks, sums: StepSums) -> None:
        schedulers, self._gate = ranks.schedulers, ranks.gate
        self._first, self._others = schedulers[0], schedulers[1:]
        self._sums = sums
        self._batches = [scheduler.batch for scheduler in schedulers if isinstance(scheduler.batch, SummedBatch)]
        self._counting = [scheduler for scheduler in schedulers if scheduler.counts_steps]
        self.decoding = self._batches
        self.steps = 0
        self.start_s = self.event_s = math.nan
        self.ends_s: list[float] = []
        self.begun = self.over = self.sent = self.event_steps = 0

    def step_s(self, steps: Sequence[Step]) -> float:
        """Return the seconds of a step that was formed, of every rank."""
        sums, batches = self._sums, self._batches
        if not self._others:
            [step] = steps
            return sums.step_s(step.prefill, sums.load(batches[0]) if step.decodes else ())
        return sums.ranks_s(
            [
                (tuple(step.prefill), sums.load(batch) if step.decodes else ())
                for step, batch in zip(steps, batches, strict=True)
            ]
        )

    def begin(self, now: float) -> bool:
        """Begin a run now, if at least the next step only decodes."""
        steps = 0 if self._gate is not None and self._gate.forms_all else self._first.steady_steps(now)
        if self._others:
            steps = min(steps, *[scheduler.steady_steps(now) for scheduler in self._others])
            self.decoding = [batch for batch in self._batches if batch.decodes]
        if not steps or steps == ENDLESS:
            return False
        self.steps = timed = self.event_steps = steps
        if timed > _TIMED:
            timed, self.event_steps = _TIMED, 0
        self.ends_s = ends_s = self._sums.run(self.decoding, 0, now, timed)
        self.start_s = now
        self.begun = self.over = self.sent = 0
        self.event_s = ends_s[-1]
        return True

    def time_more(self) -> None:
        """Compute the ends of further steps."""
        ends_s = self.ends_s
        timed = len(ends_s)
        ends_s += self._sums.run(self.decoding, timed - self.over, ends_s[-1], min(self.steps - timed, timed))

    def find_event(self, seen_s: float, arrivals: ArrivalQueue | None = None) -> None:
        """Set `event_s`. seen_s: time of a change after which the next step has to be formed.

        arrivals: a request arrives then, which is noticed when its instance looks.
        """
        ends_s = self.ends_s
        if seen_s < math.inf:
            while ends_s[-1] < seen_s and len(ends_s) < self.steps:
                self.time_more()
            if ends_s[-1] >= seen_s:
                over = bisect_left(ends_s, seen_s)
                if arrivals is not None:
                    # not before now: a request may have come long ago for which there was no room
                    over = max(self.over, arrivals.noticed_at(over if seen_s > self.start_s else -1))
                    while len(ends_s) <= over and len(ends_s) < self.steps:
                        self.time_more()
                if over < len(ends_s):
                    self.event_s, self.event_steps = ends_s[over], over + 1
                    return
        self.event_s, self.event_steps = ends_s[-1], len(ends_s) if len(ends_s) == self.steps else 0

    def progress(self, now: float) -> tuple[int, int]:
        """Return how many steps have begun by now, and how many are over. The last one ends at an event of its own."""
        ends_s = self.ends_s
        while ends_s[-1] < now and len(ends_s) < self.steps:
            self.time_more()
        over = min(bisect_right(ends_s, now), self.steps - 1)
        last_s = ends_s[over - 1] if over else self.start_s
        return over + (last_s < now), over

    def account(self, begun: int, over: int, trace: list[StepSpan] | None) -> float:
        """Account for `begun` begun and `over` ended steps in all; return the seconds of those not yet accounted for.

        trace: a list to which they are appended.
        """
        before, ends_s = self.begun, self.ends_s
        steps = begun - before
        ended_s = ends_s[self.over : over]
        for batch in self.decoding:
            batch.pass_steps(steps, ended_s)
        for scheduler in self._counting:
            if scheduler.size:
                scheduler.pass_steps(steps)
        if self._gate is not None and steps:
            self._gate.pass_steps(steps)
        self.begun, self.over = begun, over
        if not steps:
            return 0.0
        start_s = ends_s[before - 1] if before else self.start_s
        if trace is not None:
            decodes = sum([batch.decodes for batch in self.decoding])
            trace.append(StepSpan(start_s, ends_s[begun - 1], steps, 0, decodes))
        return ends_s[begun - 1] - start_s

    def cut(self) -> None:
        """End the run with the step in flight, or at once without one."""
        if self.begun > self.over:
            self.steps = self.begun
            del self.ends_s[self.begun :]
        else:
            self.steps = 0
