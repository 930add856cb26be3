"""One phase of a simulation in token counts without branches: load.phase without tasks.

Each conversation walks from turn to turn: a generator that stops where it waits for a moment, a tick or a reply. The rules
are those of load.phase line by line, and so is the order of what happens at one instant.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial
from random import Random

from llmirage_client.load.arrivals import AT_ONCE
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase_rules import delay_s, moments, own_requests
from llmirage_client.load.plan import arrivals, conversations, places
from llmirage_client.load.sampling import Sampler
from llmirage_client.load.stop import Stop
from llmirage_client.measure.record import BranchStats
from llmirage_client.simulate.token_rows import CANCELLED_BY_RUN, LOST, NO_INSTANCE, refusal
from llmirage_client.simulate.walk import MOMENT, REPLY, Walk, WalkRow, WalkTools, finished
from llmirage_client.simulate.walk_loop import Timer
from llmirage_client.simulator.engine import Request, RouterError
from llmirage_client.workload.session import Session, Turn, Workload


class WalkPhase:
    """See load.phase.Phase, whose life it has."""

    def __init__(
        self, name: str, workload: Workload, options: RunOptions, sampler: Sampler, tools: WalkTools, rng: Random
    ) -> None:
        self.stats = BranchStats()
        self.failed_fast: str | None = None
        self.left_unfinished = 0
        self._name = name
        self._counted = tools.rows.counted if name == "profiling" else range(0)
        self._scheduled = options.fixed_schedule
        self._options = options
        self._tools = tools
        self._loop = tools.loop
        self._stop = Stop(own_requests(options), tools.loop.time)
        roots = conversations(sampler, workload, options, name == "profiling")
        self._arrivals = arrivals(workload, options, roots, self._start, self._stop, rng)
        self._arrivals.changed = self._changed
        self._stop.listen(self._wake_if_ended)
        self._steps = self._arrivals.steps()
        self._timer: Timer | None = None  # when the arrivals go on
        self._arriving, self._arrivals_wait = True, False
        self._places = places(sampler, options)
        self._walks: dict[Walk, None] = {}  # in the order in which they started
        self._delays_as_given = (
            options.inter_turn_delay_mean_s is options.inter_turn_delay_cap_s is None
            and options.inter_turn_delay_factor == 1
        )

    def run(self) -> None:
        """Returns when every conversation is over."""
        todo = {"close": self._stop.close, "end": self._stop.end, "cancel": self.cancel}
        timers = [self._loop.at(when_s, todo[what]) for when_s, what in moments(self._options, self._loop.now)]
        self._arrive()
        self._loop.run()
        for timer in timers:
            timer[2] = None

    def cancel(self) -> None:
        """Nothing more goes out, and what is in flight is cancelled."""
        self._stop.end()
        for walk in self._walks:
            walk.cancelled = True
            walk.wake()

    def _wake_if_ended(self) -> None:
        if self._stop.ended:
            for walk in self._walks:
                if walk.waits == MOMENT:
                    walk.wake()

    # --- who comes -------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Follows the arrivals to where they wait next."""
        if self._timer is not None:
            self._timer[2] = None
            self._timer = None
        until_s = next(self._steps, None)
        if until_s is None:
            self._arriving = False
            self._stop_if_over()
        elif until_s == AT_ONCE:
            self._loop.ready.append(self._arrive)
        else:
            self._arrivals_wait = True
            if until_s < math.inf:
                self._timer = self._loop.at(until_s, self._changed_last)

    def _changed(self) -> None:
        if self._arrivals_wait:
            self._arrivals_wait = False
            self._loop.ready.append(self._arrive)

    def _changed_last(self) -> None:
        """The same, when nothing more is done in this act: what would be the next to be done can be done at once."""
        if self._loop.ready:
            self._changed()
        elif self._arrivals_wait:
            self._arrivals_wait = False
            self._arrive()

    def _start(self, session: Session, due_s: float) -> None:
        tools = self._tools
        walk = Walk(session, next(tools.numbers), tools, (self._name, next(self._places)))
        walk.resume = resume = partial(next, self._walk(walk, due_s), None)
        self._walks[walk] = None
        walk.ready.append(resume)

    def _stop_if_over(self) -> None:
        if not self._arriving and not self._walks:
            self._loop.stop()

    # --- where they go ---------------------------------------------------------------------------------------------------

    def _walk(self, walk: Walk, due_s: float) -> Generator[None, None, None]:
        """Sends turn after turn. due_s: when the first was. Each yield waits for somebody to wake the walk."""
        loop, stop, arrivals = self._loop, self._stop, self._arrivals
        ready_s = due_s
        schedule_s = due_s - (walk.session.arrival_s or 0.0)  # time 0 of the file
        began = not walk.cancelled
        for index, turn in enumerate(walk.session.turns):
            if self._scheduled and turn.arrival_s is not None:
                ready_s = max(ready_s, schedule_s + turn.arrival_s)
            else:
                ready_s += turn.delay_s if self._delays_as_given else self._delay_s(walk, index)
            if loop.now < ready_s:
                yield from self._until(walk, ready_s)
            if not index or walk.cancelled:
                due_s = ready_s
            elif (paced_s := arrivals.due_s(ready_s, due_s)) is None:
                due_s = yield from self._tick(walk, ready_s)
            else:
                due_s = paced_s
                if loop.now < due_s:
                    yield from self._until(walk, due_s)
            if walk.cancelled or not stop.permit():
                break
            row = self._sent(walk, index, turn, due_s)
            if row.error is None:
                walk.waits = REPLY
                yield
            ready_s = loop.now
            if not self._goes_on(walk, row):
                break
        if began:
            arrivals.tree_done()
        walk.resume = finished  # this generator and all that it knows
        del self._walks[walk]
        self._stop_if_over()

    def _until(self, walk: Walk, when_s: float) -> Generator[None, None, None]:
        """Goes on at that time, or when the phase ends."""
        if not self._stop.ended:
            timer = self._loop.at(when_s, walk.wake_last)
            walk.waits = MOMENT
            yield
            timer[2] = None

    def _tick(self, walk: Walk, ready_s: float) -> Generator[None, None, float]:
        """Goes on at a tick, or when the phase ends; returns when the tick was due."""
        walk.due_s = ready_s
        if not self._stop.ended:
            walk.waits = MOMENT
            self._arrivals.queue(walk)
            yield
        return walk.due_s

    def _sent(self, walk: Walk, index: int, turn: Turn, due_s: float) -> WalkRow:
        """The request of a turn, on its way; with an error if it is not."""
        tools, spec = self._tools, turn.tokens
        loop = tools.loop
        assert spec is not None
        number = next(tools.request_ids)
        key = tools.streams.call(walk, index, spec)
        request = Request.of_key(number, key, spec.input_tokens, walk.affinity_id if tools.named else None)
        measured = self._counted is None or number in self._counted
        row = WalkRow(walk, index, request, due_s, loop.now, measured)
        try:
            loop.cluster.submit(row, loop.now)
        except (ValueError, RouterError) as error:
            row.error = refusal(error)
        if request.failed:
            row.error = NO_INSTANCE
        return row

    def _goes_on(self, walk: Walk, row: WalkRow) -> bool:
        """Notes a request that is over, or nobody waits for any more; False if it was the conversation's last."""
        request, rows, now = row.request, self._tools.rows, self._loop.now
        if row.error is None:
            if walk.cancelled:
                self._loop.cluster.cancel(request, now)
                row.error = CANCELLED_BY_RUN
            elif request.failed:
                row.error = LOST
        request.key = b""  # nobody needs the ids any more
        request.tag = None  # and no cycle keeps the row when the run is forgotten
        row.end_s = now
        if now == row.start_s:
            self._loop.took_no_time()
        rows.rows.append(row)
        if row.error is CANCELLED_BY_RUN:
            return False
        if rows.on_row is not None:
            rows.on_row(row)
        return row.error is None or self._goes_on_after_failure(walk)

    def _goes_on_after_failure(self, walk: Walk) -> bool:
        self._tools.streams.failed(walk)
        if self._options.fail_fast and self.failed_fast is None:
            self.failed_fast = walk.session.id
            self.cancel()
        return not walk.session.ends_on_failure

    def _delay_s(self, walk: Walk, index: int) -> float:
        return delay_s(self._options, walk.session.turns[index].delay_s, index, lambda: walk.correlation_id)
