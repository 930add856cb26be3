"""A proxy between a client and a server that keeps what they said to each other, byte by byte."""

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools


@dataclass
class Answer:
    """One request's line and the response to it."""

    method: str
    path: str
    sent: bytes = b""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False


class Recorder:
    """Listens on a port of its own and passes everything on to the server at `target`."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._path = parts.path
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{self._path}"

    def take(self) -> list[Answer]:
        """All answers since the last call, in the order of their requests."""
        with self._lock:
            taken, self._answers = self._answers, []
        return taken

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection(*self._target)
        talk = _Talk(self)
        pumps = [
            asyncio.ensure_future(_pump(reader, upstream, talk.requests.feed_data)),
            asyncio.ensure_future(_pump(upstream_reader, writer, talk.answered)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the recorder closes
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        for end in (upstream, writer):
            end.close()

    def begun(self, answer: Answer) -> None:
        with self._lock:
            self._answers.append(answer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Any) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            seen(data)
            writer.write(data)
            await writer.drain()


class _Talk:
    """The two directions of one connection: requests in order, and their responses in the same order."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: list[Answer] = []
        self.requests = httptools.HttpRequestParser(_Requests(self))
        self._responses = httptools.HttpResponseParser(self)

    def asked(self, answer: Answer) -> None:
        self._waiting.append(answer)
        self._recorder.begun(answer)

    def answered(self, data: bytes) -> None:
        self._responses.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._waiting[0].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._waiting[0].status = self._responses.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._waiting[0].body += data

    def on_message_complete(self) -> None:
        self._waiting.pop(0).whole = True


class _Requests:
    def __init__(self, talk: _Talk) -> None:
        self._talk = talk
        self._url = b""
        self._answer: Answer | None = None

    def on_message_begin(self) -> None:
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        self._answer = Answer(self._talk.requests.get_method().decode(), self._url.decode())
        self._talk.asked(self._answer)

    def on_body(self, data: bytes) -> None:
        assert self._answer is not None
        self._answer.sent += data
