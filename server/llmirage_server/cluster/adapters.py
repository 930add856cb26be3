"""LoRA adapters as requests, routers and reports know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

MOST_ADAPTERS = 2047  # numbers that fit beside a token id
_NUMBER_BIT, _OWN = 20, 1 << 31  # ids of vocabularies are below the one; the other tells an adapter's ids from all others


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of a model. number: from 1 to MOST_ADAPTERS, the same for the same name."""

    name: str
    number: int
    rank: int

    def own_ids(self, key: bytes) -> bytes:
        """Return the cache key of token ids under this adapter: KV differs from that of other adapters and of the model."""
        return (np.frombuffer(key, np.uint32) ^ np.uint32(_OWN | self.number << _NUMBER_BIT)).tobytes()


def plain_ids(key: bytes) -> tuple[bytes, int]:
    """Return the vocabulary's ids of a cache key, and the number of the adapter that they are for; 0: none."""
    ids = np.frombuffer(key, np.uint32)
    if not len(ids) or not ids[0] & _OWN:
        return key, 0
    return (ids & np.uint32((1 << _NUMBER_BIT) - 1)).tobytes(), int(ids[0] & ~np.uint32(_OWN)) >> _NUMBER_BIT


class AdapterReading(NamedTuple):
    """Names of adapters with running and with waiting requests, and the most that may run."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    most: int


class AdapterCosts(Protocol):
    """The times of adapters, from the performance model."""

    def step_s(self, adapters: Sequence[tuple[int, int]]) -> float:
        """Return what a step takes longer. adapters: rank and tokens of each."""
        ...

    def load_s(self, rank: int, from_disk: bool) -> float:
        """Return the time until an adapter is in GPU memory, from host memory or from disk."""
        ...
