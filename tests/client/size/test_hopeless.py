"""A run is given up only when its objectives can no longer be met, by the very percentiles that judge a whole run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.measure.slo import parse_slo
from llmirage_client.size.hopeless import Hopeless
from llmirage_shared.statistics import summarize


def row(ttft_s: float, error: Any = None) -> Any:
    request = SimpleNamespace(spans=[([ttft_s, ttft_s + 0.1], 0, 1)])
    return SimpleNamespace(start_s=0.0, request=request, token_s=[], error=error)


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=80),
    st.sampled_from(["p50", "p90", "p95", "p99", "avg", "max"]),
    st.floats(0.01, 10.0),
)
def test_it_gives_up_only_what_is_missed_in_the_end(values_s: list[float], statistic: str, limit_s: float) -> None:
    objectives = parse_slo(f"ttft_{statistic}<{limit_s}s")
    hopeless = Hopeless(objectives, len(values_s), failures=True)
    gave_up = any(hopeless(row(value)) is not None for value in values_s)
    summary = summarize(np.array(values_s) * 1e3)
    assert summary is not None
    missed = not objectives[0].met_by(getattr(summary, statistic))
    assert missed or not gave_up
    if statistic == "max":
        assert gave_up == missed


def test_eleven_of_a_thousand_beyond_the_limit_are_one_too_many_for_the_99th_percentile() -> None:
    hopeless = Hopeless(parse_slo("ttft_p99<1s"), 1000, failures=True)
    assert [hopeless(row(2.0)) for _ in range(10)] == [None] * 10
    assert hopeless(row(2.0)) == "ttft_p99<1s: missed by 11 requests of 1,000 so far"


def test_the_mean_counts_what_the_rest_takes_at_least() -> None:
    objectives = parse_slo("tpot_avg<40ms")
    assert Hopeless(objectives, 2, failures=True)(row(0.0)) is not None  # 100 ms already
    gap_ms = 100.0
    alone = Hopeless(objectives, 4, failures=True)
    assert alone(row(0.0)) is None  # 100 of 160 ms
    with_floor = Hopeless(objectives, 4, failures=True, floors={"inter_token_latency": 25.0})
    assert (gap_ms + 3 * 25) / 4 > 40
    assert with_floor(row(0.0)) is not None


@pytest.mark.parametrize(("failures", "expected"), [(True, True), (False, False)])
def test_a_failed_request_settles_it_unless_failures_are_judged_themselves(failures: bool, expected: bool) -> None:
    hopeless = Hopeless(parse_slo("ttft_p99<1s"), 10, failures=failures)
    assert (hopeless(row(0.1, SimpleNamespace(message="lost"))) is not None) == expected
