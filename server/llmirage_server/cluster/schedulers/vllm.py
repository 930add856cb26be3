"""The rules of vLLM's V1 scheduler (vllm/v1/core/sched/scheduler.py, as of 0.19).

Running sequences come first, in the order of their admission, each with the tokens it still has to compute: one for a
decoding sequence (and its draft tokens), a prompt chunk for the others. Then waiting ones are admitted, first come first
served, while `max_num_seqs`, the token budget and the KV memory allow; nobody overtakes. A prompt is admitted only when the
whole of it would fit (scheduler_reserve_full_isl). When a running sequence finds no room for its KV, the sequence admitted
last is preempted: it returns to the head of the queue. No one is admitted in a step that preempts.

With `schedule_policy` priority, the queue is ordered by priority (lower first), then arrival, and the victim is the one with
the highest value of it, of these the last admitted, even if its tokens are already in the step.

With pipeline stages, what is in flight is not scheduled again and never the victim. (vLLM may preempt it.)

Not here: V1 reads max_num_partial_prefills and max_long_partial_prefills nowhere on its way, so they have no effect here
either; async_scheduling, which decides on a step while the one before runs; the one block that vLLM keeps as null block.
"""

from __future__ import annotations

from llmirage_server.cluster.instances.steady_batch import SteadyBatch
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.schedulers.base import Scheduler, Step


class VllmScheduler(Scheduler):
    reserves = False

    def _form(self, now: float) -> Step:
        step = Step()
        preemptions = self.preemptions
        budget = self._schedule_running(step)
        if self.preemptions == preemptions:
            self._admit(step, budget, now)
        elif not step.sequences and not step.prefill:
            return self._form(now)  # who came first gave way to those behind: they have not been asked yet
        return step

    def _schedule_running(self, step: Step) -> int:
        """Continue the running sequences; return what is left of the token budget."""
        budget = self.limits.max_num_batched_tokens
        i = len(self.running) - len(self.prefilling)
        decoding = self.running[:i]
        if self._in_flight:
            decoding = [sequence for sequence in decoding if sequence not in self._in_flight]
        ahead = self.prefilling.issuperset(self.running[i:])  # those who decode come first: the usual case, made quickly
        tokens = self._decode_together(step, decoding, budget) if ahead else 0
        budget -= tokens
        if not tokens:
            i = 0
        while budget and i < len(self.running):
            sequence = self.running[i]
            i += 1
            if sequence in self._in_flight:
                continue
            chunk = sequence in self.prefilling
            wanted = sequence.tokens - sequence.computed
            new_tokens = min(self._chunk(wanted) if chunk else wanted + self._draft_tokens(sequence), budget)
            while not self.kv.allocate(sequence, new_tokens):
                victim = self._victim()
                at = self.running.index(victim)
                del self.running[at]
                if at < i:
                    i -= 1
                    budget += self._withdraw(step, victim)
                self._preempt(victim)
                if victim is sequence:
                    return budget
            if chunk:
                self._add_chunk(step, sequence, new_tokens)
            else:
                self._add_decode(step, sequence)
            budget -= new_tokens
        return budget

    # --- for an instance that keeps its decoding sequences by itself (compressed.py) ---

    @staticmethod
    def can_form_beside(limits: EngineLimits) -> bool:
        return (
            not limits.num_speculative_tokens
            and not limits.long_prefill_token_threshold
            and limits.max_num_batched_tokens >= limits.max_num_seqs
        )

    def form_beside(self, step: Step, batch: SteadyBatch, now: float) -> int | None:
        kv, prefilling, decodes = self.kv, self.prefilling, batch.size
        budget = self.limits.max_num_batched_tokens - decodes
        chunks = []
        decode_tokens = needed = batch.pages() * kv.page_size
        if prefilling:
            for sequence in self.running[len(self.running) - len(prefilling) :]:
                if new_tokens := min(sequence.tokens - sequence.computed, budget):
                    chunks.append((sequence, new_tokens))
                    needed += self._needs(sequence, sequence.computed + new_tokens)
                    budget -= new_tokens
        if needed > kv.room_tokens:
            return None
        if decode_tokens:
            kv.take(decode_tokens)
        for sequence, new_tokens in chunks:
            kv.allocate(sequence, new_tokens)
            self._add_chunk(step, sequence, new_tokens)
        if self.waiting:
            self._admit(step, budget, now)
        return decodes

    def give_way(self, batch: SteadyBatch) -> list[tuple[Sequence, int]]:
        return [] if self.limits.schedule_policy == "priority" else self._last_give_way(batch)

    def _chunk(self, missing: int) -> int:
        """How much of a prompt one step may compute."""
        threshold = self.limits.long_prefill_token_threshold
        return min(missing, threshold) if threshold else missing

    def _victim(self) -> Sequence:
        """Who gives way: there is one, if only the sequence that asks."""
        candidates = [sequence for sequence in reversed(self.running) if sequence not in self._in_flight]
        if self.limits.schedule_policy == "priority":
            return max(candidates, key=lambda sequence: sequence.request.priority)  # the first of equals
        return candidates[0]

    def _withdraw(self, step: Step, sequence: Sequence) -> int:
        """Take a sequence out of the step, if it is in there; return how many tokens that leaves to others."""
        chunks = step.prefill_sequences
        if sequence in chunks:
            at = chunks.index(sequence)
            del chunks[at]
            new_tokens = step.prefill.pop(at)[0]
        elif sequence in step.sequences:
            decoding = [each for each in step.sequences if each not in chunks]
            del step.decode_contexts[decoding.index(sequence)]
            new_tokens = sequence.computed - sequence.tokens + 1
        else:
            return 0
        if sequence in step.sequences:
            step.sequences.remove(sequence)
        self.kv.retreat(sequence, new_tokens)
        return new_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.kv.commit(sequence)  # the blocks stay findable until they are needed
        super()._preempt(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        at = len(self.waiting) if self.limits.schedule_policy == "priority" else 0
        if not at:
            self.waiting.append(sequence)
            return
        while at and self._priority(self.waiting[at - 1]) > self._priority(sequence):
            at -= 1
        self.waiting.insert(at, sequence)

    def _requeue(self, sequence: Sequence) -> None:
        at = 0
        while at < len(self.waiting) and self._priority(self.waiting[at]) < self._priority(sequence):
            at += 1
        self.waiting.insert(at, sequence)

    def _priority(self, sequence: Sequence) -> int:
        return sequence.request.priority if self.limits.schedule_policy == "priority" else 0

    def _admit(self, step: Step, budget: int, now: float) -> None:
        """Admit from the head of the queue while there is room for the whole prompt."""
        kv, limits, waiting, running, received = self.kv, self.limits, self.waiting, self.running, self._received
        while waiting and budget and len(running) < limits.max_num_seqs:
            sequence = waiting[0]
            if self._blocked is sequence and self._blocked_at == kv.changes:
                break  # it did not fit, and nothing has changed since
            if kv.tiered and self._loads(sequence):
                continue
            kv.acquire(sequence)
            missing = 1 if sequence in received else self._chunk(sequence.tokens - sequence.computed)
            may_chunk = limits.enable_chunked_prefill or missing <= budget
            if not may_chunk or not kv.fits(sequence, sequence.tokens):
                kv.release(sequence)
                self._blocked, self._blocked_at = sequence, kv.changes
                break
            new_tokens = min(missing, budget)
            self._start(step, sequence, new_tokens, now)
            budget -= new_tokens
