"""The KV memory of one instance: what running sequences hold and what the radix tree remembers share one capacity.

Of a sequence's computed tokens, the first `in_tree` live in the radix tree, locked and shared with whoever has the same
prefix; the rest are its own pages. So the memory in use is exactly `tree.total_tokens + own_tokens`.

A prompt becomes visible to others chunk by chunk, at the end of the step that computes the chunk. Generated tokens
follow when the sequence finishes or is preempted. The last token of a reply is remembered with the others, if there is
room: engines compute its KV with the next turn, which makes that turn's prefill one token longer than ours.

With offload tiers, a prompt that has more there than here is loaded before it is admitted, as vLLM does it
(WAITING_FOR_REMOTE_KVS): the sequence leaves the queue for the time of the load and holds pages for what comes, while
others go on. What has come is in the radix tree like everything else; the sequence returns to the head of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from llmirage_server.cluster.instance_base import TierSnapshot
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.offload import Tier, TierSpec, make_tiers
from llmirage_server.cluster.radix_tree import TOKEN_BYTES, Node, RadixTree, token_bytes
from llmirage_server.cluster.request import Request

_LEAST_LOAD_TOKENS = 10  # a shorter gain is not loaded: SGLang's load_back_threshold


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on an instance: `computed` of its `tokens` known tokens (prompt and produced ones) have their KV.

    While a step is in flight, `computed` already counts what the step computes.
    """

    request: Request
    key: bytes  # of the prompt and the whole output
    prompt_tokens: int
    max_tokens: int  # prompt and output
    tokens: int
    node: Node | None = field(default=None, init=False)  # where its part of the tree ends, locked
    in_tree: int = field(default=0, init=False)
    computed: int = field(default=0, init=False)
    expected: int = field(default=0, init=False)  # tokens that its scheduler counts on at most, for a reservation of memory
    stored: list[int] = field(default_factory=list, init=False)  # how far each offload tier has it, or will have it

    @classmethod
    def of(cls, request: Request) -> Sequence:
        prompt_tokens = len(request.prompt)
        return cls(
            request=request,
            key=token_bytes(request.prompt) + token_bytes(request.output),
            prompt_tokens=prompt_tokens,
            max_tokens=prompt_tokens + len(request.output),
            tokens=prompt_tokens + request.produced,
        )


@dataclass(slots=True, eq=False)
class _Load:
    """KV on its way from the tiers. One that only waits for that of another sequence has no parts and no pages."""

    ready_s: float
    end: int  # in tokens of the key
    parts: list[tuple[Tier, Node, int, int]]  # what each tier gives: its locked end there, and the tokens from and to


class KVCache:
    """Accounts for KV memory in tokens, in whole pages. Nothing here raises: what does not fit is answered with False.

    `now_s` is the time of the present step's start or end; whoever calls sets it, for the links of the offload tiers.
    """

    def __init__(self, limits: EngineLimits, tiers: Seq[TierSpec] = (), kv_bytes_per_token: float = 0.0) -> None:
        """tiers: host first, then disk. Raises ValueError if they cannot work."""
        if tiers and not limits.enable_prefix_caching:
            raise ValueError("KV offload needs prefix caching: it remembers prefixes")
        self.page_size = limits.page_size
        self.capacity_tokens = limits.kv_capacity_tokens
        self.prefix_caching = limits.enable_prefix_caching
        self.tree = RadixTree(limits.page_size)
        self.own_tokens = 0  # pages of sequences that are not in the tree
        self.changes = 0  # grows whenever what did not fit before might fit now
        self.now_s = 0.0
        self.loading: dict[Sequence, _Load] = {}  # in the order in which they left the queue
        self._tiers = make_tiers(tiers, kv_bytes_per_token, limits.page_size, self.capacity_tokens)

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.tree.total_tokens - self.own_tokens

    @property
    def used_tokens(self) -> int:
        """Held by sequences, shared prefixes counted once; what is merely remembered is not in use."""
        return self.tree.locked_tokens + self.own_tokens

    def match(self, key: bytes) -> int:
        """Leading tokens of `key` whose KV is here. Changes nothing."""
        return self.tree.match(key) if self.prefix_caching else 0

    def acquire(self, sequence: Sequence) -> None:
        """Start a sequence from its longest remembered prefix. At least one token is always left to compute."""
        if self.prefix_caching:
            sequence.node, sequence.in_tree = self.tree.lock(sequence.key[: (sequence.tokens - 1) * TOKEN_BYTES])
        sequence.computed = sequence.in_tree

    def take_loaded(self) -> list[Sequence]:
        """The sequences whose loads have ended by now, in the order in which they left the queue."""
        loaded = [sequence for sequence, load in self.loading.items() if load.ready_s <= self.now_s]
        for sequence in loaded:
            load = self.loading.pop(sequence)
            for tier, node, start, end in load.parts:
                tier.unlock(node)
                tier.loaded_tokens += end - start
                for above in self._tiers[: self._tiers.index(tier)]:  # it has passed through there
                    above.insert(sequence.key, start, end)
            if load.parts:
                self.commit(sequence)
                self.release(sequence)
        return loaded

    def stop_load(self, sequence: Sequence) -> bool:
        """Forget the load of a cancelled sequence; False if it has none. The link keeps its time."""
        load = self.loading.pop(sequence, None)
        if load is None:
            return False
        for tier, node, _, _ in load.parts:
            tier.unlock(node)
        if load.parts:
            self.release(sequence)
        return True

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        """The offload tiers, the nearest first."""
        return tuple(tier.snapshot() for tier in self._tiers)

    def fits(self, sequence: Sequence, tokens: int) -> bool:
        """Could the sequence hold `tokens` tokens now, if everything unlocked were evicted?"""
        needed = self._pages(tokens) - self._pages(sequence.computed)
        return needed <= self.free_tokens + self.tree.evictable_tokens

    def allocate(self, sequence: Sequence, new_tokens: int) -> bool:
        """Make room for the KV of the next `new_tokens` and count them as computed; if it is full, return False."""
        computed = sequence.computed + new_tokens
        if not self._take(self._pages(computed) - self._pages(sequence.computed)):
            return False
        sequence.computed = computed
        return True

    def allocate_one_each(self, sequences: list[Sequence]) -> bool:
        """`allocate(sequence, 1)` for all of them at once, or for none."""
        page = self.page_size
        pages = len(sequences) if page == 1 else sum(1 for sequence in sequences if not sequence.computed % page)
        if not self._take(pages * page):
            return False
        for sequence in sequences:
            sequence.computed += 1
        return True

    def allocate_each(self, sequences: list[Sequence], new_tokens: list[int]) -> bool:
        """`allocate(sequence, tokens)` for all of them at once, or for none."""
        page = self.page_size
        if page == 1:
            needed = sum(new_tokens)
        else:
            needed = sum(
                (-(-(sequence.computed + tokens) // page) - -(-sequence.computed // page)) * page
                for sequence, tokens in zip(sequences, new_tokens, strict=True)
            )
        if not self._take(needed):
            return False
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            sequence.computed += tokens
        return True

    def retreat(self, sequence: Sequence, tokens: int) -> None:
        """Give back the KV of the last `tokens` computed ones, which are not in the tree: draft tokens that were refused."""
        computed = sequence.computed - tokens
        given_back = self._pages(sequence.computed) - self._pages(computed)
        sequence.computed = computed
        if given_back:
            self.own_tokens -= given_back
            self.changes += 1

    def commit(self, sequence: Sequence) -> None:
        """Put the computed tokens, in whole pages, into the tree. What another has put there already is held once."""
        computed = sequence.computed - sequence.computed % self.page_size
        if sequence.node is None or computed == sequence.in_tree:
            return
        key = sequence.key[sequence.in_tree * TOKEN_BYTES : computed * TOKEN_BYTES]
        sequence.node = self.tree.extend(sequence.node, key)
        self.own_tokens -= computed - sequence.in_tree
        sequence.in_tree = computed
        self.changes += 1
        if self._tiers:
            self._store(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remember all of a sequence that has produced its last token, and release it. Nothing is evicted for that token."""
        if self.prefix_caching and sequence.computed == sequence.max_tokens - 1 and self.free_tokens >= self.page_size:
            self.allocate(sequence, 1)
        self.commit(sequence)
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back the sequence's own pages and its lock; its part of the tree may be evicted from now on."""
        self.own_tokens -= self._pages(sequence.computed) - sequence.in_tree
        if sequence.node is not None:
            self.tree.unlock(sequence.node)
        sequence.node, sequence.in_tree, sequence.computed = None, 0, 0
        sequence.stored = []
        self.changes += 1

    def clear(self) -> None:
        """Everything is lost, here and in the tiers: their index lives in the engine's process."""
        self.tree = RadixTree(self.page_size)
        self.own_tokens = 0
        self.loading.clear()
        for tier in self._tiers:
            tier.clear()
        self.changes += 1

    @property
    def next_load_s(self) -> float:
        """When the next load ends; inf if nothing is loading."""
        return min((load.ready_s for load in self.loading.values()), default=math.inf)

    def start_load(self, sequence: Sequence) -> bool:
        """Load what the tiers have of a waiting sequence beyond what is here. True: it is on its way, see `take_loaded`.

        False if there is too little to load, or no room for the whole prompt.
        """
        if not self._tiers:
            return False
        key, most = sequence.key, sequence.tokens - 1
        here = self.tree.match(key, most)
        if most - here < max(_LEAST_LOAD_TOKENS, self.page_size):
            return False
        next_page = (here + self.page_size) * TOKEN_BYTES
        for other, load in self.loading.items():
            if load.end > here and other.key[:next_page] == key[:next_page]:
                self.loading[sequence] = _Load(load.ready_s, 0, [])
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
        self.loading[sequence] = _Load(ready_s, end, parts)
        return True

    def _find(self, key: bytes, tokens: int, here: int) -> list[tuple[Tier, Node, int, int]]:
        """The parts of the first `tokens` of `key` that the tiers have beyond `here`, the nearest tier first."""
        parts = []
        for tier in self._tiers:
            node, found = tier.lock(key, tokens, self.now_s)
            if found > here:
                parts.append((tier, node, here, found))
                here = found
            else:
                tier.unlock(node)
        return parts

    def _store(self, sequence: Sequence) -> None:
        """Send the tiers what they do not have of a sequence's part of the tree."""
        starts = sequence.stored or [0] * len(self._tiers)
        sequence.stored = [
            tier.write(sequence.key, start, sequence.in_tree, self.now_s)
            for tier, start in zip(self._tiers, starts, strict=True)
        ]

    def _pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def _take(self, tokens: int) -> bool:
        missing = tokens - self.free_tokens
        if missing > 0:
            if missing > self.tree.evictable_tokens:
                return False
            self.tree.evict(missing)
        self.own_tokens += tokens
        return True
