"""Step times from sums: what a step costs when a batch is known by its size, its total context and its longest one.

Most of a cluster's life is decoding: the same sequences, each one token longer than in the step before. The model times
their attention page by page (steps/load.py), so that the very same step comes back thousands of times: what was worked out
once is looked up from then on. Sums are added up in the order of RooflineStep.stages_s: times are the same to the last bit.

A sliding window clips each context by itself. Where all contexts are at least as long as the window, their number says it
all; where some are shorter, a step is also known by what its windows show (`Shown`), token by token.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from llmirage_server.perf.steps.load import LONGEST_TOKENS, MEAN_TOKENS, Load, in_pages

if TYPE_CHECKING:
    from llmirage_server.perf.catalogue.engines import EngineProfile
    from llmirage_server.perf.steps.stage import Stage

_REMEMBERED = 65_536  # steps of a kind

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_Decodes = tuple[int, ...]  # sequences, page of their mean context, page of the longest; then `Shown`

Shown = tuple[int, ...]
"""For each of SteadySteps.windows the sum of all contexts clipped to it, and the longest; () where none is shorter."""


class SteadySteps:
    """Of a model on one rank and in one stage, without drafts. Thread-safe.

    windows: of its decode attention, the narrowest first.
    """

    def __init__(self, stage: Stage, engine: EngineProfile) -> None:
        self._stage = stage
        self._engine = engine
        self._scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._attention = [(op.calls, op.calls * op.mixed, op.kernel.seconds, op.window) for op in stage.decode_ops]
        self.windows = tuple(sorted({op.window for op in stage.decode_ops if op.window}))
        # Steps of decodes alone; what depends on their number alone: before their own part, of that, shared, of the host.
        self._steps: dict[_Decodes, float] = {}
        self._batches: dict[int, tuple[float, float, float, float, float]] = {}
        # The parts of a step with prompts. Of the decodes; of the chunks, behind their new tokens; of all tokens, the rank's
        # own and what it shares; of all sequences, the GPU's and the two of EngineProfile.host_parts_s.
        self._decodes: dict[_Decodes, float] = {}
        self._chunks: dict[tuple[tuple[int, int], ...], tuple[int, float]] = {}
        self._tokens: dict[int, tuple[float, float]] = {}
        self._sequences: dict[int, tuple[float, float, float]] = {}

    def step_s(
        self, prefill: Sequence[tuple[int, int]], decodes: int, context_sum: int, longest: int, shown: Shown = ()
    ) -> float:
        """StepModel.step_s of these chunks, each with new tokens, and of `decodes` sequences with such contexts."""
        if not prefill:
            if not decodes:
                return 0.0
            key = _pages(decodes, context_sum, longest, shown)
            return self._steps.get(key) or self._find_step(key)
        chunks = tuple(prefill)
        new, chunks_s = self._chunks.get(chunks) or self._find_chunks(chunks)
        tokens = new + decodes
        own_s, shared_s = self._tokens.get(tokens) or self._find_tokens(tokens)
        sequences = decodes + len(chunks)
        sequences_s, host_s, hidden_s = self._sequences.get(sequences) or self._find_sequences(sequences)
        gpu_s = own_s + sequences_s + chunks_s
        if decodes:
            key = _pages(decodes, context_sum, longest, shown)
            gpu_s += self._decodes.get(key) or self._find_decodes(key)
        gpu_s += shared_s
        if self._scaled:
            engine = self._engine
            gpu_s = (engine.prefill_scale * new + engine.decode_scale * decodes) / tokens * gpu_s
        return gpu_s + (host_s + (hidden_s - gpu_s if hidden_s > gpu_s else 0.0))

    def run(self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, steps: int) -> None:
        """Append the ends of so many decoding steps, one at least, that follow each other from `start_s`.

        No context may be shorter than a window.
        """
        known, mean = self._steps, context_sum // decodes
        durations: list[float] = []
        while True:
            key = (decodes, mean // MEAN_TOKENS, longest // LONGEST_TOKENS)
            seconds = known.get(key) or self._find_step(key)
            same = MEAN_TOKENS - mean % MEAN_TOKENS  # steps until either page is full
            room = LONGEST_TOKENS - longest % LONGEST_TOKENS
            if room < same:
                same = room
            if same >= steps:
                break
            durations += [seconds] * same
            mean += same
            longest += same
            steps -= same
        durations += [seconds] * steps
        durations[0] += start_s
        ends += accumulate(durations)  # as `now += seconds`, step by step

    def run_shown(
        self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, shown: Iterable[Shown]
    ) -> None:
        """`run` where contexts are shorter than windows; shown: of each step."""
        now = start_s
        for seen in shown:
            now += self.step_s((), decodes, context_sum, longest, seen)
            ends.append(now)
            context_sum += decodes
            longest += 1

    def shown(self, contexts: Sequence[int]) -> Shown:
        """What the windows show of these contexts."""
        if not self.windows or min(contexts) >= self.windows[-1]:
            return ()
        longest = max(contexts)
        shown: list[int] = []
        for window in self.windows:
            shown += sum([min(window, context) for context in contexts]), min(longest, window)
        return tuple(shown)

    def _find_step(self, key: _Decodes) -> float:
        decodes = key[0]
        before_s, decodes_s, shared_s, host_s, hidden_s = self._batches.get(decodes) or self._find_batch(decodes)
        arguments = self._arguments(key)
        for calls, _, attention_s, window in self._attention:
            decodes_s += calls * attention_s(*arguments[window])
        gpu_s = before_s + decodes_s + shared_s
        if self._scaled:
            gpu_s = self._engine.decode_scale * decodes / decodes * gpu_s
        return _remember(self._steps, key, gpu_s + (host_s + (hidden_s - gpu_s if hidden_s > gpu_s else 0.0)))

    def _find_batch(self, decodes: int) -> tuple[float, float, float, float, float]:
        stage = self._stage
        before_s = stage.all_tokens_s(decodes) + stage.all_sequences_s(decodes, decodes)
        parts = before_s, stage.decode_tokens_s(decodes), stage.shared_s(decodes), *self._engine.host_parts_s(decodes)
        return _remember(self._batches, decodes, parts)

    def _find_decodes(self, key: _Decodes) -> float:
        decodes_s, arguments = self._stage.decode_tokens_s(key[0]), self._arguments(key)
        for _, calls_mixed, attention_s, window in self._attention:
            decodes_s += calls_mixed * attention_s(*arguments[window])
        return _remember(self._decodes, key, decodes_s)

    def _arguments(self, key: _Decodes) -> dict[int, tuple[int, float, float]]:
        """Of DecodeKernel for each window, as Load.decode gives them."""
        decodes, mean_page, longest_page, *shown = key
        arguments = {0: in_pages(decodes, mean_page, longest_page)}
        for window in self.windows:
            sum_, longest = (shown.pop(0), shown.pop(0)) if shown else (window * decodes, window)
            arguments[window] = decodes, sum_, longest
        return arguments

    def _find_chunks(self, chunks: tuple[tuple[int, int], ...]) -> tuple[int, float]:
        load = Load(chunks, ())
        return _remember(self._chunks, chunks, (load.new, self._stage.prompts_s(load.new, load.context, load.prefill)))

    def _find_tokens(self, tokens: int) -> tuple[float, float]:
        return _remember(self._tokens, tokens, (self._stage.all_tokens_s(tokens), self._stage.shared_s(tokens)))

    def _find_sequences(self, sequences: int) -> tuple[float, float, float]:
        gpu_s = self._stage.all_sequences_s(sequences, sequences)
        return _remember(self._sequences, sequences, (gpu_s, *self._engine.host_parts_s(sequences)))


def _pages(decodes: int, context_sum: int, longest: int, shown: Shown) -> _Decodes:
    pages = decodes, context_sum // decodes // MEAN_TOKENS, longest // LONGEST_TOKENS
    return pages + shown if shown else pages


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value
    return value


def steady_steps(stages: Sequence[Stage], ranks: int, drafts: int, engine: EngineProfile) -> SteadySteps | None:
    """None where sums do not tell how long a step takes."""
    return None if ranks > 1 or len(stages) > 1 or drafts else SteadySteps(stages[0], engine)
