"""The one question the cluster asks of the performance model: how long does this forward pass take?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StepModel(Protocol):
    """Maps the composition of one engine step to its duration."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Return the seconds that one forward pass takes.

        prefill: one (new_tokens, context_tokens) pair for each prompt chunk of the step; context_tokens were computed
            (or found in the prefix cache) before and are attended to.
        decode_contexts: for each decoding sequence, the tokens of context its one new token attends to.
        An empty step (no chunk, no sequence) takes 0.0.
        """
        ...
