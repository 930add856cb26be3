"""Objects of ours that only the collector of cycles can free."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _collected() -> Iterator[list[object]]:
    """Give a list that has, at the end, what of our classes the block left in cycles."""
    found: list[object] = []
    gc.disable()
    gc.freeze()  # a collection would walk what all tests before keep, and find what they left
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [each for each in gc.garbage if type(each).__module__.startswith("llmirage")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def cyclic_garbage_of(work: Callable[[], Coroutine[Any, Any, None]]) -> list[object]:
    """Return what tasks leave in cycles. (Of the last task, the cluster keeps the request.)"""
    with _collected() as found:
        for _ in range(3):
            await asyncio.create_task(work())
        await asyncio.sleep(0.01)
    return found


def cyclic_garbage_of_thread(work: Callable[[], None]) -> list[object]:
    """Return what a thread leaves in cycles: of its work, and of what it kept for itself when it ended."""
    with _collected() as found:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return found
