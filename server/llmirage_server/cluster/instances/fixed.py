"""An instance with fixed times: token i of every request is due at arrival + TTFT + i * ITL, at any load."""

from __future__ import annotations

import math
import sys
from heapq import heappop, heappush
from itertools import count

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Request, Sequence, StepEnd, TokenPlan
from llmirage_server.cluster.snapshots import Reading

_AT_ONCE = 32  # tokens of a request in one event where no time is between them: drivers do other work between events


class FixedInstance(InstanceBase):
    """Fixed times, with a real prefix cache, so that `cached_tokens` is the figure an engine would report.

    Nothing waits: `max_num_seqs` and the token budget do not apply, and a prompt for which the KV memory has no room is not
    cached. Prompts enter the cache with their first token, generated tokens when the request finishes. The tokens of a
    request `by_plan` between the first and the last are emitted with the last.
    """

    memory_limits = False

    def __init__(self, index: int, ttft_s: float, itl_s: float, limits: EngineLimits, role: Role = "both") -> None:
        for name, value in (("ttft_s", ttft_s), ("itl_s", itl_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number of seconds from 0 up, not {value}")
        super().__init__(index, limits, role)
        self.kv = KVCache(limits)
        self.max_request_tokens = sys.maxsize
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._sequences: dict[Request, Sequence] = {}
        self._plans: dict[Request, tuple[float, int]] = {}  # of producing requests: when its next token was due
        # on arrival here, and how many it had then
        self._due: list[tuple[float, int, Request]] = []  # the next token of every request, and of some cancelled ones
        self._order = count()
        self._prefix_hit_tokens = 0
        self._prefix_query_tokens = 0

    @property
    def kv_caches(self) -> list[KVCache]:
        return [self.kv]

    def match(self, key: bytes) -> int:
        return self.kv.match(key)

    @property
    def kv_used_tokens(self) -> int:
        return self.kv.used_tokens

    @property
    def kv_total_tokens(self) -> int:
        return self.kv.capacity_tokens

    def submit(self, request: Request, now: float) -> None:
        sequence = self._sequences[request] = Sequence(request)
        self.kv.acquire(sequence)
        first_s = now + self._ttft_s
        if math.isnan(request.admitted_s):
            request.admitted_s = now
            first_s = max(first_s - request.age_s, now)
            request.cached_tokens = sequence.computed
            self._prefix_hit_tokens += sequence.computed
            self._prefix_query_tokens += sequence.prompt_tokens
        self._plan(request, first_s, now)

    def receive(self, request: Request, now: float) -> None:
        sequence = self._sequences[request] = Sequence(request)
        self.kv.acquire(sequence)
        if not request.produced and math.isnan(request.admitted_s):  # another request was the prefill
            request.admitted_s = now
            request.cached_tokens = sequence.tokens - 1
            request.external_tokens = request.cached_tokens - sequence.computed
        self._remember(sequence, sequence.tokens - 1)
        self._plan(request, now + self._itl_s, now)

    def release_transferred(self, request: Request, now: float) -> None:
        self.kv.release(self._sequences.pop(request))

    def cancel(self, request: Request, now: float) -> None:
        request.follow_plan(now)
        self.kv.release(self._sequences.pop(request))
        self._plans.pop(request, None)
        self._count(now)

    def evacuate(self, now: float) -> list[Request]:
        lost = list(self._sequences)
        for request in lost:
            request.follow_plan(now)
            request.plan = None
        self.kv.clear()
        self._sequences = {}
        self._plans = {}
        self._due = []
        self._count(now)
        return lost

    def clear_cache(self, now: float) -> None:
        self.kv.forget_idle()

    def advance(self) -> StepEnd | None:
        """Emit the tokens that are due at the next instant, in the order of submission."""
        due, plans = self._due, self._plans
        now = due[0][0]
        batch = [heappop(due)]
        while due and due[0][0] == now:
            batch.append(heappop(due))
        emitted: list[Request] = []
        handed_over: list[Request] = []
        tokens = 0
        for _, order, request in batch:
            plan = plans.get(request)
            if plan is None:
                continue
            emitted.append(request)
            first_s, before = plan
            rest = request.plan is not None  # all further tokens come in this event
            if request.produced == before:
                rest = False
                self._remember(self._sequences[request], request.prompt_tokens + before)
                if not before:
                    request.first_token_s = now
            gained = 1 if self._itl_s or self.role == "prefill" else min(_AT_ONCE, request.output_tokens - request.produced)
            if rest:
                gained = request.output_tokens - request.produced
            request.produced += gained
            tokens += gained
            if request.produced == request.output_tokens and not request.keeps_kv:
                self._finish(request, now)
            elif request.produced == request.output_tokens:
                request.finished_s = now
                del plans[request]
                handed_over.append(request)
            elif self.role == "prefill":
                del plans[request]
                handed_over.append(request)
            else:
                next_token = request.produced if request.plan is None else request.output_tokens - 1
                heappush(due, (first_s + (next_token - before) * self._itl_s, order, request))
        if len(plans) == self.running and due and due[0][2] in plans:  # the common case
            self.next_event_s = due[0][0]
        else:
            self._count(now)
        return StepEnd(now, self.index, emitted, handed_over, tokens) if emitted else None

    def reading(self) -> Reading:
        return Reading(
            self.running,
            0,
            self.kv.used_tokens,
            self.kv.capacity_tokens,
            self.kv.tree.total_tokens,
            self._prefix_hit_tokens,
            self._prefix_query_tokens,
            0,
            0.0,
            self._ran_s,
            self._stayed_s,
        )

    def _plan(self, request: Request, first_s: float, now: float) -> None:
        request.stream = self.limits.stream
        self._plans[request] = (first_s, request.produced)
        if request.by_plan and self._itl_s and self.role != "prefill":
            request.plan = TokenPlan(first_s, self._itl_s, request.produced)
        heappush(self._due, (first_s, next(self._order), request))
        self._count(now)

    def _remember(self, sequence: Sequence, tokens: int) -> None:
        """Insert the first `tokens` tokens of the sequence into the prefix cache, if they fit."""
        if self.kv.allocate(sequence, tokens - sequence.computed):
            self.kv.insert(sequence)

    def _finish(self, request: Request, now: float) -> None:
        request.finished_s = now
        del self._plans[request]
        sequence = self._sequences.pop(request)
        self._remember(sequence, sequence.max_tokens - 1)
        self.kv.finish(sequence)

    def _count(self, now: float) -> None:
        """Update the counts and the next event.

        Cancelled requests are removed from the head, so that an idle instance has no event.
        """
        due = self._due
        while due and due[0][2] not in self._plans:
            heappop(due)
        self.next_event_s = due[0][0] if due else math.inf
        running = len(self._plans)
        if running != self.running:
            self._ran_s = self._stayed_s = self._stayed_s + (self.running - running) * now
            self.running = self.unfinished = self.load = running
