"""A load beyond what the cluster serves queues, and the server says so."""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import create_app
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.config import ClusterConfig
from llmirage_server.drivers.pacing import Queue, Saturation

FULL = InstanceSnapshot(0, 4, 3, 0, 1000, 0, 0, 0, 0, model="m")


def request(arrival_s: float, admitted_s: float = math.nan, model: str = "m") -> Request:
    request = Request(0, np.zeros(1, np.int32), np.zeros(1, np.int32), model=model)
    request.arrival_s, request.admitted_s = arrival_s, admitted_s
    return request


def test_a_request_that_is_not_admitted_for_seconds_means_saturation(caplog: pytest.LogCaptureFixture) -> None:
    saturation = Saturation(lambda: [FULL, FULL])
    saturation.submitted(request(0.0))
    saturation.check(4.0, 4.0)
    assert (saturation.queues(), caplog.records) == ([], [])
    saturation.check(6.0, 6.0)
    assert saturation.queues() == [Queue("m", waiting=6, running=8, waited_s=6.0)]
    assert "saturated: requests wait 6 s before they start; 6 wait and 8 run for m." in caplog.text


def test_the_next_request_that_is_served_soon_ends_it() -> None:
    saturation = Saturation(lambda: [FULL])
    late = request(0.0)
    saturation.submitted(late)
    saturation.check(9.0, 0.0)
    late.admitted_s = 9.5
    saturation.check(10.0, 1.0)
    assert saturation.queues()[0].waited_s == 9.5
    saturation.submitted(request(10.0, admitted_s=10.1))
    saturation.check(11.0, 2.0)
    assert saturation.queues() == []


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_request_that_ends_before_it_was_admitted_is_followed_no_longer(end: str) -> None:
    saturation = Saturation(lambda: [FULL])
    gone = request(0.0)
    saturation.submitted(gone)
    setattr(gone, end, True)
    saturation.check(1.0, 1.0)
    saturation.check(99.0, 99.0)
    assert saturation.queues() == []


def test_models_are_followed_one_by_one_and_told_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    saturation = Saturation(lambda: [FULL, replace(FULL, model="other")])
    saturation.submitted(request(0.0))
    saturation.submitted(request(0.0, admitted_s=0.1, model="other"))
    for tenth in range(240):
        saturation.check(tenth / 10, tenth / 10)
    assert [(queue.model, queue.waiting) for queue in saturation.queues()] == [("m", 3)]
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("every_s", "saturated"), [(0.1, True), (2.0, False)])
async def test_a_server_beyond_its_rate_says_so_in_its_log_and_health(
    every_s: float, saturated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Two sequences at a time take at least a second each: ten requests a second are too many, one in two seconds is not."""
    app = create_app(ClusterConfig(instances=1, max_num_seqs=2, accept_models="any", speed=0.5))
    users, body = [], {"model": "any", "prompt": [1, 2, 3], "max_tokens": 200}
    for _ in range(round(20 / every_s)):
        users.append(asyncio.ensure_future(RawAnswer().ask(app, "/v1/completions", body)))
        await asyncio.sleep(every_s)
    answer = json.loads((await RawAnswer().ask(app, "/health", method="GET")).body)
    for user in users:
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    assert ("saturated" in answer) is saturated
    assert ("saturated" in caplog.text) is saturated
    if saturated:
        [queue] = answer["saturated"]
        assert queue["running"] == 2
        assert queue["waiting"] > 50
        assert queue["waited_s"] > 5
    else:
        assert answer == {}
