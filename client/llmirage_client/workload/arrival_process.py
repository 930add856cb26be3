"""When synthetic conversations arrive: at once, evenly, at random, or in bursts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Process = Literal["none", "constant", "poisson", "gamma"]


@dataclass(slots=True, frozen=True)
class ArrivalProcess:
    """rate_per_s conversations a second in the long run, the first at 0 s.

    none: no times; the load strategy of the run says when. constant: equal gaps. poisson: exponential gaps. gamma: gaps
    whose standard deviation is cv times their mean; above 1 arrivals come in bursts, 1 is Poisson, 0 constant.
    """

    process: Process = "none"
    rate_per_s: float = 1.0
    cv: float = 1.0

    @property
    def variation(self) -> float:
        """Standard deviation of the gaps over their mean."""
        return {"constant": 0.0, "poisson": 1.0}.get(self.process, self.cv)

    def times_s(self, count: int, source: np.random.Generator) -> list[float] | None:
        """`count` times, ascending from 0; None for the process none."""
        if self.process == "none":
            return None
        mean_s = 1 / self.rate_per_s
        cv = self.variation
        gaps = max(count - 1, 0)
        shape = 1 / cv**2 if cv else 0.0
        gaps_s = source.gamma(shape, mean_s / shape, gaps) if shape else np.full(gaps, mean_s)
        return [0.0, *np.cumsum(gaps_s).tolist()][:count]
