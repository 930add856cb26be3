"""The servers of an endpoint as one target: which of them a call goes to, requests sent again, conversations they keep."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.choices import UrlStrategy
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.fault import FaultKind
from llmirage_client.targets.reply import ReplyReader
from llmirage_client.targets.target import Call, EndpointTarget, TransportUse

# The statuses, the first pause and its limit are those of the OpenAI SDK.
_STATUSES = frozenset({408, 409, 429})
_SERVER_ERRORS = 500
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_LONGEST_ASKED_S = 60.0  # a server that asks for a longer pause does not want us back in this run

_FAULTS = frozenset({
    FaultKind.REFUSED, FaultKind.CONNECT, FaultKind.CONNECT_TIMEOUT, FaultKind.RESET, FaultKind.CLOSED,
})  # fmt: skip

KEY = "conversation"  # of a body: our name for the conversation until it has the server's


class ServersTarget:
    """Servers of one kind, as one target.

    round_robin: each call to the next. sticky: all calls of a conversation, and
    of its forks, to one; the conversations take turns. exchange.url says which of several servers it was.

    A call is sent up to `retries` more times: after a failed connection and after HTTP 408, 409, 429 or 5xx. Nothing is sent
    again once a token of the reply came. Between two attempts lies what the server asked for (Retry-After), or half a
    second, doubled each time up to 8 s, less up to a quarter by lot. The exchange is the last attempt's, but starts with the
    first: time lost by failures is in all its latencies.

    keeps_conversations: the server's id of a conversation takes the place of ours. Making a conversation is no part of the
    request that is measured; where it fails, its failure is the request's.
    """

    def __init__(
        self,
        targets: Sequence[tuple[str, EndpointTarget]],
        strategy: UrlStrategy = "round_robin",
        retries: int = 0,
        keeps_conversations: bool = False,
    ) -> None:
        """targets: with their URLs, at least one."""
        self._targets = targets
        self._turns = itertools.cycle(range(len(targets)))
        self._sticky = strategy == "sticky"
        self._place_of: dict[str, int] = {}  # by affinity
        self._retries = retries
        self._keeps_conversations = keeps_conversations
        self._ids: dict[str, str] = {}  # the server's, by ours

    def now(self) -> float:
        return self._targets[0][1].now()

    async def send(self, call: Call) -> Exchange:
        own_id = call.body.get(KEY) if self._keeps_conversations else None
        if isinstance(own_id, str) and isinstance(call.body, dict):
            if own_id not in self._ids:
                made = await self._tried(_creation(call))
                if made.error is not None or made.response_id is None:
                    return made
                self._ids[own_id] = made.response_id
            call.body[KEY] = self._ids[own_id]
        return await self._tried(call)

    async def get(self, path: str, from_root: bool = False) -> tuple[int, bytes]:
        """Ask the first server: they are of the same kind."""
        return await self._targets[0][1].get(path, from_root)

    def uses(self) -> list[TransportUse]:
        return [use for _, target in self._targets for use in target.uses()]

    async def close(self) -> None:
        for _, target in self._targets:
            await target.close()

    async def _tried(self, call: Call) -> Exchange:
        first = exchange = await self._sent(call)
        lots: random.Random | None = None
        for attempt in range(1, self._retries + 1):
            if not worth_retrying(exchange):
                break
            lots = lots or random.Random(call.headers.get("X-Request-ID"))
            await asyncio.sleep(_pause_s(exchange, attempt, lots))
            if exchange.status is None and not self._keeps_conversations:
                self._place_of.pop(call.affinity_id, None)  # it cannot be reached: perhaps another one can
            exchange = await self._sent(call)
            exchange.retries = attempt
        exchange.start_s = first.start_s
        return exchange

    async def _sent(self, call: Call) -> Exchange:
        url, target = self._targets[self._place(call)]
        exchange = await target.send(call)
        if len(self._targets) > 1:
            exchange.url = url
        return exchange

    def _place(self, call: Call) -> int:
        if not self._sticky:
            return next(self._turns)
        place = self._place_of.get(call.affinity_id)
        if place is None:
            place = self._place_of[call.affinity_id] = next(self._turns)
        return place


def worth_retrying(exchange: Exchange) -> bool:
    """Return whether another attempt may succeed."""
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


class _Created(ReplyReader):
    may_be_empty = True

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self.response_id = value.get("id")
        self._note_arrival(stamp_s, True)


def _creation(call: Call) -> Call:
    headers = {**call.headers, "Accept": "application/json"}
    return Call("/conversations", {}, headers, stream=False, new_reply=_Created, api=call.api, affinity_id=call.affinity_id)
