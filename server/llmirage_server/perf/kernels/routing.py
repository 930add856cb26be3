"""How many tokens and experts the busiest rank of a mixture of experts gets, when tokens favour some experts.

Real routers are skewed. As in the op tables this model is fitted on (aiconfigurator's collector), an expert's popularity is
drawn from a power law: density x^-alpha between 1 and 0.8 T (between 0.01 and 2 where there are fewer (token, expert) pairs
than experts), scaled to T k pairs in all and rounded; experts are spread over the ranks at random, and the rank with the
most pairs counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

DEFAULT_SKEW = 1.2  # alpha; 0: every expert gets its equal share
_DRAWS = 16  # over which the expectation is taken
_SEED = 20_261_121


class BusiestRank(NamedTuple):
    """What the busiest rank gets, at growing counts of tokens; none of the three ever falls."""

    tokens: tuple[float, ...]
    pairs: tuple[float, ...]  # (token, expert) pairs
    experts: tuple[float, ...]  # distinct experts


# Two counts an octave up to 48k tokens; beyond, pairs grow in proportion.
_TOKENS = tuple(sorted({1, 2, 3, *(2**i for i in range(2, 16)), *(3 * 2**i for i in range(1, 15))}))


@lru_cache(maxsize=128)
def busiest_rank(experts: int, per_token: int, ep: int, skew: float = DEFAULT_SKEW) -> BusiestRank:
    """Return the expectation over draws of the same random numbers for every count of tokens."""
    if skew <= 0 or experts == 1:
        local = experts / ep
        share = per_token / ep
        even = tuple(share * t for t in _TOKENS)
        return BusiestRank(tuple(map(float, _TOKENS)), even, tuple(min(local, n) for n in even))
    rng = np.random.default_rng(_SEED)
    uniform = rng.random((_DRAWS, experts))
    ties = rng.random((_DRAWS, experts)) * 0.5  # experts with equal pairs: any of them may get one more
    pairs: list[float] = []
    met: list[float] = []
    for tokens in _TOKENS:
        low, high = (1.0, 0.8 * tokens) if tokens * per_token > experts else (0.01, 2.0)
        power = 1.0 - skew if skew != 1.0 else 1e-9
        popularity = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
        counts = np.round(popularity / popularity.sum(axis=1, keepdims=True) * (tokens * per_token))
        missing = tokens * per_token - counts.sum(axis=1).astype(int)
        rank_of = np.argsort(np.argsort(-counts - ties, axis=1), axis=1)
        extra = np.maximum(missing, 0)[:, None]
        counts += extra // experts + (rank_of < extra % experts)
        counts += np.where(rank_of == 0, np.minimum(missing, 0)[:, None], 0)
        groups = np.maximum(counts, 0.0).reshape(_DRAWS, ep, -1)
        loads = groups.sum(axis=2)
        busiest = loads.argmax(axis=1)
        draws = np.arange(_DRAWS)
        pairs.append(float(loads[draws, busiest].mean()))
        met.append(float(np.minimum(groups[draws, busiest], 1.0).sum(axis=1).mean()))
    rising = np.maximum.accumulate
    return BusiestRank(tuple(map(float, _TOKENS)), tuple(rising(pairs).tolist()), tuple(rising(met).tolist()))
