"""Virtual time without an event loop: ready callbacks in order, then the next timer or the next request to finish.

It plays the conversations of a simulation, whose requests go straight to the cluster, with a row for each. Events of one
instant happen in the order of llmirage_shared.virtual_time's loop with load.runner's interpreter: both give the same times
to the last bit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from llmirage_client.load.conversation import BY_RUN, NOTHING, ON_PURPOSE, REPLY, Conversation, Identifiers, Sender
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase import Phase
from llmirage_client.simulate.token_rows import NO_INSTANCE, TokenRow, TokenRows, loss, refusal
from llmirage_client.simulate.token_streams import TokenPrompt
from llmirage_client.simulator.engine import Adapter, ClusterConfig, ClusterRun, Request, RouterError, plan_of
from llmirage_shared import standstill
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

Callback = Callable[[], object]


class QueueTimer:
    """A timer. callback: None once it has been called or cancelled."""

    __slots__ = ("callback",)
    callback: Callback | None

    def cancel(self) -> None:
        self.callback = None


class EventQueue:
    """The queue of one run.

    ready: callbacks to run now, first come, first served, and conversations to resume.
    time_s: now, from 0.
    send, end: see load.phase.Interpreter.
    resume: plays a conversation.
    """

    send: Callable[[Conversation], bool]
    end: Callable[[Conversation, bool], bool]
    resume: Callable[[Conversation], None]

    def __init__(self, cluster: ClusterRun) -> None:
        self.cluster = cluster
        self.time_s = 0.0
        self.ready: deque[Callback | Conversation] = deque()
        self.call_soon: Callable[[Callback], None] = self.ready.append
        self.play: Callable[[Conversation], None] = self.ready.append
        self._timers: list[tuple[float, int, QueueTimer]] = []  # a heap
        self._serial = count()
        self._interrupted = self._stopped = False
        self._interrupt: Callback | None = None
        self.close()
        self._timeless, self._timeless_at_s = 0, math.nan  # requests that took no time, at that time

    def now(self) -> float:
        return self.time_s

    def call_at(self, when_s: float, callback: Callback) -> QueueTimer:
        timer = QueueTimer()
        timer.callback = callback
        heapq.heappush(self._timers, (when_s, next(self._serial), timer))
        return timer

    def interrupt(self, callback: Callback) -> None:
        """Call it as soon as nothing is ready; for signal handlers, which may come at any point."""
        self._interrupt = callback
        self._interrupted = True

    def stop(self) -> None:
        """Let `run` return when nothing is ready any more."""
        self._stopped = self._interrupted = True

    def close(self) -> None:
        """Drop the callbacks that play conversations, so that no cycle keeps a finished run."""
        self.send = self.end = self.resume = _closed

    def run(self) -> None:
        """Run until stopped. Raises VirtualDeadlockError when nothing will ever happen."""
        ready, timers, popleft, heappop = self.ready, self._timers, self.ready.popleft, heapq.heappop
        run_cluster, resume, forever = self.cluster.run, self.resume, math.inf
        while True:
            while ready:
                each = popleft()
                if isinstance(each, Conversation):
                    resume(each)
                else:
                    each()
            if self._interrupted:
                if self._poll():
                    return
                continue
            to = forever
            if timers:
                to, _, timer = timers[0]
                if timer.callback is None:
                    heappop(timers)
                    continue
            reached = run_cluster(to)
            if reached > self.time_s:
                if reached == forever:
                    if not ready:
                        raise VirtualDeadlockError(self._why_nothing_happens())
                    continue
                self.time_s = reached
            while reached == to:
                heappop(timers)
                callback, timer.callback = timer.callback, None  # which may refer back to the timer
                if callback is not None:
                    ready.append(callback)
                if not timers:
                    break
                to, _, timer = timers[0]

    def _poll(self) -> bool:
        """Run a requested interruption; return True if the queue is to stop. A signal may come between any two lines."""
        self._interrupted = False
        callback, self._interrupt = self._interrupt, None
        if callback is not None:
            callback()
        if self._stopped and not self.ready:
            self._stopped = False
            return True
        if self._stopped:
            self._interrupted = True
        return False

    def took_no_time(self) -> None:
        """Note a request that ended the moment it was sent. Raises StandstillError when that repeats for ever."""
        self._timeless = self._timeless + 1 if self._timeless_at_s == self.time_s else 1
        self._timeless_at_s = self.time_s
        if self._timeless > standstill.TURNS_AT_ONE_TIME:
            raise StandstillError(self.time_s)

    def _why_nothing_happens(self) -> str:
        left = self.cluster.under_way
        waiting = "1 request is under way that" if left == 1 else f"{left:,} requests are under way that"
        return f"virtual time stands still at {self.time_s:g} s: no timer is set, and {waiting} the cluster will never end"


def _closed(*_: object) -> Any:
    raise RuntimeError("no requests are sent: the run has not begun, or is over")


# Routers that do not ask which conversation a request is of.
NAMELESS = (
    "round_robin", "random", "least_loaded", "power_of_two", "prefix", "kv_aware", "llm-d:default",
    "llm-d:predicted-latency", "dynamo:kv", "sglang:cache_aware", "production-stack:prefixaware",
)  # fmt: skip


class TokenPrompts(Protocol):
    """The writer of prompts."""

    def plan(self, conversation: Conversation, turn_index: int) -> TokenPrompt:
        """Return the prompt of a turn, and the reply that it will have."""
        ...

    def failed(self, conversation: Conversation) -> None:
        """Note that the conversation's last request had no reply."""
        ...


class ClusterSender(Sender):
    """A sender for the conversations of an event queue.

    Requests carry the name of their conversation where the router asks for it, their class and tenant for a gateway's queue,
    and the LoRA adapter that has the name of the turn's model.
    by_endpoint: some requests end as the server's endpoint ends them, see _by_endpoint: it answers in one piece, from a task
        of its own. The tokens that a cancelled request got are unknown there, and where users give up.
    """

    def __init__(
        self,
        queue: EventQueue,
        rows: TokenRows,
        prompts: TokenPrompts,
        options: RunOptions,
        identifiers: Identifiers,
        config: ClusterConfig,
        by_endpoint: bool,
    ) -> None:
        super().__init__(options, identifiers)
        self._queue = queue
        self._rows = rows
        self._prompts = prompts
        self._named = config.router not in NAMELESS
        self._by_endpoint = by_endpoint
        # Of requests without a priority of their own, by service class.
        prioritised = all(pool.schedule_policy == "priority" for pool in config.all_pools)
        self._class_priorities: dict[str, int] = dict(config.class_priorities) if prioritised else {}
        self._queued = config.gateway_queue
        self._class_objectives = options.class_objectives
        self._adapters: dict[str, Adapter] = {a.name: a for pool in plan_of(config) for a in pool.adapters}
        self._numbers = count()
        self._counted: range | None = None  # of the numbers; None: all
        queue.send, queue.end = self._send, self._end_request

    def begin_phase(self, phase: Phase) -> None:
        """Send the requests of this phase from now on."""
        self.begin(phase.name)
        self._queue.resume = phase.resume
        self._counted = self._rows.counted if phase.name == "profiling" else range(0)

    def _send(self, conversation: Conversation) -> bool:
        index = conversation.turn_index
        assert index is not None
        key, prompt_tokens = self._prompts.plan(conversation, index)
        affinity_id = conversation.affinity_id if self._named else None
        turn = conversation.session.turns[index]
        adapter = self._adapters.get(turn.model) if self._adapters and turn.model else None
        request = Request.of_key(0, key, prompt_tokens, affinity_id, adapter)
        if extra := turn.extra:
            request.priority = extra.get("priority", 0)
        if self._class_priorities and not request.priority:
            request.priority = self._class_priorities.get(conversation.tenant_of(index).service_class, 0)
        if self._queued:
            tenant = conversation.tenant_of(index)
            request.objective, request.fairness_id = tenant.service_class, tenant.name
        if objectives := self._class_objectives:
            limits = objectives.get(conversation.tenant_of(index).service_class, {})
            request.slo_ttft_s = math.ceil(limits["TTFT"]) / 1e3 if "TTFT" in limits else math.inf
        conversation.in_flight = row = TokenRow(conversation, index, request, conversation.due_s, self._queue.time_s)
        conversation.waits = REPLY
        if self.cancels and self.is_cancelled_on_purpose(self.request_id(conversation, index)):
            row.own_task = True
            row.measured = self._counted is None
            self._queue.call_soon(partial(self._submit_for_a_time, row))
            return True
        if not self._submit(row):
            return self._end_at_once(row)
        row.own_task = self._by_endpoint and _by_endpoint(row)
        return True

    def _submit(self, row: TokenRow) -> bool:
        """Submit the request; return False if the cluster does not take it."""
        request = row.request
        request.id = number = next(self._numbers)
        row.measured = self._counted is None or number in self._counted
        try:
            self._queue.cluster.submit(row, row.start_s)
        except (ValueError, RouterError) as error:
            row.error = refusal(error, request, "prompt" if self._rows.lengths_known else "messages")
            return False
        if request.failed:
            row.error = loss(request.dropped, False) if request.dropped else NO_INSTANCE
        return not request.failed

    def _end_at_once(self, row: TokenRow) -> bool:
        row.conversation.waits = NOTHING
        self._end_request(row.conversation, False)
        return False

    def _submit_for_a_time(self, row: TokenRow) -> None:
        """Submit a request that is cancelled on purpose if it takes too long."""
        if not row.own_task:
            return
        if self._submit(row):
            self._queue.call_at(row.start_s + self.cancellation_delay_s, partial(self._give_up, row))
        else:
            row.own_task = False
            row.conversation.wake()

    def _give_up(self, row: TokenRow) -> None:
        if row.own_task:
            row.error = ON_PURPOSE
            row.conversation.wake()

    def _end_request(self, conversation: Conversation, cut: bool) -> bool:
        row, now = conversation.in_flight, self._queue.time_s
        assert isinstance(row, TokenRow)
        request = row.request
        if row.own_task:
            row.own_task = False
            if cut or row.error is not None:
                self._queue.cluster.cancel(request, now)
            conversation.play(conversation)
            return False
        if cut and row.error is not ON_PURPOSE:
            row.error = BY_RUN
        row.end_s = now
        if row.error is not None or request.failed:
            self._note_failure(row)
        self.end(conversation, row.error, now)
        request.key = b""  # the ids are no longer needed
        request.tag = None  # and no cycle keeps the row when the run is forgotten
        if now == row.start_s:
            self._queue.took_no_time()
        if conversation.overflowed:  # it is counted, and no request that was measured
            return True
        self._rows.add(row)
        return True

    def _note_failure(self, row: TokenRow) -> None:
        if row.error is None:
            row.error = loss(row.request.dropped, _by_endpoint(row))
        elif row.is_cancelled:
            self._queue.cluster.cancel(row.request, self._queue.time_s)
            if self._by_endpoint or self._cancellation_share:
                row.token_s, row.request.spans = [], []
        self._prompts.failed(row.conversation)


def _by_endpoint(row: TokenRow) -> bool:
    """Return whether the prompt is given as ids or as blocks, not as a count of tokens."""
    spec = row.conversation.session.turns[row.turn_index].tokens
    return spec is None or spec.input_ids is not None
