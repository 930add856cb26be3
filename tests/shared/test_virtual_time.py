"""The loop whose clock jumps: exact, ordered, and honest about a deadlock."""

import asyncio

import pytest

from llmirage_shared.standstill import VirtualDeadlockError
from llmirage_shared.virtual_time import VirtualTimeLoop, precise_clock, run


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

    assert run(main()) == [1, 3, 4, 2, 0]


def test_cancelled_timers_are_forgotten() -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for _ in range(5000):
            loop.call_later(600.0, print).cancel()
        left = len(loop._timers)
        await asyncio.sleep(1.0)
        return left, loop.time()

    left, now_s = run(main())
    assert left < 1000
    assert now_s == 1.0


def test_a_source_moves_while_nothing_else_can() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        seen: list[tuple[str, float]] = []
        done = loop.create_future()

        def source(to: float) -> float:
            seen.append(("source", to))
            if to > 2.5 and not done.done():
                done.set_result(None)
                return 2.5
            return to

        loop.source = source
        loop.call_at(1.0, lambda: seen.append(("timer", loop.time())))
        loop.call_at(9.0, lambda: seen.append(("timer", loop.time())))
        await done
        seen.append(("done", loop.time()))
        return seen

    assert run(main()) == [("source", 1.0), ("timer", 1.0), ("source", 9.0), ("done", 2.5)]


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
    async def waits_for_ever() -> None:
        await asyncio.sleep(7)
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlockError, match=r"stands still at 7 s: every task waits.*1 of them, in Event\.wait"):
        run(waits_for_ever())
