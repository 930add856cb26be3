"""The running sequences that decode, as a scheduler sees them, and the step that it forms of them.

`DecodeBatch` has two representations. `SequenceBatch` tracks every sequence by itself: live serving, draft tokens,
pipelines. `SummedBatch` keeps sums over the batch: simulations. Which one a scheduler gets is chosen where instances are
made.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Collection
from collections.abc import Sequence as Seq
from operator import attrgetter

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, Sequence
from llmirage_server.cluster.snapshots import StepCounts
from llmirage_server.perf.speculation import chances


class Step:
    """The tokens that one forward pass of one scheduler computes."""

    __slots__ = (
        "admissions",
        "decode_contexts",
        "decodes",
        "joined",
        "prefill",
        "prefill_sequences",
        "prompts_done",
        "running",
        "sequences",
    )

    admissions: int  # how many sequences had ever been admitted before; TensorRT-LLM's own

    def __init__(self) -> None:
        self.prefill: list[tuple[int, int]] = []  # (new tokens, context tokens) of each prompt chunk
        self.prefill_sequences: list[Sequence] = []  # the sequence of each chunk
        self.prompts_done: list[Sequence] = []  # of these, the sequences whose prompt ends with this chunk
        self.decodes = 0  # sequences that decode
        self.joined: list[Sequence] = []  # sequences with KV computed elsewhere, in their first step here
        self.running: list[Sequence] | None = None  # running sequences when the step was formed, in order; on demand
        # Of a SequenceBatch:
        self.decode_contexts: list[int] = []  # tokens computed before, of each decoding sequence
        self.sequences: list[Sequence] = []  # sequences that gain a token, in the order of running


class DecodeBatch(ABC):
    """Running sequences whose prompts are computed, in the order of their admission.

    last_admission: the highest admission number that ever joined.
    gained: tokens of the last step.
    counts: counters of all steps.
    slot: the pipeline slot whose sequences may be in the step being formed (trtllm.py); None: all.
    """

    slot: int | None = None

    last_admission: int
    gained: int
    counts: StepCounts

    @abstractmethod
    def join(self, sequence: Sequence) -> None:
        """Add a sequence whose KV was computed elsewhere: it decodes from the step being formed on."""

    @abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence before its end. Its own fields are up to date (`refresh`, `in_order`)."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all sequences at once after a crash."""

    @abstractmethod
    def refresh(self, sequence: Sequence) -> None:
        """Bring a sequence's own fields up to date."""

    @abstractmethod
    def in_order(self) -> list[Sequence]:
        """Return all sequences in the order of their admission, their own fields up to date."""

    @abstractmethod
    def contexts(self, step: Step | None) -> list[int]:
        """Return the tokens computed before, of each sequence that decodes in a step in flight; sums as equal contexts.

        None: a step of a fast-forward.
        """

    @abstractmethod
    def ready(self) -> int:
        """Return how many sequences could decode in the next step: those not in flight."""

    @abstractmethod
    def draft_tokens(self, sequence: Sequence) -> int:
        """Return the draft tokens of a sequence in its next step: at most those its output has room for."""

    @abstractmethod
    def tokens_to_come(self, most: int) -> int:
        """Return the tokens still expected of all sequences (`Sequence.expected`), at most `most` of each."""

    @abstractmethod
    def promised_tokens(self) -> int:
        """Return the KV in whole pages expected beyond that held. `expected` is in whole pages of each sequence."""

    # --- forming a step ---

    @abstractmethod
    def decode_all(self, step: Step, budget: int = sys.maxsize, without: Collection[Sequence] = ()) -> int:
        """Let all but `without` decode and take their KV if memory and the token budget allow; else let none.

        Returns the tokens that this computes; 0 if there are none, or too little room.
        """

    @abstractmethod
    def decode(self, step: Step, sequence: Sequence) -> None:
        """Let one sequence decode whose KV is allocated and whose own fields are up to date."""

    @abstractmethod
    def withdraw(self, step: Step, sequence: Sequence) -> None:
        """Withdraw one sequence from this step; its KV stays as it is."""

    def begin(self, step: Step) -> None:  # noqa: B027 (for sums)
        """Start a step whose sequences were scheduled one by one: some members may not be in it."""

    @abstractmethod
    def advance(self, step: Step, now: float, emitted: list[Request], hands_over: bool) -> list[Sequence] | None:
        """End a step: every sequence in it gains a token, and sequences with finished prompts join the batch.

        Returns the sequences to remove (None: none), in the order of running: those that have their last token; with
        `hands_over`, all whose prompts are done. Requests that gained tokens are added to `emitted`; with sums, only
        finished ones.
        """

    # --- runs of steps, which sums are for ---

    def steady_steps(self) -> int:
        """Return how many of the next steps are alike: all decode and fit, and none finishes before the last ends."""
        return 0

    def pass_steps(self, begun: int, ends_s: list[float]) -> None:  # noqa: B027
        """Account for `begun` further steady steps, of which those in `ends_s` have ended, the one in flight first."""

    def take_done(self) -> list[Sequence]:
        """Remove and return the sequences that got their last token in the steps passed."""
        return []


_ADMISSION = attrgetter("admission")
_MASK = (1 << 64) - 1


class SequenceBatch(DecodeBatch):
    """A batch that reports every token of every sequence, with draft tokens and pipelines.

    A sequence in a step that has not ended counts its tokens as computed (`computed` of at least `tokens`); with a pipeline
    there can be several such steps.
    """

    def __init__(self, limits: EngineLimits, kv: KVCache, stages: int = 1) -> None:
        self.last_admission = 0
        self.gained = 0
        self.counts = StepCounts(limits.num_speculative_tokens)
        self._members: list[Sequence] = []
        self._kv = kv
        self._pipelined = stages > 1
        self._most = -(-limits.max_num_seqs // stages)  # of one step
        self._drafts = limits.num_speculative_tokens
        rates = limits.acceptance_rates or chances(limits.acceptance_rate, self._drafts)
        self._acceptance = Acceptance(rates, limits.speculation_seed)

    def join(self, sequence: Sequence) -> None:
        if sequence.admission > self.last_admission:
            self.last_admission = sequence.admission
            self._members.append(sequence)
        else:
            insort(self._members, sequence, key=_ADMISSION)

    def remove(self, sequence: Sequence) -> None:
        self._members.remove(sequence)

    def clear(self) -> None:
        self._members = []

    def refresh(self, sequence: Sequence) -> None: ...

    def in_order(self) -> list[Sequence]:
        return self._members.copy()

    def contexts(self, step: Step | None) -> list[int]:
        return step.decode_contexts if step is not None else []

    def ready(self) -> int:
        return len(self._ready())

    def draft_tokens(self, sequence: Sequence) -> int:
        return min(self._drafts, sequence.max_tokens - 1 - sequence.tokens)

    def tokens_to_come(self, most: int) -> int:
        return sum([min(sequence.expected - sequence.tokens, most) for sequence in self._members])

    def promised_tokens(self) -> int:
        page = self._kv.page_size
        return sum([sequence.expected - -(-sequence.computed // page) * page for sequence in self._members])

    def decode_all(self, step: Step, budget: int = sys.maxsize, without: Collection[Sequence] = ()) -> int:
        kv, decoding = self._kv, self._ready()
        if without:
            decoding = [sequence for sequence in decoding if sequence not in without]
        if drafts := self._drafts:
            new_tokens = [1 + min(drafts, sequence.max_tokens - 1 - sequence.tokens) for sequence in decoding]
            total = sum(new_tokens)
            if total > budget or not kv.allocate_each(decoding, new_tokens):
                return 0
        else:
            total = len(decoding)
            if not kv.allocate_one_each(decoding):
                return 0
        step.decodes = len(decoding)
        step.decode_contexts += [sequence.tokens - 1 for sequence in decoding]
        step.sequences += decoding
        return total

    def decode(self, step: Step, sequence: Sequence) -> None:
        step.decodes += 1
        step.decode_contexts.append(sequence.tokens - 1)
        step.sequences.append(sequence)

    def withdraw(self, step: Step, sequence: Sequence) -> None:
        prompts = step.prompts_done
        decoding = [each for each in step.sequences if each not in prompts]
        del step.decode_contexts[decoding.index(sequence)]
        step.sequences.remove(sequence)
        step.decodes -= 1

    def advance(self, step: Step, now: float, emitted: list[Request], hands_over: bool) -> list[Sequence]:
        before = len(emitted)
        accepted = self._accept(step) if self._drafts else 0
        done = []
        for sequence in step.sequences:  # hot: once a token
            if sequence.computed != sequence.tokens:
                continue  # cancelled
            sequence.tokens += 1
            request = sequence.request
            request.produced += 1
            emitted.append(request)
            if hands_over or sequence.tokens == sequence.max_tokens:
                done.append(sequence)
        if done:
            gone = set(done)
            self._members = [sequence for sequence in self._members if sequence not in gone]
        for sequence in step.prompts_done:
            if sequence.admission and not hands_over and sequence.tokens < sequence.max_tokens:
                self.join(sequence)
        self.gained = accepted + len(emitted) - before
        return done

    def _ready(self) -> list[Sequence]:
        if not self._pipelined:
            return self._members
        ready = [sequence for sequence in self._members if sequence.computed < sequence.tokens]
        if self.slot is None:
            return ready
        return [sequence for sequence in ready if sequence.slot == self.slot][: self._most]

    def _accept(self, step: Step) -> int:
        """Decide which draft tokens are accepted and free the KV of the others; return the number accepted."""
        total, counts = 0, self.counts
        for sequence in step.sequences:
            drafts = sequence.computed - sequence.tokens
            if drafts > 0:
                request = sequence.request
                accepted = self._acceptance.accepted(request.id, request.produced, drafts)
                counts.draft_tokens += drafts
                counts.by_accepted[accepted] += 1
                self._kv.retreat(sequence, drafts - accepted)
                sequence.tokens += accepted
                request.produced += accepted
                total += accepted
        return total


class Acceptance:
    """Random acceptance of draft tokens: at least the first j with probability rates[j - 1].

    Deterministic by seed, request and progress, whatever else the cluster does. With a probability `rate` of each draft
    whose predecessors were accepted that is rate**j, and a step brings (1 - rate**(k+1)) / (1 - rate) tokens on average, the
    model's own included (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1).
    """

    def __init__(self, rates: Seq[float], seed: int = 0) -> None:
        self._chances = list(rates)
        self._seed = _mix(seed)

    def accepted(self, request: int, produced: int, drafts: int) -> int:
        """Return how many of `drafts` draft tokens request number `request` accepts after `produced` tokens."""
        draw = (_mix(self._seed ^ (request << 24) + produced) >> 11) / 2**53
        count = 0
        while count < drafts and draw < self._chances[count]:
            count += 1
        return count


def _mix(value: int) -> int:
    """Return splitmix64's finaliser: every bit of the result depends on every bit of `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
