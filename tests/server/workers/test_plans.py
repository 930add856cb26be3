"""Tokens whose times are known beforehand: a worker is told of them once, and sends each when it is due."""

import asyncio
from typing import Any

import numpy as np
import pytest

from llmirage_server.app import create_app
from llmirage_server.cluster.request import Request
from llmirage_server.config import ClusterConfig
from llmirage_server.workers.channel import TICK_S, Channel
from llmirage_server.workers.engine import Hub, SharedDriver
from llmirage_server.workers.remote import HttpWorker, RemoteDriver

TTFT_S, ITL_S = 0.2, 0.01
LATE_S = 0.02  # for a message after a change


class Wire:
    """A transport that delivers in the next turn of the loop, and counts."""

    def __init__(self, other: Channel) -> None:
        self.other, self.messages = other, 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.messages += 1
        asyncio.get_running_loop().call_soon(self.other.data_received, data)


class Recorder:
    """Receives one request's tokens and notes when."""

    def __init__(self, number: int, tokens: int) -> None:
        self.request = Request(number, np.array([1, 2, 3], np.int32), np.arange(tokens, dtype=np.int32) + 10)
        self.request.tag = self
        self.seen: list[tuple[float, int]] = []
        self.ended = asyncio.Event()

    def tokens_due(self, request: Request) -> None:
        if not self.seen or self.seen[-1][1] < request.produced:  # it may be told of the end of a plan
            self.seen.append((asyncio.get_running_loop().time(), request.produced))
        if request.failed or request.produced == request.output_tokens:
            self.ended.set()


class Server:
    """An engine and a worker in one process, in virtual time."""

    def __init__(self, **settings: Any) -> None:
        config = ClusterConfig(ttft_ms=TTFT_S * 1000, itl_ms=ITL_S * 1000, **settings)
        self.app = create_app(config, page=False, make_driver=lambda cluster: SharedDriver(cluster, config.speed))
        assert isinstance(self.app.driver, SharedDriver)
        self.engine = self.app.driver
        self.hub = Hub(self.app, 1, lambda: None)
        there, worker = self.hub.connection(), HttpWorker(config, b"")
        here = Channel(worker._take)
        self.wire = Wire(here)
        there.transport, here.transport = self.wire, Wire(there)  # type: ignore[assignment]
        assert isinstance(worker.app.driver, RemoteDriver)
        self.worker = worker.app.driver
        self.worker.link = here
        here.send("worker")

    def send(self, number: int, tokens: int) -> Recorder:
        recorder = Recorder(number, tokens)
        self.worker.submit([recorder.request])
        return recorder

    @property
    def engines_request(self) -> Request:
        [link] = self.engine.links
        [request] = self.hub._requests() or link._counted.values()
        return request


async def test_a_worker_sends_each_token_when_it_is_due_and_is_told_once() -> None:
    server = Server()
    await asyncio.sleep(1.0)
    before = server.wire.messages
    recorders = []
    for number in range(3):
        recorders.append(server.send(number, 50))
        await asyncio.sleep(0.0625)
    for recorder in recorders:
        await recorder.ended.wait()
        request = recorder.request
        dues = [request.arrival_s + TTFT_S + i * ITL_S for i in range(50)]
        assert [produced for _, produced in recorder.seen] == list(range(1, 51))
        assert all(due <= sent < due + TICK_S for due, (sent, _) in zip(dues, recorder.seen, strict=True))
        assert (request.first_token_s, request.finished_s) == (dues[0], dues[-1])
    assert server.wire.messages - before <= 2 * len(recorders)  # the clock, and each plan
    for recorder in recorders:
        server.worker.counted(recorder.request, "length")
    await asyncio.sleep(0.001)
    [link] = server.engine.links
    assert [(one.produced, one.finished_s) for one in link._counted.values()] == [
        (50, recorder.request.finished_s) for recorder in recorders
    ]
    assert not any([link.requests, link.told, server.worker._planned, server.worker._requests])


async def test_a_request_of_a_crashed_instance_goes_by_a_new_plan() -> None:
    server = Server(instances=2)
    recorder = server.send(1, 50)
    await asyncio.sleep(TTFT_S + 9.5 * ITL_S)  # ten tokens
    server.engine.act("crash", recorder.request.instance)
    await recorder.ended.wait()
    assert [produced for _, produced in recorder.seen] == list(range(1, 51))
    gaps = np.diff([sent for sent, _ in recorder.seen])
    assert gaps[9] == pytest.approx(9.5 * ITL_S - 9 * ITL_S + TTFT_S, abs=LATE_S)
    assert np.delete(gaps, 9) == pytest.approx([ITL_S] * 48, abs=TICK_S)
    await asyncio.sleep(LATE_S)
    assert server.engines_request.finished_s == recorder.request.finished_s


async def test_a_request_whose_instance_is_lost_ends_with_the_tokens_due_until_then() -> None:
    server = Server(instances=2, on_crash="fail")
    recorder = server.send(1, 50)
    await asyncio.sleep(TTFT_S + 9.5 * ITL_S)
    server.engine.act("crash", recorder.request.instance)
    await recorder.ended.wait()
    assert (recorder.seen[-1][1], recorder.request.failed) == (10, True)
    assert recorder.seen[-1][0] < TTFT_S + 9.5 * ITL_S + LATE_S
    await asyncio.sleep(1.0)
    assert recorder.seen[-1][1] == 10


async def test_tokens_keep_to_the_speed() -> None:
    server = Server()
    recorder = server.send(1, 50)
    await asyncio.sleep(TTFT_S + 9.5 * ITL_S)
    server.engine.set_speed(0.5)
    await server.hub.sync()
    await recorder.ended.wait()
    gaps = np.diff([sent for sent, _ in recorder.seen])
    assert gaps[:9] == pytest.approx([ITL_S] * 9, abs=TICK_S)
    assert gaps[10:] == pytest.approx([2 * ITL_S] * 39, abs=TICK_S)


async def test_a_cancelled_request_brings_no_more_tokens_and_counts_those_due() -> None:
    server = Server()
    recorder = server.send(1, 50)
    await asyncio.sleep(TTFT_S + 9.5 * ITL_S)
    assert server.engines_request.produced == 10
    server.worker.cancel([recorder.request])
    await asyncio.sleep(0.001)
    assert (server.engines_request.produced, server.engines_request.cancelled) == (10, True)
    await asyncio.sleep(1.0)
    assert recorder.seen[-1][1] == 10
