"""What every kernel answers: how long a call takes, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Bound = Literal["compute", "memory", "launch", "network"]


class Work(NamedTuple):
    """One call of a kernel on one GPU, explained."""

    seconds: float
    flops: float
    bytes: float  # through GPU memory; through the link where the bound is the network
    ideal_s: float  # roofline limit: the larger of flops and bytes at the datasheet's rates
    bound: Bound  # the largest of the compute, memory, launch (fixed) and network parts of `seconds`


class TokenKernel(Protocol):
    """A kernel whose time depends on the tokens (rows, sequences) of the step alone."""

    def seconds(self, tokens: float) -> float: ...
    def work(self, tokens: float) -> Work: ...


class PrefillKernel(Protocol):
    """Attention of the prompt chunks of a step, all in one launch.

    pairs: (query, key) pairs that the mask leaves, summed over the chunks (`causal_pairs`); new_tokens, context_tokens:
    summed over the chunks; longest: keys that the longest chunk attends to.
    """

    def seconds(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> float: ...
    def work(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> Work: ...


class DecodeKernel(Protocol):
    """Attention of the decoding sequences of a step, all in one launch; contexts in tokens, clipped to the window."""

    def seconds(self, sequences: int, context_sum: float, longest: float) -> float: ...
    def work(self, sequences: int, context_sum: float, longest: float) -> Work: ...
