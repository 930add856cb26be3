"""Speculative decoding: who drafts, how many tokens a step, how many of them hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpeculativeMethod = Literal["mtp", "draft_model"]


@dataclass(frozen=True, slots=True)
class Speculative:
    """Every decoding sequence carries its last token and `num_speculative_tokens` drafted ones through each step.

    mtp: the model's own multi-token prediction layer drafts, once for each token. draft_model: a small model on the same
    GPUs, split the same way.
    """

    num_speculative_tokens: int
    method: SpeculativeMethod = "mtp"
    draft_model: str | None = None
    acceptance_rate: float = 0.7  # chance that a drafted token holds, given that those before it did

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens that a sequence gains in a step: 1 + a + a^2 + ... + a^k (Leviathan et al. 2023, eq. 1)."""
        return sum(self.acceptance_rate**i for i in range(self.num_speculative_tokens + 1))
