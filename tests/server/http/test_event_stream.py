"""What sse-starlette does for every event stream: pings, slow clients, the end of the server; and what Starlette does."""

import asyncio
import threading

import anyio
import pytest
from cyclic_garbage import cyclic_garbage_of
from raw_asgi import CHAT, Connection, fixed_app, idle, texts
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.http.event_stream import PING_S, SEND_TIMEOUT_S, SHUTDOWN_GRACE_S, EventStream
from llmirage_server.http.relay import RelayedResponse
from llmirage_server.service.generation import EVENT_SOURCE_AFTER_S, TokenStream
from llmirage_shared import virtual_time

PING = b": ping\n\n"
IN_BACKGROUND = {"input": "Hello", "max_output_tokens": 16, "background": True}


class Transport:
    """The connection of a client: when it was cut, None if it was not."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.cut_s: float | None = None

    def abort(self) -> None:
        self.cut_s = asyncio.get_running_loop().time()
        self._connection.gone.set()


async def wrapped(connection: Connection, message: Message) -> None:
    with anyio.move_on_after(1e6):  # needs a task
        await connection.send(message)


async def run(connection: Connection, steppable: bool) -> None:
    await connection.run(None if steppable else lambda message: wrapped(connection, message))


def pings(connection: Connection) -> list[float]:
    return [time for time, data in connection.bodies if data == PING]


def test_every_stream_is_sent_by_sse_starlette() -> None:
    assert issubclass(EventStream, EventSourceResponse)
    assert issubclass(TokenStream, EventStream)
    assert issubclass(RelayedResponse, EventStream)


@pytest.mark.parametrize("steppable", [True, False])
def test_a_ping_follows_15_seconds_of_silence_and_nothing_else(steppable: bool) -> None:
    busy = Connection(fixed_app(1000.0, 7000.0), max_tokens=10)  # never silent for so long
    virtual_time.run(run(busy, steppable))
    assert len(texts(busy.body)) == 10
    assert not pings(busy)
    slow = Connection(fixed_app(4000.0, 40_000.0), max_tokens=3)  # tokens after 4, 44 and 84 s
    virtual_time.run(run(slow, steppable))
    assert pings(slow) == pytest.approx([4 + PING_S, 4 + 2 * PING_S, 44 + PING_S, 44 + 2 * PING_S])


@pytest.mark.parametrize("steppable", [True, False])
def test_a_stream_may_be_open_for_an_hour_of_virtual_time_and_leaves_no_task(steppable: bool) -> None:
    app = fixed_app(ttft_ms=3_600_001.0)

    async def main() -> tuple[Connection, float, int]:
        connection = Connection(app)
        await run(connection, steppable)
        return connection, asyncio.get_running_loop().time(), len(asyncio.all_tasks())

    connection, ended_s, tasks = virtual_time.run(main())
    assert len(pings(connection)) == 240
    assert (ended_s, tasks) == (pytest.approx(3600.091), 1)
    assert idle(app)


@pytest.mark.parametrize(
    ("itl_s", "full_s", "first_missed_s"), [(0.01, 0.05, 0.2), (0.01, 0.225, 0.23), (1.0, EVENT_SOURCE_AFTER_S + 1, 6.2)]
)
async def test_a_client_that_takes_nothing_for_300_s_is_cut(itl_s: float, full_s: float, first_missed_s: float) -> None:
    app = fixed_app(itl_ms=itl_s * 1000)
    connection = Connection(app)
    connection.transport = transport = Transport(connection)
    asyncio.get_running_loop().call_at(full_s, connection.writable.clear)
    await connection.run()
    assert not connection.complete
    assert transport.cut_s == pytest.approx(first_missed_s + SEND_TIMEOUT_S)
    assert idle(app)
    assert not app.service.responses.open


async def test_a_client_that_cannot_even_take_the_head_is_cut() -> None:
    app = fixed_app()
    connection = Connection(app)
    connection.writable.clear()
    connection.transport = transport = Transport(connection)
    await connection.run()
    assert not connection.messages
    assert transport.cut_s == pytest.approx(SEND_TIMEOUT_S)
    assert idle(app)


async def test_a_client_that_takes_something_now_and_then_is_not_cut() -> None:
    app = fixed_app()
    connection = Connection(app)
    loop = asyncio.get_running_loop()
    loop.call_at(0.225, connection.writable.clear)
    loop.call_at(0.225 + SEND_TIMEOUT_S - 1, connection.writable.set)
    await connection.run()
    assert connection.complete
    assert len(texts(connection.body)) == 10


@pytest.mark.parametrize("steppable", [True, False])
async def test_the_end_of_a_server_ends_streams_whose_clients_do_not_read_after_a_grace(steppable: bool) -> None:
    ends, goes_on = fixed_app(), fixed_app(itl_ms=1000.0)
    loop = asyncio.get_running_loop()
    blocked, other = Connection(ends), Connection(goes_on)
    loop.call_at(0.225, blocked.writable.clear)
    loop.call_at(0.255, ends.close)
    others = asyncio.create_task(run(other, steppable))
    await run(blocked, steppable)
    ended_s = loop.time()
    await others
    assert 0.255 < ended_s <= 0.255 + SHUTDOWN_GRACE_S + 0.1
    assert idle(ends)
    assert other.body.endswith(b"data: [DONE]\n\n")  # of another server in the same process
    assert len(texts(other.body)) == 10


def test_what_the_library_takes_for_the_end_of_the_process_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppStatus, "should_exit", True)  # another server of this process has got SIGTERM
    connection = Connection(fixed_app(itl_ms=1000.0))
    virtual_time.run(run(connection, steppable=False))
    assert len(texts(connection.body)) == 10


def test_servers_in_threads_end_one_by_one() -> None:
    results: dict[int, tuple[bool, int]] = {}

    def serve(number: int) -> None:
        app = fixed_app(itl_ms=1000.0)

        async def main() -> Connection:
            connection = Connection(app)
            if number % 2:
                asyncio.get_running_loop().call_at(3.5, app.close)
            await run(connection, steppable=number % 4 < 2)
            return connection

        connection = virtual_time.run(main())
        results[number] = b"server_shutdown" in connection.body, len(texts(connection.body))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: (True, 4) if number % 2 else (False, 10) for number in range(8)}


async def test_a_stream_that_lasts_is_handed_to_the_event_source_and_its_tokens_still_leave_without_a_task() -> None:
    connection = Connection(fixed_app(itl_ms=1000.0))
    handed: list[float] = []
    loop = asyncio.get_running_loop()

    async def receive() -> Message:
        handed.append(loop.time())  # the body, the client's leaving at first, and once the event source watches it
        return await Connection.receive(connection)

    connection.receive = receive  # type: ignore[method-assign]
    await connection.run()
    assert handed == pytest.approx([0.0, 0.0, EVENT_SOURCE_AFTER_S])
    assert connection.in_task == [False] * 10


@pytest.mark.parametrize("at_s", [0.0, 0.1, 0.245, 6.5])
async def test_a_hundred_clients_leave_at_once(at_s: float) -> None:
    app = fixed_app(itl_ms=10.0 if at_s < 1 else 1000.0)
    connections = [Connection(app, max_tokens=50, n=1 + number % 3) for number in range(100)]
    loop = asyncio.get_running_loop()
    for connection in connections:
        loop.call_at(at_s, connection.gone.set)
    await asyncio.gather(*[run(connection, steppable=number % 2 == 0) for number, connection in enumerate(connections)])
    assert loop.time() == pytest.approx(at_s)
    assert idle(app)
    assert len(asyncio.all_tasks()) == 1
    assert not app.service.responses.open
    assert not app.service.responses.shutdown._waiting


async def stored(app: LlmirageApp) -> Connection:
    connection = Connection(app, "/v1/responses", **IN_BACKGROUND)
    await connection.run()
    return connection


def resumed(app: LlmirageApp, connection: Connection) -> Connection:
    response_id = connection.body.partition(b'"id":"')[2].partition(b'"')[0].decode()
    again = Connection(app, f"/v1/responses/{response_id}")
    again.method, again.query = "GET", b"stream=true"
    return again


@pytest.mark.parametrize(("later_s", "expected"), [(0.1, 2), (60.0, 0)])
async def test_a_response_in_the_background_is_followed_with_pings_and_to_its_end(later_s: float, expected: int) -> None:
    app = fixed_app(ttft_ms=40_000.0)
    begun = Connection(app, "/v1/responses", **IN_BACKGROUND, stream=False)
    await begun.run()
    await asyncio.sleep(later_s)
    again = resumed(app, begun)
    await again.run()
    assert b"event: response.output_text.delta" in again.body
    assert again.body.split(b"\n\n")[-2].startswith(b"event: response.incomplete")  # by its max_output_tokens
    assert len(pings(again)) == expected


@pytest.mark.parametrize("path", ["/llmirage/live", "/v1/responses/x"])
async def test_a_head_request_opens_no_stream(path: str) -> None:
    app = create_app(ClusterConfig(ttft_ms=200.0, itl_ms=10.0, instances=1), page=True)
    asked = Connection(app, path)
    if path != "/llmirage/live":
        asked = resumed(app, await stored(app))
    asked.method = "HEAD"
    async with asyncio.timeout(1):
        await asked.run()
    assert asked.complete
    assert not asked.body
    assert (b"content-type", b"text/event-stream; charset=utf-8") in asked.messages[0][1]["headers"]


def live(app: LlmirageApp) -> Connection:
    connection = Connection(app, "/llmirage/live")
    connection.method = "GET"
    return connection


def test_the_live_page_s_stream_ends_with_its_server_and_is_complete() -> None:
    app = create_app(ClusterConfig(instances=1), page=True)

    async def main() -> tuple[Connection, float]:
        connection = live(app)
        loop = asyncio.get_running_loop()
        loop.call_at(20.25, app.close)
        await connection.run()
        return connection, loop.time()

    connection, ended_s = virtual_time.run(main())
    assert connection.complete
    assert ended_s == pytest.approx(20.25)
    assert len(connection.bodies) == 41  # each half second, without pings


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", ["live", "followed", "resumed", "not steppable", "lasting", "slow"])
async def test_no_stream_leaves_a_cycle_of_references(kind: str, leaves: bool) -> None:
    app = create_app(ClusterConfig(ttft_ms=200.0, itl_ms=1000.0 if kind == "lasting" else 10.0, instances=1), page=True)

    async def respond() -> None:
        connection = Connection(app)
        if kind == "live":
            connection = live(app)
        elif kind == "followed":
            connection = Connection(app, "/v1/responses", **IN_BACKGROUND, stream=True)
        elif kind == "resumed":
            connection = resumed(app, await stored(app))
        loop = asyncio.get_running_loop()
        if kind == "slow":
            loop.call_later(0.225, connection.writable.clear)
            loop.call_later(5.0, connection.writable.set)
        if leaves or kind == "live":
            loop.call_later(7.245 if kind == "lasting" else 0.245, connection.gone.set)
        await run(connection, steppable=kind != "not steppable")

    await respond()
    assert (await cyclic_garbage_of(respond)) == []


def test_tokens_for_a_page_in_a_browser_do_not_pass_through_its_middleware() -> None:
    connection = Connection(fixed_app())
    connection.headers = [(b"origin", b"http://localhost:3000")]
    virtual_time.run(connection.run())
    head = dict(connection.messages[0][1]["headers"])
    assert (head[b"access-control-allow-origin"], head[b"access-control-expose-headers"]) == (b"http://localhost:3000", b"*")
    assert connection.in_task == [False] * 10


@pytest.mark.parametrize("origin", [False, True])
async def test_a_fault_breaks_the_connection_of_a_page_in_a_browser_too(origin: bool) -> None:
    app = create_app(ClusterConfig(ttft_ms=200.0, itl_ms=10.0, instances=1, allow_fault_header=True))
    connection = Connection(app)
    connection.transport = transport = _Closing(connection)
    connection.headers = [(b"x-llmirage-fault", b"cut; after_tokens=3")] + [(b"origin", b"http://localhost:3000")] * origin
    await connection.run()
    assert transport.closed
    assert 1 <= len(texts(connection.body)) < 10


class _Closing(Transport):
    closed = False

    def close(self) -> None:
        self.closed = True
        self._connection.gone.set()


def test_middleware_of_starlette_can_be_added() -> None:
    class Upper:
        def __init__(self, app: ASGIApp, mark: bytes) -> None:
            self._app, self._mark = app, mark

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def upper(message: Message) -> None:
                if message["type"] == "http.response.body":
                    message = {**message, "body": message["body"].upper()}
                else:
                    message["headers"].append((b"x-marked", self._mark))
                await send(message)

            await self._app(scope, receive, upper)

    app = fixed_app()
    app.add_middleware(Upper, mark=b"1")
    connection = Connection(app, "/v1/chat/completions", **CHAT)
    connection.headers = [(b"origin", b"http://localhost:3000")]
    virtual_time.run(connection.run())
    assert (b"x-marked", b"1") in connection.messages[0][1]["headers"]
    assert connection.body.endswith(b"DATA: [DONE]\n\n")
    assert connection.body == connection.body.upper()
