"""A request as the cluster sees it: token ids in, token ids out, and when each thing happened."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
Span = tuple["array[float]", int, int]
"""Tokens of a request that came step by step: the ends of an instance's steps, and which brought the first and the last."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to serve. The first block is given by the caller, the second is written by the cluster.

    All times are seconds on the cluster's clock; a time that has not come yet is NaN.
    """

    id: int
    prompt: TokenIds  # int32, shape (prompt_tokens,), at least 1
    output: TokenIds  # int32, shape (output_tokens,), at least 1: the ids that will be generated
    session_key: str | None = None  # what the `session` router keeps together
    model: str | None = None  # which pool may serve it, where pools serve different models; None: any
    priority: int = 0  # lower is served first, by engines that schedule by priority
    max_tokens: int = 0  # what the caller allowed, for engines that reserve memory for it; 0: as long as the output
    tag: Any = None  # the driver's own; the cluster never looks at it

    arrival_s: float = field(default=float("nan"), init=False)
    instance: int = field(default=-1, init=False)  # index of the instance that serves it
    placed_s: float = field(default=float("nan"), init=False)  # when that instance got it
    cached_tokens: int = field(default=0, init=False)  # prompt tokens found in the prefix cache at first admission
    produced: int = field(default=0, init=False)  # output tokens generated so far
    preemptions: int = field(default=0, init=False)
    admitted_s: float = field(default=float("nan"), init=False)
    first_token_s: float = field(default=float("nan"), init=False)
    finished_s: float = field(default=float("nan"), init=False)
    cancelled: bool = field(default=False, init=False)
    _key: bytes | None = field(default=None, init=False, repr=False)
    spans: list[Span] = field(default_factory=list, init=False)  # of instances that do not tell of single tokens
    failed: bool = field(default=False, init=False)  # its instance was lost, and the cluster does not try again

    @classmethod
    def of_key(cls, id: int, key: bytes, prompt_tokens: int, session_key: str | None = None) -> Request:
        """One whose ids come as bytes (`key`), the prompt's before the output's."""
        ids = np.frombuffer(key, dtype=np.int32)
        request = cls(id, ids[:prompt_tokens], ids[prompt_tokens:], session_key, max_tokens=len(ids) - prompt_tokens)
        request._key = key
        return request

    @property
    def key(self) -> bytes:
        """The bytes of the prompt's and the whole output's ids: what caches go by."""
        key = self._key
        if key is None:
            key = self._key = token_bytes(self.prompt) + token_bytes(self.output)
        return key

    def forget_tokens(self) -> None:
        """Let go of ids that nobody needs any more; how many there were can still be asked."""
        self._key = None
        self.prompt, self.output = _blank(len(self.prompt)), _blank(len(self.output))


def token_bytes(tokens: TokenIds) -> bytes:
    """The key of caches for these token ids, shape (n,)."""
    return np.ascontiguousarray(tokens, dtype=np.int32).tobytes()


_BLANK = np.zeros(1 << 18, dtype=np.int32)  # never written to: the system gives it no memory


def _blank(tokens: int) -> TokenIds:
    """An array of that length that takes no memory of its own."""
    return _BLANK[:tokens] if tokens <= _BLANK.size else np.broadcast_to(np.int32(0), tokens)


@dataclass(slots=True)
class StepEnd:
    """What one instant brought: every request in `emitted` gained output tokens at `time_s`, or failed.

    `request.produced` says how many tokens it has by then (with speculation it may have gained several); a request whose
    `produced` equals `len(output)` has finished and its `finished_s` is set; one that is `failed` gets no more. The order of
    `emitted` is stable: the order in which the instance runs its sequences.

    tokens: how many tokens all of `emitted` gained together; 0 means one each.

    handed_over: requests whose prefill an instance of a prefill pool has finished (their first token is in `emitted`); the
    cluster carries their KV to a decode instance and then tells this one with `release_transferred`.
    """

    time_s: float
    instance: int
    emitted: list[Request]
    handed_over: list[Request] = field(default_factory=list)
    tokens: int = 0
