"""The body of a reply, with the times at which its bytes came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from llmirage_client.targets.fault import Fault, FaultKind, as_exception, fault_of
from llmirage_shared.virtual_time import wake

MOST_REPLY_BYTES = 64 << 20
_SEGMENT_BYTES = 128  # of memory beside its bytes: a tuple, a float, the object of the bytes


def too_long(what: str, most_bytes: int) -> Fault:
    """Return the fault of a reply with more bytes than allowed."""
    return Fault(FaultKind.PROTOCOL, f"{what} more than {most_bytes >> 20} MiB")


class TimedStream:
    """The body of a response of httpx, for a reader who wants times: `collect` waits for the end without waking before it.

    headers: as they came. headers_s: arrival of their last byte, in seconds on the run's clock. segments: (arrival, bytes)
    of the body, oldest first. end_s: arrival of the last byte; None before that. fault: why the body ended before its end.
    most_bytes: of memory that the body may take, what is kept beside its bytes included; longer ones end with a fault.
    A subclass fills them, and is an AsyncByteStream of its `library`, too. Iterating gives the bytes as they come, as httpx
    wants it; read_s limits a silence then.
    """

    library: ClassVar[Any]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.headers_s = 0.0
        self.segments: list[tuple[float, bytes]] = []
        self.end_s: float | None = None
        self.fault: Fault | None = None
        self.most_bytes = MOST_REPLY_BYTES
        self._loop = loop
        self.read_s: float | None = None
        self._for_end = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def body_s(self) -> float | None:
        """Arrival of the first bytes of the body, once it has ended; None for streams that do not stamp a socket's reads."""
        return None

    async def collect(self) -> None:
        """Return at the end. A body that failed has a `fault` beside the segments that arrived."""
        while self.end_s is None:
            await self._wait(for_end=True)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self.read_s):
                    while self.end_s is None and not self.segments:
                        await self._wait(for_end=False)
            except TimeoutError:
                raise as_exception(Fault(FaultKind.TIMEOUT, f"nothing came for {self.read_s:g} s"), self.library) from None
            if not self.segments:
                if self.fault is not None:
                    raise as_exception(self.fault, self.library)
                return
            data = b"".join([piece for _, piece in self.segments])
            self.segments.clear()
            yield data

    def _excess(self, received: int) -> Fault | None:
        """Return the fault of a body that takes more memory than it may. received: its bytes so far."""
        if received + _SEGMENT_BYTES * len(self.segments) <= self.most_bytes:
            return None
        return too_long("the reply has", self.most_bytes)

    async def _wait(self, for_end: bool) -> None:
        """Return when something has come; for_end: only at the end."""
        self._for_end = for_end
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)


class StampedStream(TimedStream):
    """The body of any other transport's response: each piece has the time at which the transport handed it over."""

    def __init__(self, response: Any, clock: Callable[[], float]) -> None:
        """response: one that came just now."""
        super().__init__(asyncio.get_running_loop())
        self.headers = response.headers.raw
        self.headers_s = clock()
        self._stream = response.stream
        self._clock = clock

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece

    async def collect(self) -> None:
        received = 0
        try:
            async for piece in self._stream:
                self.segments.append((self._clock(), piece))
                received += len(piece)
                if (excess := self._excess(received)) is not None:
                    self.fault = excess
                    break
        except Exception as error:
            self.fault = fault_of(error, "the endpoint", begun=True)
        self.end_s = self._clock()

    async def aclose(self) -> None:
        await self._stream.aclose()
