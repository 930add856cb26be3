"""Turns of the event loop: in each, requests together compute for some milliseconds before streams are written again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

from llmirage_shared.virtual_time import SimulatedTimeLoop

TURN_S = 0.004


class _LoopTurns:
    """The turns of one loop. A turn begins with the first request that asks for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._new_future = loop.create_future
        self._until_s = 0.0  # 0: nobody has asked for this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    def has_room(self) -> bool:
        now_s = time.perf_counter()
        if not self._until_s:
            self._until_s = now_s + TURN_S
            self._call_soon(self._begin)
            return True
        return not self._waiting and now_s <= self._until_s

    async def next(self) -> None:
        if not self.has_room():
            self._waiting.append(waiting := self._new_future())
            await waiting

    def _begin(self) -> None:
        """Let the first who still waits compute: others follow in later turns, for nobody knows how long it takes."""
        while self._waiting:
            if not (first := self._waiting.popleft()).done():
                first.set_result(None)
                self._until_s = time.perf_counter() + TURN_S
                self._call_soon(self._begin)
                return
        self._until_s = 0.0


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTurns] = WeakKeyDictionary()


async def turn() -> None:
    """Return while requests may compute: at once, or after the computing of others in a later turn of the loop.

    Call it before what takes up to some milliseconds, and between the parts of what takes longer. In simulated time it
    returns at once.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedTimeLoop):
        await _turns_of(loop).next()


def turn_has_room(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether what takes up to some milliseconds may begin in this turn of the loop, where a callback cannot wait."""
    return _turns_of(loop).has_room()


def _turns_of(loop: asyncio.AbstractEventLoop) -> _LoopTurns:
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = _LoopTurns(loop)
    return turns
