"""What AIPerf 0.13 put on the wire for files of ours, and what it counted; here the same goes out, but for its defects.

tests/data/aiperf_cases.jsonl has one case a line. relation: how our request bodies relate to AIPerf's as multisets: equal, a
superset, a subset, of the same count; "documented": `bodies` are what its documentation says. Where it is not "equal" or our
counters differ, `why` says what AIPerf does against its own documentation. order: pairs of indices in `bodies`.
"""

import asyncio
import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmirage_client.commands.run import run as run_command
from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange, RequestError, RunResult
from llmirage_client.settings.run import RunSettings, run_options
from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.target import Call
from llmirage_client.workload.registry import load
from llmirage_shared import virtual_time
from llmirage_shared.settings import instance_of

CASES = {
    case["name"]: case
    for case in map(json.loads, (Path(__file__).parents[2] / "data" / "aiperf_cases.jsonl").read_text("utf-8").splitlines())
}
WORDS = (
    "amber birch cedar delta ember fjord grove heron iris jade koala lotus maple north ocean pearl quartz river sable tulip "
    "umber violet willow xenon yarrow zephyr"
)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


@dataclass
class Seen:
    """One body as a server sees it, as it was when it came."""

    body: Any
    start_s: float
    end_s: float = math.inf


class RecordedServer:
    """Answers as the server did that AIPerf was recorded against: by the conversation, and by marks in its last message.

    Its replies are the bytes of a server's, read by the client's own parser.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None: ...

    async def send(self, call: Call) -> Exchange:
        seen = Seen(json.loads(json.dumps(call.body)), self.now())
        self.seen.append(seen)
        conversation = next((seen.body[key] for key in ("messages", "prompt", "input") if key in seen.body), seen.body)
        last = conversation[-1] if isinstance(conversation, list) and conversation else conversation
        mark = last if isinstance(last, str) else canonical(last)
        sleep = re.search(r"\[\[SLEEP=(\d+)\]\]", mark)
        message = reply_to(conversation, mark)
        words = (message["content"] or "").split()
        exchange = Exchange(start_s=seen.start_s, streamed=call.stream)
        await asyncio.sleep(0.02 + (int(sleep[1]) / 1000 if sleep else 0.0) + 0.001 * len(words) * call.stream)
        exchange.end_s = seen.end_s = self.now()
        if "[[FAIL" in mark:
            exchange.error = RequestError(500, "http_error", "forced failure")
            return exchange
        reply = ChatReply()
        if call.stream:
            reply.read_stream([(exchange.end_s, b"".join(events(message)))])
        else:
            reply.read_body(exchange.end_s, json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
        assert reply.error is None
        exchange.token_s, exchange.message = reply.token_s, reply.message()
        if exchange.message is None:
            exchange.error = RequestError(200, "empty_response", "nothing")
        return exchange


def reply_to(conversation: Any, mark: str) -> dict[str, Any]:
    digest = hashlib.sha256(canonical(conversation).encode()).hexdigest()
    all_words = WORDS.split()
    picked = [all_words[int(digest[14 + 2 * i : 16 + 2 * i], 16) % 26] for i in range(3 + int(digest[12:14], 16) % 7)]
    words = ["r" + digest[:12], *picked]
    content = None if "[[TOOLONLY]]" in mark else "" if "[[EMPTY]]" in mark or "[[REASONONLY]]" in mark else " ".join(words)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if "[[REASON" in mark:
        message["reasoning_content"] = f"think {words[0]}"
    names = ["lookup"] if "[[TOOLONLY]]" in mark else ["lookup", "compute"] if "[[TOOLCALL]]" in mark else []
    if names:
        message["tool_calls"] = [
            {
                "id": f"call_{words[0]}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": canonical({"q": words[i + 1]})},
            }
            for i, name in enumerate(names)
        ]
    return message


def events(message: dict[str, Any]) -> Iterator[bytes]:
    """The message as a stream: reasoning, then word by word, then each tool call in two pieces."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if "reasoning_content" in message:
        deltas.append({"reasoning_content": message["reasoning_content"]})
    deltas += [{"content": piece} for piece in re.findall(r" ?[^ ]+", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": arguments[:3]}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[3:]}}]})
    for delta in deltas:
        yield b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def replay(case: dict[str, Any], tmp_path: Path) -> tuple[RunResult, list[Seen]]:
    file = tmp_path / f"input{case['suffix']}"
    file.write_bytes(case["input"].encode())
    settings = instance_of(RunSettings, run_command.make_context("run", [str(file), *case["args"]]).params)
    workload = load(str(file), settings.format)
    options: RunOptions = dataclasses.replace(run_options(workload, settings), fail_fast=case.get("fail_fast", False))
    server = RecordedServer()
    return virtual_time.run(Runner(workload, options, server).run()), server.seen


@pytest.mark.parametrize("name", CASES)
def test_the_same_bodies_go_out(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    result, seen = replay(case, tmp_path)
    assert len(seen) == case["requests"], [request.body for request in seen]
    assert len(result.records) == len(seen)
    ours = Counter(canonical(request.body) for request in seen)
    theirs = Counter(map(canonical, case.get("bodies", [])))
    if case["relation"] in ("equal", "documented"):
        assert ours == theirs
    elif case["relation"] == "superset":
        assert not theirs - ours
    elif case["relation"] == "subset":
        assert not ours - theirs
    else:
        assert case["relation"] == "count"
    if "branch_stats" in case:
        assert result.branch_stats is not None
        assert dataclasses.asdict(result.branch_stats) == case["branch_stats"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "order" in case])
def test_requests_follow_or_overlap_each_other_as_recorded(name: str, tmp_path: Path) -> None:
    first_seen: dict[str, Seen] = {}
    for request in replay(CASES[name], tmp_path)[1]:
        first_seen.setdefault(canonical(request.body), request)
    for relation, first, second in CASES[name]["order"]:
        one, other = (first_seen[canonical(CASES[name]["bodies"][index])] for index in (first, second))
        assert other.start_s >= one.end_s if relation == "after" else one.start_s <= other.start_s < one.end_s


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["relation"] == "equal"])
def test_replaying_inputs_json_sends_the_same_bodies_again(name: str, tmp_path: Path) -> None:
    """But for those of a warm-up, which are no inputs of the benchmark."""
    first, seen = replay(CASES[name], tmp_path)
    inputs = json.dumps({"data": first.inputs})
    again = {"suffix": ".json", "input": inputs, "args": ["--model", "unused", "--format", "inputs_json"]}
    warmup = sum(record.phase == "warmup" for record in first.records)
    bodies = [canonical(request.body) for request in seen[warmup:]]
    assert Counter(canonical(request.body) for request in replay(again, tmp_path)[1]) == Counter(bodies)
