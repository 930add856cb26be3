"""Step models whose times are worked out in the head."""

from collections.abc import Sequence


class ConstantStep:
    """Every step takes as long, whatever is in it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return self._seconds


class PromptStep:
    """A second for every step, and a hundredth for each prompt token."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return 1.0 + sum(new for new, _ in prefill) / 100
