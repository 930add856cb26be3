"""Step times from sums: what a step costs when a batch is known by its size, its total context and its longest one.

Most of a cluster's life is decoding: the same sequences, each one token longer than in the step before. Times of such steps
follow each other in one loop here, with the operations of RooflineStep.step_s in its very order, so that they are the same
to the last bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from llmirage_server.perf.kernels.decode import DecodeAttention
from llmirage_server.perf.steps.load import Load

if TYPE_CHECKING:
    from llmirage_server.perf.engines import EngineProfile
    from llmirage_server.perf.steps.operations import DecodeOp
    from llmirage_server.perf.steps.stage import Stage

_REMEMBERED = 4096  # batch sizes
_MANY = 48  # steps that are worth arrays


class SteadySteps:
    """Of a model on one rank and in one stage, without drafts and without windows."""

    def __init__(self, stage: Stage, engine: EngineProfile, seconds: Callable[[list[Load], int], list[float]]) -> None:
        """seconds: RooflineStep's own times of the stages, for steps with prompts."""
        self._stage = stage
        self._engine = engine
        self._seconds = seconds
        self._scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._known: dict[int, tuple[float, float, float, float, float]] = {}
        self._ops = [(op.calls, op.kernel) for op in stage.decode_ops]
        kernels = [kernel for _, kernel in self._ops if isinstance(kernel, DecodeAttention)]
        self._one = kernels[0] if len(kernels) == len(self._ops) == 1 else None

    def step_s(self, prefill: Sequence[tuple[int, int]], decodes: int, context_sum: int, longest: int) -> float:
        """StepModel.step_s of these chunks and of `decodes` sequences with such contexts."""
        load = Load.summed(prefill, decodes, context_sum, longest)
        return sum(self._seconds([load], load.tokens))

    def run(
        self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, steps: int, until_s: float
    ) -> None:
        """Append the ends of up to `steps` decoding steps that follow each other from `start_s`; stop behind `until_s`.

        The last one ends at or after `until_s`, if there are enough.
        """
        if steps >= _MANY and self._one is not None:
            count = steps
            if until_s < math.inf:  # as many as it takes if none is longer than the last one found, or the first
                self._run(ends, decodes, context_sum, longest, start_s, 1, until_s)
                first_s = ends[-1] - start_s
                count = min(steps, int((until_s - start_s) / first_s) + 2)
                context_sum, longest, start_s, steps = context_sum + decodes, longest + 1, ends[-1], steps - 1
                count = min(count - 1, steps)
            if count >= _MANY and start_s < until_s:
                found = self._many(decodes, context_sum, longest, start_s, count)
                behind = bisect_left(found, until_s) + 1
                ends += found[:behind] if behind < count else found
                if behind <= count:
                    return
                context_sum, longest = context_sum + count * decodes, longest + count
                start_s, steps = ends[-1], steps - count
            if not steps or start_s >= until_s:
                return
        self._run(ends, decodes, context_sum, longest, start_s, steps, until_s)

    def _many(self, decodes: int, context_sum: int, longest: int, start_s: float, steps: int) -> list[float]:
        """The ends of so many steps, worked out together.

        Everything but the powers is IEEE arithmetic, the same in arrays as in single numbers. Powers of arrays may differ in
        the last bit from those of the C library, so they are taken one by one.
        """
        base, shared, scale, host, hidden = self._constant(decodes)
        calls, k = self._ops[0][0], self._one
        assert k is not None
        contexts = np.arange(context_sum, context_sum + steps * decodes, decodes, dtype=np.float64)
        longests = np.arange(longest, longest + steps, dtype=np.float64)
        memory = k.memory_context * contexts + k.memory_sequence * decodes
        compute = k.compute_context * contexts + k.serial * longests
        power, root = k.power, k.root
        busy = np.array([(m**power + c**power) ** root for m, c in zip(memory.tolist(), compute.tolist(), strict=True)])
        overhead = (
            k.floor
            + k.split * np.sqrt(longests)
            + k.combine * longests / (longests + k.combine_tokens)
            + k.ramp * contexts / (contexts + k.ramp_context)
            + k.per_sequence * decodes
        )
        gpu = base + calls * (busy + overhead) + shared
        if scale != 1.0:
            gpu = scale * gpu
        seconds = gpu + (host + np.maximum(hidden - gpu, 0.0))
        seconds[0] += start_s
        found: list[float] = np.add.accumulate(seconds).tolist()
        return found

    def _run(
        self, ends: list[float], decodes: int, context_sum: int, longest: int, start_s: float, steps: int, until_s: float
    ) -> None:
        """`run`, step by step."""
        base, shared, scale, host, hidden = self._constant(decodes)
        now, append = start_s, ends.append
        if self._one is None:
            for _ in range(steps):
                gpu = base
                for calls, kernel in self._ops:
                    gpu += calls * kernel.seconds(decodes, context_sum, longest)
                gpu = scale * (gpu + shared) if self._scaled else gpu + shared
                now += gpu + (host + (hidden - gpu if hidden > gpu else 0.0))
                append(now)
                if now >= until_s:
                    return
                context_sum += decodes
                longest += 1
            return
        calls, k = self._ops[0][0], self._one
        per_context, sequences_s, compute, serial = (
            k.memory_context,
            k.memory_sequence * decodes,
            k.compute_context,
            k.serial,
        )
        power, root, floor, split, combine, combine_tokens = k.power, k.root, k.floor, k.split, k.combine, k.combine_tokens
        ramp, ramp_context, schedule_s = k.ramp, k.ramp_context, k.per_sequence * decodes
        for _ in range(steps):  # DecodeAttention.seconds, written out
            gpu = (
                base
                + calls
                * (
                    (
                        (per_context * context_sum + sequences_s) ** power
                        + (compute * context_sum + serial * longest) ** power
                    )
                    ** root
                    + (
                        floor
                        + split * sqrt(longest)
                        + combine * longest / (longest + combine_tokens)
                        + ramp * context_sum / (context_sum + ramp_context)
                        + schedule_s
                    )
                )
                + shared
            )
            if scale != 1.0:
                gpu = scale * gpu
            now += gpu + (host + (hidden - gpu if hidden > gpu else 0.0))
            append(now)
            if now >= until_s:
                return
            context_sum += decodes
            longest += 1

    def _constant(self, decodes: int) -> tuple[float, float, float, float, float]:
        """What does not depend on contexts: GPU seconds before and after attention, their scale; the host's."""
        known = self._known.get(decodes)
        if known is None:
            stage, engine = self._stage, self._engine
            base = stage.decode_base_s(decodes)
            scale = (engine.prefill_scale * 0 + engine.decode_scale * decodes) / decodes if self._scaled else 1.0
            known = (base, stage.shared_s(decodes), scale, *engine.host_parts_s(decodes))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[decodes] = known
        return known


def steady_steps(
    stages: Sequence[Stage],
    ranks: int,
    drafts: int,
    engine: EngineProfile,
    seconds: Callable[[list[Load], int], list[float]],
) -> SteadySteps | None:
    """None where sums do not tell how long a step takes."""
    if ranks > 1 or len(stages) > 1 or drafts:
        return None
    ops: Sequence[DecodeOp] = stages[0].decode_ops
    return None if any(op.window for op in ops) else SteadySteps(stages[0], engine, seconds)
