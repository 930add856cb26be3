"""The radix tree over token ids that remembers which prefixes have their KV in memory.

Keys are the bytes of int32 token ids (`token_bytes`): comparing them is memcmp, which is what makes a match of a
60,000-token conversation cost some tens of microseconds. Only whole pages are matched and stored.

A path is locked for as long as a sequence uses it. `unlock` is also what dates a path: leaves that nobody uses are evicted
from the tail, in the order in which they were last let go (the order of vLLM's free queue), never a locked one.

Locks and dates are kept where they were given, not all the way up to the root. A node is in use if it or a child is. What
it was last used for is the latest of its own date and those of all that is or was below it; its own is enough to order
evictions, for a leaf is evicted only when it is the oldest: what it uncovers is younger by its own date, or the next to go.
So the cost of an operation is that of the edges it meets on the way down, and evicting one of n leaves costs O(log n).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4
_HEAP_SLACK = 1024
MERGED_BYTES = 1 << 16  # an edge made of two is no longer than this: joining them must stay cheap


def token_bytes(tokens: npt.NDArray[np.int32]) -> bytes:
    """The tree's key for these token ids, shape (n,)."""
    return np.ascontiguousarray(tokens, dtype=np.int32).tobytes()


class Node:
    """One edge and the place it leads to. Its fields belong to the tree."""

    __slots__ = ("children", "edge", "last_used", "locks", "parent", "size")

    def __init__(self, edge: bytes, parent: Node | None) -> None:
        self.edge = edge
        self.size = len(edge)  # bytes of `edge` that are stored: fewer than it has when the tail of a leaf was evicted
        self.parent = parent  # None for the root, and for a node that was evicted
        self.children: dict[bytes, Node] = _NONE  # by the first page of the child's edge
        self.locks = 0  # sequences whose path ends here, plus children that are locked
        self.last_used = 0  # when a path that ends here was let go for the last time

    def __lt__(self, other: Node) -> bool:
        return False  # the heap asks when dates are equal: at most one of the two is still a leaf of the tree


_NONE: dict[bytes, Node] = {}  # the children of all leaves; never written to


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
        self._leaves: list[tuple[int, Node]] = []

    @property
    def evictable_tokens(self) -> int:
        return self.total_tokens - self.locked_tokens

    def match(self, key: bytes, tokens: int | None = None) -> int:
        """Return how many leading tokens of `key` (of its first `tokens`, if given) are stored. Changes nothing."""
        _, at, _, common = self._walk(self.root, key, _end(key, tokens))
        return (at + common) // TOKEN_BYTES

    def lock(self, key: bytes, tokens: int | None = None) -> tuple[Node, int]:
        """Lock the longest stored prefix of `key` (of its first `tokens`); return its last node and its length in tokens."""
        node, at = self._descend(self.root, key, _end(key, tokens))
        self._hold(node)
        return node, at // TOKEN_BYTES

    def extend(self, node: Node, key: bytes) -> Node:
        """Store `key` (cut to whole pages) below `node`, on which the caller holds a lock, and move the lock to its end."""
        whole = len(key) - len(key) % self._page_bytes
        end, matched = self._descend(node, key, whole)
        if matched < whole:
            leaf = Node(key[matched:whole], end)
            self._adopt(end, leaf)
            self._nodes += 1
            self.total_tokens += leaf.size // TOKEN_BYTES
            end = leaf
        if end is not node:
            self._hold(end)
            self._let_go(node)
        return end

    def unlock(self, node: Node) -> None:
        """Give back one lock and date the path: it was last used now."""
        self._clock += 1
        node.last_used = self._clock
        self._let_go(node)
        self._offer(node)

    def evict(self, tokens: int) -> int:
        """Forget at least `tokens` unlocked tokens, in whole pages, if there are so many; return how many were forgotten.

        The leaf that was let go longest ago goes first, and only as much of its tail as is needed.
        """
        wanted = -(-tokens // self.page_size) * self._page_bytes
        left = wanted
        leaves = self._leaves
        while left > 0 and leaves:
            last_used, leaf = leaves[0]
            if not _evictable(leaf) or leaf.last_used != last_used:
                heappop(leaves)
            elif leaf.size > left:
                leaf.size -= left
                left = 0
                if leaf.size < len(leaf.edge) // 2:  # not each time: a tail that goes page by page costs O(1) a page
                    leaf.edge = leaf.edge[: leaf.size]
            else:
                heappop(leaves)
                left -= leaf.size
                self._remove(leaf)
        evicted = (wanted - left) // TOKEN_BYTES
        self.total_tokens -= evicted
        return evicted

    def _walk(self, node: Node, key: bytes, end: int) -> tuple[Node, int, Node | None, int]:
        """Follow `key[:end]` below `node` as far as it is stored.

        Return the last node whose edge was passed whole, the bytes of the key up to there, and, where the way ends within
        the edge of a child, that child and the bytes of its edge that are still common.
        """
        at, page = 0, self._page_bytes
        while at + page <= end:
            child = node.children.get(key[at : at + page])
            if child is None:
                break
            edge, size = child.edge, child.size
            if len(edge) != size:
                edge = child.edge = edge[:size]
            if at + size > end or not key.startswith(edge, at):
                return node, at, child, common_bytes(edge, key, at, end, page)
            node = child
            at += size
        return node, at, None, 0

    def _descend(self, node: Node, key: bytes, end: int) -> tuple[Node, int]:
        """Follow `key[:end]` below `node` as far as it is stored, splitting the last edge there; return node and bytes."""
        node, at, child, common = self._walk(node, key, end)
        if child is not None:
            node = self._split(child, common)
        return node, at + common

    def _split(self, lower: Node, size: int) -> Node:
        """Cut an edge after `size` bytes. The new node is the upper one: who holds the lower one still holds its path."""
        parent = lower.parent
        assert parent is not None
        upper = Node(lower.edge[:size], parent)
        upper.locks = 1 if lower.locks else 0
        self._adopt(parent, upper)
        lower.edge, lower.parent = lower.edge[size:], upper
        lower.size -= size
        self._adopt(upper, lower)
        self._nodes += 1
        return upper

    def _adopt(self, parent: Node, child: Node) -> None:
        if parent.children is _NONE:
            parent.children = {}
        parent.children[child.edge[: self._page_bytes]] = child

    def _hold(self, node: Node) -> None:
        """Lock `node`, and with it what is above it and not locked yet."""
        while node.parent is not None:
            node.locks += 1
            if node.locks > 1:
                break
            self.locked_tokens += node.size // TOKEN_BYTES
            node = node.parent

    def _let_go(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks:
                break
            self.locked_tokens -= node.size // TOKEN_BYTES
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Remember a node as one to evict, if it is an unlocked leaf."""
        if not _evictable(node):
            return
        heappush(self._leaves, (node.last_used, node))
        if len(self._leaves) > 2 * self._nodes + _HEAP_SLACK:
            self._leaves = [
                (last_used, leaf) for last_used, leaf in self._leaves if leaf.last_used == last_used and _evictable(leaf)
            ]
            heapify(self._leaves)

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.edge[: self._page_bytes]]
        leaf.parent = None
        self._nodes -= 1
        if not parent.children:
            parent.children = _NONE
            self._offer(parent)
        elif len(parent.children) == 1:
            (only,) = parent.children.values()
            # The leaf was the oldest of all: if the parent is no younger, then what is below it is at least as young.
            if parent.last_used <= max(leaf.last_used, only.last_used) or only.locks:
                self._merge(parent, only)

    def _merge(self, upper: Node, lower: Node) -> None:
        """Make one edge of two that have no reason left to be apart, lest a long-lived path fall to pieces in time."""
        parent = upper.parent
        held = upper.locks - (1 if lower.locks else 0)  # by sequences whose path ends there
        if parent is None or held or upper.size + lower.size > MERGED_BYTES:
            return
        lower.edge = upper.edge + lower.edge[: lower.size]
        lower.size = len(lower.edge)
        lower.last_used = max(lower.last_used, upper.last_used)
        lower.parent = parent
        upper.parent = None
        self._nodes -= 1
        self._adopt(parent, lower)


def common_bytes(edge: bytes, key: bytes, at: int, end: int, page_bytes: int) -> int:
    """Length of the common prefix of `edge` and `key[at:end]`, in whole pages; the first page is known to be common."""
    same, most = 1, min(len(edge), end - at) // page_bytes
    while same < most:
        middle = (same + most + 1) // 2
        if key.startswith(edge[same * page_bytes : middle * page_bytes], at + same * page_bytes):
            same = middle
        else:
            most = middle - 1
    return same * page_bytes


def _evictable(node: Node) -> bool:
    return node.parent is not None and not node.children and not node.locks


def _end(key: bytes, tokens: int | None) -> int:
    return len(key) if tokens is None else min(len(key), tokens * TOKEN_BYTES)
