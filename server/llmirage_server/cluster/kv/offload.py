"""KV offload: the tiers of one instance in host memory and on disk, and a store that all instances share.

The tiers write through and are inclusive, as those of vLLM's OffloadingConnector, SGLang's HiCache by default and LMCache
are: the KV of a prompt is written to every tier when it is computed, that of a reply when it ends, and stays there when the
GPU evicts it. What is full forgets the least recently used prefix first. A prompt that has more in a tier than on the GPU
always loads it; none of those engines weighs that against computing it again.

A store that all instances share (Mooncake, an LMCache server, the remote pool of Dynamo's KVBM) is such a tier below the
others, one object for all of them: what one has written any may load, and their reads and writes wait for each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmirage_server.cluster.kv.radix_tree import RadixTree, TreeNode
from llmirage_server.cluster.snapshots import TierSnapshot


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A place for KV outside the GPUs of one instance, with a link of its own in each direction.

    latency_s: from requesting KV, or sending it, to its first byte.

    Raises ValueError naming every invalid field.
    """

    name: str
    capacity_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{field} must be above 0, not {value}"
            for field in ("capacity_bytes", "read_bytes_per_s", "write_bytes_per_s")
            if not (value := getattr(self, field)) > 0
        ]
        if not 0 <= self.latency_s < math.inf:
            problems.append(f"latency_s must be a number of seconds from 0 up, not {self.latency_s}")
        if problems:
            raise ValueError(f"KV offload tier {self.name!r}: " + "; ".join(problems))

    def share(self, parts: int) -> TierSpec:
        """Return the part of one of `parts` equal users: attention data-parallel ranks share the host of their instance."""
        return replace(
            self,
            capacity_bytes=self.capacity_bytes / parts,
            read_bytes_per_s=self.read_bytes_per_s / parts,
            write_bytes_per_s=self.write_bytes_per_s / parts,
        )


class Tier:
    """The KV in one tier, and its two links, each of which serves its transfers in order, one after the other.

    Written KV can be found once it has arrived. KV that waits to be written is staged above: beyond `staging_tokens`,
    further writes are dropped.
    shared: it belongs to no instance, and outlives them.
    """

    def __init__(
        self, spec: TierSpec, kv_bytes_per_token: float, page_size: int, staging_tokens: float = 0.0, *, shared: bool = False
    ) -> None:
        """Create an empty tier. Raises ValueError if not even one page fits."""
        self.spec = spec
        capacity = min(spec.capacity_bytes // kv_bytes_per_token, 2.0**53)
        self.capacity_tokens = int(capacity) // page_size * page_size
        if not self.capacity_tokens:
            raise ValueError(
                f"KV offload tier {spec.name!r}: {spec.capacity_bytes:g} bytes hold no page of {page_size} tokens "
                f"at {kv_bytes_per_token:g} bytes a token"
            )
        self.shared = shared
        self.tree = RadixTree(page_size)
        self._stored_tokens = 0
        self._dropped_tokens = 0
        self._bytes_per_token = kv_bytes_per_token
        self._page_size = page_size
        self._staging_tokens = staging_tokens
        self._read_free_s = -math.inf
        self._write_free_s = -math.inf
        self._writing: deque[tuple[float, bytes, int, int]] = deque()  # when it has arrived, and the tokens of the key
        self._writing_tokens = 0

    def share(self, parts: int) -> Tier:
        """Return the store itself, all of which is visible to each rank."""
        return self

    def join(self, kv_bytes_per_token: float, page_size: int, staging_tokens: float) -> None:
        """Add a writer with its own staging memory to a store. Raises ValueError if its KV has another layout."""
        if (kv_bytes_per_token, page_size) != (self._bytes_per_token, self._page_size):
            raise ValueError(
                f"KV store: pages of {page_size} tokens at {kv_bytes_per_token:g} bytes a token beside those of "
                f"{self._page_size} at {self._bytes_per_token:g}"
            )
        self._staging_tokens += staging_tokens

    def lock(self, key: bytes, tokens: int, now: float) -> tuple[TreeNode, int]:
        """Lock the longest prefix of the first `tokens` of `key` that is here; return its end node and its tokens."""
        self._sync_to(now)
        return self.tree.lock(key, tokens)

    def unlock(self, node: TreeNode) -> None:
        self.tree.unlock(node)

    def read_s(self, tokens: int, now: float) -> float:
        """Schedule a read of `tokens` tokens; return the time at which they are on the GPU."""
        self._read_free_s = max(self._read_free_s, now) + tokens * self._bytes_per_token / self.spec.read_bytes_per_s
        return self._read_free_s + self.spec.latency_s

    def write(self, key: bytes, start: int, end: int, now: float) -> int:
        """Write the tokens missing here among the first `end` of `key`, of which `start` are here or being written.

        Returns how many are so now.
        """
        self._sync_to(now)
        node, found = self.tree.lock(key, end)
        self.tree.unlock(node)  # dates it
        start = max(start, found)
        tokens = end - start
        if tokens <= 0:
            return start
        if self._writing_tokens + tokens > self._staging_tokens:
            self._dropped_tokens += tokens
            return start
        self._write_free_s = max(self._write_free_s, now) + tokens * self._bytes_per_token / self.spec.write_bytes_per_s
        self._writing.append((self._write_free_s + self.spec.latency_s, key, start, end))
        self._writing_tokens += tokens
        return end

    def insert(self, key: bytes, start: int, end: int) -> None:
        """Store the tokens from `start` to `end`, as far as there is room; nothing if the prefix before them is gone."""
        node, matched = self.tree.lock(key, end)
        room = self.capacity_tokens - self.tree.total_tokens
        if start <= matched < end:
            if end - matched > room:
                room += self.tree.evict(end - matched - room)
            fitting = min(end, matched + room - room % self._page_size)
            node = self.tree.extend_to(node, key, matched, fitting)
            self._stored_tokens += fitting - matched
            self._dropped_tokens += end - fitting
        self.tree.unlock(node)

    def clear(self) -> None:
        """Drop everything but the counters."""
        self.tree = RadixTree(self._page_size)
        self._read_free_s = self._write_free_s = -math.inf
        self._writing.clear()
        self._writing_tokens = 0

    def forget_idle(self) -> None:
        """Evict what is not being read, and drop writes in progress."""
        self.tree.evict(self.tree.evictable_tokens)
        self._writing.clear()
        self._writing_tokens = 0

    def snapshot(self, hit_tokens: int, loaded_tokens: int) -> TierSnapshot:
        """Return the state of the tier, with the counters of one of its readers."""
        return TierSnapshot(
            self.spec.name,
            self.tree.total_tokens,
            self.capacity_tokens,
            hit_tokens,
            loaded_tokens,
            self._stored_tokens,
            self._dropped_tokens,
            self.shared,
        )

    def _sync_to(self, now: float) -> None:
        """Make KV whose write has ended by `now` findable."""
        writing = self._writing
        while writing and writing[0][0] <= now:
            _, key, start, end = writing.popleft()
            self._writing_tokens -= end - start
            self.insert(key, start, end)


Part = tuple[Tier, TreeNode, int, int]  # a part of a prefix: the tier, its locked end node, first and last token


def make_tiers(specs: Sequence[TierSpec | Tier], kv_bytes_per_token: float, page_size: int, kv_tokens: int) -> list[Tier]:
    """Return the tiers below a GPU that holds `kv_tokens`, nearest first; a shared store is joined. Raises ValueError."""
    if specs and not kv_bytes_per_token > 0:
        raise ValueError("KV offload needs kv_bytes_per_token above 0")
    tiers: list[Tier] = []
    for spec in specs:
        staging_tokens = tiers[-1].capacity_tokens if tiers else kv_tokens  # pending writes are staged in the tier above
        if isinstance(spec, Tier):
            spec.join(kv_bytes_per_token, page_size, staging_tokens)
            tiers.append(spec)
        else:
            tiers.append(Tier(spec, kv_bytes_per_token, page_size, staging_tokens))
    return tiers
