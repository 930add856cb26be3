"""Bodies that are almost valid: every endpoint answers them, or refuses them in its own words; none fails inside the server.

    PYTHONPATH=tests/support python tests/server/http/test_mutated_bodies.py 50000 [SEED]

sends more of them, a quarter in each dialect, and lists the failures and the slowest. The cluster answers at once, so that
no simulated time is counted.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest
from valid_bodies import BOUNDARY, HOSTED, ITEMS, MODEL, UPLOADED, Body, mutated, valid_bodies, valid_upload

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig

FUNCTION = {"type": "function", "function": {"name": "f"}}
MCP = {"type": "mcp", "server_label": "docs"}
SLOW_S = 2.0
DIALECTS = ("openai", "vllm", "sglang", "trtllm")
FAILURES: list[str] = []


class Sender:
    """A client of one app, which has no fault and no script of the request before."""

    def __init__(self, dialect: str | None = None) -> None:
        self.app: LlmirageApp = create_app(ClusterConfig(ttft_ms=0.0, itl_ms=0.0, dialect=dialect))  # type: ignore[arg-type]
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test", timeout=None)

        self.file_id = "file-none"

    async def post(self, path: str, body: Body | bytes) -> httpx.Response:
        if isinstance(body, bytes):
            kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
            answer = await self.client.post(path, content=body, headers=kind)
            self.file_id = answer.json().get("id") or self.file_id
            return answer
        content = json.dumps(body).replace(UPLOADED, self.file_id).encode()
        answer = await self.client.post(path, content=content)
        if path.startswith("/llmirage/"):
            await self.client.delete(path)
        return answer

    @property
    def errors(self) -> int:
        """Failures inside the server, those of streams that had begun with them."""
        return self.app.service.responses.metrics.errors


def bodies(number: int, seed: int) -> Iterator[tuple[str, Body | bytes]]:
    """Almost valid ones. Those of batches name files that were uploaded before them."""
    random = Random(seed)
    valid = valid_bodies()
    for _ in range(number):
        path, body = random.choice(valid)
        if path == "/v1/batches":
            yield "/v1/files", valid_upload(random)
        yield path, mutated(body, random)


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender()


@pytest.mark.parametrize(("path", "body"), valid_bodies())
def test_a_valid_body_is_answered(runner: asyncio.Runner, sender: Sender, path: str, body: Body) -> None:
    if path == "/v1/batches":
        runner.run(sender.post("/v1/files", valid_upload(Random(1))))
    sender = Sender("vllm") if path.startswith("/inference") else sender
    answer = runner.run(sender.post(path, body))
    assert (answer.status_code, sender.errors) == (200, 0), answer.text


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_body_is_answered_or_refused(runner: asyncio.Runner, sender: Sender, seed: int) -> None:
    sender = Sender("vllm") if seed % 2 else sender
    for path, body in bodies(150, seed):
        answer = runner.run(sender.post(path, body))
        assert (answer.status_code < 500, sender.errors) == (True, 0), (path, body, answer.text)
        if answer.status_code >= 400:
            message = answer.json()["error"]["message"]
            assert message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"tools": [FUNCTION], "tool_choice": {
            "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": "f"}]}}},
         "tool_choice.allowed_tools.tools[0].function"),
        ("chat/completions", {"functions": [{"name": "f", "description": 5}]}, "functions[0].description"),
        ("chat/completions", {"functions": [{"name": "f"}], "function_call": {"name": 5}}, "function_call.name"),
        ("responses", {"tools": [{"type": "mcp"}]}, "tools[0].server_label"),
        ("responses", {"tools": [{**MCP, "allowed_tools": 5}]}, "tools[0].allowed_tools"),
        ("responses", {"tools": [{**MCP, "require_approval": {"never": {"tool_names": 5}}}]},
         "tools[0].require_approval.never.tool_names"),
        ("responses", {"tools": HOSTED, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["f"]}},
         "tool_choice.tools[0]"),
        ("responses", {"input": [{**ITEMS[2], "id": ["a"]}]}, "input[0].id"),
        ("responses", {"input": [{"type": "mcp_call", "server_label": 5, "name": "a", "arguments": "{}"}]},
         "input[0].server_label"),
        ("responses", {"prompt": {"id": "a", "variables": "x"}}, "prompt.variables"),
    ],
)  # fmt: skip
def test_a_wrong_field_deep_in_a_union_is_named(api: Any, path: str, body: Body, param: str) -> None:
    prompt: Body = {"messages": [{"role": "user", "content": "Hello"}]} if path == "chat/completions" else {"input": "Hello"}
    answer = api.post(f"/v1/{path}", {"model": MODEL, **prompt, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error


def test_a_failure_inside_the_server_is_counted(runner: asyncio.Runner) -> None:
    sender = Sender()

    def fail() -> None:
        raise RuntimeError("of a test")

    sender.app.service.responses.refusal = fail
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    answer = runner.run(sender.post("/v1/chat/completions", chat))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    metrics = runner.run(sender.client.get("/metrics")).text
    assert "\nllmirage:internal_errors_total 1.0\n" in metrics


async def _main(number: int, seed: int) -> int:
    for dialect in DIALECTS:
        await _send(dialect, number // len(DIALECTS), seed)
        seed += 1
    return 1 if FAILURES else 0


async def _send(dialect: str, number: int, seed: int) -> None:
    sender = Sender(dialect)
    statuses: Counter[int] = Counter()
    slow: list[tuple[float, str, str]] = []
    failed = 0
    for path, body in bodies(number, seed):
        begun = time.process_time()
        answer = await sender.post(path, body)
        took = time.process_time() - begun  # of the processor: what else the machine does is none of it
        statuses[answer.status_code] += 1
        if answer.status_code >= 500 or sender.errors > failed:
            failed += 1
            sys.stdout.write(f"{answer.status_code} {path} {_shown(body)[:2000]}\n")
        if took > SLOW_S:
            slow.append((took, path, _shown(body)[:500]))
    for took, path, text in sorted(slow, reverse=True)[:20]:
        sys.stdout.write(f"{took:.1f} s {path} {text}\n")
    counts = dict(sorted(statuses.items()))
    sys.stdout.write(f"{dialect}, {number} bodies: {counts}, {len(slow)} over {SLOW_S:g} s, {failed} failed\n")
    sys.stdout.flush()
    FAILURES.extend([dialect] * (failed + len(slow)))


def _shown(body: Body | bytes) -> str:
    return repr(body) if isinstance(body, bytes) else json.dumps(body)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
