"""The speed that a machine holds, by hand; and how a machine is measured, on a clock of the test's own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.app import create_app
from llmirage_server.commands import banner as start
from llmirage_server.commands.banner import EXCESS, MachineCost, banner, machine_cost, rounded
from llmirage_server.config import ClusterConfig

COST = MachineCost(front_end_s=0.003, request_s=0.0015, token_s=5e-6, wake_s=0.0004)
SECONDS = st.floats(1e-5, 1e-1)


def test_a_front_end_that_is_over_in_time_costs_nothing() -> None:
    """33 ms at speed 10 are 3.3 ms: longer than the front end; what is left is the way, 4 ms of cluster time."""
    assert COST.excess(0.033, 10) == pytest.approx(0.004 / 0.033)
    assert COST.held_speed(0.033) == pytest.approx(0.0033 / 0.0004)


def test_one_that_takes_longer_delays_the_first_token() -> None:
    """33 ms at speed 20 are 1.65 ms: the front end takes 1.35 ms more, and the way 0.4."""
    assert COST.excess(0.033, 20) == pytest.approx(20 * 0.00175 / 0.033)
    fast_wake = MachineCost(0.003, 0.0015, 5e-6, 0.0001)
    assert fast_wake.held_speed(0.033) == pytest.approx(1.1 * 0.033 / 0.0031)


@given(SECONDS, SECONDS, st.floats(1e-3, 10.0))
def test_the_held_speed_is_the_highest_with_that_excess(front_end_s: float, wake_s: float, ttft_s: float) -> None:
    cost = MachineCost(front_end_s, 0.0, 0.0, wake_s)
    speed = cost.held_speed(ttft_s)
    assert cost.excess(ttft_s, speed * 0.999) <= EXCESS
    assert cost.excess(ttft_s, speed * 1.001) > EXCESS


def test_cpu_for_a_load() -> None:
    """47 requests a second of 1.5 ms and 200 tokens of 5 us: 117.5 ms of a second, of which 700 may be used."""
    assert COST.carried_speed(47, 200) == pytest.approx(0.7 / 0.1175)


@pytest.mark.parametrize(
    ("speed", "text"), [(0.257, "0.25"), (1.99, "1"), (8.6, "8"), (11.4, "11"), (117.0, "110"), (23456.0, "23,000")]
)
def test_a_speed_is_never_rounded_up(speed: float, text: str) -> None:
    assert rounded(speed) == text


def test_a_machine_is_as_fast_as_its_fastest_pass_and_as_late_as_its_median_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    passes = iter([0.004, 0.002, 0.003])  # seconds of all passes of a try
    lags = iter([0.0, 0.0001, 0.0002, 0.0003, 0.0004, 0.01])

    def loop(count: int) -> float:
        nonlocal now_s
        now_s += next(passes) * count / start._PASSES
        return 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds + next(lags)

    monkeypatch.setattr(start, "_loop", loop)
    cost = machine_cost(lambda: now_s, sleep)
    pass_s = 0.002 / start._PASSES
    assert cost.front_end_s == pytest.approx(start._FRONT_END * pass_s)
    assert cost.token_s == pytest.approx(start._TOKEN * pass_s)
    assert cost.wake_s == pytest.approx(0.0003 + start._WAY * pass_s)


def row(**settings: object) -> str:
    """The line of the start-up text."""
    text = banner(create_app(ClusterConfig(**settings)), "http://localhost:8000", COST)  # type: ignore[arg-type]
    return next((line for line in text.splitlines() if line.startswith("  pace ")), "")


def test_the_start_says_up_to_which_speed_the_cluster_is_held() -> None:
    """The default cluster, whose figures change with the performance model: TTFT near 40 ms, 40 requests a second."""
    said = re.search(r"TTFT within 10 % up to --speed (\d+) at light load, enough CPU up to [1-9] at capacity", row())
    assert said
    held = int(said[1])
    assert "too long" not in row(speed=held - 1)
    late = re.search(r"at 20 TTFT is about (\d+)% too long", row(speed=20.0))
    assert late
    assert int(late[1]) > 10


def test_fixed_times_have_no_capacity_and_no_time_has_no_pace() -> None:
    assert "up to --speed 25 at light load (estimates)" in row(ttft_ms=100.0, itl_ms=10.0)
    assert row(ttft_ms=0.0, itl_ms=0.0) == ""
    assert row(speed=float("inf")) == ""
