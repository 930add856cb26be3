"""Bytes on their way to a connection that takes no more for now."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any


class SuspendedSend:
    """Carries on, inside a task, a coroutine that was stepped once outside and yielded the future it waits for."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                step = self._coroutine.throw(error)
            else:
                try:
                    step = self._coroutine.send(value)
                except StopIteration:
                    return
            waits_for = step
