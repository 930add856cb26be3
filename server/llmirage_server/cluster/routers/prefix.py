"""Routing by what the router itself has sent where."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.radix_tree import token_bytes
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.base import load, out_of_balance
from llmirage_server.cluster.routers.load import LeastLoaded
from llmirage_server.cluster.routers.prefix_index import PrefixIndex

# SGLang's cache_threshold (sgl-project/sglang, sgl-model-gateway; default of its command line).
_MATCHED_SHARE = 0.3


class Prefix(LeastLoaded):
    """Where most of the prompt was sent before, if that is more than 0.3 of it; else the least load.

    The rule of SGLang's cache-aware router (sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs): it asks no
    instance what is cached but keeps a tree of its own of what it has sent where, within what the memory of each can hold.
    Of several instances with an equally long match, the least loaded is taken. When one instance has more than 64 requests
    more and over 1.5 times as many as another, the least load decides alone.

    Replies are learnt with their prompts, when the request is sent: nobody can ask to go on from a reply before it exists.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._index = PrefixIndex()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        prompt = token_bytes(request.prompt)
        position = self._by_prefix(prompt, instances)
        if position is None:
            position = super().choose(request, instances)
        chosen = instances[position]
        self._index.insert(prompt + token_bytes(request.output), chosen.index, chosen.kv_total_tokens)
        return position

    def forget(self, index: int) -> None:
        self._index.forget(index)

    def _by_prefix(self, prompt: bytes, instances: Sequence[InstanceBase]) -> int | None:
        if out_of_balance(instances):
            return None
        positions = {instance.index: i for i, instance in enumerate(instances)}
        matched_bytes, found = self._index.longest(prompt, positions)
        if matched_bytes <= _MATCHED_SHARE * len(prompt):
            return None
        return min((positions[index] for index in found), key=lambda i: (load(instances[i]), i))
