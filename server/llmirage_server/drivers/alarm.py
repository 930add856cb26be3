"""A timer for one absolute time, as precise as the platform allows.

Event loops round timers to whole milliseconds: a fifth of the time between two tokens, and twice that time at `--speed 10`.
On Linux a timerfd wakes the loop within about 0.1 ms instead. On average alarms are at least half a millisecond apart, so
that many events closer than that cost one wake-up; a few in a row are on time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from llmirage_shared.virtual_time import SimulatedTimeLoop

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o2004000
_TFD_TIMER_ABSTIME = 1
GAP_S = 0.0005  # minimum between two wake-ups, on average over
_BURST = 8  # of them


class Alarm(Protocol):
    """A callback at the time that was set last; a past time means as soon as possible."""

    def set(self, due_s: float) -> None:
        """Set the alarm. due_s: seconds on the clock of `precise_clock`."""
        ...

    def clear(self) -> None:
        """Unset it, and stop watching the loop."""
        ...


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None], gap_s: float = GAP_S) -> Alarm:
    """Return the most precise alarm for that loop. gap_s: see GAP_S."""
    if sys.platform == "linux" and not isinstance(loop, SimulatedTimeLoop):
        try:
            return TimerfdAlarm(loop, ring, gap_s)
        except (OSError, AttributeError):
            pass
    return LoopAlarm(loop, ring)


class LoopAlarm:
    """The loop's own timer: exact in virtual time, early or late by some milliseconds on other loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_s: float) -> None:
        self.clear()
        self._handle = self._loop.call_at(due_s, self._ring)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Timespec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerfdAlarm:
    """A timerfd that the loop polls. It is never read: setting it again makes it unreadable, and `clear` unregisters it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None], gap_s: float = GAP_S) -> None:
        """Open the timer. Raises OSError or AttributeError where the C library has no timerfd."""
        self._gap_s = gap_s
        self._fd = -1
        self._loop = loop
        self._ring = ring
        self._registered = False
        self._earliest_s = 0.0
        library = ctypes.PyDLL(None, use_errno=True)  # its calls wait for nothing: no other thread need run in them
        self._settime = library.timerfd_settime
        self._fd = library.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._time = _Timespec()
        self._time_pointer = ctypes.byref(self._time)

    def set(self, due_s: float) -> None:
        due_ns = int((due_s if due_s > self._earliest_s else self._earliest_s) * 1e9) or 1  # 0 would disarm it
        self._time.value_s, self._time.value_ns = divmod(due_ns, 1_000_000_000)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._time_pointer, None)
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._fd, self._fire)

    def clear(self) -> None:
        if self._registered:
            self._registered = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def _fire(self) -> None:
        earliest_s = time.monotonic() - _BURST * self._gap_s
        self._earliest_s = (earliest_s if earliest_s > self._earliest_s else self._earliest_s) + self._gap_s
        self._ring()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
