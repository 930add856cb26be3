"""The speed changes while requests run: what is done stays, what is left takes as long as the new speed says."""

import asyncio

import numpy as np
import pytest

from llmirage_server.app import create_app
from llmirage_server.cluster.request import Request
from llmirage_server.config import ClusterConfig
from llmirage_shared.virtual_time import VirtualTimeLoop


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
