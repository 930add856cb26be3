"""The search for the highest load, and what tells that an endpoint no longer follows."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.saturation import backlog_growth, falls_behind, gains_nothing, latency_exploded
from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import Exchange, Record
from llmirage_client.operations.execute_points import MaxSearch, Point, probe, shared_out
from llmirage_client.workload.session import Session
from llmirage_shared.statistics import summarize


def searched(meets: Callable[[float], bool], **settings: Any) -> tuple[MaxSearch, list[float]]:
    search = MaxSearch(**{"start": 1, "lower": 1, "upper": 1024, "whole": True, "precision": 0.05} | settings)
    tried: list[float] = []
    while (load := search.next_load()) is not None:
        tried.append(load)
        search.tell(load, meets(load))
        assert len(tried) < 100
    return search, tried


def test_it_doubles_until_it_misses_and_then_halves_the_gap() -> None:
    search, tried = searched(lambda load: load <= 11)
    assert tried == [1, 2, 4, 8, 16, 12, 10, 11]
    assert (search.best, search.worst) == (11, 12)


def test_it_ends_when_the_answer_is_close_enough() -> None:
    search, tried = searched(lambda load: load <= 300, precision=0.1)
    assert tried[-1] == 304
    assert (search.best, search.worst) == (288, 304)


def test_it_goes_down_when_the_start_misses() -> None:
    _, tried = searched(lambda load: load <= 3, start=20)
    assert tried == [20, 10, 5, 2, 3, 4]


def test_nothing_meets_it() -> None:
    search, tried = searched(lambda load: False, start=6)
    assert tried == [6, 3, 1]
    assert (search.best, search.worst) == (None, 1)


def test_everything_meets_it_up_to_the_bound() -> None:
    search, tried = searched(lambda load: True, upper=100, start=30)
    assert tried == [30, 60, 100]
    assert (search.best, search.worst) == (100, None)


def test_rates_are_numbers_that_can_be_typed() -> None:
    _, tried = searched(lambda load: load <= 3.3, whole=False, lower=0.01)
    assert tried == [1, 2, 4, 3, 3.5, 3.25, 3.38]


@given(limit=st.integers(0, 2000), start=st.integers(1, 1024), precision=st.floats(0.001, 0.5), whole=st.booleans())
def test_any_limit_is_found_as_closely_as_asked(limit: int, start: int, precision: float, whole: bool) -> None:
    search, tried = searched(lambda load: load <= limit, start=start, precision=precision, whole=whole)
    assert len(set(tried)) == len(tried)
    assert all(1 <= load <= 1024 for load in tried)
    if search.best is None:
        assert limit < 1
    elif search.worst is None:
        assert (search.best, limit >= 1024) == (1024, True)
    else:
        assert search.best <= limit < search.worst
        rounding = 0.0101 * search.worst  # of three digits
        assert search.worst - search.best <= max(precision * search.best, 1 if whole else rounding)


def record(due_s: float, latency_s: float) -> Record:
    return Record(0, "c", 0, "r", "c", "c", None, 0, due_s, Exchange(start_s=due_s, end_s=due_s + latency_s))


def test_a_load_above_what_is_served_piles_up_by_the_difference() -> None:
    """A server that takes 1 s for each request, one after the other, and requests every 0.8 s: 1.25 times its capacity."""
    overload = [record(0.8 * i, 1.0 + 0.2 * i) for i in range(100)]
    assert backlog_growth(overload) == pytest.approx(0.25)
    assert falls_behind(overload)
    steady = [record(1.25 * i, 1.0 + 0.3 * (i % 7)) for i in range(100)]
    assert abs(backlog_growth(steady) or 0) < 0.01
    assert not falls_behind(steady)


def test_the_beginning_of_a_run_is_not_held_against_it() -> None:
    filling = [record(1.0 * i, min(1.0 + 0.2 * i, 8.0)) for i in range(80)]
    assert not falls_behind(filling)


def test_too_few_requests_say_nothing() -> None:
    assert backlog_growth([record(i, i) for i in range(15)]) is None
    assert backlog_growth([record(1.0, i) for i in range(100)]) is None


def metrics(tokens_per_s: float, latency_ms: float) -> Metrics:
    summary = summarize([latency_ms])
    assert summary is not None
    return Metrics(
        per_request={"request_latency": summary},
        whole_run={"output_token_throughput": tokens_per_s},
        errors=(),
        input_counted_by="server",
        output_counted_by="server",
    )


def test_more_concurrency_has_to_bring_more_output() -> None:
    assert not gains_nothing(metrics(100, 1), metrics(150, 1), 2.0)
    assert not gains_nothing(metrics(100, 1), metrics(108, 1), 2.0)
    assert gains_nothing(metrics(100, 1), metrics(106, 1), 2.0)
    assert gains_nothing(metrics(100, 1), metrics(90, 1), 2.0)
    assert not gains_nothing(metrics(100, 1), metrics(106, 1), 1.25)


def test_latency_explodes_at_ten_times_that_of_the_lightest_load() -> None:
    assert not latency_exploded(metrics(1, 100), metrics(1, 1000))
    assert latency_exploded(metrics(1, 100), metrics(1, 1001))


def test_points_of_a_sweep_share_the_file_out(bench: Any) -> None:
    flow = bench.workload(*(Session(f"s{i}", (bench.turn("x"), bench.turn("y"))) for i in range(40)))
    assert shared_out(flow, (1, 2, 4, 8), "concurrency") == 10
    assert shared_out(flow, (1, 16), "concurrency") == 20
    assert shared_out(flow, (8, 64), "concurrency") == 64
    assert shared_out(flow, (1, 2, 1000), "request_rate") == 13


def test_a_probe_is_large_enough_to_mean_something(bench: Any) -> None:
    flow = bench.workload(*(Session(f"s{i}", (bench.turn("x"), bench.turn("y"))) for i in range(4)))
    assert probe(flow, "concurrency", 3, 1).conversations == 50  # a hundred requests
    assert probe(flow, "concurrency", 80, 1).conversations == 160  # each slot twice
    assert probe(flow, "request_rate", 20, 1).duration_s == 30
    assert probe(flow, "request_rate", 0.5, 1).duration_s == 200  # a hundred requests


def test_a_point_changes_nothing_but_its_load(bench: Any) -> None:
    from llmirage_client.load.options import RunOptions

    base = RunOptions(model="m", concurrency=1, seed=4)
    options = Point("request_rate", 2.5, 3, conversations=7).options(base, first_root=11)
    assert (options.request_rate_per_s, options.num_conversations, options.first_root) == (2.5, 7, 11)
    assert (options.model, options.seed, options.concurrency) == ("m", 4, 1)
