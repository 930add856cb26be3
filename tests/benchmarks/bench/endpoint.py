"""An OpenAI endpoint that answers every chat request with the same bytes: `python endpoint.py CHUNKS ITL_MS`.

It prints its port and serves until it is terminated. With an ITL of 0 a stream is one write, else one write a chunk.
"""

import asyncio
import json
import sys
from typing import Any, cast

import uvloop


def _chunk(value: Any) -> bytes:
    event = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


class Replies:
    """The bytes of a streamed reply, write by write, and of one in one piece."""

    def __init__(self, chunks: int) -> None:
        base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "mock"}
        usage = {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks}

        def event(delta: dict[str, str], finish: str | None = None) -> bytes:
            return _chunk({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        tail = event({}, "stop") + _chunk({**base, "choices": [], "usage": usage}) + _chunk(b"[DONE]") + b"0\r\n\r\n"
        self.writes = [head + event({"role": "assistant", "content": ""}), *[event({"content": "tok "})] * chunks, tail]
        self.stream = b"".join(self.writes)
        message = {"role": "assistant", "content": "tok " * chunks}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}).encode()
        self.whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Protocol(asyncio.Protocol):
    def __init__(self, replies: Replies, itl_s: float) -> None:
        self._replies, self._itl_s = replies, itl_s
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        if not self._parts:
            head, _, body = data.partition(b"\r\n\r\n")
            self._missing = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0) - len(body)
        else:
            self._missing -= len(data)
        self._parts.append(data)
        if self._missing > 0:
            return
        streamed = b'"stream":true' in self._parts[-1][-200:] or b'"stream":true' in b"".join(self._parts)
        self._parts = []
        if not streamed:
            self._transport.write(self._replies.whole)
        elif not self._itl_s:
            self._transport.write(self._replies.stream)
        else:
            self._write_next(0, asyncio.get_running_loop().time())

    def _write_next(self, number: int, start_s: float) -> None:
        self._transport.write(self._replies.writes[number])
        if number + 1 < len(self._replies.writes):
            at_s = start_s + (number + 1) * self._itl_s
            asyncio.get_running_loop().call_at(at_s, self._write_next, number + 1, start_s)


async def serve(chunks: int, itl_s: float) -> None:
    replies = Replies(chunks)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Protocol(replies, itl_s), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
