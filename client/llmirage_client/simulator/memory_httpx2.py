"""The transport to an app in this process for httpx2, whose classes share no base with httpx's. Imports httpx2: optional.

client = openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=Httpx2MemoryTransport(create_app())))
"""

from __future__ import annotations

import httpx2

from llmirage_client.simulator.memory_core import MemoryCore, MemoryStream


class _Httpx2MemoryStream(MemoryStream, httpx2.AsyncByteStream):
    read_error = httpx2.ReadError
    protocol_error = httpx2.RemoteProtocolError
    read_timeout = httpx2.ReadTimeout


class Httpx2MemoryTransport(MemoryCore, httpx2.AsyncBaseTransport):
    """The transport for httpx2.AsyncClient."""

    response = httpx2.Response
    stream = _Httpx2MemoryStream
