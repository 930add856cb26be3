"""Sending again what failed before any of the reply was there."""

from __future__ import annotations

import asyncio
import random

from llmirage_client.measure.record import Exchange
from llmirage_client.targets.fault import FaultKind
from llmirage_client.targets.target import Askable, Call

# The statuses, the first pause and its limit are those of the OpenAI SDK.
_STATUSES = frozenset({408, 409, 429})
_SERVER_ERRORS = 500
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_LONGEST_ASKED_S = 60.0  # a server that asks for a longer pause does not want us back in this run

_FAULTS = frozenset({
    FaultKind.REFUSED, FaultKind.CONNECT, FaultKind.CONNECT_TIMEOUT, FaultKind.RESET, FaultKind.CLOSED,
})  # fmt: skip


class RetryingTarget:
    """Sends a call up to `retries` more times: after a failed connection and after HTTP 408, 409, 429 or 5xx.

    Nothing is sent again once a token of the reply came. Between two attempts lies what the server asked for (Retry-After),
    or half a second, doubled each time up to 8 s, less up to a quarter by lot. The exchange is the last attempt's, but
    starts with the first: time lost by failures is in all its latencies.
    """

    def __init__(self, target: Askable, retries: int) -> None:
        self._target = target
        self._retries = retries

    def now(self) -> float:
        return self._target.now()

    async def send(self, call: Call) -> Exchange:
        first = exchange = await self._target.send(call)
        lots = random.Random(call.headers.get("X-Request-ID"))
        for attempt in range(1, self._retries + 1):
            if not worth_retrying(exchange):
                break
            await asyncio.sleep(_pause_s(exchange, attempt, lots))
            exchange = await self._target.send(call)
            exchange.retries = attempt
        exchange.start_s = first.start_s
        return exchange

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._target.get(path)

    async def close(self) -> None:
        await self._target.close()


def worth_retrying(exchange: Exchange) -> bool:
    error = exchange.error
    if error is None or exchange.token_s or (exchange.retry_after_s or 0.0) > _LONGEST_ASKED_S:
        return False
    status = exchange.status
    if status is None or status == 200:
        return status is None and error.type in _FAULTS
    return status in _STATUSES or status >= _SERVER_ERRORS


def _pause_s(exchange: Exchange, attempt: int, lots: random.Random) -> float:
    if exchange.retry_after_s is not None:
        return exchange.retry_after_s
    return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S) * lots.uniform(0.75, 1.0)
