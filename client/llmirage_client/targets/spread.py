"""One workload over several servers of the same kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from llmirage_client.choices import UrlStrategy
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.target import Askable, Call


class SpreadTarget:
    """round_robin: each call to the next server. sticky: all calls of a conversation, and of its forks, to one; the
    conversations take turns. exchange.url says which server it was.
    """

    def __init__(self, targets: Sequence[tuple[str, Askable]], strategy: UrlStrategy) -> None:
        """targets: with their URLs, at least one."""
        self._targets = targets
        self._turns = itertools.cycle(range(len(targets)))
        self._sticky = strategy == "sticky"
        self._place_of: dict[str, int] = {}  # by affinity

    def now(self) -> float:
        return self._targets[0][1].now()

    async def send(self, call: Call) -> Exchange:
        url, target = self._targets[self._place(call)]
        exchange = await target.send(call)
        exchange.url = url
        return exchange

    async def get(self, path: str) -> tuple[int, bytes]:
        """Asks the first server: they are of the same kind."""
        return await self._targets[0][1].get(path)

    async def close(self) -> None:
        for _, target in self._targets:
            await target.close()

    def _place(self, call: Call) -> int:
        if not self._sticky:
            return next(self._turns)
        place = self._place_of.get(call.affinity_id)
        if place is None:
            place = self._place_of[call.affinity_id] = next(self._turns)
        return place
