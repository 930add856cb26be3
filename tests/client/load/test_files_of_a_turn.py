"""A turn of a branching workload passes few files on its way to the wire: those that DESIGN.md lists.

A file is on the way if one of its functions runs, or waits for one that runs, at the moment when the rules let the turn go,
when its request's body is made, or when its bytes are handed to the connection. What these functions only ask for a value (a
name, a clock, JSON, the history) is not.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import llmirage_client
from llmirage_client.load.conversation import REPLY, Conversation, Waits
from llmirage_client.load.options import RunOptions
from llmirage_client.load.rules import Rules
from llmirage_client.load.runner import run_workload
from llmirage_client.measure.record import RunResult
from llmirage_client.targets.endpoints.chat import ChatEndpoint
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.timed_transport import Connection, Incoming
from llmirage_client.workload.registry import load

pytestmark = pytest.mark.interpreted  # compiled functions have no frames

CLIENT = Path(llmirage_client.__file__).parent
ROOT = Path(__file__).resolve().parents[3]
MOST_FILES = 9
BODY = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}]}'
REPLY_BYTES = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def files_of(frame: FrameType | None) -> list[str]:
    """The client's files among a frame and its callers, the outermost first: `load/rules.py`."""
    files: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(CLIENT):
            files.append(path.relative_to(CLIENT).as_posix())
        frame = frame.f_back
    return list(dict.fromkeys(reversed(files)))


def told_files() -> list[str]:
    section = (ROOT / "DESIGN.md").read_text().partition("## A turn of a branching workload, file by file")[2]
    return re.findall(r"^\d+\. \*\*`client/([\w/.]+)`\*\*", section.partition("\n## ")[0], re.MULTILINE)


async def run(url: str) -> RunResult:
    workload = load(str(ROOT / "workloads/dag-agent-team.jsonl"))
    return await run_workload(workload, RunOptions(model="m", concurrency=1, streaming=False), HttpTarget(url))


def test_a_turn_of_a_dag_passes_the_files_that_the_design_tells(
    raw_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[tuple[str, ...]]] = {"rules": set(), "body": set(), "bytes": set()}
    turns, body, begin = Rules.turns, ChatEndpoint.body, Connection.begin

    def traced_turns(self: Rules, conversation: Conversation, ready_s: float) -> Waits:
        for waits in turns(self, conversation, ready_s):
            if waits == REPLY:
                seen["rules"].add((*files_of(sys._getframe(1)), "load/rules.py"))
            yield waits

    def traced_body(self: ChatEndpoint, request: Any) -> dict[str, Any]:
        seen["body"].add((*files_of(sys._getframe(1)), "targets/endpoints/chat.py"))
        return body(self, request)

    def traced_begin(self: Connection, request: bytes) -> Incoming:
        seen["bytes"].add((*files_of(sys._getframe(1)), "targets/timed_transport.py"))
        return begin(self, request)

    monkeypatch.setattr(Rules, "turns", traced_turns)
    monkeypatch.setattr(ChatEndpoint, "body", traced_body)
    monkeypatch.setattr(Connection, "begin", traced_begin)

    async def served() -> RunResult:
        async with raw_server(REPLY_BYTES) as server:
            return await run(server.url)

    result = asyncio.run(served())
    assert len(result.records) > 5
    assert {record.branch_mode for record in result.records} > {"root"}
    assert not any(record.exchange.error for record in result.records)
    assert all(len(ways) == 1 for ways in seen.values()), seen  # every turn goes the same way
    passed = [file for name in ("rules", "body", "bytes") for ways in seen[name] for file in ways]
    assert list(dict.fromkeys(passed)) == told_files()
    assert len(told_files()) <= MOST_FILES
