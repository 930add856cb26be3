"""The groups of operations that reports and the live page show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llmirage_server.perf.steps.step_model import StepBatch

_OTHER = "norms, sampling and other"
_KINDS = (
    ("attention", ("prefill attention", "decode attention", "sparse index", "gated delta, ", "state space, ")),
    ("experts", ("experts",)),
    ("communication", ("all-reduce", "all-gather", "reduce-scatter", "dispatch", "combine", "hand-over", "pipeline")),
    ("host", ("host",)),
    (_OTHER, ("norm", "embedding", "rotary", "activation", "sampling", "gate", "convolution", "latent norms")),
)


@cache
def operation_kind(operation: str) -> str:
    """The group of an operation. What is in no other is a matrix product."""
    name = operation.removeprefix("draft ")
    for kind, words in _KINDS:
        if kind == _OTHER:
            if any(word in name for word in words) and "projection" not in name and not name.endswith("gate and up"):
                return kind
        elif any(name.startswith(word) or word in name for word in words):
            return kind
    return "matrix products"


class StepShares:
    """Shares of the time of steps by group of operations, from samples: each step that is looked at counts the same."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def look(self, step_model: Any, batches: Sequence[StepBatch]) -> bool:
        """Take one step of these batches apart; False if it is empty or its model has no operations."""
        times = getattr(step_model, "times", None)
        if times is None or not any(batch.prefill or batch.decode_contexts for batch in batches):
            return False
        operations = times(batches)
        whole_s = sum([operation.seconds for operation in operations]) or 1.0
        for operation in operations:
            kind = operation_kind(operation.name)
            self._sums[kind] = self._sums.get(kind, 0.0) + operation.seconds / whole_s
        return True

    def shares(self) -> dict[str, float]:
        """They add up to 1, the largest first; empty without a step."""
        whole = sum(self._sums.values()) or 1.0
        return {name: amount / whole for name, amount in sorted(self._sums.items(), key=lambda entry: -entry[1])}
