"""The factors of an engine profile that can be calibrated, how a fit moves them, and how well it must know them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """name: the field of an engine file. Fitted is x: the logarithm of a scale, or milliseconds.

    step: of derivatives. enough: a smaller change ends the fit. most_error: a factor with a larger standard error (of x) is
    not fitted. yields: of two factors that cannot be told apart, the one with the higher rank keeps the profile's value.
    needs: what runs must have to show it. least, most: bounds of the value.
    """

    name: str
    label: str
    unit: str
    is_scale: bool
    step: float
    enough: float
    most_error: float
    yields: int
    needs: str
    least: float
    most: float

    def x(self, value: float) -> float:
        return math.log(value) if self.is_scale else value

    def value(self, x: float) -> float:
        return math.exp(x) if self.is_scale else x

    def scale(self, x: float) -> float:
        """Change of the value per unit of x."""
        return math.exp(x) if self.is_scale else 1.0

    def bounded(self, x: float) -> float:
        return min(max(x, self.x(self.least)), self.x(self.most))

    def error_text(self, error: float) -> str:
        """How well it is known, in words. error: one standard error of x."""
        if self.is_scale:
            return f"known to {100 * error:.0f} % only" if error < 1 else "nothing of it shows"
        return f"known to {error:.2g} ms only"


_LONG_REPLIES = "longer replies are needed"
_UNCACHED = "long uncached prompts are needed"
_BATCHES = "runs with small and large batches are needed"
_UNQUEUED = "requests with short prompts on a cluster without a queue are needed"
FACTORS = (
    Factor("decode_scale", "decode", "x", True, 0.05, 3e-4, 0.10, 0, _LONG_REPLIES, 0.05, 20.0),
    Factor("prefill_scale", "prefill", "x", True, 0.1, 5e-4, 0.10, 1, _UNCACHED, 0.05, 20.0),
    Factor("host_step_ms", "host", "ms a step", False, 0.5, 0.005, 0.4, 3, _BATCHES, 0.0, 50.0),
    Factor("front_end_ms", "front end", "ms a request", False, 3.0, 0.01, 3.0, 2, _UNQUEUED, 0.0, 10_000.0),
)
