"""Runs end early only when objectives are out of reach; intervals hold what an endless simulation would show."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.measure.record import Exchange, Record
from llmirage_client.measure.request_metrics import request_metrics
from llmirage_client.measure.slo import parse_slo
from llmirage_client.size.early_stopping import EarlyStop, EarlyStopInTime, Interval, interval_of
from llmirage_shared.statistics import summarize


def row(ttft_s: float, error: Any = None, end_s: float = 0.0) -> Any:
    request = SimpleNamespace(stream=None, spans=[([ttft_s, ttft_s + 0.1], 0, 1)], produced=2)
    return SimpleNamespace(start_s=0.0, request=request, token_s=[], error=error, measured=True, end_s=end_s)


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=80),
    st.sampled_from(["p50", "p90", "p95", "p99", "avg", "max"]),
    st.floats(0.01, 10.0),
)
def test_it_stops_only_what_is_missed_in_the_end(values_s: list[float], statistic: str, limit_s: float) -> None:
    objectives = parse_slo(f"ttft_{statistic}<{limit_s}s")
    early_stop = EarlyStop(objectives, len(values_s), failures=True)
    stopped = any(early_stop(row(value)) is not None for value in values_s)
    summary = summarize(np.array(values_s) * 1e3)
    assert summary is not None
    missed = not objectives[0].met_by(getattr(summary, statistic))
    assert missed or not stopped
    if statistic == "max":
        assert stopped == missed


@given(
    st.lists(st.floats(0.01, 10.0), min_size=2, max_size=150),
    st.sampled_from(["p50", "p90", "p95", "p99", "avg"]),
    st.floats(0.01, 10.0),
    st.integers(1, 2),
)
def test_a_run_in_time_ends_only_where_twice_as_many_requests_would_not_help(
    values_s: list[float], statistic: str, limit_s: float, faster: int
) -> None:
    """The first half of the requests comes in the first half of the time or, where the rest is faster, in two thirds."""
    objectives, half = parse_slo(f"ttft_{statistic}<{limit_s}s"), len(values_s) // 2
    early_stop = EarlyStopInTime(objectives, 3.0, failures=True)
    ends_s = [1.5 * (n + 1) / half if faster == 1 else 2.0 * (n + 1) / half for n in range(half)]
    ends_s += np.linspace(ends_s[-1], 3.0, len(values_s) - half).tolist()
    stopped = any(early_stop(row(value, end_s=end_s)) is not None for value, end_s in zip(values_s, ends_s, strict=True))
    summary = summarize(np.array(values_s) * 1e3)
    assert summary is not None
    assert not stopped or not objectives[0].met_by(getattr(summary, statistic))
    if min(values_s) > limit_s and len(values_s) > 20:
        assert stopped


@given(
    st.floats(0, 1e4), st.lists(st.floats(1e-4, 9.0), min_size=2, max_size=9), st.sampled_from(["ttft", "tpot", "latency"])
)
def test_a_request_at_its_limit_meets_it_here_as_in_the_end(start_s: float, gaps_s: list[float], metric: str) -> None:
    stamps = [start_s + sum(gaps_s[: i + 1]) for i in range(len(gaps_s))]
    exchange = Exchange(start_s, token_s=stamps, streamed=True)
    record = Record(0, "c", 0, "r", "c", "c", None, 0, start_s, exchange, output_tokens=len(stamps))
    objective = parse_slo(f"{metric}_max<=1ms")[0]
    value_ms = request_metrics(record)[objective.metric.tag]
    exact = replace(objective, limit=value_ms)
    request = SimpleNamespace(stream=None, spans=[(stamps, 0, len(stamps) - 1)], produced=len(stamps))
    row = SimpleNamespace(start_s=start_s, request=request, token_s=[], error=None)
    assert EarlyStop([exact], 1, failures=True)(row) is None  # type: ignore[arg-type]
    assert EarlyStop([replace(exact, limit=value_ms * (1 - 1e-15))], 1, failures=True)(row) is not None  # type: ignore[arg-type]


def test_tokens_that_come_in_chunks_count_each() -> None:
    """A step with speculation gives several tokens; the time per token is not that between its chunks."""
    request = SimpleNamespace(
        stream=None, spans=[([0.1, 0.2, 0.3], 0, 2)], produced=9
    )  # 200 ms for eight tokens: 25 ms each
    chunked = SimpleNamespace(start_s=0.0, request=request, token_s=[], error=None, measured=True, end_s=0.3)
    assert EarlyStop(parse_slo("tpot_p99<26ms"), 1, failures=True)(chunked) is None
    assert EarlyStop(parse_slo("tpot_p99<24ms"), 1, failures=True)(chunked) is not None


def test_eleven_of_a_thousand_beyond_the_limit_are_one_too_many_for_the_99th_percentile() -> None:
    early_stop = EarlyStop(parse_slo("ttft_p99<1s"), 1000, failures=True)
    assert [early_stop(row(2.0)) for _ in range(10)] == [None] * 10
    assert early_stop(row(2.0)) == "ttft_p99<1s: missed by 11 requests of 1,000 so far"


def test_the_mean_counts_what_the_rest_takes_at_least() -> None:
    objectives = parse_slo("tpot_avg<40ms")
    assert EarlyStop(objectives, 2, failures=True)(row(0.0)) is not None  # 100 ms already
    gap_ms = 100.0
    alone = EarlyStop(objectives, 4, failures=True)
    assert alone(row(0.0)) is None  # 100 of 160 ms
    with_floor = EarlyStop(objectives, 4, failures=True, floors={"inter_token_latency": 25.0})
    assert (gap_ms + 3 * 25) / 4 > 40
    assert with_floor(row(0.0)) is not None


@pytest.mark.parametrize(("failures", "expected"), [(True, True), (False, False)])
def test_a_failed_request_settles_it_unless_failures_are_judged_themselves(failures: bool, expected: bool) -> None:
    early_stop = EarlyStop(parse_slo("ttft_p99<1s"), 10, failures=failures)
    assert (early_stop(row(0.1, SimpleNamespace(message="lost"))) is not None) == expected


@pytest.mark.parametrize(("statistic", "truth"), [("avg", 1.0), ("p50", math.log(2)), ("p99", math.log(100))])
def test_intervals_hold_the_truth_in_nine_of_ten_simulations(statistic: str, truth: float) -> None:
    held = 0
    for seed in range(200):
        interval = interval_of(np.random.default_rng(seed).exponential(size=2000), statistic)
        held += interval.low <= truth <= interval.high
    assert held >= 180


def test_a_slow_spell_widens_the_interval() -> None:
    """The same values, once mixed and once with all slow ones in a row."""
    values = np.random.default_rng(0).exponential(size=2000)
    mixed, sorted_ = interval_of(values, "p90"), interval_of(np.sort(values), "p90")
    assert sorted_.high - sorted_.low > 2 * (mixed.high - mixed.low)


def test_too_few_requests_say_nothing() -> None:
    assert interval_of(np.array([1.0, 2.0]), "avg") == Interval(-math.inf, math.inf)
    few = interval_of(np.random.default_rng(0).exponential(size=100), "p99")
    assert few.high > math.log(100)


@given(st.floats(1, 100), st.floats(0, 50), st.floats(1, 150), st.floats(0, 50), st.sampled_from("<>"))
def test_stricter_objectives_are_never_met_alone(
    low: float, width: float, limit: float, stricter: float, comparison: str
) -> None:
    interval = Interval(low, low + width)
    strict = limit - stricter if comparison == "<" else limit + stricter
    if strict <= 0:
        return
    lax_told, strict_told = (interval.clear(parse_slo(f"ttft_p99{comparison}{bound!r}ms")[0]) for bound in (limit, strict))
    assert not (strict_told is True and lax_told is not True)
    assert not (lax_told is False and strict_told is not False)
