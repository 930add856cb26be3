"""Errors of virtual time that cannot advance, on an event loop (virtual_time.py) or without one."""

from __future__ import annotations

TURNS_AT_ONE_TIME = 200_000  # of a loop, or requests that take no time, before a standstill is reported


class VirtualDeadlockError(RuntimeError):
    """A state in which everything waits, and no timer is set."""


class StandstillError(RuntimeError):
    """An instant of virtual time that never ends, as with a closed loop of replies that take no time."""

    def __init__(self, now_s: float) -> None:
        super().__init__(f"virtual time stands still at {now_s:g} s: what happens there takes no time, and never ends")
