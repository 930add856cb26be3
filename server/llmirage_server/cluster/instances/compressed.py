"""An instance that runs through steady decoding in one go: for simulations, where nobody waits for single tokens.

It does what `Instance` does, at the same times to the last bit; but while the same sequences decode, it keeps sums instead
of looking at each of them (steady_batch.py), and finds the times of all steps up to the next event in one loop
(perf/steady.py). What is rare goes the plain way (two_ways.py): where memory runs out while prompts are computed, or
priorities say who gives way, the batch is dissolved into the scheduler's sequences, and formed again afterwards.

What others may see of it:

- `advance` tells of requests that have finished, not of single tokens: when these came is in `Request.spans`.
- Whoever arrives during a run is taken up at the end of the step that is under way then: that end is the next event. A long
  run is found out part by part, and the end of a part is an event at which `advance` returns None.
- What can be read (KV, counters, a request's produced tokens) may be behind the present until `reach` is called.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

from llmirage_server.cluster.instances.instance import StepSpan
from llmirage_server.cluster.instances.two_ways import TwoWayInstance
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.schedulers.base import Step

_LOOK_AHEAD = 64  # steps of a run that are worked out together: more might be in vain


class CompressedInstance(TwoWayInstance):
    """While formed, it is in one of three states: in a run of decoding steps (`_run_steps`), in a step that has prompts or
    that an onlooker cut out of a run (`_flight`), or waiting for the next step to begin.
    """

    def __init__(self, index: int, step_model: Any, limits: EngineLimits, *, front_end_s: float = 0.0) -> None:
        super().__init__(index, step_model, limits, front_end_s=front_end_s)
        self._event_s = math.inf  # the next event, while formed
        self._event_steps = 0  # how many steps of the run are over then; 0: no more of them are known yet
        self._run_start_s = math.nan  # of the first step that is not yet settled, while a run of decoding steps is under way
        self._run_ends: list[float] = []  # of its first steps, as far as they were looked for

    # --- what the cluster asks ---

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._arriving)

    def submit(self, request: Request, now: float) -> None:
        super().submit(request, now)
        self.unfinished += 1
        self.load += 4
        self._aim()

    def reach(self, now: float) -> None:
        if self._formed:
            self._settle(now)
            self._aim()

    def evacuate(self) -> list[Request]:
        if self._formed:
            self._lose_flight()
            self._dissolve()
        lost = super().evacuate()
        self._form()
        self._count()
        return lost

    def cancel(self, request: Request, now: float) -> None:
        if self._formed:
            self._settle(now)
            self._leave_batch(self._sequences[request][1])
        super().cancel(request, now)
        self._aim()
        self._count()

    def next_event_time(self) -> float:
        return self._event_s if self._formed else super().next_event_time()

    def advance(self) -> StepEnd | None:
        if not self._formed:
            end = super().advance()
            self._count()
            return end
        if self._run_steps:
            return self._end_run(self._event_s)
        if self._flight is not None:
            return self._end_flight(self._flight)
        start_s = self._next_start_s()
        if self._arriving and self._arriving[0][0] <= math.nextafter(start_s, math.inf):
            self._wake(self._arriving[0][0])
            self._aim()
        else:
            self._begin(start_s)
        return None

    # --- time ---

    def _aim(self) -> None:
        """Find the next event; while not formed, nobody asks for it."""
        arriving = self._arriving
        if self._run_steps:
            ends = self._run_ends
            scheduler = self._scheduler
            # Behind somebody who waits, and in a full batch, an arrival changes nothing.
            if arriving and (not scheduler.waiting or scheduler.overtaking) and len(scheduler.running) < scheduler.full_from:
                seen_s = arriving[0][0]
                while ends[-1] < seen_s and len(ends) < self._run_steps:
                    self._look_ahead()
                if ends[-1] >= seen_s:
                    over = bisect_left(ends, seen_s)
                    self._event_s, self._event_steps = ends[over], over + 1
                    return
            self._event_s = ends[-1]
            self._event_steps = len(ends) if len(ends) == self._run_steps else 0
        elif self._flight is not None:
            self._event_s = self._flight_s
        else:
            event_s = math.nextafter(self._next_start_s(), math.inf)
            self._event_s = min(event_s, arriving[0][0]) if arriving else event_s

    def _take_arrivals(self, now: float) -> None:
        """Those whom the front end has let go by now are seen."""
        arriving, scheduler = self._arriving, self._scheduler
        while arriving and arriving[0][0] <= now:
            scheduler.add(arriving.pop(0)[2])

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
        batch, scheduler = self._batch, self._scheduler
        self._start_s = start_s
        steady = batch.size and not scheduler.prefilling and not (scheduler.waiting and scheduler.may_admit(batch.size))
        if not (self._begin_run(start_s) if steady else self._begin_step(start_s)):
            self._begin_apart(start_s)

    def _begin_apart(self, start_s: float) -> None:
        """Form a step for which somebody must give way for want of memory."""
        batch = self._batch
        if gone := self._scheduler.give_way(batch):
            for sequence, first in gone:
                self._note_span(sequence, first)
            self._launch(Step(), batch.size, start_s)
        else:
            self._dissolve()
            super()._begin(start_s)
            self._count()

    def _go_on(self, now: float, alone: bool) -> None:
        """After a step: begin the next one at once, where nothing can come of this very moment that would be part of it.

        A run may always begin: nothing is settled of it before time goes on. A step with prompts may if the front end holds
        back whoever is submitted now, and `alone`: if nobody has finished, to whom a client could answer at once.
        """
        batch, scheduler = self._batch, self._scheduler
        self._start_s = now
        if batch.size and not scheduler.prefilling and not (scheduler.waiting and scheduler.may_admit(batch.size)):
            if not self._begin_run(now):
                self._aim()
        elif alone and self._front_end_s and scheduler.has_work:
            if not self._begin_step(now):
                self._begin_apart(now)
        else:
            self._aim()

    # --- steps that may have prompts ---

    def _begin_step(self, start_s: float) -> bool:
        """Form a step that may have prompts in it, or stall; False if running sequences find no memory."""
        batch = self._batch
        step = Step()
        decodes = self._scheduler.form_beside(step, batch, start_s)
        if decodes is None:
            return False
        if not decodes and not step.prefill:
            self._stalled = True
            self._aim()
        else:
            self._launch(step, decodes, start_s)
        return True

    def _launch(self, step: Step, decodes: int, start_s: float) -> None:
        """A step begins, with so many of the batch."""
        batch = self._batch
        end_s = start_s + self._steady.step_s(step.prefill, decodes, batch.context_sum, batch.longest)
        if decodes or not batch.size:
            self.ends_s.append(end_s)
        else:
            self._standing = True
            self.prompt_ends_s.append(end_s)
        self._busy_s += end_s - start_s
        if self.trace is not None:
            self.trace.append(StepSpan(start_s, end_s, 1, sum([chunk[0] for chunk in step.prefill]), decodes))
        self._fly(step, end_s)
        self.load = 4 * self.unfinished - 3 * len(self._scheduler.running)  # some wait no longer

    def _fly(self, step: Step, end_s: float) -> None:
        self._flight = step
        self._flight_s = self._start_s = self._event_s = end_s
        self._stalled = False

    def _end_flight(self, step: Step) -> StepEnd | None:
        """The end of a step that may have had prompts in it."""
        scheduler, batch, arriving, now = self._scheduler, self._batch, self._arriving, self._flight_s
        if arriving and arriving[0][0] <= now:
            self._take_arrivals(now)
        self._flight = None
        self._kv.now_s = now
        for sequence in step.prefill_sequences:
            self._kv.commit(sequence)
        if self._standing:
            end = self._end_prompts(step, now)
        else:
            number = batch.step
            batch.step = number + 1
            batch.context_sum += batch.size
            done = batch.take_done() if batch.next_last == number else []
            decoded = len(done)
            for sequence in step.sequences:
                if self._was_last_token(sequence, now):
                    done.append((sequence, number, number))
                else:
                    batch.join(sequence, number)
            if decoded and scheduler.prompts_first:
                done = done[decoded:] + done[:decoded]
            end = self._finish(done, now, self.ends_s) if done else None
        self._go_on(now, end is None)
        return end

    def _end_prompts(self, step: Step, now: float) -> StepEnd | None:
        """The end of a step during which the batch stood still: its end is in no row with those of the batch."""
        self._standing = False
        batch, ends_s = self._batch, self.prompt_ends_s
        number = len(ends_s) - 1
        done = []
        for sequence in step.sequences:
            if self._was_last_token(sequence, now):
                done.append((sequence, number, number))
            else:
                sequence.request.spans.append((ends_s, number, number))
                batch.join(sequence, batch.step)
        return self._finish(done, now, ends_s) if done else None

    def _was_last_token(self, sequence: Sequence, now: float) -> bool:
        """The prompt is computed, and has brought a token; whether nothing more is to come."""
        self._scheduler.prefilling.discard(sequence)
        request = sequence.request
        if not request.produced:
            request.first_token_s = now
        sequence.tokens += 1
        request.produced += 1
        return sequence.tokens == sequence.max_tokens

    # --- runs of decoding steps ---

    def _begin_run(self, start_s: float) -> bool:
        """Let the batch decode until someone is done, or as long as there is memory; False if there is none."""
        batch, kv = self._batch, self._kv
        steps = batch.next_last - batch.step + 1
        if (steps + kv.page_size) * batch.size > kv.room_tokens:  # than which they never need more
            steps = batch.steps_within(kv.room_tokens // kv.page_size, steps)
            if not steps:
                return False
        self._run_start_s, self._run_steps = start_s, steps
        ends = self._run_ends = []
        known = min(steps, _LOOK_AHEAD)
        self._steady.run(ends, batch.size, batch.context_sum, batch.longest, start_s, known)
        self._stalled = False
        if self._arriving:
            self._aim()
        else:
            self._event_s, self._event_steps = ends[-1], (known if known == steps else 0)
        return True

    def _look_ahead(self) -> None:
        """Find the ends of some more steps of the run."""
        ends, batch = self._run_ends, self._batch
        known = len(ends)
        steps = min(self._run_steps - known, _LOOK_AHEAD)
        self._steady.run(ends, batch.size, batch.context_sum + known * batch.size, batch.longest + known, ends[-1], steps)

    def _end_run(self, now: float) -> StepEnd | None:
        over = self._event_steps
        if not over:
            self._look_ahead()
            self._aim()
            return None
        batch, arriving = self._batch, self._arriving
        if arriving and arriving[0][0] <= now:
            self._take_arrivals(now)
        self._run_steps = 0
        self._count_steps(over, over)
        end = self._finish(batch.take_done(), now, self.ends_s) if batch.next_last < batch.step else None
        self._go_on(now, end is None)
        return end

    def _settle(self, now: float) -> None:
        """End the run at `now`: its steps so far are over, and one may be under way. Whoever has arrived by now is seen."""
        self._take_arrivals(now)
        if not self._run_steps:
            return
        ends = self._run_ends
        while ends[-1] < now and len(ends) < self._run_steps:
            self._look_ahead()
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
        if pages := batch.pages(formed):
            self._kv.take(pages * self._kv.page_size)
        if self._counts_steps:
            self._scheduler.pass_steps(formed)
        self.ends_s.fromlist(ends if formed == len(ends) else ends[:formed])  # half the time of `extend`
        start_s, end_s = self._run_start_s, ends[formed - 1]
        self._busy_s += end_s - start_s
        if self.trace is not None:
            self.trace.append(StepSpan(start_s, end_s, formed, 0, batch.size))
        batch.step += over
        batch.context_sum += over * batch.size
