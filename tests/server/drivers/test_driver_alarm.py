"""Alarms ring once, not before their time, and let go of their loop."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from llmirage_server.drivers.live import LoopAlarm, TimerfdAlarm, make_alarm

needs_timerfd = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_an_alarm_rings_once_and_not_before_its_time(loop_factory: Any) -> None:
    async def main() -> list[float]:
        rings: list[float] = []
        alarm = make_alarm(asyncio.get_running_loop(), lambda: rings.append(time.monotonic()))
        for delay_s in (0.0, 0.003, -1.0, 0.0123):
            before = len(rings)
            due_s = time.monotonic() + delay_s
            alarm.set(due_s)
            while len(rings) == before:
                await asyncio.sleep(0)
            alarm.clear()
            assert rings[-1] >= due_s - 1e-6
        await asyncio.sleep(0.01)
        return rings

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert len(runner.run(main())) == 4


@needs_timerfd
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_an_alarm_set_again_from_its_ring_keeps_ringing(loop_factory: Any) -> None:
    async def main() -> int:
        done = asyncio.Event()
        rings = 0

        def ring() -> None:
            nonlocal rings
            rings += 1
            if rings < 20:
                alarm.set(time.monotonic() + 0.0001)
            else:
                alarm.clear()
                done.set()

        alarm = TimerfdAlarm(asyncio.get_running_loop(), ring)
        alarm.set(time.monotonic())
        await asyncio.wait_for(done.wait(), 5)
        await asyncio.sleep(0.01)
        return rings

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == 20


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_cleared_alarm_does_not_ring(loop_factory: Any) -> None:
    async def main() -> list[int]:
        rings: list[int] = []
        alarm = make_alarm(asyncio.get_running_loop(), lambda: rings.append(1))
        alarm.set(time.monotonic() + 0.002)
        alarm.clear()
        alarm.clear()
        await asyncio.sleep(0.01)
        return rings

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == []


@needs_timerfd
def test_an_alarm_may_outlive_its_loop() -> None:
    loop = asyncio.new_event_loop()
    alarm = make_alarm(loop, lambda: None)
    assert isinstance(alarm, TimerfdAlarm)
    alarm.set(time.monotonic() + 10)
    loop.close()
    alarm.clear()


async def test_in_virtual_time_the_loops_own_timer_is_exact() -> None:
    rung = asyncio.get_running_loop().create_future()
    alarm = make_alarm(asyncio.get_running_loop(), lambda: rung.set_result(None))
    assert isinstance(alarm, LoopAlarm)
    alarm.set(1 / 3)
    await rung
    assert asyncio.get_running_loop().time() == 1 / 3


@needs_timerfd
def test_a_few_alarms_in_a_row_are_on_time_and_many_are_half_a_millisecond_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = TimerfdAlarm(asyncio.new_event_loop(), lambda: None)
    due: list[float] = []

    def settime(*_: Any) -> None:
        due.append(alarm._time.value_s + alarm._time.value_ns / 1e9)

    monkeypatch.setattr(alarm, "_settime", settime)
    monkeypatch.setattr(alarm, "_registered", True)
    monkeypatch.setattr("llmirage_server.drivers.live.time.monotonic", lambda: 100.0)
    for _ in range(10):
        alarm._fire()
        alarm.set(100.0)
    assert due[:8] == pytest.approx([100.0] * 8, abs=1e-8)
    assert due[8:] == pytest.approx([100.0005, 100.001], abs=1e-8)
    monkeypatch.setattr(alarm, "_registered", False)
