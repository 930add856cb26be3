"""The API inside the test's process (requests in, whole responses out, no socket), and a bench for one engine."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.cluster.instances.arrivals import FrontEnd
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Request
from llmirage_server.config import ClusterConfig
from llmirage_server.perf.steps.step_model import StepBatch
from llmirage_shared import virtual_time

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


class Api:
    """An app and a client for it. Without other settings every token is due at once."""

    def __init__(self, runner: asyncio.Runner, **settings: Any) -> None:
        self.app: LlmirageApp = create_app(ClusterConfig(**({"ttft_ms": 0.0, "itl_ms": 0.0} | settings)))
        self._runner = runner

    def client(self) -> httpx.AsyncClient:
        """A client for tests that have several requests under way."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    async def until_produced(self, tokens: int) -> None:
        """Wait until the requests under way have produced this many tokens."""
        while sum(request.produced for request in self.app.service.responses.requests()) < tokens:
            await asyncio.sleep(0.001)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return self._runner.run(send())

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, content=content, **options)

    def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]} | fields
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": prompt} | fields)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def api(runner: asyncio.Runner) -> Api:
    """The default cluster at no latency."""
    return Api(runner)


@pytest.fixture
def make_api(runner: asyncio.Runner) -> Callable[..., Api]:
    """An API of other settings."""
    return lambda **settings: Api(runner, **settings)


@pytest.fixture
def scripted(make_api: Callable[..., Api]) -> Callable[..., Api]:
    """An API whose script has these rules."""

    def make(*rules: Any, settings: Any = (), **more: Any) -> Api:
        api = make_api()
        given = {"ttft_ms": 0.0, "itl_ms": 0.0, **dict(settings)}
        api.app = create_app(ClusterConfig(**given), script={"rules": list(rules), **more})
        return api

    return make


class EngineLab:
    """One instance by itself, and requests whose tokens no other request shares.

    A step takes 1 s + 1/1024 s per prompt token + 1/64 s per decoding sequence, which is exact in binary; with ranks the
    slowest paces, and every one of several stages takes 1 s (or as told). What was computed is in `steps`: one list of
    (chunks, decoding contexts) a step, one pair a rank; `batches` of the only rank.
    """

    def __init__(
        self,
        role: Role = "both",
        *,
        ranks: int = 1,
        stage_seconds: Sequence[float] = (),
        front_end_s: FrontEnd | float = 0.0,
        kv_tokens: int = 10_000,
        **limits: Any,
    ) -> None:
        self.ranks, self.stages = ranks, len(stage_seconds) or 1
        self.steps: list[list[tuple[list[tuple[int, int]], list[int]]]] = []
        self.limits = EngineLimits(kv_tokens=kv_tokens, **({"max_num_seqs": 8, "max_num_batched_tokens": 1000} | limits))
        self._stage_seconds = stage_seconds
        self._requests = 0
        self._ends: list[tuple[float, list[int]]] = []
        self.instance = Instance(0, self, self.limits, role, front_end=front_end_s)

    @property
    def batches(self) -> list[tuple[list[tuple[int, int]], list[int]]]:
        return [batch for (batch,) in self.steps]

    @staticmethod
    def seconds(prefill_tokens: int, decoding: int) -> float:
        return 1 + prefill_tokens / 1024 + decoding / 64

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return self.stages_s([StepBatch(prefill, decode_contexts)])[0]

    def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        self.steps.append([(list(batch.prefill), list(batch.decode_contexts)) for batch in batches])
        if self._stage_seconds:
            return self._stage_seconds
        return [max(self.seconds(sum(new for new, _ in batch.prefill), len(batch.decode_contexts)) for batch in batches)]

    def request(self, prompt: int | np.ndarray, output: int, now: float = 0.0, **fields: Any) -> Request:
        self._requests += 1
        first = 100_000 * self._requests
        ids = np.arange(first, first + prompt, dtype=np.int32) if isinstance(prompt, int) else prompt
        produced = fields.pop("produced", 0)
        made = Request(self._requests, ids, np.arange(first + 50_000, first + 50_000 + output, dtype=np.int32), **fields)
        made.produced, made.arrival_s = produced, now
        return made

    def submit(self, prompt: int | np.ndarray, output: int, now: float = 0.0, **fields: Any) -> Request:
        """Let everything before `now` happen, and submit."""
        self._advance(float(np.nextafter(now, -np.inf)))
        made = self.request(prompt, output, now, **fields)
        self.instance.submit(made, now)
        return made

    def run(self, to: float = float("inf")) -> list[tuple[float, list[int]]]:
        """Advance; what has come since the last call, as the time and the requests' ids."""
        self._advance(to)
        ends, self._ends = self._ends, []
        return ends

    def _advance(self, to: float) -> None:
        while self.instance.next_event_s <= to and self.instance.next_event_s < float("inf"):
            if (end := self.instance.advance()) is not None:
                self._ends.append((end.time_s, [each.id for each in end.emitted]))


@pytest.fixture(scope="session")
def lab() -> type[EngineLab]:
    """The class, to build one or more."""
    return EngineLab


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, each in virtual time from 0."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    virtual_time.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
