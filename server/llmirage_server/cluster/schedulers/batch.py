"""The running sequences that decode, as a scheduler sees them, and the step that it forms of them.

`DecodeBatch` has two representations. `SequenceBatch` tracks every sequence by itself: live serving, draft tokens,
pipelines. `SummedBatch` keeps sums over the batch: simulations. Which one a scheduler gets is chosen where instances are
made.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.sequence import Sequence
from llmirage_server.cluster.step_counts import StepCounts


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
