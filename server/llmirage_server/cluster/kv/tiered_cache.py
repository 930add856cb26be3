"""A KV cache backed by offload tiers, from which KV can be loaded again.

A prompt that has more in the tiers than on the GPU is loaded before it is admitted, as in vLLM (WAITING_FOR_REMOTE_KVS): the
sequence leaves the queue for the time of the load and holds pages for the loaded KV, while others continue. Loaded KV is in
the radix tree like all other; the sequence returns to the head of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from llmirage_server.cluster.kv.cache import KVCache, KVLoad
from llmirage_server.cluster.kv.offload import Part, Tier, TierSpec, make_tiers
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.sequence import Sequence
from llmirage_server.cluster.snapshots import TierSnapshot

_LEAST_LOAD_TOKENS = 10  # a shorter gain is not loaded: SGLang's load_back_threshold


def make_kv_cache(limits: EngineLimits, tiers: Seq[TierSpec | Tier], kv_bytes_per_token: float) -> KVCache:
    """Return a cache with those tiers, the nearest first. Raises ValueError if they cannot work."""
    return TieredKVCache(limits, tiers, kv_bytes_per_token) if tiers else KVCache(limits)


class TieredKVCache(KVCache):
    """A KV cache that writes through to offload tiers and loads from them."""

    tiered = True

    def __init__(self, limits: EngineLimits, tiers: Seq[TierSpec | Tier], kv_bytes_per_token: float) -> None:
        """Create the tiers, given nearest first. Raises ValueError if they cannot work."""
        if not limits.enable_prefix_caching:
            raise ValueError("KV offload needs prefix caching: it remembers prefixes")
        super().__init__(limits)
        self._tiers = make_tiers(tiers, kv_bytes_per_token, limits.page_size, self.capacity_tokens)
        self._hit_tokens = [0] * len(tiers)  # found in each
        self._loaded_tokens = [0] * len(tiers)

    def insert(self, sequence: Sequence) -> None:
        """Insert the computed tokens, in whole pages, into the tree, and write those missing in the tiers to them."""
        before = sequence.in_tree
        super().insert(sequence)
        if sequence.in_tree == before:
            return
        starts = sequence.stored or [0] * len(self._tiers)
        sequence.stored = [
            tier.write(sequence.key, start, sequence.in_tree, self.now_s)
            for tier, start in zip(self._tiers, starts, strict=True)
        ]

    def clear(self) -> None:
        """Drop everything here and in the tiers, whose index lives in the engine's process; a shared store is kept."""
        for load in self.loading.values():
            for tier, node, _, _ in load.parts:
                tier.unlock(node)
        super().clear()
        for tier in self._tiers:
            if not tier.shared:
                tier.clear()

    def forget_idle(self) -> None:
        super().forget_idle()
        for tier in self._tiers:
            tier.forget_idle()

    def start_load(self, sequence: Sequence) -> bool:
        key, most = sequence.key, sequence.tokens - 1
        here = self.tree.match(key, most)
        if most - here < max(_LEAST_LOAD_TOKENS, self.page_size):
            return False
        next_page = (here + self.page_size) * TOKEN_BYTES
        for other, load in self.loading.items():
            if load.end > here and other.key[:next_page] == key[:next_page]:
                self.loading[sequence] = KVLoad(load.ready_s, 0, [])
                return True
        self.acquire(sequence)
        parts = self._find(key, most, sequence.in_tree)
        end = parts[-1][3] if parts else here
        if end - here < _LEAST_LOAD_TOKENS or not self.fits(sequence, sequence.tokens):
            for tier, node, _, _ in parts:
                tier.unlock(node)
            self.release(sequence)
            return False
        self.allocate(sequence, end - here)
        ready_s = max(tier.read_s(to - start, self.now_s) for tier, _, start, to in parts)
        for tier, _, start, to in parts:
            self._hit_tokens[self._tiers.index(tier)] += to - start
        sequence.request.external_tokens = end - here
        self.loading[sequence] = KVLoad(ready_s, end, parts)
        return True

    def take_loaded(self) -> list[Sequence]:
        loaded = [sequence for sequence, load in self.loading.items() if load.ready_s <= self.now_s]
        for sequence in loaded:
            load = self.loading.pop(sequence)
            for tier, node, start, end in load.parts:
                tier.unlock(node)
                at = self._tiers.index(tier)
                self._loaded_tokens[at] += end - start
                for above in self._tiers[:at]:  # it has passed through there
                    above.insert(sequence.key, start, end)
            if load.parts:
                self.insert(sequence)
                self.release(sequence)
        return loaded

    def stop_load(self, sequence: Sequence) -> bool:
        load = self.loading.pop(sequence, None)
        if load is None:
            return False
        for tier, node, _, _ in load.parts:
            tier.unlock(node)
        if load.parts:
            self.release(sequence)
        return True

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        counted = zip(self._tiers, self._hit_tokens, self._loaded_tokens, strict=True)
        return tuple(tier.snapshot(hits, loaded) for tier, hits, loaded in counted)

    def _find(self, key: bytes, tokens: int, here: int) -> list[Part]:
        """Return the parts of the first `tokens` of `key` that the tiers have beyond `here`, the nearest tier first."""
        parts = []
        for tier in self._tiers:
            node, found = tier.lock(key, tokens, self.now_s)
            if found > here:
                parts.append((tier, node, here, found))
                here = found
            else:
                tier.unlock(node)
        return parts
