"""One phase of a run, warm-up or profiling: it starts conversations and resumes them.

The rules of conversations are in load.rules, the starts of roots in load.arrivals. A conversation has finished when its own
turns and its descendants have: a root's slot is taken until its whole tree has finished, however deep, and cancelling a root
cancels its tree. Pre-session children belong to no tree: they hold no slot, and once every tree has finished none of their
turns is sent any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from random import Random
from typing import Protocol

from llmirage_client.load.arrivals import AT_ONCE, Arrivals, Stop
from llmirage_client.load.conversation import (
    CHILD,
    EVENT,
    NEXT_ROUND,
    NOTHING,
    REPLY,
    TICK,
    TREE,
    Cancelled,
    Conversation,
    Family,
    Group,
    Timer,
    Until,
    Wait,
)
from llmirage_client.load.lanes import LaneArrivals, Lanes
from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import Sampler, arrivals, conversations, moments, own_requests, places
from llmirage_client.load.rules import Rules
from llmirage_client.measure.record import BranchStats
from llmirage_client.measure.submission import PerformanceWindow
from llmirage_client.workload.session import Session, Workload


class Interpreter(Protocol):
    """The interface of an interpreter of conversations: the order of ready callbacks, and time.

    Implemented by load.runner on an event loop and simulate.event_queue in virtual time. Both run ready callbacks first
    come, first served, and send a conversation's request (REPLY) as soon as its rules yield it.
    """

    def now(self) -> float:
        """Return seconds on the run's clock."""
        ...

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it after everything that is ready now."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Call it at that time, after everything that is ready then."""
        ...

    def play(self, conversation: Conversation) -> object:
        """Resume the conversation (`Phase.resume`) after everything that is ready now."""
        ...

    def send(self, conversation: Conversation) -> bool:
        """Send the request of the conversation's present turn; return False if it has ended at once."""
        ...

    def end(self, conversation: Conversation, cut: bool) -> bool:
        """End the request in flight (cut: before its reply); return False if that happens when the conversation resumes."""
        ...


class Phase:
    """A phase of a run; a warm-up runs the turns of roots only.

    left_unfinished: conversations that nothing waited for and that had turns left when everything else had finished.
    upcoming: returns up to so many of the roots that it begins next, as far as they are known.
    """

    def __init__(
        self,
        name: str,
        workload: Workload,
        options: RunOptions,
        sampler: Sampler,
        family: Family,
        interpreter: Interpreter,
        rng: Random,
        lanes: Lanes | None = None,
        succeeded: Callable[[Conversation], None] | None = None,
    ) -> None:
        self.name = name
        self.left_unfinished = 0
        self.upcoming: Callable[[int], list[Session]] = _none_known
        self._options = options
        self._frees_early = workload.frees_early
        self._family = family
        self._interpreter = interpreter
        self._stop = Stop(own_requests(options), interpreter.now)
        with_children = name == "profiling" or lanes is not None
        if lanes is not None:
            self._arrivals: Arrivals = LaneArrivals(
                lanes, name, options, family, self._start_on_lane, self._stop, interpreter, self.cancel
            )
        else:
            roots = conversations(sampler, workload, options, with_children)
            self.upcoming = roots.upcoming
            self._arrivals = arrivals(workload, options, roots, self._start_root, self._stop, rng)
        self._arrivals.changed = self._arrive_early
        self._stop.listen(self._wake_if_ended)
        self._steps = self._arrivals.steps()
        self._next_step: Timer | None = None  # of the arrival process
        self._arrivals_wait = False
        self._places = places(sampler, options)
        self._send, self._end_request = interpreter.send, interpreter.end
        self._rules = Rules(
            options, with_children, self._stop, self._arrivals, family, self._start_child, self.cancel, succeeded
        )
        self._roots, self._unawaited = Group(), Group()
        self._timers: list[Timer] = []
        self._when_over: Callable[[], object] = _nothing

    @property
    def _primes(self) -> bool:
        return isinstance(self._arrivals, LaneArrivals) and self._arrivals.stage == "primers"

    @property
    def stats(self) -> BranchStats:
        return self._rules.stats

    @property
    def window(self) -> PerformanceWindow:
        return self._arrivals.window

    @property
    def failed_fast(self) -> str | None:
        """The session whose failed request aborted the run."""
        return self._rules.failed_fast

    def begin(self, when_over: Callable[[], object]) -> None:
        """Begin the phase.

        when_over: called once every root conversation and its descendants have finished, and in-flight pre-session requests
            with them.
        """
        self._when_over = when_over
        todo = {"close": self._stop.close, "end": self._stop.end, "cancel": self.cancel}
        now_s = self._interpreter.now()
        self._timers = [self._interpreter.call_at(at_s, todo[what]) for at_s, what in moments(self._options, now_s)]
        self._arrive()

    def cancel(self) -> None:
        """Send no further request, and cancel those in flight."""
        self._stop.end()
        for conversation in sorted([*self._roots.running, *self._unawaited.running], key=attrgetter("number")):
            conversation.cancel()

    def _wake_if_ended(self) -> None:
        if self._stop.ended:
            for group in (self._roots, self._unawaited):
                _wake_waiting(group)

    def _roots_over(self) -> None:
        ended_before, truncated_before = self._stop.ended, self.stats.children_truncated
        self._stop.end()
        self._when_all_over(self._unawaited, partial(self._finish, None if ended_before else truncated_before))

    def _finish(self, truncated_before: int | None) -> None:
        """End the phase. truncated_before: children cut short when all roots had finished; None: it had ended before."""
        if truncated_before is not None:
            self.left_unfinished = self.stats.children_truncated - truncated_before
        for timer in self._timers:
            timer.cancel()
        self._when_over()

    # --- arrivals -------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Follow the arrival process to its next wait."""
        until_s = next(self._steps, None)
        if until_s is None:
            self._when_all_over(self._roots, self._roots_over)
        elif until_s == AT_ONCE:
            self._interpreter.call_soon(self._arrive)
        else:
            self._arrivals_wait = True
            if until_s < math.inf:
                self._next_step = self._interpreter.call_at(until_s, self._arrive_in_time)

    def _arrive_in_time(self) -> None:
        self._next_step = None
        if self._arrivals_wait:
            self._arrivals_wait = False
            self._interpreter.call_soon(self._arrive)

    def _arrive_early(self) -> None:
        """Resume the arrival process after a change."""
        if self._next_step is not None:
            self._next_step.cancel()
        self._arrive_in_time()

    def _start_root(self, session: Session, due_s: float) -> None:
        self._start(self._family.root(session, self.name, next(self._places)), self._roots, due_s)

    def _start_on_lane(self, root: Conversation, due_s: float) -> None:
        self._start(root, self._roots, due_s)

    def _start_child(self, child: Conversation) -> None:
        group = self._unawaited
        if child.parent is not None:
            group = child.parent.children = child.parent.children or Group()
        self._start(child, group, self._interpreter.now())

    def _start(self, conversation: Conversation, group: Group, ready_s: float) -> None:
        conversation.group = group
        group.running[conversation] = None
        if conversation.parent is None:
            conversation.started_s = ready_s
        rules = self._rules
        if self._primes:
            conversation.rules = rules.primer(conversation, ready_s)
        elif conversation.session.rounds:
            conversation.rules = rules.rounds(conversation)
        else:
            conversation.rules = rules.turns(conversation, ready_s)
        conversation.play = self._interpreter.play
        conversation.play(conversation)

    # --- conversations --------------------------------------------------------------------------------------------------

    def resume(self, conversation: Conversation, cut: bool | None = None) -> None:
        """Play the rules of a conversation until they wait again.

        cut: it ends where it waits; None: if it is cancelled.
        """
        if cut is None:
            cut = conversation.cancelled
        if conversation.in_flight is not None and not self._end_request(conversation, cut):
            return
        rules = conversation.rules
        if cut or rules is None:
            self._cut(conversation)
            return
        waits: Wait | None = next(rules, None)
        while waits is REPLY:
            if self._send(conversation):
                return
            waits = next(rules, None)
        if waits is None:
            self._end(conversation)
            if not conversation.cancelled or conversation not in conversation.group.running:
                return
        if waits is None or waits is NEXT_ROUND or conversation.cancelled:  # its own failure may have aborted the run
            conversation.play(conversation)
            return
        conversation.waits = waits
        if isinstance(waits, Until):
            conversation.timer = self._interpreter.call_at(waits.when_s, conversation.wake)

    def _cut(self, conversation: Conversation) -> None:
        """End a cancelled conversation where it waits, and then its children."""
        if conversation.rules is not None:
            try:
                conversation.rules.throw(Cancelled())
            except (StopIteration, Cancelled):  # the latter where the rules had not begun
                self._end(conversation)
        if conversation.children is not None:
            conversation.children.cancel()

    def _end(self, conversation: Conversation, freed: bool = False) -> None:
        """Finish its own turns, and the conversation if all its descendants have finished. freed: its slot is free."""
        if conversation.rules is not None:
            conversation.rules = None
            parent = conversation.parent
            if parent is not None and parent.awaited is conversation and parent.waits is CHILD:
                parent.wake()
            if conversation.children is not None and conversation.children.busy:
                conversation.waits = TREE
                if self._frees_early and conversation.group is self._roots:
                    self._arrivals.tree_done(conversation)
                conversation.children.when_over = partial(self._end, conversation, self._frees_early)
                return
        conversation.waits = NOTHING
        group = conversation.group
        del group.running[conversation]
        conversation.play = _nothing  # the interpreter refers to the run, and finished conversations are kept for longer
        if group is self._roots and not freed:
            self._arrivals.tree_done(conversation)
        if not group.running:
            group.leaving += 1
            self._interpreter.call_soon(partial(self._left_empty, group))

    def _left_empty(self, group: Group) -> None:
        group.leaving -= 1
        if not group.running and not group.leaving and group.when_over is not None:
            self._interpreter.call_soon(group.when_over)
            group.when_over = None

    def _when_all_over(self, group: Group, callback: Callable[[], object]) -> None:
        if group.busy:
            group.when_over = callback
        else:
            callback()


def _wake_waiting(group: Group) -> None:
    """Wake conversations that wait for a time, a tick or a request, and their descendants."""
    for conversation in group.running:
        if conversation.waits in (TICK, EVENT) or isinstance(conversation.waits, Until):
            conversation.wake_early()
        if conversation.children is not None:
            _wake_waiting(conversation.children)


def _nothing(*_: object) -> None: ...


def _none_known(_: int) -> list[Session]:
    """Return nothing: lanes draw their trees as they begin them."""
    return []
