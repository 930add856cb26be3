"""The rules of SGLang's scheduler (srt/managers: scheduler.py, schedule_policy.py, schedule_batch.py, as of 0.5).

Prefill goes first: as long as waiting prompts can be admitted, steps of prompts alone are run, and decoding sequences stand
still (unless `enable_mixed_chunk`). A step takes up to chunked_prefill_size prompt tokens; the prompt that does not fit
whole contributes a chunk, which continues in the next step. A prompt is admitted when the memory has room for it, for its
whole allowed output (at most 4,096 tokens of it), and for the share `new_token_ratio` of the output that running ones may
still produce. That ratio starts at 0.7 * schedule_conservativeness, falls with every decoding step to 0.14 of that within
600 steps, and is reset when no sequence is left. After a refusal none is admitted until a sequence has left the batch.

When decoding runs out of memory, sequences are retracted until it fits: those with the fewest output tokens first, among
these the one with the longest prompt. They lose the KV they generated and join the end of the queue; the ratio is set to the
tokens generated of all those allowed (plus 20 tokens each).

With `schedule_policy` lpm the queue is sorted by the prefix found in the cache, longest first, as long as it has at most 128
requests; of several whose first 32 tokens are the same and not cached, the later ones go last.

Where SGLang would abort or hang, this one continues: a request too long for the estimate is admitted when no other runs, and
a half-computed prompt is retracted when the last decoding sequence needs its memory.
"""

from __future__ import annotations

import sys
from collections import deque

from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Request, Sequence
from llmirage_server.cluster.schedulers.base import Scheduler
from llmirage_server.cluster.schedulers.batch import Step

_INIT_NEW_TOKEN_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
_MIN_NEW_TOKEN_RATIO_FACTOR = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
_NEW_TOKEN_RATIO_DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
_RETRACT_DECODE_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS
_CLIP_MAX_NEW_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_LPM_QUEUE = 128
_IN_BATCH_PREFIX_TOKENS = 32  # IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD and _DEPRIORITIZE_THRESHOLD


class SglangScheduler(Scheduler):
    """SGLang's scheduler; the module describes its rules."""

    counts_steps = True

    def _reset(self) -> None:
        super()._reset()
        self._init_ratio = min(_INIT_NEW_TOKEN_RATIO * self.limits.schedule_conservativeness, 1.0)
        self._min_ratio = self._init_ratio * _MIN_NEW_TOKEN_RATIO_FACTOR
        self._decay = (self._init_ratio - self._min_ratio) / _NEW_TOKEN_RATIO_DECAY_STEPS
        self.new_token_ratio = self._init_ratio
        self._chunked: Sequence | None = None  # the one prompt that is computed in part
        self._batch_is_full = False

    def _form(self, now: float) -> Step:
        step = Step()
        if not self.size:
            self._batch_is_full = False
        mixed = self.limits.enable_mixed_chunk
        joined = [] if self.holds_prompts else self._prefill(step, self.batch.ready() if mixed else 0, now)
        if not step.prefill:
            self._decode(step)
        elif mixed:
            self.batch.decode_all(step, without=joined)
        return step

    # --- prefill ---

    def _prefill(self, step: Step, decoding: int, now: float) -> list[Sequence]:
        """Fill the step with prompts: the rest of the chunked one, then waiting ones.

        decoding: tokens of the step that are reserved for decoding sequences.

        Returns the sequences that joined the batch with KV that was computed elsewhere.
        """
        limits, kv = self.limits, self.kv
        joined: list[Sequence] = []
        chunk_left = limits.max_num_batched_tokens - decoding if limits.enable_chunked_prefill else sys.maxsize
        input_left = limits.max_prefill_tokens - decoding
        if self._chunked is None and (self._batch_is_full or not self.waiting):
            return joined
        reserved: float = decoding + self.new_token_ratio * self.batch.tokens_to_come(_CLIP_MAX_NEW_TOKENS)
        if self._chunked is not None:
            sequence = self._chunked
            new_tokens = self._cut(sequence.tokens - sequence.computed, chunk_left)
            if not new_tokens or not kv.allocate(sequence, new_tokens):
                return joined
            self._add_chunk(step, sequence, new_tokens)
            if sequence.computed == sequence.tokens:
                self._chunked = None
                reserved += self._may_produce(sequence) + kv.page_size
            chunk_left -= new_tokens
            input_left -= new_tokens
        if self._batch_is_full or not self.waiting:
            return joined
        self._sort_by_longest_prefix()
        while self.waiting and not self._batch_is_full:
            sequence = self.waiting[0]
            received = sequence in self._received
            if self.size >= limits.max_num_seqs:
                self._batch_is_full = True
            elif not received and (chunk_left <= 0 or input_left <= 0):
                break
            elif not self._loads(sequence):
                kv.acquire(sequence)
                missing = sequence.tokens - sequence.computed
                wanted = missing + self._may_produce(sequence) + kv.page_size
                new_tokens = self._cut(missing, chunk_left)
                if wanted >= self._available - reserved and (self.size or not kv.fits(sequence, sequence.tokens)):
                    kv.release(sequence)
                    self._batch_is_full = True
                elif received:
                    self._join(step, sequence, now)
                    joined.append(sequence)
                    reserved += self._may_produce(sequence) + kv.page_size
                elif not new_tokens or (missing >= input_left and step.prefill):
                    kv.release(sequence)
                    break
                else:
                    self._start(step, sequence, new_tokens, now)
                    if new_tokens < missing:
                        self._chunked = sequence
                        break
                    reserved += self._may_produce(sequence) + kv.page_size
                    chunk_left -= new_tokens
                    input_left -= new_tokens
        return joined

    def _cut(self, missing: int, left: int) -> int:
        """Return a prompt's tokens in one step: all that are missing, or whole pages."""
        return missing if missing <= left else max(left, 0) // self.kv.page_size * self.kv.page_size

    def _may_produce(self, sequence: Sequence) -> int:
        """Return the output tokens that the engine must expect of a request."""
        return min(sequence.expected - sequence.tokens, _CLIP_MAX_NEW_TOKENS)

    def _sort_by_longest_prefix(self) -> None:
        if self.limits.schedule_policy != "lpm" or not self.kv.prefix_caching or not 1 < len(self.waiting) <= _LPM_QUEUE:
            return
        ranked = []
        seen = set()
        for sequence in self.waiting:
            found = self.kv.tree.match(sequence.key, sequence.tokens - 1)
            rank = -found
            if found <= _IN_BATCH_PREFIX_TOKENS <= sequence.tokens:
                head = sequence.key[: _IN_BATCH_PREFIX_TOKENS * TOKEN_BYTES]
                if head in seen:
                    rank = 1  # after all others: by then its prefix may be cached
                seen.add(head)
            ranked.append((rank, sequence))
        ranked.sort(key=lambda entry: entry[0])
        self.waiting = deque(sequence for _, sequence in ranked)

    # --- decode ---

    def _decode(self, step: Step) -> None:
        """Let all sequences decode, after retracting as many as memory demands."""
        batch = self.batch
        if batch.decode_all(step):
            self.pass_steps(1)
            return
        decoding = [each for each in batch.in_order() if each not in self._in_flight]
        decoding.sort(key=lambda each: (each.request.produced, -each.prompt_tokens), reverse=True)
        retracted = False
        while decoding and not self._all_fit(decoding):
            chunked = self._chunked
            self._preempt(chunked if len(decoding) == 1 and chunked is not None else decoding.pop())
            retracted = True
        if retracted:  # tokens produced of those allowed
            produced = sum([each.request.produced for each in decoding])
            allowed = sum([each.expected - each.prompt_tokens for each in decoding])
            self.new_token_ratio = min(1.0, (produced + len(decoding) * _RETRACT_DECODE_STEPS) / (allowed + 1))
        batch.decode_all(step)

    def _all_fit(self, decoding: list[Sequence]) -> bool:
        drafts = self.batch.draft_tokens
        return sum([self._needs(each, each.tokens + drafts(each)) for each in decoding]) <= self._available

    def pass_steps(self, steps: int) -> None:
        while steps and self.new_token_ratio != self._min_ratio:
            self.new_token_ratio = max(self.new_token_ratio - self._decay, self._min_ratio)
            steps -= 1

    def _preempt(self, sequence: Sequence) -> None:
        self._drop(sequence)
        self.waiting.append(sequence)
        self._count_preemption(sequence)

    # --- queue and batch membership ---

    def _enqueue(self, sequence: Sequence) -> None:
        if not self.size and not self.waiting:
            self.new_token_ratio = self._init_ratio
        self.waiting.append(sequence)

    def _remove_done(self, done: list[Sequence], now: float, handed_over: list[Request]) -> list[Request]:
        self._batch_is_full = False
        return super()._remove_done(done, now, handed_over)

    def _drop(self, sequence: Sequence) -> None:
        super()._drop(sequence)
        self._batch_is_full = False
        if sequence is self._chunked:
            self._chunked = None

    def _in_order(self, step: Step, sequences: list[Sequence]) -> list[Sequence]:
        """Return sequences of a step with finished prompts first."""
        return sorted(sequences, key=lambda each: (each not in step.prompts_done, each.admission))

    @property
    def notices_arrivals(self) -> bool:
        """True if an arrival changes anything: even behind a full batch the queue may be sorted."""
        return not self.waiting and (self.limits.schedule_policy == "lpm" or self.size < self.limits.max_num_seqs)

    def _may_admit(self) -> bool:
        return not self._batch_is_full or not self.size
