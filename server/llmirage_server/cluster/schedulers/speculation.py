"""How many draft tokens a model accepts: deterministic by seed, request and progress, whatever else the cluster does."""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1


class Acceptance:
    """Accepts at least the first j draft tokens with probability rates[j - 1].

    With a probability `rate` of each draft whose predecessors were accepted that is rate**j, and a step brings
    (1 - rate**(k+1)) / (1 - rate) tokens on average, the model's own included (Leviathan et al., "Fast Inference from
    Transformers via Speculative Decoding", 2023, equation 1).
    """

    def __init__(self, rates: Sequence[float], seed: int = 0) -> None:
        self._chances = list(rates)
        self._seed = _mix(seed)

    def accepted(self, request: int, produced: int, drafts: int) -> int:
        """Of `drafts` draft tokens, how many request number `request` accepts when it has produced so many tokens."""
        draw = (_mix(self._seed ^ (request << 24) + produced) >> 11) / 2**53
        count = 0
        while count < drafts and draw < self._chances[count]:
            count += 1
        return count


def _mix(value: int) -> int:
    """Splitmix64's finaliser: every bit of the result depends on every bit of `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
