"""A cache of what functions make of texts that clients choose."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

_LONGEST = 200  # characters of a call's texts together


def short_cache(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """As lru_cache for a function of texts, but long ones are not kept: `most` calls take memory that is known."""

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        kept = lru_cache(most)(function)

        @wraps(function)
        def call(*texts: str) -> T:
            return kept(*texts) if sum(map(len, texts)) <= _LONGEST else function(*texts)

        return call

    return decorated
