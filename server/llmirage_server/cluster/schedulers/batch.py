"""The running sequences that decode, as a scheduler sees them, and the step that it forms of them.

Behind `DecodeBatch` stand two representations. `SequenceBatch` follows every sequence by itself: live serving, draft tokens,
pipelines. `SummedBatch` knows the batch by sums: simulations. Which one a scheduler gets is chosen where instances are made.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.sequence import Sequence
from llmirage_server.cluster.step_counts import StepCounts


class Step:
    """What one forward pass of one scheduler computes."""

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
        self.prompts_done: list[Sequence] = []  # those of them whose prompt ends with this chunk
        self.decodes = 0  # sequences that decode
        self.joined: list[Sequence] = []  # those whose KV was computed elsewhere, in their first step here
        self.running: list[Sequence] | None = None  # who ran when the step was formed, in order; found when it is asked for
        # Where every sequence is followed by itself:
        self.decode_contexts: list[int] = []  # tokens computed before, of each decoding sequence
        self.sequences: list[Sequence] = []  # those who will have a new token, in the order of running


class DecodeBatch(ABC):
    """Running sequences whose prompts are computed, in the order of their admission.

    last_admission: the highest number of one that ever joined. gained: tokens that the last step brought. counts: of all
    steps. slot: whose sequences may be in the step that is being formed, where a pipeline has slots (trtllm.py); None: all.
    """

    slot: int | None = None

    last_admission: int
    gained: int
    counts: StepCounts

    @abstractmethod
    def join(self, sequence: Sequence) -> None:
        """One comes whose KV was computed elsewhere: it decodes from the step on that is being formed."""

    @abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """One leaves before its end. Its own fields are up to date (`refresh`, `in_order`)."""

    @abstractmethod
    def clear(self) -> None:
        """All leave at once: a crash."""

    @abstractmethod
    def refresh(self, sequence: Sequence) -> None:
        """Bring a sequence's own fields up to date."""

    @abstractmethod
    def in_order(self) -> list[Sequence]:
        """All in the order of their admission, their own fields up to date."""

    @abstractmethod
    def contexts(self, step: Step | None) -> list[int]:
        """Tokens computed before, of each sequence that decodes in a step under way; sums are shown as equal contexts.

        None: a step of a run.
        """

    @abstractmethod
    def ready(self) -> int:
        """How many could decode in the next step: those who are not in flight."""

    @abstractmethod
    def draft_tokens(self, sequence: Sequence) -> int:
        """Draft tokens in the next step of a sequence: never more than its output has room for."""

    @abstractmethod
    def tokens_to_come(self, most: int) -> int:
        """Tokens that they are still expected to gain (`Sequence.expected`), counting at most `most` of each."""

    @abstractmethod
    def promised_tokens(self) -> int:
        """KV in whole pages that they are expected to need beyond what they hold. `expected` is whole pages of each."""

    # --- forming a step ---

    @abstractmethod
    def decode_all(self, step: Step, budget: int = sys.maxsize, without: Collection[Sequence] = ()) -> int:
        """All but `without` decode, if memory and the token budget allow, and take their KV; else none does.

        Returns the tokens that this computes; 0 if there is none, or too little room.
        """

    @abstractmethod
    def decode(self, step: Step, sequence: Sequence) -> None:
        """One decodes whose KV has been allocated, and whose own fields are up to date."""

    @abstractmethod
    def withdraw(self, step: Step, sequence: Sequence) -> None:
        """One does not decode in this step after all; its KV stays as it is."""

    def begin(self, step: Step) -> None:  # noqa: B027 (for sums)
        """A step is formed for which sequences were asked one by one: some of them may not be in it."""

    @abstractmethod
    def advance(self, step: Step, now: float, emitted: list[Request], hands_over: bool) -> list[Sequence] | None:
        """A step ends now: every sequence in it gains a token, and prompts that are done join the batch.

        Returns the sequences that leave (None: no sequence), in the order of running: those that have their last token; with
        `hands_over`, all whose prompts are done. Requests that gained tokens are added to `emitted`; with sums, only those
        that have finished.
        """

    # --- runs of steps, which sums are for ---

    def steady_steps(self) -> int:
        """How many of the next steps are alike: all decode and find memory, and none is done before the last one ends."""
        return 0

    def pass_steps(self, begun: int, ends_s: list[float]) -> None:  # noqa: B027
        """So many more of the steady steps have begun, and some have ended then, the one under way first."""

    def take_done(self) -> list[Sequence]:
        """Those leave who have their last token since the steps that have passed."""
        return []
