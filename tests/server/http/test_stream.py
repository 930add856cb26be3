"""The hot path: when chunks leave, by which way, and what happens when a connection does not take them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from cyclic_garbage import cyclic_garbage_of
from raw_asgi import CHAT, Connection, fixed_app, idle, texts
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.drivers.live import PacedDriver
from llmirage_server.http.event_stream import PING_S
from llmirage_server.service.generation import TokenStream
from llmirage_server.service.unstreamed import _Waiter
from llmirage_shared import virtual_time
from llmirage_shared.wire.errors import instance_lost


def whole_text(app: LlmirageApp) -> str:
    connection = Connection(app, stream=False)
    virtual_time.run(connection.run())
    text = json.loads(connection.body)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


def test_token_i_leaves_at_ttft_plus_i_times_itl_without_a_task() -> None:
    connection = Connection(fixed_app())
    virtual_time.run(connection.run())
    assert [time for time, _ in connection.bodies] == pytest.approx([0.2 + i * 0.01 for i in range(10)])
    assert [len(texts(data)) for _, data in connection.bodies] == [1] * 10
    assert connection.in_task == [False] * 10
    assert connection.complete
    assert connection.body.endswith(b"data: [DONE]\n\n")


def test_headers_leave_before_the_first_token() -> None:
    connection = Connection(fixed_app())
    virtual_time.run(connection.run())
    time, start = connection.messages[0]
    assert (time, start["type"], start["status"]) == (0.0, "http.response.start", 200)
    names = [name for name, _ in start["headers"]]
    assert b"content-length" not in names
    assert (b"cache-control", b"no-cache") in start["headers"]


def test_all_tokens_due_in_one_tick_leave_in_one_write() -> None:
    connection = Connection(fixed_app(0.0, 0.0))
    virtual_time.run(connection.run())
    assert len(connection.bodies) == 1
    assert len(texts(connection.body)) == 10


def test_a_send_that_is_not_uvicorns_is_only_called_from_a_task() -> None:
    connection = Connection(fixed_app())

    async def wrapped(message: Message) -> None:
        with anyio.move_on_after(10):  # needs a task
            await connection.send(message)

    virtual_time.run(connection.run(wrapped))
    assert [time for time, _ in connection.bodies] == pytest.approx([0.2 + i * 0.01 for i in range(10)])
    assert all(connection.in_task)


def test_middleware_that_wraps_send_works() -> None:
    class Upper:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"].append((b"x-marked", b"1"))
                await send(message)

            await self._app(scope, receive, marked)

    connection = Connection(Upper(fixed_app()))
    virtual_time.run(connection.run())
    assert (b"x-marked", b"1") in connection.messages[0][1]["headers"]
    assert connection.body.endswith(b"data: [DONE]\n\n")


def test_a_full_connection_gets_the_rest_in_one_piece_when_it_drains_and_then_goes_on_directly() -> None:
    app = fixed_app()

    async def main() -> Connection:
        connection = Connection(app)
        loop = asyncio.get_running_loop()
        loop.call_at(0.225, connection.writable.clear)  # after three tokens
        loop.call_at(0.265, connection.writable.set)  # four tokens later
        await connection.run()
        return connection

    connection = virtual_time.run(main())
    assert [time for time, _ in connection.bodies] == pytest.approx([0.2, 0.21, 0.22, 0.265, 0.265, 0.27, 0.28, 0.29])
    assert [len(texts(data)) for _, data in connection.bodies] == [1, 1, 1, 1, 3, 1, 1, 1]
    assert connection.waits == 1  # the others did not even try
    assert connection.in_task == [False, False, False, True, True, False, False, False]
    assert "".join(texts(connection.body)) == whole_text(app)


@pytest.mark.parametrize("itl_ms", [0.0, 10.0])
@pytest.mark.parametrize("steppable", [True, False])
@pytest.mark.parametrize("fields", [{}, {"n": 3}])
def test_what_a_slow_client_has_not_read_is_not_even_written(
    monkeypatch: pytest.MonkeyPatch, itl_ms: float, steppable: bool, fields: dict[str, Any]
) -> None:
    held: list[int] = []
    write = TokenStream.write

    def watched(self: TokenStream, data: bytes) -> None:
        write(self, data)
        held.append(self._pending_bytes)

    monkeypatch.setattr(TokenStream, "write", watched)
    asked = {"max_tokens": 2000, "ignore_eos": True, "seed": 1, **fields}

    def streamed(stalls: bool) -> tuple[Connection, bool]:
        app = fixed_app(200.0, itl_ms)

        async def main() -> Connection:
            connection = Connection(app, **asked)
            loop = asyncio.get_running_loop()
            if stalls:
                loop.call_at(0.1, connection.writable.clear)
                loop.call_at(60.0, connection.writable.set)  # the cluster's time goes on
            await connection.run(None if steppable else lambda message: _in_a_task(connection, message))
            return connection

        return virtual_time.run(main()), idle(app)

    (quick, _), (slow, is_idle) = streamed(False), streamed(True)
    assert 0 < max(held) < 3 * (64 << 10)
    assert slow.complete
    assert is_idle
    assert slow.messages[-1][0] == pytest.approx(60.0)
    assert sorted(texts(slow.body)) == sorted(texts(quick.body))
    assert slow.body.endswith(b"data: [DONE]\n\n")
    if not fields:
        assert texts(slow.body) == texts(quick.body)
        assert len(quick.body) > 3 * max(held)


async def _in_a_task(connection: Connection, message: Message) -> None:
    with anyio.move_on_after(1e6):
        await connection.send(message)


@pytest.mark.parametrize("resume_s", [0.3, 5.0])
def test_a_connection_that_is_full_at_the_end_still_gets_the_end(resume_s: float) -> None:
    app = fixed_app()

    async def main() -> Connection:
        connection = Connection(app)
        loop = asyncio.get_running_loop()
        loop.call_at(0.285, connection.writable.clear)  # before the last token
        loop.call_at(resume_s, connection.writable.set)
        await connection.run()
        return connection

    connection = virtual_time.run(main())
    assert connection.complete
    assert connection.messages[-1][0] == pytest.approx(resume_s)
    assert "".join(texts(connection.body)) == whole_text(app)
    assert idle(app)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_its_body_is_complete_costs_nothing(stream: bool) -> None:
    app = fixed_app()
    connection = Connection(app, stream=stream)

    async def receive() -> Message:
        if not connection.gone.is_set():
            connection.gone.set()
            return {"type": "http.request", "body": b"{", "more_body": True}
        return {"type": "http.disconnect"}

    connection.receive = receive  # type: ignore[method-assign]
    await connection.run()
    assert connection.messages == []
    assert not app.service.responses.open


def test_a_client_that_leaves_as_its_reply_is_done_raises_nothing() -> None:
    async def main() -> None:
        waiter = _Waiter(SimpleNamespace(choices=[None]))  # type: ignore[arg-type]
        left = asyncio.ensure_future(asyncio.sleep(0))
        await left
        waiter.abort(instance_lost())
        waiter.forget()  # in the turn of the loop in which the client's leaving was seen, and before that is told
        waiter.client_left(left)

    asyncio.run(main())


async def test_a_client_that_leaves_while_not_even_the_headers_could_be_sent_frees_its_slot() -> None:
    app = fixed_app()
    connection = Connection(app)
    connection.writable.clear()
    asyncio.get_running_loop().call_at(0.05, connection.gone.set)
    await connection.run()
    assert idle(app)
    assert not app.service.responses.open


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_kv_and_its_slot(stream: bool, full: bool) -> None:
    app = fixed_app()
    connection = Connection(app, stream=stream)
    loop = asyncio.get_running_loop()
    if full:
        loop.call_at(0.215, connection.writable.clear)
    loop.call_at(0.245, lambda: None if idle(app) else connection.gone.set())
    await connection.run()
    assert loop.time() == pytest.approx(0.245)
    assert idle(app)
    assert not connection.complete
    assert len(texts(connection.body)) == (0 if not stream else 2 if full else 5)
    assert not app.service.responses.open


async def test_a_client_that_leaves_a_real_instance_frees_its_kv_and_its_slot() -> None:
    app = create_app(ClusterConfig(instances=1))
    connection = Connection(app, max_tokens=1000)
    asyncio.get_running_loop().call_at(1.0, connection.gone.set)
    await connection.run()
    assert texts(connection.body)
    assert idle(app)


def test_pings_keep_a_silent_stream_alive() -> None:
    connection = Connection(fixed_app(ttft_ms=40_000))
    virtual_time.run(connection.run())
    pings = [(time, data) for time, data in connection.bodies if data.startswith(b": ping")]
    assert [time for time, _ in pings] == pytest.approx([PING_S, 2 * PING_S])
    assert len(texts(connection.body)) == 10


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_the_service_ends_what_is_open_with_an_error_and_refuses_the_rest(stream: bool) -> None:
    app = fixed_app()
    loop = asyncio.get_running_loop()
    open_one, late = Connection(app, stream=stream), Connection(app)
    loop.call_at(0.225, app.close)
    await open_one.run()
    assert loop.time() == pytest.approx(0.225)
    await late.run()
    assert open_one.complete
    assert b'"code":"server_shutdown"' in open_one.body
    assert open_one.messages[0][1]["status"] == (200 if stream else 503)
    assert len(texts(open_one.body)) == (3 if stream else 0)
    assert late.messages[0][1]["status"] == 503
    assert idle(app)


@pytest.mark.parametrize(("close_s", "tokens", "last"), [(0.255, 6, b"server_shutdown"), (0.4, 10, b"[DONE]")])
async def test_tokens_due_when_the_service_closes_leave_before_the_error(close_s: float, tokens: int, last: bytes) -> None:
    app = fixed_app()
    connection = Connection(app)
    task = asyncio.create_task(connection.run())
    await asyncio.sleep(0.1)
    assert isinstance(app.driver, PacedDriver)
    assert app.driver._alarm is not None
    app.driver._alarm.clear()  # as if the loop were too busy to hear it
    await asyncio.sleep(close_s - 0.1)
    app.close()
    async with asyncio.timeout(1):  # else a stream that never ends would ping for ever
        await task
    assert len(texts(connection.body)) == tokens
    assert last in connection.body.split(b"\n\n")[-2]
    ends = [not message["more_body"] for _, message in connection.messages if message["type"] == "http.response.body"]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert idle(app)


@pytest.mark.parametrize(("itl_ms", "at"), [(10.0, 0), (10.0, 1), (10.0, 4), (10.0, 10), (2000.0, 8), (0.0, 0), (0.0, 1)])
@pytest.mark.parametrize("steppable", [True, False])
def test_an_error_of_send_ends_the_response_and_frees_the_slot(itl_ms: float, at: int, steppable: bool) -> None:
    app = fixed_app(itl_ms and 200.0, itl_ms)

    class Broken(Connection):
        async def send(self, message: Message) -> None:
            if len(self.messages) == at:
                raise OSError("gone")
            await super().send(message)

    Broken.__module__ = "uvicorn.in_a_test"
    connection = Broken(app)

    async def wrapped(message: Message) -> None:
        await connection.send(message)

    with pytest.raises(OSError, match="gone"):
        virtual_time.run(connection.run(None if steppable else wrapped))
    assert idle(app)
    assert not app.service.responses.open


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {}),
        ("/v1/completions", {"stream": False}),
        ("/v1/completions", {"n": 3}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"store": True}),
        ("/v1/chat/completions", CHAT | {"logprobs": True}),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16, "background": True}),
        ("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 10}}),
    ],
    ids=str,
)
async def test_a_response_that_is_over_leaves_no_cyclic_garbage(path: str, fields: dict[str, Any], leaves: bool) -> None:
    """Cyclic garbage stays until the collector's next full pass, and memory is in pieces by then."""
    app = fixed_app()

    async def respond() -> None:
        connection = Connection(app, path, **fields)
        if leaves:
            asyncio.get_running_loop().call_later(0.245, connection.gone.set)
        await connection.run()

    await respond()  # the first loads what is loaded once
    assert (await cyclic_garbage_of(respond)) == []
