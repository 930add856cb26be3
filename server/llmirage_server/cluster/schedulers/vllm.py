"""The rules of vLLM's V1 scheduler (vllm/v1/core/sched/scheduler.py, as of 0.19).

Running sequences come first, in the order of their admission, each with the tokens it still has to compute: one for a
decoding sequence (and its draft tokens), a prompt chunk for the others. Then waiting ones are admitted, first come first
served, while `max_num_seqs`, the token budget and the KV memory allow; none overtakes. A prompt is admitted only when the
whole of it would fit (scheduler_reserve_full_isl). When a running sequence finds no room for its KV, the sequence admitted
last is preempted: it returns to the head of the queue. None is admitted in a step that preempts.

With `schedule_policy` priority, the queue is ordered by priority (lower first), then arrival, and the victim is the one with
the highest value of it, among these the last admitted, even if its tokens are already in the step.

With pipeline stages, sequences in flight are not scheduled again and never the victim. (vLLM may preempt them.)

Differences: V1 never reads max_num_partial_prefills and max_long_partial_prefills while scheduling, so they have no effect
here either; the block that vLLM keeps as null block is not reserved.
"""

from __future__ import annotations

from llmirage_server.cluster.request import Sequence
from llmirage_server.cluster.schedulers.base import Scheduler
from llmirage_server.cluster.schedulers.batch import Step


class VllmScheduler(Scheduler):
    """vLLM's scheduler; the module describes its rules."""

    reserves = False

    def _form(self, now: float) -> Step:
        step = Step()
        preemptions = self.preemptions
        budget = self._schedule_running(step)
        if self.preemptions == preemptions:
            self._schedule_waiting(step, budget, now)
        elif not step.decodes and not step.prefill:
            return self._form(now)  # the first was preempted for later ones, which were not scheduled yet
        return step

    def _schedule_running(self, step: Step) -> int:
        """Continue the running sequences; return the rest of the token budget."""
        kv, batch, prefilling, budget = self.kv, self.batch, self.prefilling, self.limits.max_num_batched_tokens
        if not self.size:
            return budget
        # If all decoding sequences precede all prompts, they can be scheduled together when all fit.
        prompts_last = not prefilling or next(iter(prefilling)).admission > batch.last_admission
        decode_tokens = batch.decode_all(step, budget) if prompts_last else 0
        budget -= decode_tokens
        if decode_tokens and (not prefilling or self.holds_prompts):
            return budget
        for sequence in list(prefilling) if decode_tokens else self._running(step):
            if not budget:
                break
            if not sequence.admission or sequence in self._in_flight:
                continue  # it was preempted, or its step has not ended
            prompt = sequence in prefilling
            if prompt and self.holds_prompts:
                continue
            missing = sequence.tokens - sequence.computed
            if prompt:
                new_tokens = self._chunk(sequence, missing, budget)
            else:
                new_tokens = min(missing + batch.draft_tokens(sequence), budget)
            while not kv.allocate(sequence, new_tokens):
                victim = self._victim(step)
                budget += self._withdraw(step, victim)
                self._preempt(victim)
                if victim is sequence:
                    return budget
            if prompt:
                self._add_chunk(step, sequence, new_tokens)
            else:
                batch.decode(step, sequence)
            budget -= new_tokens
        return budget

    def _schedule_waiting(self, step: Step, budget: int, now: float) -> None:
        """Admit from the head of the queue while there is room for the whole prompt."""
        kv, limits, waiting, received = self.kv, self.limits, self.waiting, self._received
        while waiting and budget and self.size < limits.max_num_seqs:
            sequence = waiting[0]
            if self._blocked is sequence and self._blocked_at == kv.changes:
                break  # it did not fit, and nothing has changed since
            if kv.tiered and self._loads(sequence):
                continue
            if self.holds_prompts and sequence not in received:
                break
            kv.acquire(sequence)
            missing = 1 if sequence in received else sequence.tokens - sequence.computed
            if not limits.enable_chunked_prefill and missing > budget:
                kv.release(sequence)
                break  # the next step has a budget of its own
            if not kv.fits(sequence, sequence.tokens):
                kv.release(sequence)
                self._blocked, self._blocked_at = sequence, kv.changes
                break
            new_tokens = 1 if sequence in received else self._chunk(sequence, missing, budget)
            self._start(step, sequence, new_tokens, now)
            budget -= new_tokens

    def _chunk(self, sequence: Sequence, missing: int, budget: int) -> int:
        """Return how many of a prompt's `missing` tokens the step computes."""
        limits = self.limits
        threshold = limits.long_prefill_token_threshold
        new_tokens = min(missing, threshold, budget) if threshold else min(missing, budget)
        if not limits.recurrent_states or not limits.enable_prefix_caching or not limits.enable_chunked_prefill:
            return new_tokens
        page, computed = limits.page_size, sequence.computed
        last = sequence.tokens - sequence.tokens % page
        if computed + new_tokens < last:
            return new_tokens // page * page or new_tokens
        return last - computed if computed < last else new_tokens

    def _victim(self, step: Step) -> Sequence:
        """Return the sequence to preempt: possibly the one that asks for memory."""
        running, in_flight = self._running(step), self._in_flight
        candidates = [sequence for sequence in reversed(running) if sequence.admission and sequence not in in_flight]
        if self._by_priority:
            return max(candidates, key=lambda sequence: sequence.request.priority)  # the first of equals
        return candidates[0]

    def _withdraw(self, step: Step, sequence: Sequence) -> int:
        """Take a sequence out of the step, if it is in there; return the tokens that this frees for others."""
        chunks = step.prefill_sequences
        if sequence in chunks:
            at = chunks.index(sequence)
            del chunks[at]
            new_tokens = step.prefill.pop(at)[0]
            if sequence in step.prompts_done:
                step.prompts_done.remove(sequence)
                step.sequences.remove(sequence)
        elif sequence.computed >= sequence.tokens:
            new_tokens = sequence.computed - sequence.tokens + 1
            self.batch.withdraw(step, sequence)
        else:
            return 0
        self.kv.retreat(sequence, new_tokens)
        return new_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.kv.insert(sequence)  # the blocks stay findable until they are needed
        super()._preempt(sequence)

    # --- the queue ---

    def _enqueue(self, sequence: Sequence) -> None:
        at = len(self.waiting) if self._by_priority else 0
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
        return sequence.request.priority if self._by_priority else 0
