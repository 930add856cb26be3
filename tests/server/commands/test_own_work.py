"""What the server does with a request before the cluster gets it takes none of the time that it simulates."""

import asyncio
import itertools
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.commands.http_protocol import BoundedProtocol, ConnectionLimits
from llmirage_server.config import ClusterConfig
from llmirage_server.http.exchange import ARRIVED, HttpExchange
from llmirage_shared import virtual_time
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.virtual_time import VirtualTimeLoop

MODEL = "meta-llama/Llama-3.1-8B"
TEXT = "Tell me of the sea, of ships, and of those who never came back. " * 8
MESSAGES = [{"role": "user", "content": TEXT}]
REQUESTS = [
    ("chat/completions", {"messages": MESSAGES, "max_tokens": 3, "stream": True}),
    ("chat/completions", {"messages": MESSAGES, "max_tokens": 3, "n": 3}),
    ("completions", {"prompt": [TEXT, TEXT + "?", "!" + TEXT], "max_tokens": 3}),
    ("responses", {"input": TEXT, "max_output_tokens": 16, "stream": True}),
    ("messages", {"messages": MESSAGES, "max_tokens": 3}),
    ("embeddings", {"input": [TEXT, "!" + TEXT]}),
    ("rerank", {"query": "sea", "documents": [TEXT, "!" + TEXT]}),
]


async def served(path: str, body: dict[str, Any], parts: int = 1, pause_s: float = 0.0) -> tuple[LlmirageApp, list[float]]:
    """Post a body in parts, each `pause_s` later than the one before or the headers; when the parts of the reply left."""
    loop = asyncio.get_running_loop()
    app = create_app(ClusterConfig(model=MODEL, gpu="h100_sxm", instances=1))
    app.service.text.load()
    data = json.dumps({"model": MODEL} | body).encode()
    cuts = [len(data) * part // parts for part in range(parts + 1)]
    pieces = [data[start:end] for start, end in itertools.pairwise(cuts)]
    left_s: list[float] = []

    async def receive() -> Any:
        if not pieces:
            return await loop.create_future()
        if pause_s:
            await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message.get("body"):
            left_s.append(loop.time())

    scope = {"type": "http", "method": "POST", "path": f"/v1/{path}", "headers": [], "query_string": b""}
    await asyncio.sleep(1.0 - loop.time())
    await app(scope, receive, send)
    return app, left_s


@pytest.fixture
def slow_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text takes a millisecond of the loop's time to tokenize."""

    def slow(self: Tokenizer, text: str) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop._now += 0.001
        return encode(self, text)

    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", slow)


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
def test_tokenizing_does_not_make_a_reply_later(path: str, body: dict[str, Any], request: pytest.FixtureRequest) -> None:
    _, at_once = virtual_time.run(served(path, body))
    request.getfixturevalue("slow_tokenizer")
    _, after_work = virtual_time.run(served(path, body))
    opens = path == "responses"  # with events that wait for nothing
    assert after_work[opens:] == pytest.approx(at_once[opens:], abs=1e-9)


async def test_the_metrics_tell_what_a_client_sees(slow_tokenizer: None) -> None:
    app, left_s = await served("chat/completions", {"messages": MESSAGES, "max_tokens": 3, "stream": True})
    [histograms] = [engine.histograms for engine in app.service.responses.metrics._engines.values()]
    assert histograms["ttft_s"].sum == pytest.approx(left_s[0] - 1.0, abs=1e-9)
    assert histograms["e2e_s"].sum == pytest.approx(left_s[-1] - 1.0, abs=1e-9)
    parts = histograms["queue_s"].sum + histograms["prefill_s"].sum
    assert parts == pytest.approx(histograms["ttft_s"].sum, abs=1e-9)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_body_that_comes_slowly_is_the_clients_time(parts: int) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True}
    _, at_once = virtual_time.run(served("chat/completions", body))
    _, slowly = virtual_time.run(served("chat/completions", body, parts, pause_s=0.5))
    assert slowly == pytest.approx([at + 0.5 * parts for at in at_once], abs=1e-9)


def test_the_http_server_knows_best_when_a_request_had_come() -> None:
    async def arrived_s(state: dict[str, Any]) -> float:
        await asyncio.sleep(3.0)
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "state": state}
        return HttpExchange(scope, asyncio.Event().wait).arrived_s  # type: ignore[arg-type]

    assert virtual_time.run(arrived_s({ARRIVED: 2.5})) == 2.5
    assert virtual_time.run(arrived_s({})) == 3.0


class Wire(asyncio.Transport):
    def __init__(self, protocol: BoundedProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> BoundedProtocol:
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_requests_are_stamped_when_their_last_byte_comes_or_the_response_before_them_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [7.0]
    monkeypatch.setattr("llmirage_server.commands.http_server.time.monotonic", lambda: now[0])
    scopes: list[Any] = []

    async def main() -> list[float | None]:
        answered = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scopes.append(scope)
            await answered.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        limits = ConnectionLimits(10)
        protocol = BoundedProtocol(limits=limits, config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(Wire(protocol))
        request = b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n"
        protocol.data_received(request + b"bo")
        now[0] = 8.0
        protocol.data_received(b"dy")
        first = protocol.scope
        now[0] = 9.0
        protocol.data_received(request + b"body")
        await asyncio.sleep(0)
        assert scopes == [first]
        now[0] = 10.0
        answered.set()
        while len(scopes) < 2:
            await asyncio.sleep(0)
        return [scope["state"][ARRIVED] for scope in scopes]

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main())
        assert loop.run_until_complete(task) == [8.0, 10.0]
        for other in asyncio.all_tasks(loop):
            other.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
