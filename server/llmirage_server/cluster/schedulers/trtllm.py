"""The rules of TensorRT-LLM's in-flight batching (cpp/tensorrt_llm/batch_manager: capacityScheduler.cpp and
microBatchScheduler.cpp, as of 1.0).

The capacity scheduler decides who may run: those who have started, then waiting ones in order until the first that does not
fit. With guaranteed_no_evict a request is started only if the memory holds the whole of its prompt and of its allowed
output, beside what those who have started may still need: nobody is ever paused. With max_utilization its prompt must fit;
when a started one finds no memory, the one started last is paused: it goes back to the head of the queue, and nobody is
started in that step. A waiting prompt whose next block is just being computed for another one is passed over: it can reuse
that block soon.

The micro batch scheduler decides who runs now: first all who generate, then prompts in order, the last one cut to whole
blocks where `max_num_batched_tokens` ends. Behind a prompt of which not even a block fits, a shorter rest may go through.

Not as there: the memory of a prompt is taken chunk by chunk and becomes reusable so, not as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmirage_server.cluster.instances.steady_batch import SteadyBatch
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.schedulers.base import Scheduler, Step


class TrtllmScheduler(Scheduler):
    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        page = self.kv.page_size
        sequence.expected = -(-sequence.expected // page) * page  # so that those of many can be added up

    def _form(self, now: float) -> Step:
        step = Step()
        preemptions = self.preemptions
        budget = self.limits.max_num_batched_tokens
        busy = self.prefilling | self._in_flight
        decoding = [sequence for sequence in self.running if sequence not in busy] if busy else self.running
        budget -= self._decode_together(step, decoding, budget)
        if not step.sequences:
            budget = self._generate(step, budget)
        if self.prefilling:
            budget = self._continue_prompts(step, budget)
        if self.preemptions == preemptions:
            self._start_prompts(step, budget, now)
        return step

    def _generate(self, step: Step, budget: int) -> int:
        """Let decode who can; return what is left of the token budget."""
        busy = self.prefilling | self._in_flight
        i = 0
        while i < len(self.running):  # who is paused meanwhile is behind
            sequence = self.running[i]
            i += 1
            if sequence in busy:
                continue
            new_tokens = 1 + self._draft_tokens(sequence)
            if new_tokens > budget or not self._make_room(step, sequence, new_tokens):
                break
            self._add_decode(step, sequence)
            budget -= new_tokens
        return budget

    def _continue_prompts(self, step: Step, budget: int) -> int:
        """Go on with the prompts that were cut; return what is left of the token budget."""
        for sequence in [each for each in self.running if each in self.prefilling and each not in self._in_flight]:
            new_tokens = self._cut(sequence.tokens - sequence.computed, budget)
            if new_tokens and sequence in self.prefilling:
                if not self._make_room(step, sequence, new_tokens):
                    break
                self._add_chunk(step, sequence, new_tokens)
                budget -= new_tokens
        return budget

    def _make_room(self, step: Step, sequence: Sequence, new_tokens: int) -> bool:
        """Allocate, pausing from the tail who is not in a step; False if in the end the sequence itself had to go."""
        while not self.kv.allocate(sequence, new_tokens):
            busy = self._in_flight.union(step.sequences)
            victim = next(each for each in reversed(self.running) if each not in busy)
            self.running.remove(victim)
            self.kv.commit(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def form_beside(self, step: Step, batch: SteadyBatch, now: float) -> int | None:
        kv, decodes = self.kv, batch.size
        budget = self.limits.max_num_batched_tokens - decodes
        decode_tokens = needed = batch.pages() * kv.page_size
        chunks = []
        if self.prefilling:
            if not self.prompts_last(decodes):
                return None  # a short prompt has gone past a longer one: from now on it is behind it
            for sequence in self.running[decodes:]:
                if new_tokens := self._cut(sequence.tokens - sequence.computed, budget):
                    chunks.append((sequence, new_tokens))
                    needed += self._needs(sequence, sequence.computed + new_tokens)
                    budget -= new_tokens
        if needed > kv.room_tokens:
            return None
        kv.take(decode_tokens)
        for sequence, new_tokens in chunks:
            kv.allocate(sequence, new_tokens)
            self._add_chunk(step, sequence, new_tokens)
        if self.waiting:
            self._start_prompts(step, budget, now, batch)
        return decodes

    def give_way(self, batch: SteadyBatch) -> list[tuple[Sequence, int]]:
        return self._last_give_way(batch)

    def _start_prompts(self, step: Step, budget: int, now: float, beside: SteadyBatch | None = None) -> None:
        """Start waiting ones in order, until one does not fit in beside what was promised to others.

        beside: where the decoding sequences are, if not with their own fields.
        """
        kv = self.kv
        if (
            not self.waiting
            or len(self.running) >= self.limits.max_num_seqs
            or (self._blocked is self.waiting[0] and self._blocked_at == kv.changes)
        ):
            return
        coming = {self._next_block(sequence) for sequence in self.prefilling}
        promised = self._promised(self.running) if beside is None else self._promised_beside(beside)
        started = len(self.running)
        at = 0
        while budget and at < len(self.waiting) and started < self.limits.max_num_seqs:
            sequence = self.waiting[at]
            if self._loads(sequence):
                continue
            kv.acquire(sequence)
            received = sequence in self._received
            missing = 1 if received else sequence.tokens - sequence.computed
            block = b"" if received else self._next_block(sequence)
            if block and block in coming:
                kv.release(sequence)
                at += 1
                continue
            needed = self._needs(sequence, self._reach(sequence))
            if promised + needed > self._available or (missing > budget and not self.limits.enable_chunked_prefill):
                kv.release(sequence)
                self._blocked, self._blocked_at = self.waiting[0], kv.changes
                break
            coming.add(block)
            started += 1
            new_tokens = self._cut(missing, budget)
            if new_tokens:
                self._start(step, sequence, new_tokens, now)
                promised += self._promised([sequence])
                budget -= new_tokens
            else:
                kv.release(sequence)
                promised += needed
                at += 1

    def _cut(self, missing: int, budget: int) -> int:
        """A prompt's tokens in one step: all that are missing, or whole blocks."""
        return missing if missing <= budget else budget // self.kv.page_size * self.kv.page_size

    def _next_block(self, sequence: Sequence) -> bytes:
        """The key of the first block that a sequence must compute and that others could reuse; empty if there is none."""
        end = sequence.in_tree + self.kv.page_size
        return sequence.key[: end * TOKEN_BYTES] if self.kv.prefix_caching and end < sequence.tokens else b""

    def _reach(self, sequence: Sequence) -> int:
        """How many tokens must find room when a sequence starts."""
        return sequence.expected if self._reserves_output else sequence.tokens

    def _promised(self, started: Iterable[Sequence]) -> int:
        """What these may still take of the memory."""
        page = self.kv.page_size
        if not self._reserves_output:
            return sum(self._needs(sequence, sequence.tokens) for sequence in self.prefilling.intersection(started))
        return page * sum([-(-sequence.expected // page) - -(-sequence.computed // page) for sequence in started])

    def _promised_beside(self, batch: SteadyBatch) -> int:
        """`_promised` to all who run, when the memory of this step is taken."""
        promised = self._promised(self.prefilling)
        if self._reserves_output and batch.size:
            page = self.kv.page_size
            expected = batch.to_come() + batch.context_sum + batch.size  # whole pages of each
            promised += expected - (batch.pages_held() + batch.pages()) * page
        return promised

    @property
    def _reserves_output(self) -> bool:
        return not self._hands_over and self.limits.capacity_scheduler_policy == "guaranteed_no_evict"
