"""The KV memory of one instance, whose capacity is shared by running sequences and the prefix cache.

Of a sequence's computed tokens, the first `in_tree` live in the radix tree, locked and shared with sequences of the same
prefix; the rest are private blocks. So the memory in use is exactly `tree.total_tokens + private_tokens`.

A prompt becomes visible to others chunk by chunk, at the end of the step that computes the chunk. Generated tokens follow
when the sequence finishes or is preempted. The last token of a reply is cached with the others if there is room: engines
compute its KV with the next turn, which makes that turn's prefill one token longer than here.

With offload tiers, a prompt that has more there than on the GPU is loaded before it is admitted, as in vLLM
(WAITING_FOR_REMOTE_KVS): the sequence leaves the queue for the time of the load and holds pages for the loaded KV, while
others continue. Loaded KV is in the radix tree like all other; the sequence returns to the head of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from llmirage_server.cluster.kv.offload import Part, Tier, TierSpec, make_tiers
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES, RadixTree
from llmirage_server.cluster.kv.recorded_tree import BlockHasher, KVChange, RecordedTree
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Sequence
from llmirage_server.cluster.snapshots import TierSnapshot


@dataclass(slots=True, eq=False)
class KVLoad:
    """A load of KV from the offload tiers; without parts or pages if it only waits for that of another sequence."""

    ready_s: float
    end: int  # in tokens of the key
    parts: list[Part]


class KVCache:
    """Accounting of KV memory in tokens, in whole pages. Nothing here raises: a request that does not fit returns False.

    `TieredKVCache` adds offload tiers, from which KV can be loading. `now_s` is the start or end of the present step, for
    their links; the caller sets it.
    """

    tiered = False  # is there KV that could be loaded?

    def __init__(self, limits: EngineLimits) -> None:
        self.page_size = limits.page_size
        self.capacity_tokens = limits.kv_capacity_tokens
        self.prefix_caching = limits.enable_prefix_caching
        self.tree: RadixTree = RadixTree(limits.page_size)
        self.private_tokens = 0  # in whole blocks of sequences that are not in the tree
        self.changes = 0  # incremented whenever a sequence that did not fit might fit now
        self.now_s = 0.0
        self.loading: dict[Sequence, KVLoad] = {}  # in the order in which they left the queue

    @property
    def free_tokens(self) -> int:
        """Capacity that is neither used nor cached."""
        return self.capacity_tokens - self.tree.total_tokens - self.private_tokens

    @property
    def room_tokens(self) -> int:
        """Capacity that is free, or could be by evicting."""
        return self.capacity_tokens - self.private_tokens - self.tree.locked_tokens

    @property
    def used_tokens(self) -> int:
        """Tokens held by sequences, shared prefixes counted once; cached prefixes without users are not in use."""
        return self.tree.locked_tokens + self.private_tokens

    def match(self, key: bytes) -> int:
        """Return the number of leading tokens of `key` whose KV is here, without changing anything."""
        return self.tree.match(key) if self.prefix_caching else 0

    def acquire(self, sequence: Sequence) -> None:
        """Start a sequence from its longest cached prefix. At least one token is always left to compute."""
        if self.prefix_caching:
            sequence.node, sequence.in_tree = self.tree.lock(sequence.key, sequence.tokens - 1)
        sequence.computed = sequence.in_tree

    def fits(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether the sequence could hold `tokens` tokens now, if everything unlocked were evicted."""
        page = self.page_size
        needed = (-(-tokens // page) - -(-sequence.computed // page)) * page
        return needed <= self.capacity_tokens - self.private_tokens - self.tree.locked_tokens

    def allocate(self, sequence: Sequence, new_tokens: int) -> bool:
        """Allocate KV for the next `new_tokens` and count them as computed; return False if there is no room."""
        before, page = sequence.computed, self.page_size
        computed = before + new_tokens
        pages = -(-computed // page) - -(-before // page)
        if pages and not self.take(pages * page):
            return False
        sequence.computed = computed
        return True

    def allocate_one_each(self, sequences: list[Sequence]) -> bool:
        """Allocate one token for all of them at once, or for none."""
        page = self.page_size
        pages = len(sequences) if page == 1 else sum(1 for sequence in sequences if not sequence.computed % page)
        if not self.take(pages * page):
            return False
        for sequence in sequences:
            sequence.computed += 1
        return True

    def allocate_each(self, sequences: list[Sequence], new_tokens: list[int]) -> bool:
        """Allocate the given tokens for all of them at once, or for none."""
        page = self.page_size
        if page == 1:
            needed = sum(new_tokens)
        else:
            needed = sum(
                (-(-(sequence.computed + tokens) // page) - -(-sequence.computed // page)) * page
                for sequence, tokens in zip(sequences, new_tokens, strict=True)
            )
        if not self.take(needed):
            return False
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            sequence.computed += tokens
        return True

    def retreat(self, sequence: Sequence, tokens: int) -> None:
        """Free the KV of the last `tokens` computed ones, which are not in the tree: rejected draft tokens."""
        computed = sequence.computed - tokens
        given_back = self._pages(sequence.computed) - self._pages(computed)
        sequence.computed = computed
        if given_back:
            self.private_tokens -= given_back
            self.changes += 1

    def insert(self, sequence: Sequence) -> None:
        """Insert the computed tokens, in whole pages, into the tree. Tokens already there are stored once."""
        computed = sequence.computed - sequence.computed % self.page_size
        if sequence.node is None or computed == sequence.in_tree:
            return
        sequence.node = self.tree.extend_to(sequence.node, sequence.key, sequence.in_tree, computed)
        self.private_tokens -= computed - sequence.in_tree
        sequence.in_tree = computed
        self.changes += 1

    def finish(self, sequence: Sequence) -> None:
        """Cache all tokens of a finished sequence and release it. Nothing is evicted for its last token."""
        computed, page, tree = sequence.computed, self.page_size, self.tree
        free_tokens = self.capacity_tokens - tree.total_tokens - self.private_tokens
        if self.prefix_caching and computed == sequence.max_tokens - 1 and free_tokens >= page:
            if computed % page == 0:
                self.private_tokens += page
            sequence.computed = computed = computed + 1
        node = sequence.node
        if self.tiered or node is None:
            self.insert(sequence)
            self.release(sequence)
            return
        in_tree = sequence.in_tree
        tree.finish(node, sequence.key, in_tree, computed)
        self.private_tokens -= -(-computed // page) * page - in_tree
        sequence.node, sequence.in_tree, sequence.computed = None, 0, 0
        self.changes += 1

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's private blocks and unlock its part of the tree, which may be evicted from now on."""
        page = self.page_size
        self.private_tokens -= -(-sequence.computed // page) * page - sequence.in_tree
        if sequence.node is not None:
            self.tree.unlock(sequence.node)
        sequence.node, sequence.in_tree, sequence.computed = None, 0, 0
        sequence.stored = None
        self.changes += 1

    def clear(self) -> None:
        """Drop all KV, as in a crash."""
        self.tree = self.tree.emptied()
        self.private_tokens = 0
        self.loading.clear()
        self.changes += 1

    def record(self, hasher: BlockHasher, changed: Callable[[KVChange], None]) -> None:
        """Tell `changed` from now on which blocks come and go. The cache must be empty."""
        self.tree = RecordedTree(self.page_size, hasher, changed)

    def forget_idle(self) -> None:
        """Evict everything that no sequence uses."""
        self.tree.evict(self.tree.evictable_tokens)
        self.changes += 1

    # --- offload tiers, of which there are none here ---

    @property
    def next_load_s(self) -> float:
        """Time at which the next load ends; inf if nothing is loading."""
        return min((load.ready_s for load in self.loading.values()), default=math.inf)

    def start_load(self, sequence: Sequence) -> bool:
        """Start loading what the tiers have of a waiting sequence beyond the GPU's; return True if it is on its way.

        False if there is too little to load, or no room for the whole prompt.
        """
        return False

    def take_loaded(self) -> list[Sequence]:
        """Remove and return the sequences whose loads have ended by now, in the order in which they left the queue."""
        return []

    def stop_load(self, sequence: Sequence) -> bool:
        """Cancel the load of a cancelled sequence; return False if it has none. The link stays occupied."""
        return False

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        """Return the state of the offload tiers, the nearest first."""
        return ()

    # --- pages ---

    def _pages(self, tokens: int) -> int:
        """Return `tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def take(self, tokens: int) -> bool:
        """Take `tokens` tokens in whole pages for sequences, evicting as needed; return False if there is no room."""
        tree = self.tree
        missing = tokens - (self.capacity_tokens - tree.total_tokens - self.private_tokens)
        if missing > 0:
            if missing > tree.total_tokens - tree.locked_tokens:
                return False
            tree.evict(missing)
        self.private_tokens += tokens
        return True


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
