"""Counters of a scheduler's steps, for telemetry."""

from __future__ import annotations

from bisect import bisect_left

STEP_TOKENS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
"""Upper bounds of the tokens of a step, as in vLLM's histogram of them; one more bucket follows."""


class StepCounts:
    """Counters of steps and draft tokens, which only grow.

    by_tokens: steps that brought tokens, by bucket of generated tokens plus the computed tokens of finished prompts.
    tokens: the sum of these.
    by_accepted: verifications of one sequence's draft tokens, by the number accepted.
    draft_tokens: draft tokens verified.
    """

    __slots__ = ("by_accepted", "by_tokens", "draft_tokens", "tokens")

    def __init__(self, drafts: int = 0) -> None:
        self.by_tokens = [0] * (len(STEP_TOKENS) + 1)
        self.tokens = 0
        self.by_accepted = [0] * (drafts + 1)
        self.draft_tokens = 0

    def add_steps(self, tokens: int, steps: int = 1) -> None:
        """Count `steps` steps that brought `tokens` tokens each."""
        self.by_tokens[bisect_left(STEP_TOKENS, tokens)] += steps
        self.tokens += tokens * steps

    @property
    def drafts(self) -> int:
        """Number of verifications of one sequence's draft tokens."""
        return sum(self.by_accepted)

    @property
    def accepted_by_position(self) -> list[int]:
        """Acceptances of the first draft token, the second, and so on."""
        return [sum(self.by_accepted[position:]) for position in range(1, len(self.by_accepted))]

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verification, the model's own included; 0 before the first one."""
        return 1 + self.accepted_tokens / drafts if (drafts := self.drafts) else 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepCounts) and self._figures == other._figures

    def __hash__(self) -> int:
        return hash(self.tokens)

    @property
    def _figures(self) -> tuple[list[int], int, list[int], int]:
        return self.by_tokens, self.tokens, self.by_accepted, self.draft_tokens

    def __add__(self, other: StepCounts) -> StepCounts:
        more, fewer = sorted((self.by_accepted, other.by_accepted), key=len, reverse=True)
        both = StepCounts()
        both.by_tokens = [a + b for a, b in zip(self.by_tokens, other.by_tokens, strict=True)]
        both.tokens = self.tokens + other.tokens
        both.by_accepted = [count + (fewer[i] if i < len(fewer) else 0) for i, count in enumerate(more)]
        both.draft_tokens = self.draft_tokens + other.draft_tokens
        return both
