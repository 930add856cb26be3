"""A server whose every byte the test decides."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from certificates import make_authority


@dataclass
class RawRequest:
    """What came over the wire: the request line and headers as sent, and the body."""

    connection: int
    head: str
    body: bytes

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


Answer = Callable[[RawRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """`async with` it: listens on a free port of 127.0.0.1 and lets `answer` write the reply to each request.

    An answer that closes the writer ends the connection. lost: connections the client closed.
    """

    answer: Answer
    ssl: object = None
    requests: list[RawRequest] = field(default_factory=list)
    connections: int = 0
    lost: int = 0
    port: int = 0

    async def __aenter__(self) -> RawServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.ssl, backlog=512)  # type: ignore[arg-type]
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = self.connections
        self.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n")
                request = RawRequest(connection, head, b"")
                request.body = await reader.readexactly(int(request.header("content-length") or 0))
                self.requests.append(request)
                await self.answer(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
def raw_server() -> Callable[..., RawServer]:
    """Makes servers: raw_server(b"bytes of the reply") or raw_server(answer), `async with` them."""

    def make(answer: bytes | Answer, ssl: object = None) -> RawServer:
        if isinstance(answer, bytes):
            reply = answer

            async def fixed(_: RawRequest, writer: asyncio.StreamWriter) -> None:
                writer.write(reply)
                await writer.drain()

            return RawServer(fixed, ssl)
        return RawServer(answer, ssl)

    return make


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See make_authority."""
    return make_authority(tmp_path_factory.mktemp("tls"))


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
