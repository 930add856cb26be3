"""The transport to an app in this process for httpx2, whose classes share no base with httpx's. Imports httpx2: optional.

client = openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=MemoryTransport(create_app())))
"""

from __future__ import annotations

import httpx2

from llmirage_client.simulator.memory import MemoryCore, MemoryStream
from llmirage_client.targets.transport import exceptions_of


class _Httpx2Stream(MemoryStream, httpx2.AsyncByteStream):
    exceptions = exceptions_of(httpx2)


class MemoryTransport(MemoryCore, httpx2.AsyncBaseTransport):
    """The transport for httpx2.AsyncClient."""

    response = httpx2.Response
    stream = _Httpx2Stream
    exceptions = exceptions_of(httpx2)
