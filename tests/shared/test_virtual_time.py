"""The loop whose clock jumps: exact, ordered, and honest about a deadlock."""

from __future__ import annotations

import asyncio

import pytest

from llmirage_shared.virtual_time import VirtualDeadlockError, precise_clock, run


def test_sleeping_moves_the_clock_exactly_and_takes_no_time() -> None:
    async def main() -> list[float]:
        clock = precise_clock()
        times = [clock()]
        for pause_s in (0.1, 0.2, 86400.0 * 400):
            await asyncio.sleep(pause_s)
            times.append(clock())
        return times

    assert run(main()) == [0.0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 86400.0 * 400]


def test_timers_fire_in_the_order_of_their_times_and_at_one_time_in_that_of_their_making() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        for number, when_s in enumerate((3.0, 1.0, 2.0, 1.0, 1.0000000000000002)):
            loop.call_at(when_s, fired.append, number)
        loop.call_at(0.5, fired.append, 99).cancel()
        await asyncio.sleep(10)
        return fired

    assert sorted(run(main())[:2]) == [1, 3]
    assert run(main())[2:] == [4, 2, 0]


def test_work_for_threads_runs_in_place_and_takes_no_virtual_time() -> None:
    async def main() -> tuple[int, float]:
        result = await asyncio.to_thread(sum, [1, 2, 3])
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return result, asyncio.get_running_loop().time()

    assert run(main()) == (6, 0.0)


def test_time_limits_hold() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 2.5


def test_a_deadlock_is_an_error_instead_of_a_hang() -> None:
    with pytest.raises(VirtualDeadlockError, match="stands still"):
        run(asyncio.Event().wait())
