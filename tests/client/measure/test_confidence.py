"""Verdicts with stated confidence, against exact probabilities and against endpoints of known capacity."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import filled
from llmirage_client.measure.load_points import PointResult, PooledVerdict, SearchAnswer, least_requests
from llmirage_client.measure.metrics import Metrics, compute_columns
from llmirage_client.measure.slo import parse_slo
from llmirage_client.operations import execute_points
from llmirage_client.operations.execute_points import Point, Search, search_steps


def ttfts(ms: list[float], failed: int = 0) -> Metrics:
    """Return the metrics of requests with these times until their first token, and of some that failed."""
    first_s = np.array([*(value / 1e3 for value in ms), *[math.nan] * failed])
    ok = np.arange(first_s.size) < len(ms)
    start_s = np.zeros(first_s.size)
    return compute_columns(filled(start_s, first_s=first_s, last_s=first_s + 1, ok=ok, end_s=np.ones(first_s.size)))


def verdict(slo: str, *runs: Metrics) -> bool | None:
    pooled = PooledVerdict(parse_slo(slo))
    for run in runs:
        pooled.add(run)
    return pooled.met


@pytest.mark.parametrize(
    ("slo", "needed"), [("ttft_p99<1s", 459), ("ttft_p90<1s,ttft_p50<9s", 44), ("error_rate<1%", 459), ("rps>3", 1)]
)
def test_so_many_requests_without_one_above_confirm_an_objective(slo: str, needed: int) -> None:
    assert least_requests(parse_slo(slo)) == needed
    if "ttft" in slo:
        assert verdict(slo, ttfts([5.0] * needed)) is True
        assert verdict(slo, ttfts([5.0] * (needed - 1))) is None


def test_one_outlier_of_sixty_decides_nothing_and_ten_do() -> None:
    assert verdict("ttft_p99<30ms", ttfts([5.0] * 59 + [90.0])) is None
    assert verdict("ttft_p99<30ms", ttfts([5.0] * 50 + [90.0] * 10)) is False


def test_runs_at_one_load_are_judged_together() -> None:
    assert verdict("ttft_p99<30ms", ttfts([5.0] * 59 + [90.0]), ttfts([5.0] * 1000)) is True


def test_a_lower_limit_counts_what_is_below_it() -> None:
    assert verdict("ttft_p10>30ms", ttfts([40.0] * 100)) is True
    assert verdict("ttft_p10>30ms", ttfts([40.0] * 60 + [5.0] * 40)) is False
    assert verdict("ttft_p10>30ms", ttfts([40.0] * 90 + [5.0] * 10)) is None


def test_means_and_failures() -> None:
    assert verdict("ttft_avg<30ms", ttfts([20.0, 25.0] * 50)) is True
    assert verdict("ttft_avg<30ms", ttfts([10.0, 49.0] * 5)) is None
    assert verdict("ttft_avg<30ms", ttfts([40.0, 45.0] * 50)) is False
    assert verdict("error_rate<5%", ttfts([1.0] * 200)) is True
    assert verdict("error_rate<5%", ttfts([1.0] * 95, failed=5)) is None
    assert verdict("error_rate<5%", ttfts([1.0] * 80, failed=20)) is False
    assert verdict("tpot_p50<1ms", ttfts([1.0] * 80)) is False  # not measured


@given(st.integers(1, 400), st.floats(0.001, 0.6), st.integers(0, 400))
def test_a_share_is_judged_by_the_exact_binomial_distribution(requests: int, allowed: float, above: int) -> None:
    above = min(above, requests)
    slo = f"error_rate<{allowed * 100!r}%"
    found = verdict(slo, ttfts([1.0] * (requests - above), failed=above))
    terms = [math.comb(requests, k) * allowed**k * (1 - allowed) ** (requests - k) for k in range(requests + 1)]
    few, many = math.fsum(terms[: above + 1]), math.fsum(terms[above:])
    if abs(few - 0.01) > 1e-6 and abs(many - 0.01) > 1e-6:
        assert found is (True if few < 0.01 else False if many < 0.01 else None)


class DrawnLoads(execute_points.Loads):
    """Loads of an endpoint with exponential times that grow with the load: p99 is 500 ms at `capacity`."""

    def __init__(self, capacity: float, seed: int) -> None:
        self.plan = SimpleNamespace(options=RunOptions(request_count=60))  # type: ignore[assignment]
        self.capacity, self.random = capacity, np.random.default_rng(seed)
        self.title, self.folder, self.problem = "", None, None
        self.roots_taken = 0
        self.tell = self.note = lambda line: None

    def begin(self, point: Point, total: int | None) -> Point:  # type: ignore[override]
        return point

    def end(self, point: Point, outcome: object) -> PointResult:
        p99_ms = 500 * (point.load / self.capacity) ** 2
        assert point.requests is not None
        metrics = ttfts(self.random.exponential(p99_ms / math.log(100), point.requests).tolist())
        return PointResult(point.variable, point.load, point.number, 1.0, metrics, 0, [], False, None)

    def wrapped(self) -> None:
        return None


def answer(capacity: float, seed: int) -> SearchAnswer:
    search = Search("ttft_p99<500ms", parse_slo("ttft_p99<500ms"), "concurrency", 1, 1, 4096, 0.05)
    steps = search_steps(DrawnLoads(capacity, seed), search)
    try:
        next(steps)
        while True:
            steps.send(None)  # type: ignore[arg-type]
    except StopIteration as end:
        found: SearchAnswer = end.value.answer
        return found


def test_an_endpoint_of_known_capacity_is_found_within_a_tenth() -> None:
    answers = [answer(57, seed) for seed in range(20)]
    best = [one.best or 0 for one in answers]
    assert sum(0.9 * 57 <= load <= 1.1 * 57 for load in best) >= 19, best
    assert max(best) <= 1.1 * 57
    assert all(one.worst is not None and one.worst > (one.best or 0) for one in answers)


def test_loads_that_are_too_close_are_named() -> None:
    told = [str(one) for one in (answer(57, seed) for seed in range(20)) if one.open]
    assert told
    assert all("too close to the limit to tell (confidence 95%)" in text for text in told)
