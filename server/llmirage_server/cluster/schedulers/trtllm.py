"""The rules of TensorRT-LLM's in-flight batching, as of 1.0.

Source: cpp/tensorrt_llm/batch_manager, capacityScheduler.cpp and microBatchScheduler.cpp.

The capacity scheduler decides which requests may run: started ones, then waiting ones in order until the first that does not
fit. With guaranteed_no_evict a request is started only if the memory holds the whole of its prompt and of its allowed
output, beside what started ones may still need: none is ever paused. With max_utilization its prompt must fit; when a
started one finds no memory, the one started last is paused: it returns to the head of the queue, and none is started in that
step. A waiting prompt whose next block is just being computed for another one is passed over: it can reuse that block soon.

The micro batch scheduler decides which run now: first all that generate, then prompts in order, the last one cut to whole
blocks where `max_num_batched_tokens` ends. Behind a prompt of which not even a block fits, a shorter rest may go through.

A pipeline has as many micro batches as stages, in slots that take turns (`_executor_loop_pp` of py_executor.py): a sequence
stays in the slot of its prompt, each slot holds at most its share of `max_num_seqs`, and an empty one takes new prompts.

Difference: the memory of a prompt is taken, and becomes reusable, chunk by chunk and not as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Sequence
from llmirage_server.cluster.schedulers.base import Scheduler
from llmirage_server.cluster.schedulers.batch import Step


class TrtllmScheduler(Scheduler):
    """TensorRT-LLM's scheduler; the module describes its rules."""

    _slot = 0  # of the last step of a pipeline

    def _form(self, now: float) -> Step:
        if not self._pipelined:
            return self._form_step(now)
        for _ in range(self._stages):  # an empty slot is passed over
            slot = self._slot = self.batch.slot = (self._slot + 1) % self._stages
            step = self._form_step(now)
            if step.decodes or step.prefill:
                for sequence in step.sequences:
                    sequence.slot = slot
                break
        return step

    def _form_step(self, now: float) -> Step:
        step = Step()
        step.admissions = self._admissions
        preemptions = self.preemptions
        budget = self.limits.max_num_batched_tokens
        budget -= self.batch.decode_all(step, budget) or self._decode_one_by_one(step, budget)
        if self.holds_prompts:
            return step
        if self.prefilling:
            budget = self._continue_prompts(step, budget)
        if self.preemptions == preemptions:
            self._start_prompts(step, budget, now)
        return step

    def _decode_one_by_one(self, step: Step, budget: int) -> int:
        """Let sequences decode in the order in which they were started; return the tokens that this takes."""
        tokens = 0
        for sequence in self._running(step):
            if not sequence.admission or sequence in self.prefilling or sequence in self._in_flight:
                continue
            if self._pipelined and sequence.slot != self._slot:
                continue
            new_tokens = 1 + self.batch.draft_tokens(sequence)
            if tokens + new_tokens > budget or not self._make_room(step, sequence, new_tokens):
                break
            self.batch.decode(step, sequence)
            tokens += new_tokens
        return tokens

    def _continue_prompts(self, step: Step, budget: int) -> int:
        """Continue the prompts that were cut; return the rest of the token budget."""
        for sequence in list(self.prefilling):
            new_tokens = self._cut(sequence.tokens - sequence.computed, budget)
            if new_tokens and sequence in self.prefilling:
                if not self._make_room(step, sequence, new_tokens):
                    break
                self._add_chunk(step, sequence, new_tokens)
                budget -= new_tokens
        return budget

    def _make_room(self, step: Step, sequence: Sequence, new_tokens: int) -> bool:
        """Allocate, pausing sequences from the tail that are not in a step; return False if it had to pause this one."""
        while not self.kv.allocate(sequence, new_tokens):
            running = reversed(self._running(step))
            victim = next(each for each in running if each.admission and each.computed < each.tokens)
            self.kv.insert(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def prompt_tokens(self) -> int:
        limits = self.limits
        left = budget = max(0, limits.max_num_batched_tokens - self.batch.ready() * (1 + limits.num_speculative_tokens))
        for sequence in self.prefilling:
            left -= self._cut(sequence.tokens - sequence.computed, left)
        return budget - self._start_prompts(None, left, self.kv.now_s)

    def _start_prompts(self, step: Step | None, budget: int, now: float) -> int:
        """Start waiting sequences in order, until one does not fit beside the memory promised to others.

        Returns the rest of the token budget. Without a step, none is started, only counted.
        """
        kv, waiting, most = self.kv, self.waiting, self.limits.max_num_seqs
        started = self.size
        if step is not None and self._pipelined:
            most = min(most, started + -(-most // self._stages) - step.decodes - len(step.prefill))
        if not waiting or started >= most or (self._blocked is waiting[0] and self._blocked_at == kv.changes):
            return budget
        coming = {self._next_block(sequence) for sequence in self.prefilling}
        promised = self._promised(self.prefilling)
        if self._reserves_output:
            promised += self.batch.promised_tokens()
        at = 0
        while budget and at < len(waiting) and started < most:
            sequence = waiting[at]
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
            needed = self._needs(sequence, sequence.expected if self._reserves_output else sequence.tokens)
            fits = promised + needed <= self._available
            if not fits or (missing > budget and not self.limits.enable_chunked_prefill):
                kv.release(sequence)
                if not fits and not at:  # a passed-over one may be started in the next step
                    self._blocked, self._blocked_at = sequence, kv.changes
                break
            coming.add(block)
            started += 1
            new_tokens = self._cut(missing, budget)
            budget -= new_tokens
            if new_tokens and step is not None:
                self._start(step, sequence, new_tokens, now)
                promised += self._promised([sequence])
            else:
                kv.release(sequence)
                promised += needed
                at += 1
        return budget

    def _cut(self, missing: int, budget: int) -> int:
        """Return a prompt's tokens in one step: all that are missing, or whole blocks."""
        return missing if missing <= budget else budget // self.kv.page_size * self.kv.page_size

    def _next_block(self, sequence: Sequence) -> bytes:
        """Return the key of the next block that a sequence computes and others could reuse; empty if there is none."""
        end = sequence.in_tree + self.kv.page_size
        return sequence.key[: end * TOKEN_BYTES] if self.kv.prefix_caching and end < sequence.tokens else b""

    def _promised(self, started: Iterable[Sequence]) -> int:
        """Return the memory that these sequences may still take."""
        if not self._reserves_output:
            return sum(self._needs(sequence, sequence.tokens) for sequence in started if sequence in self.prefilling)
        return sum([self._needs(sequence, sequence.expected) for sequence in started])

    @property
    def _reserves_output(self) -> bool:
        return not self._hands_over and self.limits.capacity_scheduler_policy == "guaranteed_no_evict"

    def _in_order(self, step: Step, sequences: list[Sequence]) -> list[Sequence]:
        """Return decodes first, then continued and new prompts."""
        return sorted(
            sequences, key=lambda each: (each in step.prompts_done or each.admission > step.admissions, each.admission)
        )

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        page = self.kv.page_size
        sequence.expected = -(-sequence.expected // page) * page  # so that the sums are exact
