"""Room for KV that is to come: until the decode instance has it, what was handed over stays on the prefill side.

vLLM's NIXL connector pulls KV into blocks that the decode instance has allocated; SGLang and TensorRT-LLM allocate there
before they send, too. So decode instances that are full make the prefill instances fill up, and wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.request import Request


def travelling_tokens(request: Request) -> int:
    """The KV of a request that was handed over: all but that of its last token."""
    return len(request.prompt) + request.produced - 1


class KVAdmission:
    """Requests that wait for room on a decode instance, in order, and those for whom there is room."""

    def __init__(self, instances: Sequence[InstanceBase]) -> None:
        self._instances = instances
        self._waiting: list[dict[Request, None]] = [{} for _ in instances]  # by decode instance
        # From when there is room until the first token there, when the instance itself counts it; and the tokens before.
        self._coming: list[dict[Request, int]] = [{} for _ in instances]

    def wait(self, request: Request, target: int) -> None:
        self._waiting[target][request] = None

    def admit(self, target: int) -> Request | None:
        """The next request whose KV may travel to an instance; None if nobody waits or there is no room for the first."""
        waiting, coming = self._waiting[target], self._coming[target]
        for request in [each for each, produced in coming.items() if each.produced > produced or each.cancelled]:
            del coming[request]
        if not waiting:
            return None
        instance = self._instances[target]
        request = next(iter(waiting))
        if instance.memory_limits:
            page = instance.limits.page_size
            needed = sum(-(-travelling_tokens(each) // page) * page for each in (request, *coming))
            if instance.kv_used_tokens + needed > instance.kv_total_tokens:
                return None
        del waiting[request]
        coming[request] = request.produced
        return request

    def drop(self, request: Request) -> None:
        for waiting, coming in zip(self._waiting, self._coming, strict=True):
            waiting.pop(request, None)
            coming.pop(request, None)

    def lose(self, target: int) -> list[Request]:
        """Forget an instance; return who waited for room there."""
        waiting = list(self._waiting[target])
        self._waiting[target].clear()
        self._coming[target].clear()
        return waiting

    def waits(self, target: int) -> bool:
        return bool(self._waiting[target])
