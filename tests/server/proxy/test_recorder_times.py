"""Times of a workload that is recorded: from the first request on, whichever is over first."""

import asyncio
import json
from pathlib import Path

from llmirage_server.http.relay import ForwardedRequest
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.telemetry.traces.workload import WorkloadWriter

USAGE = b'{"usage": {"completion_tokens": 3}}'


def test_a_request_that_came_first_and_ends_last_is_the_first(tmp_path: Path) -> None:
    recorder = ExchangeRecorder(None, workload=WorkloadWriter(tmp_path / "work.jsonl"))
    asyncio.run(exchanges(recorder))
    recorder.close()
    rows = [json.loads(line) for line in (tmp_path / "work.jsonl").read_text().splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == ["two", "one"]
    assert rows[1]["timestamp"] == 0.0 < rows[0]["timestamp"]


async def exchanges(recorder: ExchangeRecorder) -> None:
    taps = []
    for text in ("one", "two"):
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        tap = recorder.tap(ForwardedRequest("POST", "/v1/chat/completions", [], body))
        assert tap is not None
        taps.append(tap)
        await asyncio.sleep(0.01)
    for tap in reversed(taps):
        tap.started(200, {"content-type": "application/json"})
        tap.received(USAGE)
        tap.ended("complete")
