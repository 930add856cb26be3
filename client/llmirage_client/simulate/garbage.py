"""When the cycle collector runs: not in the middle of a simulation, and between simulations only now and then."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MOST_LEFT = 150_000  # objects that may be left by simulations: 200 MB where prompts are long
_left = 0  # at most so many are
_known: int | None = None  # objects put aside that are none of them; None: not counted yet, which takes milliseconds


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Most of what a run makes stays until its end: the collector would walk it again and again in vain.

    At the end all of it is put aside, since the next collection, or that at the end of the process, would walk it once more.
    So nobody would collect the clusters of earlier runs: the next run does, when they have become many.
    """
    global _left, _known
    if _left > _MOST_LEFT and _known is not None:
        _left = gc.get_freeze_count() - _known  # the others are gone without a collection
    if _left > _MOST_LEFT:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _left, _known = 0, gc.get_freeze_count()
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 50, 1000)
    try:
        yield
    finally:
        _left += gc.get_count()[0]
        gc.freeze()
        gc.set_threshold(*before)
