"""An instance whose decoding sequences are kept either by sums or by the scheduler, and the ways from one to the other.

*Formed*, they are in a `SteadyBatch` and their own fields stand still; the scheduler still has the queue and the prompts
(`Scheduler.form_beside`), and whoever inherits from here finds the times of steps. *Dissolved*, all is as in `Instance`, one
step after the other: what is rare or difficult goes this way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from array import array
from typing import Any

from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.instances.steady_batch import ReservingBatch, SteadyBatch
from llmirage_server.cluster.instances.windowed_steps import WindowedSteps
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Span, StepEnd
from llmirage_server.cluster.schedulers.base import Step
from llmirage_server.perf.steps.steady import SteadySteps
from llmirage_server.perf.steps.step_model import StepBatch


class TwoWayInstance(Instance):
    """ends_s: when each step ended in which all decoding sequences had a token, in order; the last may be still in flight.

    prompt_ends_s: the same of steps with prompts alone during which a batch stood still, as it does in SGLang.
    """

    unfinished = 0  # kept up to date here: routers ask every instance for every request
    load = 0

    def __init__(self, index: int, step_model: Any, limits: EngineLimits, *, front_end_s: float = 0.0) -> None:
        super().__init__(index, step_model, limits, front_end_s=front_end_s)
        self.ends_s = array("d")
        self.prompt_ends_s = array("d")
        self._scheduler = self.schedulers[0]
        self._kv = self._scheduler.kv
        self._counts_steps = self._scheduler.counts_steps
        self._batch = batch = (ReservingBatch if self._scheduler.reserves else SteadyBatch)(limits.page_size)
        steady: SteadySteps = step_model.steady
        self._steady = WindowedSteps(steady, batch) if steady.windows else steady
        self._formed = True
        self._flight: Step | None = None  # the step under way, while formed; decodes of the batch not listed
        self._flight_s = math.inf  # and its end
        self._standing = False  # whether the batch stands still in it
        self._run_steps = 0  # how many steps the run of decoding steps may have that is under way, while formed

    def _count(self) -> None:
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting) + len(self._arriving)
        self.unfinished = waiting + running
        self.load = 4 * waiting + running

    @abstractmethod
    def _aim(self) -> None:
        """Find the next event; while not formed, nobody asks for it."""

    def _finish(self, done: list[tuple[Sequence, int, int]], now: float, ends_s: array[float]) -> StepEnd:
        """Let go of sequences that have all their tokens; with each come the steps of its first and its last one."""
        scheduler, kv = self._scheduler, self._kv
        running = scheduler.running
        requests = []
        for sequence, first, last in done:
            request = sequence.request
            request.spans.append((ends_s, first, last))
            request.finished_s = now
            running.remove(sequence)
            kv.finish(sequence)
            del self._sequences[request]
            requests.append(request)
        if self._counts_steps:
            scheduler.let_go()
        self.unfinished -= len(done)
        self.load -= len(done)
        return StepEnd(now, self.index, requests)

    def batches(self) -> list[StepBatch]:
        if not self._formed:
            return super().batches()
        if self._flight is None and not self._run_steps:
            return []
        size = 0 if self._standing else self._batch.size
        prefill = self._flight.prefill if self._flight is not None else ()
        return [StepBatch(prefill, [self._batch.context_sum // size] * size if size else [])]

    def _dissolve(self) -> None:
        """From sums to sequences, when no step is under way: the plain way from here on."""
        self._formed = False
        for sequence, first in self._batch.dissolve():
            self._note_span(sequence, first)

    def _lose_flight(self) -> None:
        """The step under way will never end."""
        if self._flight is not None:
            (self.prompt_ends_s if self._standing else self.ends_s).pop()
            self._flight, self._standing = None, False

    def _leave_batch(self, sequence: Sequence) -> None:
        """One that is about to be cancelled is taken out of the batch and of the step under way."""
        batch, step = self._batch, self._flight
        if step is not None and sequence in step.sequences:
            step.sequences.remove(sequence)
        elif member := batch.find(sequence):
            self._note_span(*batch.drop(member, step is not None and not self._standing))

    def _note_span(self, sequence: Sequence, first: int) -> None:
        """Somebody has left the batch who had joined it with this step."""
        if first < self._batch.step:
            sequence.request.spans.append((self.ends_s, first, self._batch.step - 1))

    def _form(self) -> None:
        """From sequences to sums, if no step is under way and there is memory for some time."""
        scheduler, batch, kv = self._scheduler, self._batch, self._kv
        decoding = len(scheduler.running) - len(scheduler.prefilling)
        if self._flights or kv.room_tokens < decoding * kv.page_size or not scheduler.prompts_last(decoding):
            return
        self._formed = True
        ends_s, last = self.ends_s, batch.step - 1
        for sequence in scheduler.running[:decoding]:
            spans = sequence.request.spans
            goes_on = spans and spans[-1][2] == last and spans[-1][0] is ends_s
            batch.join(sequence, spans.pop()[1] if goes_on else batch.step)
        self._aim()

    def _end(self, end_s: float, steps: list[Step]) -> StepEnd | None:
        """The end of a step that went the plain way."""
        end = super()._end(end_s, steps)
        self.ends_s.append(end_s)
        number, self._batch.step = self._batch.step, self._batch.step + 1
        finished = []
        for request in end.emitted if end is not None else ():
            spans: list[Span] = request.spans
            if spans and spans[-1][0] is self.ends_s and spans[-1][2] == number - 1:
                spans[-1] = (self.ends_s, spans[-1][1], number)
            else:
                spans.append((self.ends_s, number, number))
            if not math.isnan(request.finished_s):
                finished.append(request)
        self._form()
        return StepEnd(end_s, self.index, finished) if finished else None
