"""One phase of a run, warm-up or profiling: one coroutine per conversation, each awaiting its children at its end.

A conversation sends a turn, threads the live reply into its history, starts the children of that turn, pauses, and goes on.
Where a turn joins children it waits for their own last replies. Because a conversation's task ends after those of its
children, a root's slot is taken until its whole tree is done, however deep, and cancelling a root cancels its tree.
Pre-session children belong to no tree: they hold no slot, and once every tree is done none of their turns goes out any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass

from llmirage_client.load.branches import Family, think_time_s
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase_rules import delay_s, moments, own_requests
from llmirage_client.load.plan import arrivals, conversations, places
from llmirage_client.load.planner import Planner
from llmirage_client.load.recorder import Recorder
from llmirage_client.load.sampling import Sampler
from llmirage_client.load.stop import LiveStop, wake
from llmirage_client.measure.record import CANCELLED, BranchStats
from llmirage_client.workload.session import Session, Turn, Workload


@dataclass(slots=True)
class _PacedTurn:
    """A turn that waits for a tick. due_s: the time of that tick, once it came."""

    waiter: asyncio.Future[None]
    due_s: float

    def go(self, due_s: float) -> None:
        self.due_s = due_s
        wake(self.waiter)


class Phase:
    """A warm-up runs the turns of roots only.

    left_unfinished: conversations that nobody waited for and that had turns left when everything else was done.
    """

    def __init__(
        self,
        name: str,
        workload: Workload,
        options: RunOptions,
        sampler: Sampler,
        planner: Planner,
        recorder: Recorder,
        family: Family,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.stats = BranchStats()
        self.failed_fast: str | None = None
        self._options = options
        self._planner = planner
        self._recorder = recorder
        self._family = family
        self._with_children = name == "profiling"
        self._stop = LiveStop(own_requests(options))
        self._arrivals = arrivals(
            workload,
            options,
            conversations(sampler, workload, options, self._with_children),
            self._start_root,
            self._stop,
            rng,
        )
        self._places = places(sampler, options)
        self._trees: dict[asyncio.Task[None], None] = {}  # in the order in which they started
        self.left_unfinished = 0

    async def run(self) -> None:
        """Returns when every root is over with its tree, and what pre-session children have in flight then."""
        timers = self._timers()
        try:
            async with asyncio.TaskGroup() as self._unawaited:
                async with asyncio.TaskGroup() as self._awaited:
                    await self._arrivals.drive()
                ended_before, truncated_before = self._ended(), self.stats.children_truncated
                self._stop.end()
            if not ended_before:
                self.left_unfinished = self.stats.children_truncated - truncated_before
        finally:
            for timer in timers:
                timer.cancel()

    def cancel(self) -> None:
        """Nothing more goes out, and what is in flight is cancelled."""
        self._stop.end()
        for tree in tuple(self._trees):
            tree.cancel()

    def _timers(self) -> list[asyncio.TimerHandle]:
        todo = {"close": self._stop.close, "end": self._stop.end, "cancel": self.cancel}
        loop = asyncio.get_running_loop()
        return [loop.call_at(when_s, todo[what]) for when_s, what in moments(self._options, self._stop.clock())]

    def _start_root(self, session: Session, due_s: float) -> None:
        conversation = self._family.root(session, self.name, next(self._places))
        self._start_tree(self._awaited, self._tree(conversation, due_s))

    def _start_tree(self, group: asyncio.TaskGroup, conversation: Coroutine[None, None, None]) -> None:
        tree = group.create_task(conversation)
        self._trees[tree] = None
        tree.add_done_callback(self._trees.pop)

    def _ended(self) -> bool:
        return self._stop.ended

    async def _tree(self, root: Conversation, due_s: float) -> None:
        try:
            await self._converse(root, due_s)
        finally:
            self._arrivals.tree_done()

    async def _converse(self, conversation: Conversation, due_s: float) -> None:
        """The conversation's own turns, then whatever of its children is still running."""
        session = conversation.session
        if not session.rounds and not any([turn.branches for turn in session.turns]):  # noqa: C419 (a third of the time)
            await self._own_part(conversation, None, due_s)
            return
        async with asyncio.TaskGroup() as children:
            await self._own_part(conversation, children, due_s)

    async def _own_part(self, conversation: Conversation, children: asyncio.TaskGroup | None, due_s: float) -> None:
        """children: None for a conversation that has none."""
        try:
            if conversation.session.rounds:
                assert children is not None
                whole = await self._rounds(conversation, children)
            else:
                whole = await self._turns(conversation, children, due_s)
            self._count_end(conversation, whole)
        except asyncio.CancelledError:
            self._count_end(conversation, False)
            raise
        finally:
            conversation.own_turns_done.set()

    async def _turns(self, conversation: Conversation, children: asyncio.TaskGroup | None, ready_s: float) -> bool:
        """Sends turn after turn; False when the phase ended before the last. ready_s: when the first may go out."""
        if self._with_children and conversation.session.pre_session_spawns:
            self._start_pre_session(conversation)
            await asyncio.sleep(0)  # they go out first
        due_s = ready_s
        schedule_s = ready_s - (conversation.session.arrival_s or 0.0) / self._options.speed  # time 0 of the file
        for index, turn in enumerate(conversation.session.turns):
            gated = index in conversation.gates
            suspended = gated and await self._join(conversation.gates[index])
            if suspended:
                ready_s = self._stop.clock()
            if self._options.fixed_schedule and turn.arrival_s is not None:
                ready_s = max(ready_s, schedule_s + turn.arrival_s / self._options.speed)
            else:
                ready_s += self._delay_s(conversation, index)
            await self._stop.wait_until(ready_s)
            paced = index and conversation.depth == 0 and not gated
            due_s = await self._paced(ready_s, due_s) if paced else ready_s
            if not self._stop.permit():
                self.stats.joins_suppressed += gated
                return False
            self.stats.parents_resumed += suspended
            self._count_start(conversation)
            planned = self._planner.plan(conversation, index)
            exchange = await self._recorder.send(conversation, index, planned, due_s, self.name)
            conversation.append_reply(exchange)
            conversation.last_failed = exchange.error is not None and exchange.error.type != CANCELLED
            if conversation.last_failed:
                self._fail_fast(conversation)
            if conversation.last_failed and conversation.session.ends_on_failure:
                return True
            ready_s = self._stop.clock() if exchange.end_s is None else exchange.end_s
            if self._with_children and turn.branches and children is not None:
                self._start_branches(conversation, turn, children)
                await asyncio.sleep(0)  # they go out before the next turn
        return True

    async def _paced(self, ready_s: float, previous_s: float) -> float:
        """Returns when a further turn of a root may go out: the time at which it was due; see `Arrivals.due_s`."""
        due_s = self._arrivals.due_s(ready_s, previous_s)
        if due_s is None:
            turn = _PacedTurn(self._stop.waiter(), ready_s)
            self._arrivals.queue(turn)
            await turn.waiter
            return turn.due_s
        await self._stop.wait_until(due_s)
        return due_s

    async def _rounds(self, conversation: Conversation, children: asyncio.TaskGroup) -> bool:
        """An orchestrator's rounds, each after the children of the one before; False when the phase ended too early."""
        rounds = conversation.session.rounds
        admitted = False
        rng = random.Random(conversation.correlation_id)
        for number, round_ in enumerate(rounds):
            pause_s = think_time_s(round_, conversation.session.think_time, rng) / self._options.speed
            await self._stop.wait_until(self._stop.clock() + pause_s)
            if self._ended():
                return False
            if not admitted:
                admitted = True
                self.stats.graphs_admitted += 1
            self._count_start(conversation)
            started = [
                child
                for place, name in enumerate(round_.children)
                if self._start(child := self._family.child(conversation, name, "spawn", number, place), children)
            ]
            suspended = await self._join(started, count=round_.awaited)
            if suspended:
                over = self._ended()
                self.stats.joins_suppressed += over
                self.stats.parents_resumed += not over
        self.stats.graphs_completed_to_end += rounds[-1].awaited and not self._ended()
        return True

    def _start_branches(self, conversation: Conversation, turn: Turn, children: asyncio.TaskGroup) -> None:
        for branch in turn.branches:
            started = []
            for place, name in enumerate(branch.children):
                child = self._family.child(conversation, name, branch.kind, branch.id, place)
                if self._start(child, children):
                    started.append(child)
            if branch.join_at is not None:
                conversation.gates.setdefault(branch.join_at, []).extend(started)

    def _start_pre_session(self, root: Conversation) -> None:
        for place, name in enumerate(root.session.pre_session_spawns):
            child = self._family.pre_session_child(root, name, place)
            self._start_tree(self._unawaited, self._converse(child, self._stop.clock()))

    def _start(self, child: Conversation, children: asyncio.TaskGroup) -> bool:
        """Starts a child at once, whatever the arrivals say; False when the phase has ended."""
        if self._ended():
            self.stats.children_truncated += 1
            return False
        children.create_task(self._converse(child, self._stop.clock()))
        return True

    async def _join(self, children: Iterable[Conversation], count: bool = True) -> bool:
        """Waits for the last replies of children; False when they were all there already."""
        waiting = [child for child in children if not child.own_turns_done.is_set()]
        if waiting and count:
            self.stats.parents_suspended += 1
        for child in waiting:
            await child.own_turns_done.wait()
        return bool(waiting) and count

    def _delay_s(self, conversation: Conversation, index: int) -> float:
        """The pause before a turn on the run's clock."""
        return delay_s(self._options, conversation.session.turns[index].delay_s, index, lambda: conversation.correlation_id)

    def _count_start(self, conversation: Conversation) -> None:
        if conversation.depth > 0 and not conversation.counted:
            conversation.counted = True
            self.stats.children_spawned += 1

    def _count_end(self, conversation: Conversation, whole: bool) -> None:
        if conversation.depth == 0 or self.failed_fast is not None:
            return
        if not whole:
            self.stats.children_truncated += 1
        elif conversation.last_failed:
            self.stats.children_errored += 1
        else:
            self.stats.children_completed += 1

    def _fail_fast(self, conversation: Conversation) -> None:
        """Aborts the run, if that is wished: everything under way is cancelled, and siblings are not counted."""
        child = conversation.depth > 0
        if not (self._options.fail_fast or (child and self._options.fail_fast_children)) or self.failed_fast is not None:
            return
        self.failed_fast = conversation.session.id
        self.stats.children_errored += child
        self.stats.parents_failed_due_to_child_error += conversation.parent is not None
        self.cancel()
