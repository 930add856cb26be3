"""Garbage collection of simulations: none in the middle of one, and between simulations only now and then."""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading
from collections.abc import Iterator

_MOST_LEFT = 150_000  # objects that simulations may leave: 200 MB where prompts are long
_left = 0  # an upper bound of those present
_owned = False
_spares_the_end = False
_lock = threading.Lock()
_running = 0  # simulations, in as many threads
_usual = (700, 10, 10)
_known: int | None = None  # other frozen objects; None: not counted yet, which takes milliseconds


def own_process() -> None:
    """Declare that the process is there for simulations alone."""
    global _owned
    _owned = True


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Suspend most collections: most objects of a run stay until its end, and walking them again and again is in vain."""
    global _running, _spares_the_end, _usual
    with _lock:
        if not _spares_the_end:
            _spares_the_end = True
            atexit.register(gc.freeze)  # Python ends with a collection, which would walk all results: a tenth of a run's CPU
        if _running == 0:
            if _owned:
                _collect_if_many()
            _usual = gc.get_threshold()
            gc.set_threshold(1_000_000, 50, 1000)
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                if _owned:
                    _freeze()
                gc.set_threshold(*_usual)


def _freeze() -> None:
    """Freeze the objects left, which the next collection, or that at the end of the process, would walk once more."""
    global _left
    _left += gc.get_count()[0]
    gc.freeze()


def _collect_if_many() -> None:
    """Collect the clusters of earlier runs, which were frozen."""
    global _left, _known
    if _left > _MOST_LEFT and _known is not None:
        _left = gc.get_freeze_count() - _known  # the others are gone without a collection
    if _left > _MOST_LEFT:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _left, _known = 0, gc.get_freeze_count()
