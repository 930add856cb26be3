"""Which instance has been sent which prefix: the router's own guess of what their caches hold.

One radix tree for all instances, as in SGLang's router: a node names those that have been sent everything up to its end, so
one walk finds the best match among any number of them. For each instance at most as many tokens are kept as its KV memory
holds; what has not been sent there for longest is forgotten first, ends before beginnings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from heapq import heapify, heappop, heappush

from llmirage_server.cluster.radix_tree import MERGED_BYTES, TOKEN_BYTES, common_bytes

_HEAP_SLACK = 1024


class _Node:
    __slots__ = ("children", "edge", "end", "parent", "sent")

    def __init__(self, edge: bytes, end: int, parent: _Node | None, sent: dict[int, int]) -> None:
        self.edge = edge
        self.end = end  # bytes from the root to the end of the edge
        self.parent = parent
        self.sent = sent  # when it was last sent to an instance, by the instance's index; a parent's times are never earlier
        self.children: dict[bytes, _Node] = {}  # by the first token of the child's edge

    def __lt__(self, other: _Node) -> bool:
        return False  # the heap asks when time and depth are equal: then one of the two entries is outlived


class PrefixIndex:
    """Prefixes of token keys (`radix_tree.token_bytes`) by instance."""

    def __init__(self) -> None:
        self.tokens: defaultdict[int, int] = defaultdict(int)  # remembered, by instance
        self._root = _Node(b"", 0, None, {})
        self._clock = 0
        self._nodes = 0
        # For each instance: ends of what it was sent, by time, the deeper first. Those that a node has outlived are skipped.
        self._ends: defaultdict[int, list[tuple[int, int, _Node]]] = defaultdict(list)

    def longest(self, key: bytes, instances: Container[int], end: int | None = None) -> tuple[int, list[int]]:
        """Bytes of the longest prefix of `key` (`key[:end]`) that was sent to any of these instances, and to which."""
        node, at, child, common = self._walk(key, len(key) if end is None else end)
        if child is not None:
            found = [index for index in child.sent if index in instances]
            if found:
                return at + common, found
        while node.parent is not None:
            found = [index for index in node.sent if index in instances]
            if found:
                return node.end, found
            node = node.parent
        return 0, []

    def insert(self, key: bytes, instance: int, capacity_tokens: int) -> None:
        """Remember that `key` is sent to an instance whose KV memory holds `capacity_tokens`."""
        self._clock += 1
        node, at, child, common = self._walk(key, len(key))
        if child is not None:
            node, at = self._split(child, common), at + common
        if at < len(key):
            leaf = _Node(key[at:], len(key), node, {})
            node.children[key[at : at + TOKEN_BYTES]] = leaf
            self._nodes += 1
            node = leaf
        self._push(instance, node, self._clock)
        while node.parent is not None:
            if instance not in node.sent:
                self.tokens[instance] += len(node.edge) // TOKEN_BYTES
            node.sent[instance] = self._clock
            node = node.parent
        self._shrink(instance, capacity_tokens)

    def forget(self, instance: int) -> None:
        """The instance has lost all it had."""
        self._shrink(instance, 0)
        del self.tokens[instance], self._ends[instance]

    def _walk(self, key: bytes, end: int) -> tuple[_Node, int, _Node | None, int]:
        """The last node passed whole, the bytes up to there, and the child and bytes of a match within an edge."""
        node, at = self._root, 0
        while at < end:
            child = node.children.get(key[at : at + TOKEN_BYTES])
            if child is None:
                break
            if child.end > end or not key.startswith(child.edge, at):
                return node, at, child, common_bytes(child.edge, 0, len(child.edge), key, at, end, TOKEN_BYTES)
            node, at = child, child.end
        return node, at, None, 0

    def _split(self, lower: _Node, size: int) -> _Node:
        parent, first = lower.parent, lower.edge[:TOKEN_BYTES]
        assert parent is not None
        upper = _Node(lower.edge[:size], lower.end - len(lower.edge) + size, parent, lower.sent.copy())
        parent.children[first] = upper
        lower.edge, lower.parent = lower.edge[size:], upper
        upper.children[lower.edge[:TOKEN_BYTES]] = lower
        self._nodes += 1
        return upper

    def _push(self, instance: int, node: _Node, time: int) -> None:
        ends = self._ends[instance]
        heappush(ends, (time, -node.end, node))
        if len(ends) > 2 * self._nodes + _HEAP_SLACK:
            ends[:] = [entry for entry in dict.fromkeys(ends) if entry[2].sent.get(instance) == entry[0]]
            heapify(ends)

    def _shrink(self, instance: int, capacity_tokens: int) -> None:
        """Forget the tails of what was not sent to the instance for longest, until it is within its capacity."""
        ends = self._ends[instance]
        while (excess := self.tokens[instance] - capacity_tokens) > 0:
            time, _, node = heappop(ends)
            if node.sent.get(instance) != time:
                continue
            # Of what is below it nothing is left: it was sent no later, and at the same time the deeper goes first.
            kept = len(node.edge) - excess * TOKEN_BYTES
            parent = self._split(node, kept) if kept > 0 else node.parent
            assert parent is not None
            del node.sent[instance]
            self.tokens[instance] -= len(node.edge) // TOKEN_BYTES
            if parent.parent is not None:
                self._push(instance, parent, parent.sent[instance])
            if not node.sent:
                del parent.children[node.edge[:TOKEN_BYTES]]
                self._nodes -= 1
                self._join(parent)

    def _join(self, upper: _Node) -> None:
        """Make one edge of two that no one tells apart any more, lest a long-lived path fall to pieces in time."""
        parent = upper.parent
        if parent is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        if upper.sent != lower.sent or len(upper.edge) + len(lower.edge) > MERGED_BYTES:
            return
        lower.edge, lower.parent = upper.edge + lower.edge, parent
        parent.children[lower.edge[:TOKEN_BYTES]] = lower
        upper.sent = {}
        self._nodes -= 1
