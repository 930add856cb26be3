"""When the cycle collector runs: not in the middle of a simulation, and between simulations only now and then."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MOST_LEFT = (
    150_000  # objects that may be left by simulations; some 10,000 requests, and 200 MB where their prompts are long
)
_left = 0


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Most of what a run makes stays until its end: the collector would walk it again and again in vain.

    At the end all of it is put aside, since the next collection, or that at the end of the process, would walk it once more.
    So nobody would collect the clusters of earlier runs: the next run does, when they have become many.
    """
    global _left
    if _left > _MOST_LEFT:
        gc.unfreeze()
        gc.collect()
        _left = 0
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 50, 1000)
    try:
        yield
    finally:
        _left += gc.get_count()[0]
        gc.freeze()
        gc.set_threshold(*before)
