"""The rules of conversations: their turns, the children that these start and wait for, rounds, and their statistics.

They are written here and nowhere else. A conversation's rules are a generator: it yields what it waits for (see
load.conversation) and is resumed when that has come. It knows neither its interpreter nor the clock: load.phase starts
conversations and carries out their waits, on the event loop of a live run or on the event queue of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random

from llmirage_client.load.arrivals import Arrivals, Stop
from llmirage_client.load.conversation import (
    CHILD,
    EVENT,
    NEXT_ROUND,
    REPLY,
    TICK,
    Cancelled,
    Conversation,
    Family,
    Group,
    RequestTree,
    Resumption,
    Until,
    Wait,
    Waits,
    think_time_s,
)
from llmirage_client.load.lanes import LaneArrivals
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import BranchStats
from llmirage_client.workload.session import After, Event, Turn

_ROUNDING_S = 1e-9  # of a time from which another one was taken


class Rules:
    """The rules of one phase.

    start: begins a child of a conversation, or a child started before its first turn.
    failed_fast: the session whose failed request aborted the run; abort: does that. succeeded: called after each success.
    """

    def __init__(
        self,
        options: RunOptions,
        with_children: bool,
        stop: Stop,
        arrivals: Arrivals,
        family: Family,
        start: Callable[[Conversation], None],
        abort: Callable[[], None],
        succeeded: Callable[[Conversation], None] | None = None,
    ) -> None:
        self.stats = BranchStats()
        self.failed_fast: str | None = None
        self._options = options
        self._lanes = arrivals if isinstance(arrivals, LaneArrivals) else None
        self._with_children = with_children
        self._stop = stop
        self._arrivals = arrivals
        self._family = family
        self._start = start
        self._abort = abort
        self._succeeded = succeeded
        self._speed = options.speed
        self._scheduled = options.fixed_schedule
        self._delays_as_given = (
            options.inter_turn_delay_mean_s is options.inter_turn_delay_cap_s is None
            and options.inter_turn_delay_factor == 1
            and options.speed == 1
        )

    def turns(self, conversation: Conversation, ready_s: float) -> Waits:
        """Send turn after turn, then start the children of each once its reply is there.

        ready_s: when the first may be sent.
        """
        session, stop, arrivals, clock = conversation.session, self._stop, self._arrivals, self._stop.clock
        lanes = self._lanes
        whole = False
        tree = conversation.tree if self._with_children else None
        first = over = 0  # turns whose children have begun
        joins = False  # it waits for children, or for its turn after them
        fresh = True
        try:
            if session.pre_session_spawns and self._with_children:
                for place, name in enumerate(session.pre_session_spawns):
                    self._start(self._family.pre_session_child(conversation, name, place))
                yield NEXT_ROUND  # they go out first
            if tree is not None and tree.resumed is not None and session.id in tree.resumed.turns:
                first = over = self._resume(conversation, tree.resumed)
                fresh = False
                ready_s = tree.resumed.due_s.get(session.id, ready_s)
            due_s = ready_s
            schedule_s = conversation.started_s - (session.arrival_s or 0.0) / self._speed  # time 0 of the file
            for index in range(first, len(session.turns)):
                turn = session.turns[index]
                awaited = None if conversation.children is None else conversation.children.open_gate(index)
                suspended = False
                joins = awaited is not None
                if awaited is not None:
                    suspended = yield from self._join(conversation, awaited)
                    if suspended:
                        ready_s = clock()
                if self._scheduled and turn.arrival_s is not None:
                    ready_s = max(ready_s, schedule_s + turn.arrival_s / self._speed)
                elif lanes is None or (not lanes.unpaced and (fresh or index > first)):
                    ready_s += turn.delay_s if self._delays_as_given else self._delay_s(conversation, index)
                if turn.after and tree is not None and not joins and _joins(tree, turn.after):
                    suspended = joins = True
                    self.stats.parents_suspended += 1
                if lanes is not None and tree is not None:
                    ready_s = yield from self._on_lane(tree, ready_s)
                if turn.after and tree is not None:
                    ready_s = yield from self._after(conversation, tree, turn.after, ready_s)
                if lanes is not None and tree is not None:
                    ready_s = yield from self._on_lane(tree, ready_s)
                else:
                    yield from self._until(ready_s)
                if not index or awaited is not None or conversation.depth or turn.after:
                    due_s = ready_s
                elif (paced_s := arrivals.due_s(ready_s, due_s)) is not None:
                    due_s = paced_s
                    yield from self._until(due_s)
                else:
                    conversation.due_s = ready_s
                    if not stop.ended:
                        arrivals.queue(conversation)
                        yield TICK
                    due_s = conversation.due_s
                if not (stop.permit() if lanes is None else lanes.permit(conversation, index)):
                    break
                joins = False
                if suspended:
                    self.stats.parents_resumed += 1
                if not index and conversation.depth and fresh:
                    self.stats.children_spawned += 1
                conversation.turn_index, conversation.due_s = index, due_s
                known = tree if tree is not None and (session.id, index) in tree.awaited else None
                if known is not None:
                    known.note(session.id, index, "dispatch", clock())
                if turn.branches and self._with_children:
                    self._start_branches(conversation, turn, "dispatch")
                yield REPLY
                if known is not None:
                    known.note(session.id, index, "reply", conversation.over_s)
                if self._succeeded is not None and conversation.error is None:
                    self._succeeded(conversation)
                if lanes is not None and lanes.replied(conversation):
                    whole = True
                    break
                if conversation.failed:
                    self._fail_fast(conversation)
                    if session.ends_on_failure:
                        arrivals.window.note_unsent(len(session.turns) - index - 1)
                        whole = True
                        break
                ready_s = conversation.over_s
                if turn.branches and self._with_children:
                    self._start_branches(conversation, turn, "reply")
                    yield NEXT_ROUND  # they go out before the next turn
                over = index + 1
            else:
                whole = True
        except Cancelled:
            pass
        self.stats.joins_suppressed += joins and self.failed_fast is None
        if tree is not None:
            self._family.abandon(tree, session.id, clock(), over)
        if conversation.depth:
            self._count_end(conversation, whole)

    def _after(
        self, conversation: Conversation, tree: RequestTree, after: Sequence[After], ready_s: float
    ) -> Generator[Wait, None, float]:
        """Wait for requests of the tree.

        Returns when the turn may be sent: `ready_s`, or later if one of them requires it.
        """
        for each in after:
            while (happened_s := tree.happened_s(each.session, each.turn, each.event)) is None:
                if self._stop.ended:
                    return ready_s
                tree.wait(conversation, each.session, each.turn, each.event)
                yield EVENT
            ready_s = max(ready_s, happened_s + self._paced(each.delay_s))
        return ready_s

    def _resume(self, conversation: Conversation, resumed: Resumption) -> int:
        """Start the children of a conversation that is taken up in its middle; return its next turn."""
        session = conversation.session
        next_turn = resumed.turns[session.id]
        for index, turn in enumerate(session.turns[:next_turn]):
            conversation.turn_index = index
            for branch in turn.branches:
                for place, name in enumerate(branch.children):
                    if name in resumed.turns:
                        self.stats.children_spawned += 1
                        self._start(self._family.child(conversation, name, branch.kind, branch.id, place))
        return next_turn

    def primer(self, conversation: Conversation, ready_s: float) -> Waits:
        """Send the last turn before the one with which a conversation is taken up, and start its children for theirs."""
        tree, lanes = conversation.tree, self._lanes
        assert tree is not None
        assert tree.resumed is not None
        assert lanes is not None
        try:
            index = self._resume(conversation, tree.resumed) - 1
            due_s = tree.resumed.due_s.get(conversation.session.id)
            if due_s is None:
                return
            yield from self._until(due_s)
            if not lanes.permit(conversation, index):
                return
            conversation.turn_index, conversation.due_s = index, due_s
            yield REPLY
            if self._succeeded is not None and conversation.error is None:
                self._succeeded(conversation)
            lanes.replied(conversation)
        except Cancelled:
            pass

    def _on_lane(self, tree: RequestTree, ready_s: float) -> Generator[Wait, None, float]:
        """Wait for a time that moves earlier while the lanes are idle; return it."""
        skipped_s, clock = tree.skipped_s, self._stop.clock
        while clock() + _ROUNDING_S < (due_s := ready_s - (tree.skipped_s - skipped_s)) and not self._stop.ended:
            yield Until(due_s)
        return due_s

    def _until(self, when_s: float) -> Waits:
        while self._stop.clock() < when_s and not self._stop.ended:
            yield Until(when_s)

    def rounds(self, conversation: Conversation) -> Waits:
        """Run an orchestrator's rounds, each after the children of the one before; it sends nothing itself."""
        session, stop, clock = conversation.session, self._stop, self._stop.clock
        whole = joins = False
        rng = Random(conversation.correlation_id)
        try:
            for number, round_ in enumerate(session.rounds):
                ready_s = clock() + think_time_s(round_, session.think_time, rng) / self._speed
                yield from self._until(ready_s)
                if stop.ended:
                    break
                if not number:
                    self.stats.graphs_admitted += 1
                    self.stats.children_spawned += conversation.depth > 0
                children = [
                    self._family.child(conversation, name, "spawn", number, place)
                    for place, name in enumerate(round_.children)
                ]
                joins = round_.awaited
                suspended = yield from self._join(conversation, self._started(children), round_.awaited)
                joins = suspended and stop.ended
                self.stats.parents_resumed += suspended and not stop.ended
            else:
                whole = True
                self.stats.graphs_completed_to_end += session.rounds[-1].awaited and not stop.ended
        except Cancelled:
            pass
        self.stats.joins_suppressed += joins and self.failed_fast is None
        if conversation.depth:
            self._count_end(conversation, whole)

    def _start_branches(self, conversation: Conversation, turn: Turn, event: Event) -> None:
        for branch in turn.branches:
            if branch.at != event:
                continue
            children = self._started(
                [
                    self._family.child(conversation, name, branch.kind, branch.id, place)
                    for place, name in enumerate(branch.children)
                ]
            )
            if conversation.tree is not None:
                self.stats.children_delayed += sum(child.session.turns[0].delay_s > 0 for child in children)
            if branch.join_at is not None:
                conversation.children = conversation.children or Group()
                conversation.children.gates.setdefault(branch.join_at, []).extend(children)

    def _started(self, children: list[Conversation]) -> list[Conversation]:
        """Start children at once, regardless of the arrivals; return those started: none when the phase has ended."""
        if self._stop.ended:
            self.stats.children_truncated += len(children)
            return []
        for child in children:
            self._start(child)
        return children

    def _join(self, parent: Conversation, children: list[Conversation], count: bool = True) -> Generator[Wait, None, bool]:
        """Wait for the last replies of children; return False if they were all there already."""
        waiting = [child for child in children if child.rules is not None]
        suspended = bool(waiting) and count
        self.stats.parents_suspended += suspended
        for child in waiting:
            if child.rules is not None:
                parent.awaited = child
                yield CHILD
                parent.awaited = None
        return suspended

    def _delay_s(self, conversation: Conversation, index: int) -> float:
        """Return the pause before a turn on the run's clock, by the file or drawn."""
        options, delay_s = self._options, conversation.session.turns[index].delay_s
        if index and options.inter_turn_delay_mean_s is not None:
            rng = Random(f"delay {conversation.correlation_id} {index}")
            delay_s = max(rng.gauss(options.inter_turn_delay_mean_s, options.inter_turn_delay_std_s), 0.0)
        return self._paced(delay_s)

    def _paced(self, delay_s: float) -> float:
        """Return a pause of the file on the run's clock."""
        options = self._options
        delay_s *= options.inter_turn_delay_factor
        cap_s = options.inter_turn_delay_cap_s
        return (delay_s if cap_s is None else min(delay_s, cap_s)) / self._speed

    def _count_end(self, conversation: Conversation, whole: bool) -> None:
        """Count the end of a child. whole: it came to its end by its own rules."""
        if self.failed_fast is not None:
            return
        if not whole:
            self.stats.children_truncated += 1
        elif conversation.failed:
            self.stats.children_errored += 1
        else:
            self.stats.children_completed += 1

    def _fail_fast(self, conversation: Conversation) -> None:
        """Abort the run, if requested: everything in flight is cancelled, and siblings are not counted."""
        child = conversation.depth > 0
        if not (self._options.fail_fast or (child and self._options.fail_fast_children)) or self.failed_fast is not None:
            return
        self.failed_fast = conversation.session.id
        self.stats.children_errored += child
        self.stats.parents_failed_due_to_child_error += conversation.parent is not None
        self._abort()


def _joins(tree: RequestTree, after: Sequence[After]) -> bool:
    """Return whether a turn takes in the result of a session that is not over."""
    return any(each.join and tree.happened_s(each.session, each.turn, each.event) is None for each in after)
