"""The radix tree over token ids that remembers which prefixes have their KV in memory.

Keys are the bytes of int32 token ids (`token_bytes`): slicing and comparing them is memcpy and memcmp, which is what makes
a match of a 60,000-token conversation cost some tens of microseconds. Only whole pages are matched and stored.

A path is locked for as long as a sequence uses it. `unlock` is also what dates a path: leaves that nobody uses are evicted
from the tail, in the order in which they were last let go (the order of vLLM's free queue), never a locked one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4
_HEAP_SLACK = 1024


def token_bytes(tokens: npt.NDArray[np.int32]) -> bytes:
    """The tree's key for these token ids, shape (n,)."""
    return np.ascontiguousarray(tokens, dtype=np.int32).tobytes()


class Node:
    """One edge and the place it leads to. `locks` counts the sequences that use it or anything below it."""

    __slots__ = ("children", "edge", "last_used", "locks", "parent")

    def __init__(self, edge: bytes, parent: Node | None) -> None:
        self.edge = edge
        self.parent = parent  # None for the root, and for a node that was evicted
        self.children: dict[bytes, Node] = {}  # by the first page of the child's edge
        self.locks = 0
        self.last_used = 0


class RadixTree:
    """Prefixes of token ids, in whole pages of `page_size` tokens."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.total_tokens = 0
        self.locked_tokens = 0
        self.root = Node(b"", None)
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = 0
        self._nodes = 0
        # Leaves by the time they were last used. Entries are never updated: those that a leaf has outlived are skipped.
        self._leaves: list[tuple[int, int, Node]] = []
        self._serial = count()

    @property
    def evictable_tokens(self) -> int:
        return self.total_tokens - self.locked_tokens

    def match(self, key: bytes) -> int:
        """Return how many leading tokens of `key` are stored. Changes nothing."""
        key = self._whole_pages(key)
        node, at, page, size = self.root, 0, self._page_bytes, len(key)
        while at < size:
            child = node.children.get(key[at : at + page])
            if child is None:
                break
            edge = child.edge
            end = at + len(edge)
            if key[at:end] != edge:
                at += self._common_bytes(edge, key, at)
                break
            node, at = child, end
        return at // TOKEN_BYTES

    def lock(self, key: bytes) -> tuple[Node, int]:
        """Lock the longest stored prefix of `key`; return the node where it ends and its length in tokens."""
        node, matched = self._descend(self.root, self._whole_pages(key))
        self._lock_path(node, self.root)
        return node, matched // TOKEN_BYTES

    def extend(self, node: Node, key: bytes) -> Node:
        """Store `key` (cut to whole pages) below `node`, on which the caller holds a lock, and move the lock to its end."""
        key = self._whole_pages(key)
        end, matched = self._descend(node, key)
        if matched < len(key):
            leaf = Node(key[matched:], end)
            end.children[leaf.edge[: self._page_bytes]] = leaf
            self._nodes += 1
            self.total_tokens += len(leaf.edge) // TOKEN_BYTES
            end = leaf
        self._lock_path(end, node)
        return end

    def unlock(self, node: Node) -> None:
        """Give back one lock and date the path: it was last used now."""
        self._clock += 1
        at = node
        while at.parent is not None:
            at.last_used = self._clock
            at.locks -= 1
            if not at.locks:
                self.locked_tokens -= len(at.edge) // TOKEN_BYTES
            at = at.parent
        self._offer(node)

    def evict(self, tokens: int) -> int:
        """Forget at least `tokens` unlocked tokens, in whole pages, if there are so many; return how many were forgotten.

        The leaf that was let go longest ago goes first, and only as much of its tail as is needed.
        """
        wanted = -(-tokens // self.page_size) * self._page_bytes
        left = wanted
        leaves = self._leaves
        while left > 0 and leaves:
            last_used, _, leaf = leaves[0]
            parent = leaf.parent
            if parent is None or leaf.children or leaf.locks or leaf.last_used != last_used:
                heappop(leaves)
            elif len(leaf.edge) > left:
                leaf.edge = leaf.edge[:-left]
                left = 0
            else:
                heappop(leaves)
                left -= len(leaf.edge)
                del parent.children[leaf.edge[: self._page_bytes]]
                leaf.parent = None
                self._nodes -= 1
                self._offer(parent)
        evicted = (wanted - left) // TOKEN_BYTES
        self.total_tokens -= evicted
        return evicted

    def _whole_pages(self, key: bytes) -> bytes:
        return key[: len(key) - len(key) % self._page_bytes]

    def _common_bytes(self, edge: bytes, key: bytes, at: int) -> int:
        """Length in bytes of the common prefix of `edge` and `key[at:]`, in whole pages; they are known to differ."""
        n = min(len(edge), len(key) - at) // TOKEN_BYTES
        differ = np.frombuffer(edge, np.int32, n) != np.frombuffer(key, np.int32, n, at)
        first = int(differ.argmax()) if differ.any() else n
        return (first - first % self.page_size) * TOKEN_BYTES

    def _descend(self, node: Node, key: bytes) -> tuple[Node, int]:
        """Follow `key` below `node` as far as it is stored, splitting the last edge there; return the node and the bytes."""
        at, page, size = 0, self._page_bytes, len(key)
        while at < size:
            child = node.children.get(key[at : at + page])
            if child is None:
                break
            edge = child.edge
            end = at + len(edge)
            if key[at:end] != edge:
                common = self._common_bytes(edge, key, at)
                return self._split(child, common), at + common
            node, at = child, end
        return node, at

    def _split(self, lower: Node, size: int) -> Node:
        """Cut an edge after `size` bytes. The new node is the upper one: who holds the lower one still holds its path."""
        parent = lower.parent
        assert parent is not None
        upper = Node(lower.edge[:size], parent)
        upper.locks = lower.locks  # it is dated when whoever caused the split unlocks it
        parent.children[upper.edge[: self._page_bytes]] = upper
        lower.edge, lower.parent = lower.edge[size:], upper
        upper.children[lower.edge[: self._page_bytes]] = lower
        self._nodes += 1
        return upper

    def _lock_path(self, node: Node, top: Node) -> None:
        """Lock the nodes from `node` up to `top`, without `top` itself."""
        while node is not top:
            if not node.locks:
                self.locked_tokens += len(node.edge) // TOKEN_BYTES
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Remember a node as the next to evict, if it is an unlocked leaf."""
        if node.children or node.locks or node.parent is None:
            return
        heappush(self._leaves, (node.last_used, next(self._serial), node))
        if len(self._leaves) > 2 * self._nodes + _HEAP_SLACK:
            self._leaves = [entry for entry in self._leaves if entry[2].parent and entry[0] == entry[2].last_used]
            heapify(self._leaves)
