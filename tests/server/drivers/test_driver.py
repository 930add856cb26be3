"""The drivers: tokens leave at the cluster's times, on any clock, and nobody is starved."""

import asyncio
import math

import numpy as np
import pytest
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.routers import make_router
from llmirage_server.drivers.in_process import ObservedDriver
from llmirage_server.drivers.live import SLICE_S, Driver, FreeDriver, PacedDriver
from llmirage_shared import virtual_time

LIMITS = EngineLimits(kv_tokens=100_000)


def fixed_cluster(ttft_s: float, itl_s: float) -> Cluster:
    return Cluster([FixedInstance(0, ttft_s, itl_s, LIMITS)], make_router("round_robin"))


class Recorder:
    """Receives one request's tokens and notes when."""

    def __init__(self, tokens: int, id: int = 0) -> None:
        self.request = Request(id, np.array([1, 2, 3], np.int32), np.arange(tokens, dtype=np.int32) + 10)
        self.request.tag = self
        self.seen: list[tuple[float, int]] = []  # loop time, tokens so far
        self.done = asyncio.Event()

    def tokens_due(self, request: Request) -> None:
        self.seen.append((asyncio.get_running_loop().time(), request.produced))
        if request.produced == len(request.output):
            self.done.set()


async def test_tokens_leave_at_ttft_plus_multiples_of_itl() -> None:
    recorder = Recorder(4)
    PacedDriver(fixed_cluster(0.5, 0.25)).submit([recorder.request])
    await recorder.done.wait()
    assert recorder.seen == [(0.5, 1), (0.75, 2), (1.0, 3), (1.25, 4)]


async def test_speed_divides_the_wall_time_of_every_token() -> None:
    recorder = Recorder(3)
    PacedDriver(fixed_cluster(0.5, 0.25), speed=4).submit([recorder.request])
    await recorder.done.wait()
    assert recorder.seen == [(0.125, 1), (0.1875, 2), (0.25, 3)]


@pytest.mark.parametrize("speed", [1 / 3, 0.7, 3.3, 1e6])
async def test_rounding_between_the_clocks_neither_loses_nor_repeats_a_token(speed: float) -> None:
    recorder = Recorder(50)
    await asyncio.sleep(1 / 7)
    PacedDriver(fixed_cluster(0.1, 0.3), speed).submit([recorder.request])
    await recorder.done.wait()
    seen = recorder.seen
    assert [produced for _, produced in seen] == list(range(1, 51))
    assert seen[-1][0] == pytest.approx(1 / 7 + (0.1 + 49 * 0.3) / speed)


async def test_a_late_tick_brings_all_due_tokens_at_once_and_the_next_keep_their_times() -> None:
    loop = asyncio.get_running_loop()
    recorder = Recorder(5)
    driver = PacedDriver(fixed_cluster(0.1, 0.1))
    driver.submit([recorder.request])
    assert isinstance(loop, virtual_time.VirtualTimeLoop)
    loop.call_at(0.15, setattr, loop, "_now", 0.32)  # the machine stands still from 0.15 s to 0.32 s
    await recorder.done.wait()
    assert driver.pacing.summary().max_s == pytest.approx(0.12)
    seen = recorder.seen
    assert [produced for _, produced in seen] == [1, 3, 4, 5]
    assert [time for time, _ in seen] == pytest.approx([0.1, 0.32, 0.4, 0.5])


async def test_lateness_is_counted_once_for_all_that_is_due_at_one_instant() -> None:
    """At --itl 0 the cluster ends a step for each token; a figure of lateness for each would cost as much as the token."""
    counted: list[tuple[float, int]] = []
    loop = asyncio.get_running_loop()
    driver = PacedDriver(fixed_cluster(0.5, 0.0))
    driver.pacing.sent = lambda lag_s, tokens, now_s: counted.append((lag_s, tokens))  # type: ignore[method-assign]
    assert isinstance(loop, virtual_time.VirtualTimeLoop)
    loop.call_at(0.375, setattr, loop, "_now", 1.25)  # the machine stands still from 0.375 s to 1.25 s
    recorders = [Recorder(tokens, tokens) for tokens in (3, 4)]
    for recorder in recorders:
        driver.submit([recorder.request])
        await asyncio.sleep(0.25)
    for recorder in recorders:
        await recorder.done.wait()
    assert counted == [(0.75, 3), (0.5, 4)]


async def test_a_request_submitted_later_arrives_at_the_present() -> None:
    first, second = Recorder(20), Recorder(2, id=1)
    driver = PacedDriver(fixed_cluster(0.1, 0.1))
    driver.submit([first.request])
    await asyncio.sleep(0.55)
    driver.submit([second.request])
    await second.done.wait()
    assert (second.request.arrival_s, second.seen[-1][0]) == pytest.approx((0.55, 0.75))


async def test_cancelled_requests_bring_no_more_tokens_and_leave_nothing_behind() -> None:
    recorder = Recorder(20)
    driver = PacedDriver(fixed_cluster(0.1, 0.1))
    driver.submit([recorder.request])
    await asyncio.sleep(0.35)
    driver.cancel([recorder.request])
    await asyncio.sleep(10)
    assert [produced for _, produced in recorder.seen] == [1, 2, 3]
    assert driver.cluster.next_event_time() == math.inf
    [instance] = driver.cluster.snapshot()
    assert (instance.running, instance.kv_used_tokens) == (0, 0)


def test_the_app_may_move_to_another_event_loop() -> None:
    driver = PacedDriver(fixed_cluster(0.5, 0.25))

    async def main(id: int) -> list[tuple[float, int]]:
        recorder = Recorder(2, id)
        driver.submit([recorder.request])
        await recorder.done.wait()
        return recorder.seen

    assert virtual_time.run(main(0)) == [(0.5, 1), (0.75, 2)]
    assert virtual_time.run(main(1)) == [(0.5, 1), (0.75, 2)]


async def test_the_free_driver_takes_no_time_and_gives_all_tokens_of_a_slice_together() -> None:
    recorder = Recorder(40)
    FreeDriver(fixed_cluster(3600.0, 60.0)).submit([recorder.request])
    await recorder.done.wait()
    assert recorder.seen == [(0.0, 40)]


@pytest.mark.parametrize(("between_s", "arrivals"), [(0.0, 1), (0.03, 4)])
async def test_the_free_driver_gathers_requests_but_not_for_ever(between_s: float, arrivals: int) -> None:
    clock, driver = [1.0], FreeDriver(fixed_cluster(1.0, 1.0))
    driver._begin(asyncio.get_running_loop())
    driver._clock = lambda: clock[0]
    before, *recorders = [Recorder(2, id) for id in range(5)]
    driver.submit([before.request])
    await before.done.wait()
    for each in recorders:
        clock[0] += between_s
        driver.submit([each.request])
        await asyncio.sleep(0)
    await recorders[-1].done.wait()
    assert len({each.request.arrival_s for each in recorders}) == arrivals


class SlowCluster(Cluster):
    """Each step costs wall time, on a clock the test moves."""

    def __init__(self, cluster: Cluster, clock: list[float], cost_s: float) -> None:
        self._inner = cluster
        self._clock = clock
        self._cost_s = cost_s
        self.router_errors = []

    def submit(self, request: Request, now: float) -> None:
        self._inner.submit(request, now)

    def next_event_time(self) -> float:
        return self._inner.next_event_time()

    def advance(self, to: float, max_steps: int | None = None) -> list[StepEnd]:
        events = self._inner.advance(to, max_steps)
        self._clock[0] += self._cost_s * sum(event.tokens for event in events)
        return events


@pytest.mark.parametrize("kind", ["paced", "free"])
async def test_a_long_computation_is_cut_into_slices(kind: str) -> None:
    """The loop gets its turn although 10,000 tokens are due at once and computing them takes ten slices."""
    clock = [0.0]
    cluster = SlowCluster(fixed_cluster(0.0, 0.0), clock, SLICE_S / 1000)
    driver: Driver = PacedDriver(cluster) if kind == "paced" else FreeDriver(cluster)
    recorder = Recorder(10_000)
    driver._begin(asyncio.get_running_loop())
    driver._clock = lambda: clock[0]
    driver.submit([recorder.request])
    turns = 0
    while not recorder.done.is_set():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 1000
    assert 9 <= len(recorder.seen) <= 11


async def test_a_receiver_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def tokens_due(self, request: Request) -> None:
            raise RuntimeError("no more")

    broken, healthy = Broken(2), Recorder(2, id=1)
    PacedDriver(fixed_cluster(0.1, 0.1)).submit([broken.request, healthy.request])
    await healthy.done.wait()
    assert healthy.request.produced == 2
    assert "could not be delivered" in caplog.text


async def test_what_a_router_of_the_users_own_got_wrong_on_the_way_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = fixed_cluster(0.1, 0.1)
    recorder = Recorder(3)
    PacedDriver(cluster).submit([recorder.request])
    cluster.router_errors.append("router 'mine:pick' returned 7")
    await recorder.done.wait()
    assert [record.getMessage() for record in caplog.records] == ["router 'mine:pick' returned 7"]


async def test_tokens_are_counted_by_steps_that_bring_several() -> None:
    class Twice(Cluster):
        """Every step end says that its requests gained two tokens each."""

        def advance(self, to: float, max_steps: int | None = None) -> list[StepEnd]:
            ends = super().advance(to, max_steps)
            for end in ends:
                end.tokens = 2 * len(end.emitted)
            return ends

    recorder = Recorder(5)
    driver = PacedDriver(Twice([FixedInstance(0, 0.1, 0.1, LIMITS)], make_router("round_robin")))
    driver.submit([recorder.request])
    await recorder.done.wait()
    await asyncio.sleep(0)
    assert driver.pacing.summary().tokens == 10


# --- requests that this server has worked on before the cluster gets them ---


def first_token_s(cluster: Cluster, worked_s: float, *, speed: float = 1.0, before: int = 0) -> tuple[float, float]:
    """A request arrives at 1 s and is handed in after `worked_s`: its arrival, cluster time, and first token, loop time.

    before: how many tokens another one generates meanwhile, from 0.25 s on.
    """

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        driver = PacedDriver(cluster, speed)
        if before:
            await asyncio.sleep(0.25)
            driver.submit([Recorder(before, id=1).request], loop.time())
        await asyncio.sleep(1.0 - loop.time())
        arrived_s = loop.time()
        await asyncio.sleep(worked_s)
        recorder = Recorder(2)
        driver.submit([recorder.request], arrived_s)
        await recorder.done.wait()
        assert recorder.request.first_token_s - recorder.request.arrival_s >= 0
        return recorder.request.arrival_s, recorder.seen[0][0]

    return virtual_time.run(main())


def engine_cluster(front_end_s: float) -> Cluster:
    """Every step takes half a second."""
    return Cluster([Instance(0, ConstantStep(0.5), LIMITS, front_end=front_end_s)], make_router("round_robin"))


@pytest.mark.parametrize("worked_s", [0.0, 0.125, 0.5])
def test_the_servers_own_work_takes_no_time_of_an_idle_cluster(worked_s: float) -> None:
    assert first_token_s(fixed_cluster(0.5, 0.25), worked_s)[1] == 1.5
    assert first_token_s(engine_cluster(0.25), worked_s)[1] == 1.75
    assert first_token_s(engine_cluster(0.0), worked_s)[1] == 1.5


def test_what_is_due_before_the_work_is_done_comes_at_once() -> None:
    assert first_token_s(engine_cluster(0.25), 2.0)[1] == 3.0
    assert first_token_s(fixed_cluster(0.5, 0.25), 2.0)[1] == 3.0


def test_the_work_counts_by_the_wall_clock_at_any_speed() -> None:
    assert first_token_s(fixed_cluster(0.5, 0.25), 0.0625, speed=4.0) == (4.0, 1.125)


def test_time_that_has_gone_on_is_not_turned_back() -> None:
    """Steps of another request end at 1.25, 1.75, ...: what the front end can still make good is made good, no more."""
    assert first_token_s(engine_cluster(0.0), 0.125, before=20) == (1.0, 1.75)  # seen in the step that began at 1.25
    assert first_token_s(engine_cluster(0.0), 0.375, before=20) == (1.0, 1.75 + 0.5)  # that step had gone
    assert first_token_s(engine_cluster(0.5), 0.375, before=20) == (1.0, 2.25)  # nothing lost: seen at 1.5 either way
    assert first_token_s(engine_cluster(0.5), 0.0, before=20) == (1.0, 2.25)


async def test_the_first_request_of_all_may_be_older_than_the_clusters_clock() -> None:
    recorder = Recorder(1)
    driver = PacedDriver(engine_cluster(0.25))
    await asyncio.sleep(1.0)
    driver._begin(asyncio.get_running_loop())
    driver._start_s = 1.0  # as on a live loop, where the clock starts with the first request
    driver.submit([recorder.request], 0.875)
    await recorder.done.wait()
    assert (recorder.request.arrival_s, recorder.seen[0][0]) == (-0.125, 0.875 + 0.25 + 0.5)


async def test_without_a_clock_nothing_has_an_age() -> None:
    recorder = Recorder(1)
    driver = FreeDriver(fixed_cluster(0.5, 0.25))
    await asyncio.sleep(1.0)
    driver.submit([recorder.request], 0.5)
    await recorder.done.wait()
    assert (recorder.request.first_token_s - recorder.request.arrival_s) == 0.5


async def test_the_wait_of_a_request_that_fails_with_a_token_is_noted_once() -> None:
    class Blind:
        """An observer that never looks."""

        next_s = math.inf

        def look(self, now: float) -> None: ...

        def skip(self, to: float) -> None: ...

    crash = LifecycleEvent(0.5, 0, "crash")  # when the first token comes
    instance = FixedInstance(0, 0.5, 0.25, LIMITS)
    cluster = Cluster([instance], make_router("round_robin"), events=[crash], on_crash="fail")
    recorder, driver = Recorder(4), ObservedDriver(cluster, Blind())
    driver.submit([recorder.request])
    await asyncio.sleep(1)
    assert recorder.request.failed
    assert (recorder.seen, [wait.seconds for wait in driver.waits]) == ([(0.5, 1)], [0.0])


@pytest.mark.parametrize("driver_type", [FreeDriver, PacedDriver])
def test_requests_submitted_in_parts_are_served_as_if_together(driver_type: type[Driver]) -> None:
    async def times(parts: list[list[int]]) -> list[tuple[float, float]]:
        driver = driver_type(Cluster([FixedInstance(0, 0.5, 0.25, LIMITS)], make_router("round_robin")))
        recorders = [Recorder(3, id=number) for part in parts for number in part]
        for place, part in enumerate(parts):
            for _ in range(50):
                await asyncio.sleep(0)
            driver.submit([recorders[number].request for number in part], last=place == len(parts) - 1)
        for recorder in recorders:
            await recorder.done.wait()
        return [(one.request.arrival_s, one.request.finished_s) for one in recorders]

    assert virtual_time.run(times([[0], [1, 2], [3]])) == virtual_time.run(times([[0, 1, 2, 3]]))
