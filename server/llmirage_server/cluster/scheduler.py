"""Continuous batching: which tokens the next step computes, and what its end brings.

The rules are those of vLLM's V1 scheduler. Running sequences come first, in the order of their admission, each with the
tokens it still has to compute: one for a decoding sequence, a prompt chunk for the others. Then waiting ones are admitted,
first come first served, while `max_num_seqs`, the token budget and the KV memory allow; nobody overtakes. A prompt is
admitted only when the whole of it would fit. When a running sequence finds no room for its KV, the sequence admitted last
is preempted: it returns to the head of the queue and will recompute its prompt and what it had produced, except for what
the prefix cache still remembers. No one is admitted in a step that preempts.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from llmirage_server.cluster.instance_base import Role
from llmirage_server.cluster.kv_cache import KVCache, Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request


@dataclass(slots=True)
class Step:
    """What one forward pass computes, in the terms of `StepModel.step_s`."""

    prefill: list[tuple[int, int]] = field(default_factory=list)  # (new tokens, context tokens) of each prompt chunk
    prefill_sequences: list[Sequence] = field(default_factory=list)  # the sequence of each chunk
    decode_contexts: list[int] = field(default_factory=list)  # tokens computed before, of each decoding sequence


class Scheduler:
    """The waiting and the running sequences of one instance."""

    def __init__(self, limits: EngineLimits, kv: KVCache, role: Role = "both") -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of admission
        self.handed_over: list[Request] = []  # at the end of the last step
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._limits = limits
        self._kv = kv
        self._hands_over = role == "prefill"
        self._received: set[Sequence] = set()  # those that wait with their KV computed elsewhere
        self._handed_over: set[Sequence] = set()  # those that have left the batch, their KV still here
        self._prefilling: set[Sequence] = set()  # the running ones that do not decode yet
        self._blocked: tuple[Sequence, int] | None = None  # head of the queue that did not fit, and `kv.changes` then

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def receive(self, sequence: Sequence) -> None:
        """Add a sequence whose KV, but for its last token's, was computed elsewhere and has arrived."""
        self._received.add(sequence)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a cancelled or transferred sequence at once. What the prefix cache has of it stays there."""
        if sequence in self._handed_over:
            self._handed_over.remove(sequence)
            self._kv.release(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
            self._prefilling.discard(sequence)
            self._kv.release(sequence)
        else:
            self._received.discard(sequence)
            self.waiting.remove(sequence)

    def schedule(self, now: float) -> Step:
        """Form the step that starts at `now`.

        Empty only if nobody waits or runs, or if those who wait find no room beside the KV that was handed over.
        """
        step = Step()
        preemptions = self.preemptions
        budget = self._schedule_running(step)
        if self.preemptions == preemptions:
            self._admit(step, budget, now)
        return step

    def complete(self, step: Step, now: float) -> list[Request]:
        """End a step at `now`: whoever has all its known tokens computed produces one more. Returned in running order.

        An instance of role "prefill" then hands over those who have more to produce: `handed_over` tells.
        """
        for sequence in step.prefill_sequences:  # a cancelled one has nothing computed any more
            self._kv.commit(sequence)
            if sequence.computed == sequence.tokens:
                self._prefilling.remove(sequence)
                if not sequence.request.produced:
                    sequence.request.first_token_s = now
        emitted = []
        leaving = []
        for sequence in self.running:
            if sequence.computed == sequence.tokens:
                sequence.tokens += 1
                request = sequence.request
                request.produced += 1
                emitted.append(request)
                if sequence.tokens == sequence.max_tokens or self._hands_over:
                    leaving.append(sequence)
        self.handed_over = []
        if leaving:
            left = set(leaving)
            self.running = [sequence for sequence in self.running if sequence not in left]
            for sequence in leaving:
                if sequence.tokens < sequence.max_tokens:
                    self._handed_over.add(sequence)
                    self.handed_over.append(sequence.request)
                else:
                    sequence.request.finished_s = now
                    self._kv.finish(sequence)
        return emitted

    def _schedule_running(self, step: Step) -> int:
        """Continue the running sequences; return what is left of the token budget."""
        budget = self._limits.max_num_batched_tokens
        if not self._prefilling and self._kv.allocate_one_each(self.running):
            step.decode_contexts = [sequence.computed - 1 for sequence in self.running]
            return budget - len(self.running)
        i = 0
        while budget and i < len(self.running):
            sequence = self.running[i]
            context = sequence.computed
            new_tokens = min(sequence.tokens - context, budget)
            if not self._make_room(sequence, new_tokens):
                break
            if sequence in self._prefilling:
                step.prefill.append((new_tokens, context))
                step.prefill_sequences.append(sequence)
            else:
                step.decode_contexts.append(context)
            budget -= new_tokens
            i += 1
        return budget

    def _make_room(self, sequence: Sequence, new_tokens: int) -> bool:
        """Allocate, preempting from the tail; False if in the end the sequence itself had to go."""
        while not self._kv.allocate(sequence, new_tokens):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._prefilling.discard(victim)
        self._kv.commit(victim)
        self._kv.release(victim)
        self.waiting.appendleft(victim)
        victim.request.preemptions += 1
        self.preemptions += 1

    def _admit(self, step: Step, budget: int, now: float) -> None:
        """Admit from the head of the queue while there is room for the whole prompt."""
        kv = self._kv
        while self.waiting and budget and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            if self._blocked == (sequence, kv.changes):
                break
            kv.acquire(sequence)
            context = sequence.computed
            missing = sequence.tokens - context
            may_chunk = self._limits.enable_chunked_prefill or missing <= budget or sequence in self._received
            if not may_chunk or not kv.fits(sequence, sequence.tokens):
                kv.release(sequence)
                self._blocked = (sequence, kv.changes)
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence in self._received:
                self._received.remove(sequence)
                kv.allocate(sequence, missing - 1)
                kv.commit(sequence)
                kv.allocate(sequence, 1)
                step.decode_contexts.append(sequence.tokens - 1)
                budget -= 1
                continue
            new_tokens = min(missing, budget)
            kv.allocate(sequence, new_tokens)
            self._prefilling.add(sequence)
            step.prefill.append((new_tokens, context))
            step.prefill_sequences.append(sequence)
            budget -= new_tokens
            request = sequence.request
            if math.isnan(request.admitted_s):
                request.admitted_s = now
                request.cached_tokens = context
                self.prefix_query_tokens += sequence.prompt_tokens
                self.prefix_hit_tokens += context
