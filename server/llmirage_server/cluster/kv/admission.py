"""Reservation of KV memory on decode instances: until the KV has arrived there, the prefill instance keeps it.

vLLM's NIXL connector pulls KV into blocks that the decode instance has allocated; SGLang and TensorRT-LLM allocate there
before they send, too. So decode instances that are full make the prefill instances fill up and wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request


def travelling_tokens(request: Request) -> int:
    """Return the tokens of KV that a handed-over request transfers: all but its last token."""
    return request.prompt_tokens + request.produced - 1


class KVAdmission:
    """Queues of requests that wait for room on each decode instance, and the room reserved for transfers."""

    def __init__(self, instances: Sequence[InstanceBase]) -> None:
        self._instances = instances
        self._rooms = [_Room() for _ in instances]

    def wait(self, request: Request, target: int) -> None:
        self._rooms[target].waiting[request] = None

    def admit(self, target: int, now: float) -> Request | None:
        """Return the next request whose KV may be sent to an instance; None if none waits or the first does not fit."""
        room, instance = self._rooms[target], self._instances[target]
        if not room.waiting:
            return None
        request = next(iter(room.waiting))
        page = instance.limits.page_size
        tokens = -(-travelling_tokens(request) // page) * page
        instance.sync_to(now)
        if instance.memory_limits and instance.kv_used_tokens + room.reserved() + tokens > instance.kv_total_tokens:
            return None
        del room.waiting[request]
        room.travelling[request] = tokens
        room.travelling_tokens += tokens
        return request

    def arrive(self, request: Request, target: int) -> None:
        """Note that the KV has arrived.

        The instance counts it once it has admitted the request, at the latest with its first token.
        """
        room = self._rooms[target]
        tokens = room.travelling.pop(request)
        room.travelling_tokens -= tokens
        room.arrived[request] = request.produced, tokens

    def drop(self, request: Request) -> None:
        for room in self._rooms:
            room.waiting.pop(request, None)
            room.travelling_tokens -= room.travelling.pop(request, 0)
            room.arrived.pop(request, None)

    def lose(self, target: int) -> list[Request]:
        """Forget an instance; return the requests that waited for room there."""
        room, self._rooms[target] = self._rooms[target], _Room()
        return list(room.waiting)

    def waits(self, target: int) -> bool:
        return bool(self._rooms[target].waiting)


class _Room:
    """Waiting and reserved transfers of one decode instance. Tokens are in whole pages."""

    def __init__(self) -> None:
        self.waiting: dict[Request, None] = {}
        self.travelling: dict[Request, int] = {}  # and the tokens of each
        self.travelling_tokens = 0
        self.arrived: dict[Request, tuple[int, int]] = {}  # tokens each had produced, and its KV tokens

    def reserved(self) -> int:
        """Return the tokens that will be held but are not yet."""
        for request in [each for each, (produced, _) in self.arrived.items() if each.produced > produced or each.cancelled]:
            del self.arrived[request]
        return self.travelling_tokens + sum(tokens for _, tokens in self.arrived.values())
