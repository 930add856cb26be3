"""Sessions that stay where they began."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.base import position_of
from llmirage_server.cluster.routers.load import LeastLoaded

_REMEMBERED_SESSIONS = 100_000


class SessionAffinity(LeastLoaded):
    """Requests of one session key stay together, where the least load put the first; without a key, the least load.

    A session whose instance takes no requests any more is placed anew, and stays there.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._placed: OrderedDict[str, int] = OrderedDict()  # index by session key, least recently used first

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        key = request.session_key
        if key is None:
            return super().choose(request, instances)
        index = self._placed.get(key, -1)
        position = position_of(index, instances)
        if position == len(instances) or instances[position].index != index:
            position = super().choose(request, instances)
            self._placed[key] = instances[position].index
            if len(self._placed) > _REMEMBERED_SESSIONS:
                self._placed.popitem(last=False)
        self._placed.move_to_end(key)
        return position
