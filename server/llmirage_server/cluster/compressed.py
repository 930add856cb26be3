"""An instance that runs through steady decoding in one go: for simulations, where nobody waits for single tokens.

It does what `Instance` with the rules of vLLM does, at the same times to the last bit; but while the same sequences decode,
it keeps sums instead of looking at each of them (steady_batch.py), and finds the times of all steps up to the next event in
one loop (perf/steady.py). What is rare goes the plain way: when memory runs out or a request is cancelled, the batch is
dissolved into the scheduler's sequences, and formed again when that is over.

What others may see of it:

- `advance` tells of requests that have finished, not of single tokens: when these came is in `Request.spans`.
- `next_event_time` may be earlier than the event: steps only get longer while the same sequences decode, so that the first
  of them says how early the last can end. `advance` then finds out, and returns None.
- What can be read (KV, counters, a request's produced tokens) may be behind the present until `reach` is called.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from typing import Any

from llmirage_server.cluster.instance import Instance, StepSpan
from llmirage_server.cluster.instance_base import Role
from llmirage_server.cluster.kv_cache import Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, Span, StepEnd
from llmirage_server.cluster.schedulers.base import Step
from llmirage_server.cluster.schedulers.vllm import VllmScheduler
from llmirage_server.cluster.steady_batch import SteadyBatch
from llmirage_server.perf.steady import SteadySteps
from llmirage_server.perf.step_model import StepBatch

_SURE = 1.0 - 1e-9  # of a sum of equal steps: rounding must not make it later than what it is a bound of


def can_compress(step_model: object, limits: EngineLimits, role: Role, tiers: int) -> bool:
    """Whether the rules of an instance are those that `CompressedInstance` knows."""
    return (
        getattr(step_model, "steady", None) is not None
        and limits.scheduler == "vllm"
        and limits.schedule_policy == "fcfs"
        and not limits.long_prefill_token_threshold
        and not limits.num_speculative_tokens
        and limits.max_num_batched_tokens >= limits.max_num_seqs
        and role == "both"
        and not tiers
    )


class CompressedInstance(Instance):
    """ends_s: when each step ended, in order; the last one may be still in flight."""

    def __init__(self, index: int, step_model: Any, limits: EngineLimits, *, front_end_s: float = 0.0) -> None:
        super().__init__(index, step_model, limits, front_end_s=front_end_s)
        self.ends_s = array("d")
        self._steady: SteadySteps = step_model.steady
        scheduler = self.schedulers[0]
        assert isinstance(scheduler, VllmScheduler)
        self._scheduler = scheduler
        self._kv = self._scheduler.kv
        self._batch = SteadyBatch(limits.page_size)
        self._formed = True  # the decoding sequences are in the batch; else in the scheduler's own way
        self._flight: Step | None = None  # the step under way, while formed; decodes of the batch not listed
        self._flight_s = math.inf  # and its end
        self._run_start_s = math.nan  # of the first step that is not yet settled, while a run of decoding steps is under way
        self._run_steps = 0  # how many it may have
        self._run_bound_s = math.inf  # not later than its end; exact when `_run_found`
        self._run_found = False
        self._run_ends: list[float] = []  # of its first steps, as far as they were asked for

    # --- what the cluster asks ---

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._arriving)

    @property
    def requests(self) -> tuple[int, int]:
        scheduler = self._scheduler
        return len(scheduler.waiting) + len(self._arriving), len(scheduler.running)

    def reach(self, now: float) -> None:
        if self._formed:
            self._settle(now)

    def evacuate(self) -> list[Request]:
        if self._formed:
            self._dissolve()
        lost = super().evacuate()
        self._form()
        return lost

    def cancel(self, request: Request, now: float) -> None:
        if self._formed:
            self._settle(now)
            self._dissolve()
        super().cancel(request, now)

    def next_event_time(self) -> float:
        if not self._formed:
            return super().next_event_time()
        if self._run_steps:
            event_s = self._run_bound_s
        elif self._flight is not None:
            event_s = self._flight_s
        else:
            event_s = math.nextafter(self._next_start_s(), math.inf)
        return min(event_s, self._arriving[0][0]) if self._arriving else event_s

    def advance(self) -> StepEnd | None:
        if not self._formed:
            return super().advance()
        arrival_s = self._arriving[0][0] if self._arriving else math.inf
        if self._run_steps:
            if arrival_s < self._run_bound_s:
                return self._take_arrival()
            if self._run_found:
                return self._end_run()
            return self._find_run()
        if self._flight is not None:
            return self._take_arrival() if arrival_s < self._flight_s else self._end_flight(self._flight)
        start_s = self._next_start_s()
        if arrival_s <= math.nextafter(start_s, math.inf):
            return self._take_arrival()
        self._begin(start_s)
        return None

    # --- time ---

    def _take_arrival(self) -> StepEnd | None:
        now, scheduler, sequence = self._arriving.pop(0)
        self._wake(now)
        scheduler.add(sequence)
        return None

    def _wake(self, now: float) -> None:
        if self._formed:
            self._settle(now)
        super()._wake(now)

    def _next_start_s(self) -> float:
        if not self._formed:
            return super()._next_start_s()
        return math.inf if self._stalled or not self._scheduler.has_work else self._start_s

    def _begin(self, start_s: float) -> None:
        if not self._formed:
            super()._begin(start_s)
            return
        self._start_s = start_s
        if not (self._begin_run(start_s) if self._steady_now else self._begin_step(start_s)):
            self._dissolve()
            super()._begin(start_s)

    @property
    def _steady_now(self) -> bool:
        """Whether the next step is one of decoding sequences alone."""
        scheduler, size = self._scheduler, self._batch.size
        return size > 0 and not scheduler.prefilling and not (scheduler.waiting and scheduler.may_admit(size))

    def _go_on(self, now: float, alone: bool) -> None:
        """After a step: begin the next one at once, where nothing can come of this very moment that would be part of it.

        A run may always begin: nothing is settled of it before time goes on. A step with prompts may if the front end holds
        back whoever is submitted now, and `alone`: if nobody has finished, to whom a client could answer at once.
        """
        self._start_s = now
        if self._arriving and self._arriving[0][0] <= now:
            return
        if self._steady_now:
            self._begin_run(now)
        elif alone and self._front_end_s and self._scheduler.has_work:
            self._begin(now)

    def _begin_step(self, start_s: float) -> bool:
        """Form a step that may have prompts in it; False if running sequences find no memory."""
        batch = self._batch
        step = Step()
        if not self._scheduler.form_beside(step, batch.size, batch.pages(), start_s):
            return False
        if not batch.size and not step.prefill:
            self._stalled = True
            return True
        longest = batch.longest if batch.size else 0
        end_s = start_s + self._steady.step_s(step.prefill, batch.size, batch.context_sum, longest)
        self.ends_s.append(end_s)
        self._busy_s += end_s - start_s
        if self.trace is not None:
            self.trace.append(StepSpan(start_s, end_s, 1, sum([chunk[0] for chunk in step.prefill]), batch.size))
        self._fly(step, end_s)
        return True

    def _fly(self, step: Step, end_s: float) -> None:
        self._flight, self._flight_s = step, end_s
        self._start_s = end_s
        self._stalled = False

    def _end_flight(self, step: Step) -> StepEnd | None:
        """The end of a step that may have had prompts in it."""
        scheduler, batch, now = self._scheduler, self._batch, self._flight_s
        self._flight = None
        self._kv.now_s = now
        for sequence in step.prefill_sequences:
            self._kv.commit(sequence)
        batch.advance()
        finished = self._take_done()
        for sequence in step.sequences:
            scheduler.prefilling.discard(sequence)
            request = sequence.request
            if not request.produced:
                request.first_token_s = now
            sequence.tokens += 1
            request.produced += 1
            if sequence.tokens == sequence.max_tokens:
                request.spans.append((self.ends_s, batch.step - 1, batch.step - 1))
                finished.append(sequence)
            else:
                batch.join(sequence, batch.step - 1)
        end = self._finish(finished, now) if finished else None
        self._go_on(now, end is None)
        return end

    # --- runs of decoding steps ---

    def _begin_run(self, start_s: float) -> bool:
        """Let the batch decode until someone is done, or as long as there is memory; False if there is none."""
        batch, kv = self._batch, self._kv
        pages = (kv.free_tokens + kv.tree.evictable_tokens) // kv.page_size
        steps = batch.steps_within(pages, batch.next_last - batch.step + 1)
        if not steps:
            return False
        self._run_start_s, self._run_steps = start_s, steps
        self._run_ends = []
        self._run_to(math.inf, 1)
        first_s = self._run_ends[0]
        self._run_found = steps == 1
        self._run_bound_s = first_s if steps == 1 else start_s + steps * (first_s - start_s) * _SURE
        self._stalled = False
        return True

    def _run_to(self, until_s: float, steps: int) -> None:
        """Find the ends of the run's steps until one is not before `until_s`, of `steps` steps more at most."""
        ends, batch = self._run_ends, self._batch
        done = len(ends)
        start_s = ends[-1] if ends else self._run_start_s
        context_sum = batch.context_sum + done * batch.size
        self._steady.run(ends, batch.size, context_sum, batch.longest + done, start_s, steps, until_s)

    def _find_run(self) -> StepEnd | None:
        """Find out when the run ends."""
        self._run_to(math.inf, self._run_steps - len(self._run_ends))
        self._run_found = True
        self._run_bound_s = self._run_ends[-1]
        return None

    def _end_run(self) -> StepEnd | None:
        now, steps = self._run_ends[-1], self._run_steps
        self._run_steps = 0
        self._count_steps(steps, steps)
        finished = self._take_done()
        end = self._finish(finished, now) if finished else None
        self._go_on(now, end is None)
        return end

    def _settle(self, now: float) -> None:
        """End the run at `now`: its steps so far are over, and one may be under way."""
        if not self._run_steps:
            return
        ends = self._run_ends
        if ends[-1] < now:
            self._run_to(now, self._run_steps - len(ends))
        over = min(bisect_right(ends, now), self._run_steps - 1)  # the last step has an event of its own
        last_s = ends[over - 1] if over else self._run_start_s
        self._run_steps = 0
        self._start_s = last_s
        under_way = last_s < now
        self._count_steps(over, over + under_way)
        if under_way:
            self._fly(Step(), ends[over])

    def _count_steps(self, over: int, formed: int) -> None:
        """So many steps of the run are over, and so many have their memory."""
        if not formed:
            return
        ends, batch = self._run_ends, self._batch
        self._kv.take_pages(batch.pages(formed))
        self.ends_s.extend(ends if formed == len(ends) else ends[:formed])
        self._busy_s += ends[formed - 1] - self._run_start_s
        if self.trace is not None:
            self.trace.append(StepSpan(self._run_start_s, ends[formed - 1], formed, 0, batch.size))
        batch.advance(over)

    # --- coming and going ---

    def _take_done(self) -> list[Sequence]:
        """Those whose last token came with the step that is over, out of the batch."""
        finished = []
        for member in self._batch.take_done():
            member.sequence.request.spans.append((self.ends_s, member.first, member.last))
            finished.append(member.sequence)
        return finished

    def _finish(self, finished: list[Sequence], now: float) -> StepEnd:
        scheduler = self._scheduler
        for sequence in finished:
            scheduler.running.remove(sequence)
            sequence.request.finished_s = now
            self._kv.finish(sequence)
            del self._sequences[sequence.request]
        return StepEnd(now, self.index, [sequence.request for sequence in finished])

    def batches(self) -> list[StepBatch]:
        if not self._formed:
            return super().batches()
        size = self._batch.size
        if self._flight is None and not self._run_steps:
            return []
        prefill = self._flight.prefill if self._flight is not None else ()
        return [StepBatch(prefill, [self._batch.context_sum // size] * size if size else [])]

    def _dissolve(self) -> None:
        """From sums to sequences: the plain way from here on."""
        self._formed = False
        step, batch = self._flight, self._batch
        members = batch.dissolve(step is not None)
        for member in members:
            if member.first < batch.step:
                member.sequence.request.spans.append((self.ends_s, member.first, batch.step - 1))
        if step is not None:
            self._flight = None
            self.ends_s.pop()  # until it has really ended
            step.sequences[:0] = [member.sequence for member in members]
            self._free_s[0] = self._flight_s
            self._flights.append((self._flight_s, [step]))

    def _form(self) -> None:
        """From sequences to sums, if no step is under way and there is memory for some time."""
        scheduler, batch, kv = self._scheduler, self._batch, self._kv
        decoding = len(scheduler.running) - len(scheduler.prefilling)
        room = kv.free_tokens + kv.tree.evictable_tokens
        if self._flights or room < decoding * kv.page_size or not scheduler.prompts_last(decoding):
            return
        self._formed = True
        for sequence in scheduler.running[:decoding]:
            batch.join(sequence, batch.step)

    def _end(self, end_s: float, steps: list[Step]) -> StepEnd | None:
        """The end of a step that went the plain way."""
        end = super()._end(end_s, steps)
        self.ends_s.append(end_s)
        number = self._batch.step
        self._batch.step += 1
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
