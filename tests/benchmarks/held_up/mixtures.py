"""Random mixtures of connections that ask for memory or time: `python -m held_up.mixtures HOST PORT SEED COUNT`.

Each mixture is two to four of the attacks below at once, and ends before the next begins. Its name is printed first. This
is a process of its own, so that its work holds up nobody who reads streams.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from attacks import MODEL

HOLD_S = 0.7
_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 10}
_MIB = bytes(1 << 20)


class Socket:
    """One connection of an attacker."""

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port

    async def __aenter__(self) -> Socket:
        self.reader, self.writer = await asyncio.open_connection(*self._place, limit=1 << 16)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def head(self, path: str, *lines: str, method: str = "POST") -> bytes:
        fields = ["Host: localhost", "Content-Type: application/json", *lines]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode()

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def post(self, body: object, path: str = "/v1/chat/completions", *lines: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(self.head(path, f"Content-Length: {len(data)}", *lines), data)


Attack = Callable[[Socket, random.Random], Awaitable[None]]


async def pipelined(socket: Socket, rng: random.Random) -> None:
    await socket.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n" * rng.randint(100, 14_000))


async def unfinished_body(socket: Socket, rng: random.Random) -> None:
    await socket.send(socket.head("/v1/chat/completions", "Content-Length: 30000000"), *[_MIB] * rng.choice((0, 0, 1, 20)))


async def endless_trailers(socket: Socket, rng: random.Random) -> None:
    await socket.send(socket.head("/v1/chat/completions", "Transfer-Encoding: chunked"), b"2\r\n{}\r\n0\r\n")
    for number in range(rng.randint(1000, 40_000)):
        await socket.send(b"x-%d: %b\r\n" % (number, b"y" * 200))


async def unread_stream(socket: Socket, rng: random.Random) -> None:
    socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await socket.post(_CHAT | {"stream": True, "max_tokens": rng.randint(1000, 30_000), "ignore_eos": True, "n": 2})


async def unread_logprobs(socket: Socket, rng: random.Random) -> None:
    socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await socket.post(
        _CHAT | {"max_tokens": rng.randint(100, 4000), "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    )


async def inflating(socket: Socket, rng: random.Random) -> None:
    await socket.post(gzip.compress(_MIB * rng.randint(1, 35)), "/v1/chat/completions", "Content-Encoding: gzip")


async def long_name(socket: Socket, rng: random.Random) -> None:
    await socket.post(_CHAT | {"user": f"{rng.random()}" + "u" * rng.randint(1000, 1_000_000)})


async def upgrade(socket: Socket, rng: random.Random) -> None:
    to = rng.choice(("h2c", "websocket", "foo"))
    await socket.post(
        _CHAT, "/v1/chat/completions", f"Upgrade: {to}", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AA"
    )


def _image(rng: random.Random) -> dict[str, object]:
    part = {"type": "input_image", "image_url": "data:image/png;base64,iVBO" + "A" * 4 * rng.randint(1000, 2_000_000)}
    return {"type": "message", "role": "user", "content": [part]}


async def unread_objects(socket: Socket, rng: random.Random) -> None:
    """A large object that is stored, and shown again and again to a client that reads nothing."""
    path, body = rng.choice(
        (("responses", _RESPONSE | {"input": [_image(rng)]}), ("conversations", {"items": [_image(rng)]}))
    )
    await socket.post(body, f"/v1/{path}")
    await socket.reader.readuntil(b'"id":"')
    name = (await socket.reader.readuntil(b'"'))[:-1].decode()
    socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await socket.post({"items": [_image(rng)]}, f"/v1/{path}/{name}/items")
    await socket.send(socket.head(f"/v1/{path}/{name}/{'input_' * (path == 'responses')}items", method="GET"))


async def long_lines(socket: Socket, rng: random.Random) -> None:
    request = {"method": "POST", "url": "/v1/responses", "body": _RESPONSE | {"input": [_image(rng)], "store": False}}
    lines = "\n".join([json.dumps({"custom_id": f"{number}", **request}) for number in range(rng.randint(1, 3))])
    fields = {"purpose": "batch", 'file"; filename="a.jsonl': lines}
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    form = "".join([*parts, "--b--\r\n"]).encode()
    head = socket.head("/v1/files", f"Content-Length: {len(form)}").replace(
        b"application/json", b"multipart/form-data; boundary=b"
    )
    await socket.send(head, form)
    await socket.reader.readuntil(b'"id":"')
    name = (await socket.reader.readuntil(b'"'))[:-1].decode()
    for _ in range(rng.randint(1, 8)):
        await socket.post({"input_file_id": name, "endpoint": "/v1/responses", "completion_window": "24h"}, "/v1/batches")


async def leaving(socket: Socket, rng: random.Random) -> None:
    """A large request whose client does not wait for the answer."""
    await socket.post(_RESPONSE | {"input": [_image(rng)], "background": rng.random() < 0.5}, "/v1/responses")
    socket.writer.transport.abort()


async def spaces(socket: Socket, rng: random.Random) -> None:
    space = rng.choice((b" ", b"\n", b"1", b"\0")) * (rng.randint(1, 30) << 20)
    await socket.post(rng.choice((b"%b{}", b'{"user":%b1}', b"{}%b")) % space)


async def small_chunks(socket: Socket, rng: random.Random) -> None:
    await socket.send(socket.head("/v1/chat/completions", "Transfer-Encoding: chunked"))
    await socket.send(*[b"1%b\r\n \r\n" % rng.choice((b"", b";a=b")) * 10_000] * rng.randint(1, 100))


_RESPONSE = {"model": MODEL, "input": "Go on " * 10, "ignore_eos": True, "max_output_tokens": 50}  # else for an hour
_WEBSOCKET = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


async def in_the_background(socket: Socket, rng: random.Random) -> None:
    body = _RESPONSE | {"background": True, "max_output_tokens": rng.randint(16, 1000)}
    await socket.post(body, "/v1/responses")


async def unread_messages(socket: Socket, rng: random.Random) -> None:
    socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await socket.send(socket.head("/v1/responses", *_WEBSOCKET, method="GET"))
    body = {"type": "response.create", **_RESPONSE, "max_output_tokens": rng.randint(1000, 100_000)}
    text = json.dumps(body).encode()
    await socket.send(b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text)  # masked by zeros


async def unfinished_message(socket: Socket, rng: random.Random) -> None:
    await socket.send(socket.head("/v1/responses", *_WEBSOCKET, method="GET"))
    frame = b"\x01\xff" + (1 << 20).to_bytes(8) + bytes(4) + _MIB  # a text, masked by zeros, that goes on
    await socket.send(frame, *[b"\x00" + frame[1:]] * rng.randint(0, 20))


async def half_a_head(socket: Socket, rng: random.Random) -> None:
    await socket.send(b"GET / HTTP/1.1\r\n" + b"a" * rng.randint(1, 70_000))


async def many_headers(socket: Socket, rng: random.Random) -> None:
    path, line = (
        rng.choice(("/health", "/" + "%41" * 3000, "/?" + "a=b&" * 2000)),
        rng.choice((b"a:b\r\n", b"cookie: a=b\r\n")),
    )
    await socket.send(socket.head(path, method="GET")[:-2] + line * rng.randint(100, 4000) + b"\r\n")


async def small_frames(socket: Socket, rng: random.Random) -> None:
    await socket.send(socket.head("/v1/responses", *_WEBSOCKET, method="GET"))
    frame = rng.choice((b"\x00\x81%b ", b"\x89\x80%b")) % bytes(4)  # a text goes on by a space; a ping
    await socket.send(b"\x01\x80" + bytes(4), *[frame * 1000] * rng.randint(1, 50))


async def foreign_page(socket: Socket, rng: random.Random) -> None:
    path = rng.choice(("/flush_cache", "/start_profile", "/llmirage/journal?limit=1000", "/llmirage/live/events"))
    await socket.send(socket.head(path, "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", method="GET"))


ATTACKS: tuple[tuple[Attack, int], ...] = (  # with the number of connections at most
    (pipelined, 20), (unfinished_body, 50), (endless_trailers, 4), (unread_stream, 60), (unread_logprobs, 10),
    (inflating, 10), (in_the_background, 40), (unread_messages, 60), (long_name, 20),
    (upgrade, 20), (unfinished_message, 30), (half_a_head, 50), (foreign_page, 20),
    (unread_objects, 20), (long_lines, 3), (leaving, 20), (spaces, 5), (small_chunks, 10),
    (many_headers, 50), (small_frames, 10),
)  # fmt: skip


async def one(attack: Attack, rng: random.Random, host: str, port: int) -> None:
    """One connection of an attack, open for as long as the server lets it, HOLD_S at most."""
    with suppress(OSError, EOFError, TimeoutError):  # the server may close before it has answered
        async with asyncio.timeout(HOLD_S), Socket(host, port) as socket:
            await attack(socket, rng)
            await asyncio.sleep(HOLD_S)


def priority(nice: int) -> None:
    """Set that of this process, as a session of its own: Linux shares the processors among these first."""
    if sys.platform == "linux":
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(nice))
    os.setpriority(os.PRIO_PROCESS, 0, nice)


async def mixtures(host: str, port: int, seed: int, count: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        mixed = [(attack, rng.randint(1, most)) for attack, most in rng.sample(ATTACKS, rng.randint(2, 4))]
        print(f"mixture {number}: {', '.join(f'{many} x {attack.__name__}' for attack, many in mixed)}", flush=True)
        await asyncio.gather(
            *[one(attack, random.Random(rng.random()), host, port) for attack, many in mixed for _ in range(many)]
        )


if __name__ == "__main__":
    priority(5)  # attackers have what the server leaves
    asyncio.run(mixtures(sys.argv[1], *map(int, sys.argv[2:])))
