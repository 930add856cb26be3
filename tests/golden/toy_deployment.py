"""Frozen step times, memory and host times for the golden files, which no refit of the performance model moves.

Step times are whole numbers of units, so that they are the same on every machine and however a step is added up. All else
of a deployment (its model, its split, its engine's scheduler and defaults) is the product's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest

from llmirage_server.config import planning
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.memory import MemoryBudget
from llmirage_server.perf.parallelism import split_layers
from llmirage_server.perf.steps.steady import DecodeSums
from llmirage_server.perf.steps.step_model import StepBatch

UNIT_S = 1e-7
KV_TOKENS = 200_000  # of an instance whose plan sets no limit

# A layer of any step, a prompt token, a decoding token, a draft pass, a token of all ranks, in units
LAYER, PROMPT_TOKEN, DECODE_TOKEN, DRAFT_PASS, SHARED_TOKEN = 1250, 160, 290, 4100, 7

# Milliseconds and microseconds; fields of the engine's profile
HOST: dict[str, dict[str, Any]] = {
    "vllm": {"front_end_ms": 10.0, "tokenize_ms": 0.0, "output_token_us": 0.0, "handoff_ms": 110.0},
    "sglang": {"front_end_ms": 30.0, "tokenize_ms": 0.0, "output_token_us": 46.0, "handoff_ms": 40.0},
    "trtllm": {"front_end_ms": 16.0, "tokenize_ms": 1.0, "output_token_us": 0.0, "handoff_ms": 40.0},
}

Load = tuple[int, ...]
"""Sequences, sum of their contexts, the longest one, and the sum clipped to each window."""


@contextmanager
def toy_deployments() -> Iterator[None]:
    """Plan clusters with `ToyDeployment`s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "Deployment", ToyDeployment)
        yield


@dataclass(frozen=True)
class ToyDeployment(Deployment):
    """A deployment with frozen step times, memory and host times."""

    @classmethod
    def create(cls, *args: Any, **settings: Any) -> ToyDeployment:
        """Return the deployment of these settings under its engine with the host times of `HOST`."""
        made = super().create(*args, **settings)
        assert isinstance(made, ToyDeployment)
        return replace(made, engine=replace(made.engine, **HOST[made.engine.base]))

    @property
    def memory(self) -> MemoryBudget:  # type: ignore[override]  # a cached property there
        """KV_TOKENS for each scheduler, or what the settings say."""
        override = self.num_gpu_blocks_override
        tokens = override * self.block_size if override else KV_TOKENS
        return MemoryBudget(self.gpu.memory_bytes, 0, 0, 0, 0, 1, 0, self.most_running, tokens)

    def step_model(self) -> ToySteps:
        """Return the frozen step times."""
        return ToySteps(self)


class ToySteps:
    """Step model of an instance, of any number of ranks, stages and draft tokens; by sums where the product's is."""

    def __init__(self, deployment: ToyDeployment) -> None:
        model, parallel = deployment.model, deployment.parallel
        self.ranks, self.stages = parallel.dp, parallel.pp
        self._layers = [sum(group.count for group in groups) for groups in split_layers(model, parallel.pp)]
        windows = {getattr(group.attention, "window", 0) for group in model.groups}
        self._windows = tuple(sorted(windows - {0}))
        self._drafts = deployment.speculative.num_speculative_tokens if deployment.speculative else 0
        self.sums = self if self.stages == 1 and not self._drafts else None

    def step_s(self, prefill: Sequence[tuple[int, int]], decodes: Sequence[int]) -> float:
        """Seconds of a step, by the contexts of its decodes, or by their load."""
        load = decodes if isinstance(decodes, tuple) else self._load_of(decodes)
        if not prefill and not load:
            return 0.0
        return sum(self._stages_s([(prefill, load)]))

    def stages_s(self, batches: Sequence[StepBatch]) -> list[float]:
        """Seconds of each stage of a step of these ranks."""
        return self._stages_s([(batch.prefill, self._load_of(batch.decode_contexts)) for batch in batches])

    def ranks_s(self, ranks: Sequence[tuple[Sequence[tuple[int, int]], Load]]) -> float:
        """Seconds of a step of these ranks, by loads."""
        [seconds] = self._stages_s(ranks)
        return seconds

    def load(self, batch: DecodeSums) -> Load:
        """The load of a batch in its next step."""
        clipped = [batch.clipped(window, 0, 1)[0] for window in self._windows]
        return batch.decodes, batch.context_sum, batch.longest(), *clipped

    def run(self, batches: Sequence[DecodeSums], ahead: int, start_s: float, steps: int) -> list[float]:
        """Ends of `steps` decoding steps that follow each other from `start_s`, the first `ahead` behind the next one."""
        of_ranks = [self._run_units(batch, ahead, steps) for batch in batches]
        together = SHARED_TOKEN * sum(batch.decodes for batch in batches)
        durations = [
            UNIT_S * (LAYER * self._layers[0] + units + together) for units in map(max, zip(*of_ranks, strict=True))
        ]
        durations[0] += start_s
        return list(accumulate(durations))

    def _run_units(self, batch: DecodeSums, ahead: int, steps: int) -> list[int]:
        """`_rank_units` of each of these steps."""
        decodes, contexts, longest = batch.decodes, batch.context_sum, batch.longest()
        columns = [batch.clipped(window, ahead, steps) for window in self._windows]
        clipped = list(map(sum, zip(*columns, strict=True))) if columns else [0] * steps
        return [
            DECODE_TOKEN * decodes + (contexts + step * decodes) // 2 + (longest + step) // 16 + clipped[step - ahead] // 2
            for step in range(ahead, ahead + steps)
        ]

    def _load_of(self, contexts: Sequence[int]) -> Load:
        if not contexts:
            return ()
        clipped = [sum(min(context, window) for context in contexts) for window in self._windows]
        return len(contexts), sum(contexts), max(contexts), *clipped

    def _stages_s(self, ranks: Sequence[tuple[Sequence[tuple[int, int]], Load]]) -> list[float]:
        if not any(prefill or load for prefill, load in ranks):
            return [0.0] * self.stages
        slowest = max(self._rank_units(prefill, load) for prefill, load in ranks)
        tokens = sum(sum(new for new, _ in prefill) + sum(load[:1]) for prefill, load in ranks)
        units = slowest + SHARED_TOKEN * tokens
        return [UNIT_S * (LAYER * layers + units // self.stages) for layers in self._layers]

    def _rank_units(self, prefill: Sequence[tuple[int, int]], load: Load) -> int:
        """Units of what one rank computes, but for the layers themselves."""
        units = sum(PROMPT_TOKEN * new + new * (2 * context + new) // 32 for new, context in prefill)
        if load:
            decodes, contexts, longest, *clipped = load
            units += DECODE_TOKEN * decodes * (1 + self._drafts) + contexts // 2 + longest // 16 + sum(clipped) // 2
        return units + DRAFT_PASS * self._drafts
