"""The server's measure of its own lateness."""

import asyncio
import logging

import numpy as np
import pytest

from llmirage_server.app import create_app
from llmirage_server.cluster.request import Request
from llmirage_server.config import ClusterConfig
from llmirage_server.drivers.pacing import Pacing
from llmirage_shared.virtual_time import VirtualTimeLoop


def test_the_summary_counts_tokens_by_their_lag() -> None:
    pacing = Pacing()
    pacing.sent(0.0004, 90, now_s=1.0)
    pacing.sent(0.004, 9, now_s=1.1)
    pacing.sent(0.3, 1, now_s=1.2)
    summary = pacing.summary()
    assert summary.tokens == 100
    assert summary.late_tokens == 1
    assert summary.mean_s == pytest.approx((90 * 0.0004 + 9 * 0.004 + 0.3) / 100)
    assert (summary.p50_s, summary.p99_s) == (pytest.approx(0.0004, rel=0.01), pytest.approx(0.004, rel=0.01))
    assert summary.max_s == 0.3


def test_nothing_sent_is_nothing_late() -> None:
    assert Pacing().summary().tokens == 0
    assert Pacing().summary().p99_s == 0.0


def test_tokens_sent_early_by_rounding_count_as_on_time() -> None:
    pacing = Pacing()
    pacing.sent(-1e-9, 5, now_s=0.0)
    assert pacing.summary().mean_s == 0.0


def test_one_warning_when_many_tokens_are_late_and_the_next_not_before_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    pacing = Pacing()
    with caplog.at_level(logging.WARNING):
        for tenth in range(1, 95):
            pacing.sent(0.5, 10, now_s=tenth / 10)
        assert len(caplog.records) == 1
        assert "cannot keep up" in caplog.text
        for tenth in range(95, 150):
            pacing.sent(0.5, 10, now_s=tenth / 10)
        assert len(caplog.records) == 2


def test_no_warning_for_a_few_late_tokens(caplog: pytest.LogCaptureFixture) -> None:
    pacing = Pacing()
    for second in range(20):
        pacing.sent(0.5, 1, now_s=float(second))
        pacing.sent(0.001, 9, now_s=second + 0.5)
    assert not caplog.records


def test_at_a_speed_less_lateness_is_late_because_it_counts_in_cluster_time(caplog: pytest.LogCaptureFixture) -> None:
    assert [Pacing(speed).late_s for speed in (0.5, 1, 10, 50, 1000)] == [0.02, 0.02, 0.01, 0.002, 0.001]
    pacing = Pacing(speed=50)
    for second in range(3):
        pacing.sent(0.003, 10, now_s=float(second))
    assert len(caplog.records) == 1
    assert "more than 2 ms late, which is 100 ms of cluster time" in caplog.text


class Times:
    """Notes when tokens came, on the loop's clock."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def tokens_due(self, request: Request) -> None:
        self.at_s += [asyncio.get_running_loop().time()] * (request.produced - len(self.at_s))


def test_from_the_change_on_the_rest_takes_the_time_of_the_new_speed() -> None:
    app = create_app(ClusterConfig(ttft_ms=1000.0, itl_ms=1000.0))
    times = Times()

    async def run() -> None:
        request = Request(0, np.arange(3, dtype=np.int32), np.arange(4, dtype=np.int32))
        request.tag = times
        app.driver.submit([request])
        await asyncio.sleep(1.5)  # the first token is out, half of the second one's time is over
        app.driver.set_speed(10.0)
        await asyncio.sleep(5.0)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
    assert times.at_s == pytest.approx([1.0, 1.55, 1.65, 1.75])
    assert app.driver.pacing.late_s == pytest.approx(0.01)  # a tenth of a second of cluster time
