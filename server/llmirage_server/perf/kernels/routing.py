"""How many tokens and experts the busiest rank of a mixture of experts gets, when tokens favour some experts.

Real routers are skewed. As in the op tables this model is fitted on (aiconfigurator's collector), an expert's popularity is
drawn from a power law: density x^-alpha between 1 and 0.8 T; experts are spread over the ranks at random, and the rank with
the most pairs counts.

Few tokens choose one by one: each meets exactly k different experts. Of many, an expert of n expected pairs is met with
probability 1 - exp(-n). One more token never meets fewer. The collector rounds the pairs of each expert instead, and draws
between 0.01 and 2 where pairs are fewer than experts: one token of two experts met 1.4, and the count doubled where pairs
and experts are as many. That is how its kernels were timed, so constants are fitted with it (`tabled_rank`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

DEFAULT_SKEW = 1.2  # alpha; 0: every expert gets its equal share
_DRAWS = 16  # over which the expectation is taken
_SEED = 20_261_121
_CHOOSING = 4  # up to so many pairs an expert, tokens choose one by one


class BusiestRank(NamedTuple):
    """What the busiest rank gets, at growing counts of tokens; none of the three ever falls."""

    tokens: tuple[float, ...]
    pairs: tuple[float, ...]  # (token, expert) pairs
    experts: tuple[float, ...]  # distinct experts


# Two counts an octave up to 48k tokens; beyond, pairs grow in proportion.
_TOKENS = tuple(sorted({1, 2, 3, *(2**i for i in range(2, 16)), *(3 * 2**i for i in range(1, 15))}))


@lru_cache(maxsize=128)
def busiest_rank(experts: int, per_token: int, ep: int, skew: float = DEFAULT_SKEW) -> BusiestRank:
    """Return the expectation over draws of the same random numbers for every count of tokens. skew 0: all are as popular."""
    if experts == 1:
        return tabled_rank(experts, per_token, ep, 0.0)
    rng = np.random.default_rng(_SEED)
    most = max(_CHOOSING * experts // per_token, 1)  # tokens that choose one by one
    few = [t for t in _TOKENS if t <= most]
    uniform = rng.random((_DRAWS, experts))
    weights = np.zeros((_DRAWS, experts))  # logarithms
    if skew > 0:
        weights = np.log(_popularity(uniform, skew, 1.0, 0.8 * max(most, 2)))
    pairs: list[float] = []
    met: list[float] = []
    loads = np.zeros((_DRAWS, ep))
    seen = np.zeros((_DRAWS, experts), dtype=bool)
    draws = np.arange(_DRAWS)
    for token in range(1, few[-1] + 1):
        chosen = np.argpartition(rng.gumbel(size=weights.shape) + weights, experts - per_token, axis=1)[:, -per_token:]
        seen[draws[:, None], chosen] = True
        np.add.at(loads, (draws[:, None], chosen * ep // experts), 1)
        if token == few[len(pairs)]:
            busiest = loads.argmax(axis=1)
            pairs.append(float(loads[draws, busiest].mean()))
            met.append(float(seen.reshape(_DRAWS, ep, -1).sum(axis=2)[draws, busiest].mean()))
    for tokens in _TOKENS[len(few) :]:
        weights = np.ones((_DRAWS, experts))
        if skew > 0:
            weights = _popularity(uniform, skew, 1.0, 0.8 * tokens)
        expected = (weights / weights.sum(axis=1, keepdims=True) * (tokens * per_token)).reshape(_DRAWS, ep, -1)
        busiest = expected.sum(axis=2).argmax(axis=1)
        pairs.append(float(expected.sum(axis=2)[draws, busiest].mean()))
        met.append(float(-np.expm1(-expected)[draws, busiest].sum(axis=1).mean()))
    rising = np.maximum.accumulate
    return BusiestRank(tuple(map(float, _TOKENS)), tuple(rising(pairs).tolist()), tuple(rising(met).tolist()))


def _popularity(uniform: npt.NDArray[np.float64], skew: float, low: float, high: float) -> npt.NDArray[np.float64]:
    """Values of a power law between two bounds, from equally distributed ones."""
    power = 1.0 - skew if skew != 1.0 else 1e-9
    values: npt.NDArray[np.float64] = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    return values


@lru_cache(maxsize=128)
def tabled_rank(experts: int, per_token: int, ep: int, skew: float = DEFAULT_SKEW) -> BusiestRank:
    """As the collector of the op tables deals out its tokens."""
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
        popularity = _popularity(uniform, skew, low, high)
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
