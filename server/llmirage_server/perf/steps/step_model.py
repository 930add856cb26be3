"""The one question the cluster asks of the performance model: how long does this forward pass take?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

PerfModel = Literal["roofline", "silicon"]


class StepBatch(NamedTuple):
    """One scheduler's part of one engine step.

    prefill: one (new_tokens, context_tokens) pair for each prompt chunk of the step; context_tokens were computed (or found
        in the prefix cache) before and are attended to.
    decode_contexts: for each decoding sequence, the tokens of context its new token attends to. Where the step model was
        built for speculative decoding, every one of them also carries its draft tokens.
    """

    prefill: Sequence[tuple[int, int]] = ()
    decode_contexts: Sequence[int] = ()


class StepModel(Protocol):
    """Maps the composition of one engine step to its duration."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Return the seconds from the start of one forward pass to its sampled tokens; the arguments are a StepBatch's.

        An empty step (no chunk, no sequence) takes 0.0.
        """
        ...


class GroupStepModel(StepModel, Protocol):
    """A step model of an instance with attention data parallelism, pipeline stages, or both."""

    @property
    def ranks(self) -> int:
        """Attention data-parallel ranks: schedulers with a KV cache each, whose steps run in lockstep."""
        ...

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        ...

    def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        """Return how long each stage works on a step of these batches, one batch a rank (empty ones allowed).

        A stage's time includes handing its result over to the next; the sum is the latency of the step when no stage waits,
        and equals `step_s` for one rank. Host work counts in the first stage. All zero when every batch is empty.
        """
        ...
