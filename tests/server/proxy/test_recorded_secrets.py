"""What the recording proxy writes to disk has no key of the request, wherever else the key stands."""

import asyncio
import base64
import contextlib
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import assume, example, given
from hypothesis import strategies as st
from recorded import URL

from llmirage_server.commands.record_actions import RecordingProxy
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_server.proxy.upstream import HttpUpstream
from llmirage_server.replies.recordings.store import RecordingWriter

SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
PLACES = st.sampled_from(("bearer", "x-api-key", "api-key", "cookie", "query", "basic", "upstream"))


def answering(pieces: list[bytes], kind: str, cut: bool) -> httpx.MockTransport:
    """An upstream that sends these pieces, and breaks off after them if it shall."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if cut:
            raise httpx.ReadError("gone")

    headers = {"content-type": kind, "location": b"".join(pieces)[:50].decode().replace("\n", "")}
    return httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=body()))


def brought(secret: str, place: str) -> tuple[dict[str, str], str]:
    """Headers and query of a request that brings a key."""
    if place == "query":
        return {}, f"?key={quote(secret, safe='')}"
    if place == "basic":
        return {"authorization": "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()}, ""
    if place in ("bearer", "upstream"):
        return {"authorization": f"Bearer {secret if place == 'bearer' else 'client-key-1'}"}, ""
    return {place: f"session={secret}" if place == "cookie" else secret}, ""


def streamed(text: str, at: list[int]) -> bytes:
    """A text as the events of chat and of Messages, in pieces."""
    edges = sorted({0, len(text), *[place % (len(text) + 1) for place in at]})
    events = b""
    for start, end in itertools.pairwise(edges):
        piece = text[start:end]
        chat = {"choices": [{"index": 0, "delta": {"content": piece}}]}
        block = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
        events += b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (chat, block))
    return events


def recorded(secret: str, place: str, stream: bool, at: list[int], cut_at: int) -> str:
    """The file of an exchange whose request brings a key that the texts have, too."""
    text = f"Your key is {secret}."
    whole = json.dumps({"choices": [{"message": {"content": text}}], secret: [secret], "text": json.dumps({"k": secret})})
    answer = streamed(text, at) if stream else whole.encode()
    cut = 0 < cut_at < len(answer)
    answer = answer[:cut_at] if cut else answer
    pieces = [answer[start : start + 97] for start in range(0, len(answer), 97)]
    headers, query = brought(secret, place)
    asked: dict[str, Any] = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], "user": secret}

    async def exchange(folder: Path) -> None:
        transport = answering(pieces, "text/event-stream" if stream else "application/json", cut)
        keys = (secret,) if place == "upstream" else ()
        upstream = HttpUpstream(URL, keys[0] if keys else None, transport)
        proxy = RecordingProxy(upstream, ExchangeRecorder(RecordingWriter(folder), keys))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(proxy), base_url=URL)
        with contextlib.suppress(*([AssertionError] if cut else [])):  # what a response that is cut is in one process
            await client.post(f"/v1/chat/completions{query}", json=asked, headers=headers)
        await proxy.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(exchange(Path(folder)))
        [path] = Path(folder).iterdir()
        return path.read_text()


@given(SECRETS, PLACES, st.booleans(), st.lists(st.integers(0, 400), max_size=6), st.integers(0, 2000))
@example('a/b"c\\d1234', "bearer", True, [9, 12], 0)
@example("12345678", "upstream", False, [], 0)
@example("llmirage", "bearer", False, [], 0)
def test_no_key_reaches_the_disk(secret: str, place: str, stream: bool, at: list[int], cut_at: int) -> None:
    assume("REDACTED" not in secret)
    assume(secret not in json.dumps(streamed("Your key is .", at).decode()) and secret not in "chat-your-key-is-redacted")
    assume(place != "cookie" or not set(secret) & set(';"=, \\'))
    file = recorded(secret, place, stream, at, cut_at)
    for form in {secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3], quote(secret, safe="")}:
        if form in file:  # a word that such files have, whatever the key
            others = recorded("k9#Zq.7xW", place, stream, at, cut_at)
            assert file.count(form) == others.count(form)
