"""How long a reply is when the model stops by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

# A chat reply of about 215 tokens on average, as in LMSYS-Chat-1M (Zheng et al. 2023, table 1: 214.5); the spread is
# chosen so that one reply in ten is longer than about 430 tokens.
DEFAULT_MEDIAN_TOKENS = 156.0
DEFAULT_SIGMA = 0.8

_STANDARD_NORMAL = NormalDist()


@dataclass(slots=True, frozen=True)
class ReplyLengths:
    """Lognormal lengths: the logarithm of the length is normal with mean log(median_tokens) and deviation sigma.

    Raises ValueError unless median_tokens is positive and sigma is not negative.
    """

    median_tokens: float = DEFAULT_MEDIAN_TOKENS
    sigma: float = DEFAULT_SIGMA

    def __post_init__(self) -> None:
        if not (self.median_tokens > 0 and math.isfinite(self.median_tokens)):
            raise ValueError(f"median reply length must be a positive number of tokens, not {self.median_tokens}")
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            raise ValueError(f"sigma of the reply length must be 0 or more, not {self.sigma}")

    def tokens(self, bits: int) -> int:
        """The length that 64 random bits stand for, at least 1."""
        uniform = ((bits & 0xFFFF_FFFF_FFFF_FFFF) + 0.5) / 2.0**64
        deviations = _STANDARD_NORMAL.inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))
        return max(1, round(self.median_tokens * math.exp(self.sigma * deviations)))
