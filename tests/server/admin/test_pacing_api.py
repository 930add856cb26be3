"""GET /llmirage/pacing: times as simulated beside times as sent, on a loop of virtual time where only a test is late."""

import asyncio
import json
import math
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.service.service import Service
from llmirage_shared import virtual_time
from llmirage_shared.statistics import ServedTimes

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


def shown(work_s: float, speed: float, *bodies: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """What the server tells after these requests, one after the other, each of which keeps its own work busy so long."""

    async def run() -> dict[str, Any]:
        app = create_app(ClusterConfig(ttft_ms=30.0, itl_ms=10.0, speed=speed, **settings))
        encode = Service.encode_chat

        async def slow(self: Service, *given: Any, **more: Any) -> Any:
            await asyncio.sleep(work_s)
            return await encode(self, *given, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Service, "encode_chat", slow)
            for body in bodies:
                await RawAnswer().ask(app, "/v1/chat/completions", ASKED | body)
        found: dict[str, Any] = json.loads((await RawAnswer().ask(app, "/llmirage/pacing", method="GET")).body)
        return found

    return virtual_time.run(run())


def ms(found: dict[str, Any], name: str) -> float:
    return float(found["ms"][name]["p50"])


def test_work_that_ends_before_the_first_token_is_due_costs_the_client_nothing() -> None:
    found = shown(0.002, 10, {"max_tokens": 6})
    assert (found["speed"], found["streams"]) == (10, 1)
    assert ms(found, "simulated_ttft") == ms(found, "sent_ttft") == pytest.approx(30, rel=0.01)
    assert ms(found, "simulated_itl") == ms(found, "sent_itl") == pytest.approx(10, rel=0.01)
    assert ms(found, "front_end") == pytest.approx(2, rel=0.01)


def test_work_that_lasts_longer_delays_the_first_token_and_not_the_last() -> None:
    found = shown(0.004, 10, {"max_tokens": 6})
    assert ms(found, "simulated_ttft") == pytest.approx(30, rel=0.01)
    assert ms(found, "sent_ttft") == pytest.approx(40, rel=0.01)
    assert ms(found, "simulated_itl") == pytest.approx(10, rel=0.01)
    assert ms(found, "sent_itl") == pytest.approx(8, rel=0.01)  # of 80 ms in all, 10 late at the beginning
    assert found["ms"]["tokens_late"]["p99"] == pytest.approx(1, rel=0.01)  # real time: the tokens that were due before


def test_the_first_token_is_the_first_that_shows() -> None:
    """Before the text of a call there is its mark."""
    call = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}
    found = shown(0.0, 1, call)
    assert ms(found, "simulated_ttft") == ms(found, "sent_ttft") > 39
    assert ms(found, "simulated_itl") == ms(found, "sent_itl") == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(
    "body", [{"stream": False}, {"n": 2}, {"model": 3}], ids=["in one piece", "several choices", "refused"]
)
def test_only_whole_streams_of_one_choice_count(body: dict[str, Any]) -> None:
    found = shown(0.0, 1, {"max_tokens": 3, **body}, {"max_tokens": 3})
    assert found["streams"] == 1


def test_without_waiting_there_is_no_time_to_keep() -> None:
    found = shown(0.0, math.inf, {"max_tokens": 3})
    assert (found["speed"], found["streams"]) == ("max", 0)


def test_the_histograms_are_those_that_the_client_reads() -> None:
    found = shown(0.0, 2, {"max_tokens": 3}, {"max_tokens": 1})
    times = ServedTimes.from_dict(found["histograms"])
    assert (times.streams, times.sent_itl.count, times.tokens_late.count, times.front_end.count) == (2, 1, 4, 2)
