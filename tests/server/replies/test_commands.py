"""Requests that rules read character by character take a time in proportion to their length, whatever they repeat."""

import time

import numpy as np
import pytest

from llmirage_server.replies.reply import ReplyRequest, Tool
from llmirage_server.replies.tool_request import calls_now

TEXT = {"type": "string"}
TOOLS = (
    Tool("function", "bash", "Runs a shell command.", {"properties": {"command": TEXT}, "required": ["command"]}),
    Tool("function", "write", "Writes.", {"properties": {"path": TEXT, "content": TEXT}, "required": ["path", "content"]}),
)


def took_s(said: str) -> float:
    """The least of a few times."""
    request = ReplyRequest(np.zeros(1, dtype=np.int32), said, max_tokens=None, limit_tokens=100, tools=TOOLS)
    times = []
    for _ in range(5):
        began_s = time.thread_time()
        calls_now(request)
        times.append(time.thread_time() - began_s)
    return min(times)


@pytest.mark.parametrize("ending", ["", "x"])
@pytest.mark.parametrize(
    "unit", [" ", "\n", ",", ", ", ". ", "run the ", "write in ", "save as a/", "with the ", "and then ", "`a` ", "new "]
)
def test_four_times_the_text_takes_less_than_ten_times_as_long(unit: str, ending: str) -> None:
    short, long = (f"x with bash, write {unit * (length // len(unit))}{ending}" for length in (900, 3600))
    assert took_s(long) < 10 * max(took_s(short), 1e-3)
