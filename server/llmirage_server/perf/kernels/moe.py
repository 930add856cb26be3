"""The routed experts of a mixture of experts, as one fused kernel on the busiest rank, and how tokens are routed to them."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import US, Roofline

DEFAULT_SKEW = 1.2  # alpha; 0: every expert gets its equal share
_DRAWS = 16  # over which the expectation is taken
_SEED = 20_261_121
_CHOOSING = 4  # up to so many pairs an expert, tokens choose one by one


class BusiestRank(NamedTuple):
    """The busiest rank's share, at growing counts of tokens; none of the three ever falls."""

    tokens: tuple[float, ...]
    pairs: tuple[float, ...]  # (token, expert) pairs
    experts: tuple[float, ...]  # distinct experts


# Two counts an octave up to 48k tokens; beyond, pairs grow in proportion.
_TOKENS = tuple(sorted({1, 2, 3, *(2**i for i in range(2, 16)), *(3 * 2**i for i in range(1, 15))}))


@lru_cache(maxsize=128)
def busiest_rank(experts: int, per_token: int, ep: int, skew: float = DEFAULT_SKEW) -> BusiestRank:
    """Return the expectation over draws of the same random numbers for every count of tokens. skew 0: all are as popular."""
    counts = tuple(map(float, _TOKENS))
    if experts == 1:
        return BusiestRank(counts, counts, (1.0,) * len(counts))
    rng = np.random.default_rng(_SEED)
    most = max(_CHOOSING * experts // per_token, 1)  # tokens that choose one by one
    few = [t for t in _TOKENS if t <= most]
    uniform = rng.random((_DRAWS, experts))
    weights = np.zeros((_DRAWS, experts))  # logarithms
    if skew > 0:
        weights = np.log(power_law(uniform, skew, 1.0, 0.8 * max(most, 2)))
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
            weights = power_law(uniform, skew, 1.0, 0.8 * tokens)
        expected = (weights / weights.sum(axis=1, keepdims=True) * (tokens * per_token)).reshape(_DRAWS, ep, -1)
        busiest = expected.sum(axis=2).argmax(axis=1)
        pairs.append(float(expected.sum(axis=2)[draws, busiest].mean()))
        met.append(float(-np.expm1(-expected)[draws, busiest].sum(axis=1).mean()))
    rising = np.maximum.accumulate
    return BusiestRank(counts, tuple(rising(pairs).tolist()), tuple(rising(met).tolist()))


def power_law(uniform: npt.NDArray[np.float64], skew: float, low: float, high: float) -> npt.NDArray[np.float64]:
    """Values of a power law between two bounds, from equally distributed ones."""
    power = 1.0 - skew if skew != 1.0 else 1e-9
    values: npt.NDArray[np.float64] = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    return values


_ROW_BLOCK = 64  # an expert's rows are padded by up to this many
_DEEPGEMM_BLOCK = 128  # rows of an expert in DeepGEMM's contiguous layout (get_mk_alignment_for_contiguous_layout)
_DEEPGEMM_COMPUTE = 0.65  # of the peak rate: 1,297 TFLOPS on an H800 (README of deepseek-ai/DeepGEMM, contiguous layout)


class Experts(Roofline):
    """The routed experts on the busiest of `ep` ranks as a function of T, the tokens that enter the group.

    `width` is that of one expert on this rank (divided by the tensor parallelism of the experts); `experts` counts those of
    the whole layer. The busiest rank gets N (token, expert) pairs and meets D of its experts (busiest_rank); N lies
    between the even share and that: N = T k / ep (busiest / even)^hot. M = 3 H I weights (2 H I ungated) of an expert.

    compute = 2 M (N + padding 64 D) / (F compute), rows being padded to blocks; memory = D M weight bytes / (BW memory),
    every expert met being read once. Smooth maximum of `power`, plus (activation N + spread T k) (4 H + 2 M / H) / BW for
    what is gathered, written between the matrices and summed, `spread` for kernels that walk over the pairs of all ranks;
    plus the floor. sent: a rank has the tokens of its own experts alone, and walks over no others' pairs. routed: another
    busiest rank than that of `skew`. DeepGEMM's contiguous layout: 127 rows more for each expert of a rank are computed.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        constants: Constants,
        dtype: WeightDtype,
        hidden: int,
        width: int,
        experts: int,
        per_token: int,
        ep: int,
        gated: bool = True,
        *,
        skew: float = DEFAULT_SKEW,
        sent: bool = False,
        routed: BusiestRank | None = None,
    ) -> None:
        c = constants.of("moe", dtype.expert_dtype)
        self.peak_flops, self.bandwidth = gpu.flops[dtype.compute], gpu.bandwidth_bytes_per_s
        weights = float((3 if gated else 2) * hidden * width)
        self.flops_pair, self.bytes_token = 2.0 * weights, 4.0 * hidden
        self.bytes_expert, self.bytes_pair = weights * dtype.weight_bytes, 4.0 * hidden + 2.0 * weights / hidden
        routed, even = routed or busiest_rank(experts, per_token, ep, skew), per_token / ep
        # counts of tokens at which pairs and distinct experts are known
        self.tokens, self.met = routed.tokens, routed.experts
        self.pairs = tuple(
            even * t * (pairs / (even * t)) ** c["hot"] for t, pairs in zip(routed.tokens, routed.pairs, strict=True)
        )
        self.compute_pair = 2.0 * weights / (self.peak_flops * c["compute"])
        self.compute_expert = self.compute_pair * c["padding"] * _ROW_BLOCK
        self.memory_expert = self.bytes_expert / (self.bandwidth * c["memory"])
        self.per_pair = c["activation"] * self.bytes_pair / self.bandwidth
        self.per_token = c["spread"] * (even if sent else per_token) * self.bytes_pair / self.bandwidth
        self.padded = 0.0
        if dtype.expert_kernels == "deepgemm":
            # bytes that a row takes from the permuted input to the second output, and a pair at both ends
            row_bytes, ends_bytes, reached = 3.0 * hidden + 10.0 * width, 4.0 * hidden, self.bandwidth * c["memory"]
            self.padded = (_DEEPGEMM_BLOCK - 1.0) * experts / ep
            self.compute_pair, self.compute_expert = 2.0 * weights / (self.peak_flops * _DEEPGEMM_COMPUTE), 0.0
            self.per_pair, self.per_token = row_bytes / reached, even * ends_bytes / reached
        self.floor, self.power, self.root = c["floor_us"] * US, c["power"], 1.0 / c["power"]

    def routed(self, tokens: float) -> tuple[float, float]:
        """Return (token, expert) pairs and distinct experts of the busiest rank."""
        known = self.tokens
        i = bisect_left(known, tokens)
        if i == 0:
            share = tokens / known[0]
            return self.pairs[0] * share, self.met[0] * share
        if i == len(known):
            return self.pairs[-1] * tokens / known[-1], self.met[-1]
        share = (tokens - known[i - 1]) / (known[i] - known[i - 1])
        low, met = self.pairs[i - 1], self.met[i - 1]
        return low + share * (self.pairs[i] - low), met + share * (self.met[i] - met)

    def seconds(self, tokens: float) -> float:
        pairs, met = self.routed(tokens)
        pairs += self.padded
        compute = self.compute_pair * pairs + self.compute_expert * met
        memory = self.memory_expert * met
        busy = float((compute**self.power + memory**self.power) ** self.root)
        return busy + self.per_pair * pairs + self.per_token * tokens + self.floor

    def amounts(self, tokens: float) -> tuple[float, float]:
        pairs, met = self.routed(tokens)
        pairs += self.padded
        moved = self.bytes_expert * met + self.bytes_pair * pairs + self.bytes_token * tokens
        return self.flops_pair * pairs, moved
