"""Proxies of a few lines: HTTP (CONNECT and absolute-form) and SOCKS5, and an HTTP/2 server; on the loop of the test."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class _Listener:
    """`async with` it: listens on a free port. lines: what was asked of it, oldest first. lines name no credentials."""

    def __init__(self, host: str = "127.0.0.1", ssl: Any = None) -> None:
        self.lines: list[str] = []
        self._host = host
        self._ssl = ssl
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Any:
        self._server = await asyncio.start_server(self._guarded, self._host, 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.die()

    def die(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve(reader, writer)
        self._writers.discard(writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        there, back = await asyncio.open_connection(host, port)
        self._writers.add(back)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
            finally:
                sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)
        self._writers.discard(back)


class HttpProxy(_Listener):
    """refusal: the status line that it answers with. credentials: user:password that it wants."""

    def __init__(self, refusal: str = "", credentials: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._refusal = refusal
        self._credentials = credentials

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
            first, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
            method, target, _ = first.split(" ")
            self.lines.append(f"{method} {target}")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
            wanted = f"Basic {base64.b64encode(self._credentials.encode()).decode()}"
            if self._credentials and headers.get("proxy-authorization") != wanted:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 6\r\n\r\nwho?!\n")
                await reader.readexactly(int(headers.get("content-length", 0)))
            elif self._refusal:
                writer.write(f"HTTP/1.1 {self._refusal}\r\nContent-Length: 5\r\n\r\nnone\n".encode())
                await reader.readexactly(int(headers.get("content-length", 0)))
            elif method == "CONNECT":
                host, _, port = target.rpartition(":")
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._relay(reader, writer, host.strip("[]"), int(port))
                return
            else:
                await self._forward(reader, writer, method, target, headers)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]
    ) -> None:
        """One request, on a connection of its own; the reply ends with that."""
        url = urlsplit(target)
        there, back = await asyncio.open_connection(url.hostname, url.port or 80)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        kept = [f"{name}: {value}" for name, value in headers.items() if not name.startswith("proxy-")]
        back.write("\r\n".join([f"{method} {url.path} HTTP/1.1", *kept, "\r\n"]).encode("latin-1") + body)
        reply = await there.readuntil(b"\r\n\r\n")
        writer.write(reply)
        if b"chunked" in reply.lower():
            while (size := await there.readuntil(b"\r\n")) != b"0\r\n":
                writer.write(size + await there.readexactly(int(size, 16) + 2))
            writer.write(size + await there.readexactly(2))
        else:
            length = int(reply.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            writer.write(await there.readexactly(length))
        back.close()


class SocksProxy(_Listener):
    """SOCKS5 (RFC 1928, RFC 1929). credentials: user:password that it wants. reply: to a command; 0: it connects."""

    def __init__(self, credentials: str = "", reply: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._credentials = credentials
        self._reply = reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def text() -> bytes:
            return await reader.readexactly((await reader.readexactly(1))[0])

        await reader.readexactly(1)
        method = 2 if self._credentials else 0
        writer.write(bytes([5, method if method in await text() else 255]))
        if self._credentials:
            await reader.readexactly(1)
            given = f"{(await text()).decode()}:{(await text()).decode()}"
            writer.write(bytes([1, given != self._credentials]))
        kind = (await reader.readexactly(4))[3]
        host = (
            (await text()).decode()
            if kind == 3
            else socket.inet_ntop(
                *(
                    (socket.AF_INET, await reader.readexactly(4))
                    if kind == 1
                    else (socket.AF_INET6, await reader.readexactly(16))
                )
            )
        )
        port = int.from_bytes(await reader.readexactly(2))
        self.lines.append(f"{host}:{port}")
        writer.write(bytes([5, self._reply, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self._reply == 0:
            await self._relay(reader, writer, host, port)


@contextlib.asynccontextmanager
async def http2_server(
    app: Any, authority: Path | None = None, streams: int = 100, requests: int = 1000
) -> AsyncIterator[int]:
    """Give the port on which hypercorn serves the ASGI app. authority: over TLS, with server.pem of that folder.

    streams, requests: of a connection, at a time and in all.
    """
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    listening = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.h2_max_concurrent_streams = streams
    config.keep_alive_max_requests = requests
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 0.0
    if authority is not None:
        config.certfile, config.keyfile = str(authority / "server.pem"), str(authority / "server.key")
    over = asyncio.Event()
    serving = asyncio.ensure_future(serve(app, config, shutdown_trigger=over.wait))
    try:
        yield listening.getsockname()[1]
    finally:
        over.set()
        await serving
        with contextlib.suppress(OSError):
            listening.close()
