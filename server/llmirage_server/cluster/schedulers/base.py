"""What the schedulers of all engines have in common: the queue, the batch, and what the end of a step brings.

A scheduler forms one step after the other. `schedule` says which tokens the next forward pass computes and takes their KV
memory; `complete` ends it: whoever has all its known tokens computed produces one more (or several, with speculation).
A sequence is waiting, loading (its KV comes from an offload tier), running, or handed over (an instance of a prefill pool
has finished it, and its KV has not left yet). Preempting a running sequence puts it back into the queue, to recompute its
prompt and what it had produced, except for what the prefix cache still remembers.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque

from llmirage_server.cluster.instances.base import Role
from llmirage_server.cluster.instances.speculation import Acceptance
from llmirage_server.cluster.instances.steady_batch import SteadyBatch
from llmirage_server.cluster.kv.cache import KVCache, Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd


class Step:
    """What one forward pass computes, in the terms of `StepModel.step_s`."""

    __slots__ = ("decode_contexts", "prefill", "prefill_sequences", "sequences")

    def __init__(self) -> None:
        self.prefill: list[tuple[int, int]] = []  # (new tokens, context tokens) of each prompt chunk
        self.decode_contexts: list[int] = []  # tokens computed before, of each decoding sequence
        self.prefill_sequences: list[Sequence] = []  # the sequence of each chunk
        self.sequences: list[Sequence] = []  # those who will have a new token, in the order of running


class Scheduler(ABC):
    """The waiting and the running sequences of one instance, or of one of its attention data-parallel ranks.

    reserves: whether it goes by the tokens that sequences are expected to have in the end.
    prompts_first: whether `Step.sequences` has those of prompt chunks before the decoding ones.

    Of those for an instance that keeps its decoding sequences by itself: see `form_beside`.
    counts_steps: whether it must be told of steps that it has not formed (`pass_steps`), and of who leaves (`let_go`).
    overtaking: whether somebody who arrives may be admitted before those who wait.
    full_from: with so many running, nothing changes when somebody arrives, until one of them leaves.
    """

    reserves = True
    prompts_first = False
    counts_steps = False

    def __init__(self, limits: EngineLimits, kv: KVCache, role: Role = "both", *, pipelined: bool = False) -> None:
        self.kv = kv
        self.limits = limits
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._hands_over = role == "prefill"
        self._pipelined = pipelined
        self._drafts = limits.num_speculative_tokens
        self._acceptance = Acceptance(self._drafts, limits.acceptance_rate, limits.speculation_seed)
        self.overtaking = limits.schedule_policy == "priority"
        self.full_from = limits.max_num_seqs
        self._forget()

    def _forget(self) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of admission
        self.prefilling: set[Sequence] = set()  # the running ones that do not decode yet
        self._received: set[Sequence] = set()  # the waiting ones whose KV was computed elsewhere
        self._handed_over: set[Sequence] = set()
        self._in_flight: set[Sequence] = set()  # the running ones in a step that is not completed, if there can be several
        self._blocked: Sequence | None = None  # head of the queue that did not fit
        self._blocked_at = 0  # `kv.changes` then

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.kv.loading)

    @property
    def queue_length(self) -> int:
        """Those that do not run yet: waiting in the queue, or for their KV to be loaded."""
        return len(self.waiting) + len(self.kv.loading)

    def clear(self) -> None:
        """A crash: all sequences and all KV are gone. Counters stay."""
        self.kv.clear()
        self._forget()

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the queue."""
        if self.reserves:
            request = sequence.request
            allowed = sequence.prompt_tokens + max(request.max_tokens, request.output_tokens)
            sequence.expected = min(allowed, self.limits.max_request_tokens, self.kv.capacity_tokens)
        self._enqueue(sequence)

    def receive(self, sequence: Sequence) -> None:
        """Add a sequence whose KV, but for its last token's, was computed elsewhere and has arrived."""
        self._received.add(sequence)
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a cancelled or transferred sequence at once. What the prefix cache has of it stays there."""
        if sequence in self._handed_over:
            self._handed_over.remove(sequence)
            self._drop(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
            self._drop(sequence)
        elif not self.kv.stop_load(sequence):
            self._received.discard(sequence)
            self.waiting.remove(sequence)

    def schedule(self, now: float) -> Step:
        """Form the step that starts at `now`.

        Empty if nobody waits or runs, if all who run are in flight, or if those who wait find no room beside the KV that was
        handed over or is being loaded.
        """
        self.kv.now_s = now
        if self.kv.loading:
            for sequence in reversed(self.kv.take_loaded()):
                self._requeue(sequence)
        step = self._form(now)
        if self._pipelined:
            self._in_flight.update(step.sequences)
        return step

    def complete(self, step: Step, end: StepEnd) -> list[Request]:
        """End a step at `end.time_s` and add to `end` what it brought; return who has finished.

        An instance of role "prefill" hands over those who have more to produce.
        """
        now = self.kv.now_s = end.time_s
        if self._pipelined:
            self._in_flight.difference_update(step.sequences)
        for sequence in step.prefill_sequences:  # a cancelled one has nothing computed any more
            self.kv.commit(sequence)
            if sequence.computed == sequence.tokens and sequence in step.sequences:
                self.prefilling.discard(sequence)
                if not sequence.request.produced:
                    sequence.request.first_token_s = now
        accepted = self._accept(step) if self._drafts else 0
        emitted, hands_over = end.emitted, self._hands_over
        leaving = []
        for sequence in step.sequences:  # hot: once a token
            if sequence.computed != sequence.tokens:
                continue  # cancelled
            sequence.tokens += 1
            request = sequence.request
            request.produced += 1
            emitted.append(request)
            if hands_over or sequence.tokens == sequence.max_tokens:
                leaving.append(sequence)
        if accepted:
            end.tokens += accepted
        return self._leave(leaving, end) if leaving else []

    def _accept(self, step: Step) -> int:
        """Settle which of the draft tokens are accepted, give the others' KV back; return how many are."""
        total = 0
        for sequence in step.sequences:
            drafts = sequence.computed - sequence.tokens
            if drafts > 0:
                request = sequence.request
                accepted = self._acceptance.accepted(request.id, request.produced, drafts)
                self.kv.retreat(sequence, drafts - accepted)
                sequence.tokens += accepted
                request.produced += accepted
                total += accepted
        return total

    @abstractmethod
    def _form(self, now: float) -> Step: ...

    def _leave(self, leaving: list[Sequence], end: StepEnd) -> list[Request]:
        """Take those out of the batch who have finished, or whose prefill has; return those who have finished."""
        finished = []
        gone = set(leaving)
        self.running = [sequence for sequence in self.running if sequence not in gone]
        for sequence in leaving:
            if sequence.tokens < sequence.max_tokens:
                self._handed_over.add(sequence)
                end.handed_over.append(sequence.request)
            else:
                finished.append(sequence.request)
                sequence.request.finished_s = end.time_s
                self.kv.finish(sequence)
        return finished

    def _enqueue(self, sequence: Sequence) -> None:
        """Put a new sequence where its turn is."""
        self.waiting.append(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """Put one back that was ahead of those who wait."""
        self.waiting.appendleft(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Give back what a sequence holds that runs no longer."""
        self.prefilling.discard(sequence)
        self._in_flight.discard(sequence)
        self.kv.release(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Back into the queue with a sequence that the caller has taken out of `running`."""
        self._drop(sequence)
        self._requeue(sequence)
        self._count_preemption(sequence)

    def _count_preemption(self, sequence: Sequence) -> None:
        sequence.request.preemptions += 1
        self.preemptions += 1

    # --- for an instance that keeps its decoding sequences by itself (compressed.py) ---

    @staticmethod
    def can_form_beside(limits: EngineLimits) -> bool:
        """Whether `form_beside` knows all rules of a scheduler with these limits."""
        return not limits.num_speculative_tokens

    def prompts_last(self, decoding: int) -> bool:
        """Whether all running sequences behind the first `decoding` ones still compute their prompt."""
        return self.prefilling.issuperset(self.running[decoding:])

    def may_admit(self, decodes: int) -> bool:
        """Whether a step with so many decoding sequences could admit someone.

        If not, and nobody computes a prompt, they all decode, and so in every step until someone leaves or arrives.
        """
        return bool(
            self.waiting
            and len(self.running) < self.limits.max_num_seqs
            and decodes < self.limits.max_num_batched_tokens
            and not (self._blocked is self.waiting[0] and self._blocked_at == self.kv.changes)
        )

    @abstractmethod
    def form_beside(self, step: Step, batch: SteadyBatch, now: float) -> int | None:
        """`schedule` of an instance whose decoding sequences are in `batch`, and not up to date themselves.

        Puts the prompts into the step, and takes the memory of all. Returns how many of the batch decode in it: all of them,
        or 0 where they stand still. None: somebody must give way (`give_way`, or `schedule` when the batch is dissolved),
        and nothing has changed yet that these would not do in the same way.
        """

    def give_way(self, batch: SteadyBatch) -> list[tuple[Sequence, int]]:
        """Make room for a step of decodes alone: preempt some of the batch, and take the memory of the others.

        Returns them, each with the step that brought its first token. Nobody: nothing has changed, it takes `schedule`.
        """
        return []

    def pass_steps(self, steps: int) -> None:  # noqa: B027 (for those that count them)
        """So many steps were formed in which all decoded, and nobody was admitted."""

    def let_go(self) -> None:  # noqa: B027 (for those that must know)
        """Some have finished and are not running any more."""

    def _last_give_way(self, batch: SteadyBatch) -> list[tuple[Sequence, int]]:
        """`give_way` where all take their memory in order, and the last one gives way whenever there is none."""
        gone: list[tuple[Sequence, int]] = []
        if self.prefilling:
            return gone
        kv, members, needed = self.kv, batch.members(), batch.pages()
        while (room := kv.room_tokens // kv.page_size) < needed:
            kv.take(room * kv.page_size)
            last = batch.drop(members.pop())
            gone.append(last)
            self.running.pop()
            needed -= room + (last[0].computed % kv.page_size == 0)  # its own page, for which nothing is left
            kv.commit(last[0])  # what it had stays findable until it is needed
            self._preempt(last[0])
        kv.take(needed * kv.page_size)
        return gone

    # --- parts of a step, for `_form` ---

    def _decode_together(self, step: Step, decoding: list[Sequence], budget: int = sys.maxsize) -> int:
        """Let them all decode, if memory and `budget` allow; return how many tokens that takes, 0 if nobody decodes."""
        kv = self.kv
        if drafts := self._drafts:
            new_tokens = [1 + min(drafts, sequence.max_tokens - 1 - sequence.tokens) for sequence in decoding]
            total = sum(new_tokens)
            if total > budget or not kv.allocate_each(decoding, new_tokens):
                return 0
        else:
            total = len(decoding)
            if not kv.allocate_one_each(decoding):
                return 0
        step.decode_contexts += [sequence.tokens - 1 for sequence in decoding]
        step.sequences += decoding
        return total

    def _draft_tokens(self, sequence: Sequence) -> int:
        """Draft tokens in the next step of a decoding sequence: never more than its output has room for."""
        return min(self._drafts, sequence.max_tokens - 1 - sequence.tokens)

    def _add_decode(self, step: Step, sequence: Sequence) -> None:
        """The step computes the next token of a decoding sequence, whose KV has been allocated."""
        step.decode_contexts.append(sequence.tokens - 1)
        step.sequences.append(sequence)

    def _add_chunk(self, step: Step, sequence: Sequence, new_tokens: int) -> None:
        """The step computes `new_tokens` of a prompt, whose KV has been allocated."""
        step.prefill.append((new_tokens, sequence.computed - new_tokens))
        step.prefill_sequences.append(sequence)
        if sequence.computed == sequence.tokens:
            step.sequences.append(sequence)

    def _loads(self, sequence: Sequence) -> bool:
        """Have a waiting sequence loaded, if an offload tier has more of its KV than is here; it has left the queue then."""
        if sequence in self._received or not self.kv.tiered or not self.kv.start_load(sequence):
            return False
        self.waiting.remove(sequence)
        return True

    def _start(self, step: Step, sequence: Sequence, new_tokens: int, now: float) -> None:
        """Admit an acquired sequence with the first `new_tokens` of what it has to compute: there is room."""
        if sequence in self._received:
            self._join(sequence)
            self.kv.allocate(sequence, 1)
            self._add_decode(step, sequence)
            return
        self.waiting.remove(sequence)
        self.running.append(sequence)
        request, computed = sequence.request, sequence.computed
        if request.admitted_s != request.admitted_s:  # NaN
            request.admitted_s = now
            request.cached_tokens = computed
            self.prefix_query_tokens += sequence.prompt_tokens
            self.prefix_hit_tokens += computed
        self.kv.allocate(sequence, new_tokens)
        self.prefilling.add(sequence)
        step.prefill.append((new_tokens, computed))
        step.prefill_sequences.append(sequence)
        if computed + new_tokens == sequence.tokens:
            step.sequences.append(sequence)

    def _join(self, sequence: Sequence) -> None:
        """Admit an acquired sequence whose KV was computed elsewhere: it can decode."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self._received.remove(sequence)
        self.kv.allocate(sequence, sequence.tokens - 1 - sequence.computed)
        self.kv.commit(sequence)

    # --- memory, in tokens of whole pages ---

    @property
    def _available(self) -> int:
        """What is free, or could be by forgetting."""
        return self.kv.room_tokens

    def _needs(self, sequence: Sequence, tokens: int) -> int:
        """What a sequence needs, beyond what it holds, to have `tokens` tokens computed."""
        page = self.kv.page_size
        return (-(-tokens // page) - -(-sequence.computed // page)) * page
