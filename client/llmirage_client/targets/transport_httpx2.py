"""The transport for httpx2, the successor of httpx whose classes share no base with it. Imports httpx2, which is optional.

client = openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=Httpx2LeanTransport()))
"""

from __future__ import annotations

import httpx2

from llmirage_client.targets.transport import BodyStream, TransportCore, exceptions_of


class _Httpx2Stream(BodyStream, httpx2.AsyncByteStream):
    exceptions = exceptions_of(httpx2)


class Httpx2LeanTransport(TransportCore, httpx2.AsyncBaseTransport):
    """The transport for httpx2.AsyncClient."""

    response = httpx2.Response
    stream = _Httpx2Stream
    exceptions = exceptions_of(httpx2)
