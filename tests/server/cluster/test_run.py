"""A cluster in the caller's virtual time, without a loop: when requests are over, and who is told."""

import math

import numpy as np
import pytest
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router
from llmirage_server.drivers.virtual import ClusterRun, InFlightRequest
from llmirage_server.perf.deployment import Deployment

TTFT_S, ITL_S = 1.0, 0.5


class Noted(InFlightRequest):
    """Writes down who is over."""

    __slots__ = ("told",)

    def __init__(self, number: int, output: int, told: list[int], prompt: int = 4) -> None:
        first = 1000 * number
        super().__init__(
            Request(number, np.arange(first, first + prompt, dtype=np.int32), np.arange(output, dtype=np.int32))
        )
        self.told = told

    def over(self) -> None:
        self.told.append(self.request.id)


class Looks:
    """An observer that looks every two seconds."""

    def __init__(self) -> None:
        self.next_s = 0.0
        self.seen: list[float] = []
        self.skipped: list[float] = []

    def observe(self, now: float) -> None:
        self.seen.append(now)
        self.next_s = now + 2.0

    def skip(self, to: float) -> None:
        self.skipped.append(to)
        self.next_s = math.inf


def fixed(instances: int = 1, events: tuple[LifecycleEvent, ...] = (), **settings: str) -> Cluster:
    limits = EngineLimits(kv_tokens=1000)
    made = [FixedInstance(i, TTFT_S, ITL_S, limits) for i in range(instances)]
    return Cluster(made, make_router("round_robin"), events=events, **settings)  # type: ignore[arg-type]


def test_time_goes_on_to_the_next_request_that_is_over() -> None:
    run, told = ClusterRun(fixed()), list[int]()
    short, long = Noted(1, 2, told), Noted(2, 4, told)
    for flight in (short, long):
        run.submit(flight, 0.0)
    assert (run.run(1.2), told, run.under_way) == (1.2, [], 2)
    assert (run.run(10.0), told, run.under_way) == (1.5, [1], 1)
    assert (run.run(10.0), told, run.under_way) == (2.5, [1, 2], 0)
    assert (run.run(10.0), run.run(math.inf)) == (10.0, math.inf)
    assert short.times.tolist() == [1.0, 1.5]
    assert long.times.tolist() == long.arrivals.tolist() == [1.0, 1.5, 2.0, 2.5]
    assert [wait.seconds for wait in run.waits] == [0.0, 0.0]


def test_all_that_are_over_at_one_instant_are_so_at_once_by_instance() -> None:
    run, told = ClusterRun(fixed(3)), list[int]()
    for number in (1, 2, 3, 4):
        run.submit(Noted(number, 1, told), 0.0)
    assert run.run(math.inf) == TTFT_S
    assert told == [1, 4, 2, 3]  # 1 and 4 were on the first instance


def test_who_is_told_may_submit_at_that_very_instant() -> None:
    run, told = ClusterRun(fixed(2)), list[int]()

    class Again(Noted):
        def over(self) -> None:
            super().over()
            run.submit(Noted(10 + self.request.id, 1, told), self.request.finished_s)

    for number in (1, 2):
        run.submit(Again(number, 1, told), 0.0)
    assert (run.run(math.inf), told, run.under_way) == (1.0, [1, 2], 2)
    assert (run.run(math.inf), told, run.under_way) == (2.0, [1, 2, 11, 12], 0)


def test_a_cancelled_request_is_not_told_of_and_frees_its_place() -> None:
    run, told = ClusterRun(fixed()), list[int]()
    flight = Noted(1, 9, told)
    run.submit(flight, 0.0)
    assert run.run(1.2) == 1.2
    run.cancel(flight.request, 1.2)
    run.cancel(flight.request, 1.3)
    assert (run.under_way, [wait.seconds for wait in run.waits], flight.times.tolist()) == (0, [0.0], [1.0])
    assert (run.run(math.inf), told) == (math.inf, [])


def test_what_can_never_be_served_is_refused_or_fails_at_once() -> None:
    run = ClusterRun(Cluster([Instance(0, ConstantStep(1.0), EngineLimits(kv_tokens=64))], make_router("prefix")))
    with pytest.raises(ValueError, match="can never finish"):
        run.submit(Noted(1, 100, []), 0.0)
    assert run.under_way == 0
    gone = ClusterRun(fixed(1, (LifecycleEvent(0.0, 0, "crash"),)))
    assert gone.run(1.0) == 1.0
    told: list[int] = []
    flight = Noted(1, 1, told)
    gone.submit(flight, 1.0)
    assert (flight.request.failed, gone.under_way) == (True, 0)
    assert (gone.run(2.0), told, gone.under_way, gone.waits) == (2.0, [], 0, [])


@pytest.mark.parametrize(("crash_s", "tokens_s"), [(1.2, [1.0]), (1.5, [1.0]), (TTFT_S, [])])
def test_a_request_that_a_crash_takes_is_over_then(crash_s: float, tokens_s: list[float]) -> None:
    """It is told of once, and a token of that very instant is lost with it."""
    run, told = ClusterRun(fixed(1, (LifecycleEvent(crash_s, 0, "crash"),), on_crash="fail")), list[int]()
    flight = Noted(1, 9, told)
    run.submit(flight, 0.0)
    assert (run.run(math.inf), told, flight.request.failed) == (crash_s, [1], True)
    assert (run.under_way, [wait.seconds for wait in run.waits], flight.times.tolist()) == (0, [0.0], tokens_s)


def test_an_observer_looks_at_its_times_while_something_is_to_happen() -> None:
    looks = Looks()
    run, told = ClusterRun(fixed(), looks), list[int]()
    run.submit(Noted(1, 9, told), 0.0)  # until 5.0
    assert (run.run(3.0), run.run(20.0), told) == (3.0, 5.0, [1])
    assert looks.seen == [0.0, 2.0, 4.0]
    assert (run.run(20.0), looks.skipped) == (20.0, [20.0])


@pytest.mark.parametrize("summed_first", [True, False])
def test_no_token_is_lost_when_a_crash_moves_a_request_to_another_kind_of_instance(summed_first: bool) -> None:
    step_model = Deployment.create("Qwen/Qwen3-8B", "h100_sxm").step_model()
    limits = EngineLimits(kv_tokens=4000)

    def times(summed: tuple[bool, bool]) -> list[list[float]]:
        made = [Instance(i, step_model, limits, fast_forward=each) for i, each in enumerate(summed)]
        assert tuple(each.fast_forward for each in made) == summed
        # The second instance is not there before the first has crashed.
        events = (LifecycleEvent(0.2, 0, "crash"), LifecycleEvent(0.2, 1, "start"))
        run = ClusterRun(Cluster(made, make_router("round_robin"), events=events))
        flights = [Noted(number, 60, []) for number in (1, 2)]
        for flight in flights:
            run.submit(flight, 0.0)
        while run.under_way:
            run.run(math.inf)
        return [flight.times.tolist() for flight in flights]

    found = times((summed_first, not summed_first))
    assert [len(each) for each in found] == [60, 60]
    assert found == times((False, False))
