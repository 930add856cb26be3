"""Step times from sums: what steps cost when a batch is known by its size, its total context and its longest one.

Most of a cluster's life is decoding: the same sequences, each one token longer than in the step before. The model times
their attention page by page (steps/stage.py), so that the very same step comes back thousands of times: what was worked out
once is looked up from then on.

A sliding window clips each context by itself. Where all contexts are at least as long as the window, their number says it
all; where some are shorter, a step is also known by what its windows leave of them, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from llmirage_server.perf.steps.stage import (
    BATCHES,
    LONGEST_TOKENS,
    MEAN_TOKENS,
    Chunks,
    DecodeLoad,
    EngineOverhead,
    Memo,
    RankCounts,
    Stage,
    decode_load,
    rank_counts,
)


class DecodeSums(Protocol):
    """The decoding sequences of one rank, by sums over their contexts in the next step; each gains a token a step."""

    decodes: int
    context_sum: int

    def longest(self) -> int: ...
    def shortest(self) -> int: ...
    def clipped(self, window: int, ahead: int, steps: int) -> list[int]:
        """Return the sum of all contexts clipped to a window in each of `steps` steps, the first `ahead` steps later."""
        ...


class StepSums(Protocol):
    """Step times of decode batches known by their sums; the interface that the cluster fast-forwards with."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decoding: DecodeLoad, /) -> float:
        """Return the seconds of a step of these chunks and decoding sequences."""
        ...

    def ranks_s(self, ranks: Sequence[tuple[Chunks, DecodeLoad]], /) -> float:
        """Return the seconds of a step of these ranks, one of which at least has work."""
        ...

    def load(self, batch: DecodeSums, /) -> DecodeLoad:
        """Return the load of a batch in its next step."""
        ...

    def run(self, batches: Sequence[DecodeSums], ahead: int, start_s: float, steps: int, /) -> list[float]:
        """Return the ends of `steps` decoding steps from `start_s` on, the first one `ahead` steps behind the next.

        batches: of the ranks that have sequences, one at least; as many steps.
        """
        ...


class SummedSteps:
    """Step times of a model in one stage, on one rank or several in lockstep, without drafts. Thread-safe.

    windows: of its decode attention, the narrowest first.
    """

    def __init__(self, stage: Stage, windows: tuple[int, ...], overhead: EngineOverhead) -> None:
        self._stage = stage
        self._windows = windows
        self._widest = windows[-1] if windows else 0
        self._together_s = stage.together_s
        self._overhead, self._scaled, self._with_host = overhead, overhead.scaled, overhead.with_host
        self._loads: dict[tuple[Chunks, int], RankCounts] = rank_counts(1)
        self._steps: dict[DecodeLoad, float] = Memo(self._find_step, BATCHES)  # of decodes alone, on one rank
        self._ranks: dict[DecodeLoad, float] = Memo(stage.decoding_s, BATCHES)  # what they take on one of several ranks

    def step_s(self, prefill: Sequence[tuple[int, int]], decoding: DecodeLoad) -> float:
        if not prefill:
            return self._steps[decoding] if decoding else 0.0
        load = self._loads[tuple(prefill), decoding[0] if decoding else 0]
        return self._whole_s(self._stage.rank_s(load, decoding), load.new, load.decodes, load.sequences)

    def ranks_s(self, ranks: Sequence[tuple[Chunks, DecodeLoad]]) -> float:
        loads = [self._loads[chunks, decoding[0] if decoding else 0] for chunks, decoding in ranks]
        slowest_s = max([self._stage.rank_s(load, decoding) for load, (_, decoding) in zip(loads, ranks, strict=True)])
        new, tokens = sum([load.new for load in loads]), sum([load.tokens for load in loads])
        return self._whole_s(slowest_s, new, tokens - new, max([load.sequences for load in loads]))

    def _whole_s(self, rank_s: float, new: int, decodes: int, sequences: int) -> float:
        """Return the seconds of a step of which the slowest rank takes `rank_s`, by the tokens on all ranks.

        sequences: on the rank that has most.
        """
        gpu_s = rank_s + self._together_s(new + decodes, new)
        if self._scaled:
            gpu_s = self._overhead.gpu_scale(new, decodes) * gpu_s
        return self._with_host(gpu_s, sequences, new, new + decodes)

    def load(self, batch: DecodeSums) -> DecodeLoad:
        if self._widest and batch.shortest() < self._widest:
            [load] = self._clipped_loads(batch, 0, 1)
            return load
        decodes = batch.decodes
        return decodes, batch.context_sum // decodes // MEAN_TOKENS, batch.longest() // LONGEST_TOKENS

    def run(self, batches: Sequence[DecodeSums], ahead: int, start_s: float, steps: int) -> list[float]:
        if len(batches) == 1:
            durations = self._durations(batches[0], ahead, steps, self._steps)
        else:
            durations = self._lockstep_durations(batches, ahead, steps)
        durations[0] += start_s
        ends_s: list[float] = []
        ends_s += accumulate(durations)  # as `now += seconds`, step by step; list(...) takes a quarter longer
        return ends_s

    def _lockstep_durations(self, batches: Sequence[DecodeSums], ahead: int, steps: int) -> list[float]:
        ranks = [self._durations(batch, ahead, steps, self._ranks) for batch in batches]
        tokens, most = sum([batch.decodes for batch in batches]), max([batch.decodes for batch in batches])
        return [self._whole_s(rank_s, 0, tokens, most) for rank_s in map(max, *ranks)]

    def _durations(self, batch: DecodeSums, ahead: int, steps: int, known: dict[DecodeLoad, float]) -> list[float]:
        """Return the seconds of each of `steps` steps of one rank."""
        if self._widest and batch.shortest() + ahead < self._widest:
            return [known[load] for load in self._clipped_loads(batch, ahead, steps)]
        decodes, longest = batch.decodes, batch.longest() + ahead
        mean = batch.context_sum // decodes + ahead
        mean_page, longest_page = mean // MEAN_TOKENS, longest // LONGEST_TOKENS
        mean_full, longest_full = MEAN_TOKENS - mean % MEAN_TOKENS, LONGEST_TOKENS - longest % LONGEST_TOKENS
        durations: list[float] = []
        timed = 0
        while True:  # for each page of the longest context
            end = steps
            if longest_full < steps:
                end = longest_full
            while mean_full < end:  # for each page of the mean one
                durations += [known[decodes, mean_page, longest_page]] * (mean_full - timed)
                timed = mean_full
                mean_page += 1
                mean_full += MEAN_TOKENS
            durations += [known[decodes, mean_page, longest_page]] * (end - timed)
            if end == steps:
                return durations
            timed = end
            longest_page += 1
            longest_full += LONGEST_TOKENS

    def _clipped_loads(self, batch: DecodeSums, ahead: int, steps: int) -> list[DecodeLoad]:
        """Return the load of each of `steps` steps, with what the windows leave of the contexts."""
        decodes, longest = batch.decodes, batch.longest() + ahead
        context_sum = batch.context_sum + ahead * decodes
        columns: list[list[int]] = []
        for window in self._windows:
            columns += batch.clipped(window, ahead, steps), [min(longest + step, window) for step in range(steps)]
        return [
            decode_load(decodes, context_sum + step * decodes, longest + step, clipped)
            for step, clipped in enumerate(zip(*columns, strict=True))
        ]

    def _find_step(self, load: DecodeLoad) -> float:
        return self._whole_s(self._stage.decoding_s(load), 0, load[0], load[0])
