"""An ASGI app in this process behind an httpx client: the whole protocol, streamed, without sockets.

    async with httpx.AsyncClient(transport=MemoryTransport(create_app()), base_url="http://llmirage") as client: ...

On a loop of virtual time (`llmirage_shared.virtual_time.run`) it takes no time either: requests reach the app in the order
in which they were sent, each before the next, so that a run is repeatable to the last bit. httpx's own ASGITransport returns
a reply only when it is complete. The same transport for httpx2 is in memory_httpx2.
"""

from __future__ import annotations

import httpx

from llmirage_client.simulator.memory_core import MemoryCore, MemoryStream
from llmirage_client.targets.wire import TimedStream


class _HttpxMemoryStream(MemoryStream, TimedStream):
    read_error = httpx.ReadError
    protocol_error = httpx.RemoteProtocolError
    read_timeout = httpx.ReadTimeout


class MemoryTransport(MemoryCore, httpx.AsyncBaseTransport):
    """The transport for httpx.AsyncClient."""

    response = httpx.Response
    stream = _HttpxMemoryStream
