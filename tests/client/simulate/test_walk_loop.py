"""The loop of walks: what comes first, what is cancelled, and what is said when nothing happens or no time passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from llmirage_client.simulate.walk_loop import WalkLoop
from llmirage_shared.virtual_time import StandstillError, VirtualDeadlockError

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


def loop_with(*happens_s: float) -> tuple[WalkLoop, list[tuple[str, float]]]:
    cluster: Any = Cluster(*happens_s)
    loop = WalkLoop(cluster)
    seen: list[tuple[str, float]] = []
    cluster.tell = lambda: loop.ready.append(lambda: seen.append(("cluster", loop.now)))
    return loop, seen


def test_what_the_cluster_brings_comes_before_timers_of_that_time_and_these_in_the_order_they_were_set() -> None:
    loop, seen = loop_with(1.0, 3.0)

    def note(name: str) -> None:
        seen.append((name, loop.now))

    for name, when_s in (("a", 3.0), ("b", 1.0), ("c", 3.0), ("never", 2.0)):
        timer = loop.at(when_s, partial(note, name))
    timer[2] = None
    loop.at(4.0, loop.stop)
    loop.run()
    assert seen == [("cluster", 1.0), ("b", 1.0), ("cluster", 3.0), ("a", 3.0), ("c", 3.0)]
    assert loop.now == 4.0


def test_what_is_ready_has_its_turn_in_order_before_time_goes_on() -> None:
    loop, seen = loop_with()
    loop.ready.append(lambda: loop.ready.append(lambda: seen.append(("second", loop.now))))
    loop.ready.append(lambda: seen.append(("first", loop.now)))
    loop.at(1.0, loop.stop)
    loop.run()
    assert seen == [("first", 0.0), ("second", 0.0)]


def test_a_signal_is_heeded_at_once_and_a_loop_that_was_stopped_before_it_ran_returns() -> None:
    loop, _ = loop_with(5.0)
    loop.soon(loop.stop)
    loop.run()
    assert loop.now == 0.0
    loop.stop()
    loop.run()
    assert loop.now == 0.0


def test_a_deadlock_is_told_with_what_is_left() -> None:
    loop, _ = loop_with()
    loop.cluster.under_way = 3
    with pytest.raises(VirtualDeadlockError, match="at 0 s: no timer is set, and 3 requests are under way"):
        loop.run()


def test_requests_that_take_no_time_may_be_many_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_shared.virtual_time.TURNS_AT_ONE_TIME", 10)
    loop, _ = loop_with()
    for second in range(3):
        loop.now = float(second)
        for _ in range(10):
            loop.took_no_time()
    with pytest.raises(StandstillError, match="at 2 s: what happens there takes no time"):
        loop.took_no_time()
