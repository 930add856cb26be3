"""The event queue of simulations: the order of what happens, what is cancelled, and what it says when nothing happens."""

from functools import partial
from typing import Any

import pytest

from llmirage_client.simulate.event_queue import EventQueue
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

pytestmark = pytest.mark.interpreted


class Cluster:
    """Something happens at certain times, and tells so."""

    def __init__(self, *happens_s: float) -> None:
        self.happens_s = sorted(happens_s)
        self.tell: Any = None
        self.under_way = len(happens_s)

    def run(self, to: float) -> float:
        if self.happens_s and self.happens_s[0] <= to:
            self.tell()
            return self.happens_s.pop(0)
        return to


def queue_with(*happens_s: float) -> tuple[EventQueue, list[tuple[str, float]]]:
    cluster: Any = Cluster(*happens_s)
    queue = EventQueue(cluster)
    seen: list[tuple[str, float]] = []
    cluster.tell = lambda: queue.ready.append(lambda: seen.append(("cluster", queue.now())))
    return queue, seen


def test_what_the_cluster_brings_comes_before_timers_of_that_time_and_these_in_the_order_they_were_set() -> None:
    queue, seen = queue_with(1.0, 3.0)

    def note(name: str) -> None:
        seen.append((name, queue.now()))

    for name, when_s in (("a", 3.0), ("b", 1.0), ("c", 3.0), ("never", 2.0)):
        timer = queue.call_at(when_s, partial(note, name))
    timer.cancel()
    queue.call_at(4.0, queue.stop)
    queue.run()
    assert seen == [("cluster", 1.0), ("b", 1.0), ("cluster", 3.0), ("a", 3.0), ("c", 3.0)]
    assert queue.now() == 4.0


def test_what_is_ready_has_its_turn_in_order_before_time_goes_on() -> None:
    queue, seen = queue_with()
    queue.ready.append(lambda: queue.ready.append(lambda: seen.append(("second", queue.now()))))
    queue.ready.append(lambda: seen.append(("first", queue.now())))
    queue.call_at(1.0, queue.stop)
    queue.run()
    assert seen == [("first", 0.0), ("second", 0.0)]


def test_an_interrupt_comes_at_once_and_a_queue_that_was_stopped_before_it_ran_returns() -> None:
    queue, _ = queue_with(5.0)
    queue.interrupt(queue.stop)
    queue.run()
    assert queue.now() == 0.0
    queue.stop()
    queue.run()
    assert queue.now() == 0.0


def test_a_deadlock_is_told_with_what_is_left() -> None:
    queue, _ = queue_with()
    queue.cluster.under_way = 3
    with pytest.raises(VirtualDeadlockError, match="at 0 s: no timer is set, and 3 requests are under way"):
        queue.run()


def test_requests_that_take_no_time_may_be_many_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_shared.standstill.TURNS_AT_ONE_TIME", 10)
    queue, _ = queue_with()
    for second in range(3):
        queue.time_s = float(second)
        for _ in range(10):
            queue.took_no_time()
    with pytest.raises(StandstillError, match="at 2 s: what happens there takes no time"):
        queue.took_no_time()
