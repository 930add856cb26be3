"""Events that are almost valid, over one WebSocket connection: each gets a response or an error, none fails in the server.

    PYTHONPATH=tests/support python tests/server/openai/test_mutated_frames.py 20000 [SEED]

sends more of them.
"""

import asyncio
import sys
from collections import Counter
from random import Random
from typing import Any

import pytest
from sockets import Socket
from valid_bodies import mutated, valid_bodies

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig

ENVELOPE: dict[str, Any] = {"type": "response.create", "stream_id": "a", "generate": True, "previous_response_id": None}


async def send_all(number: int, seed: int) -> Counter[str]:
    """What came of so many mutated events, by its kind."""
    random, came = Random(seed), Counter[str]()
    valid = [body for path, body in valid_bodies() if path == "/v1/responses"]
    app = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=0.0))
    async with Socket(app) as socket:
        last: str | None = None
        for _ in range(number):
            given = {key: value for key, value in ENVELOPE.items() if random.random() < 0.7}
            body = {
                **random.choice(valid),
                **given,
                "type": "response.create",
                "previous_response_id": random.choice((None, last)),
            }
            event = mutated({key: value for key, value in body.items() if key != "background"}, random)
            await socket.send(event)
            end = (await socket.response())[-1]
            assert end, (event, socket.closed)
            assert end.get("status", 400) < 500, (event, end)
            came[end["type"]] += 1
            last = end["response"]["id"] if "response" in end else last
        assert app.service.responses.metrics.errors == 0
        assert not app.service.responses.requests()
    return came


@pytest.mark.parametrize("seed", range(2))
def test_a_mutated_event_is_answered_or_refused(seed: int) -> None:
    came = asyncio.run(send_all(150, seed))
    assert came["error"] > 20
    assert came["response.completed"] + came["response.incomplete"] > 20


if __name__ == "__main__":
    print(asyncio.run(send_all(int(sys.argv[1]), int([*sys.argv, "0"][2]))))
