"""The prefixes that a router has sent to each instance: its estimate of what their caches hold.

One radix tree for all instances, as in SGLang's router: a node names the instances that have been sent everything up to its
end, so one walk finds the best match among any number of them. For each instance at most as many tokens are kept as its KV
memory holds, and of keys some ten thousands; the least recently sent is forgotten first, ends before beginnings.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container
from heapq import heapify, heappop, heappush

from llmirage_server.cluster.kv.radix_tree import MERGED_BYTES, TOKEN_BYTES, common_bytes

_SLACK = 1024
_MOST_ENDS = 65_536  # of keys that are remembered for one instance, however short they are; some more until it is tidied
_NODE_BYTES = 480  # of memory beside its tokens, with its places in the orders of eviction


class _Node:
    __slots__ = ("children", "edge", "end", "parent", "sent")

    def __init__(self, edge: bytes, end: int, parent: _Node | None, sent: dict[int, int]) -> None:
        self.edge = edge  # from the parent's end on; bytes beyond `end` were cut off and do not count
        self.end = end  # bytes from the root
        self.parent = parent
        self.sent = sent  # when it was last sent to an instance, by the instance's index; a parent's times are never earlier
        self.children = _NO_CHILDREN  # by the first token of the child's edge

    def __lt__(self, other: _Node) -> bool:
        return False  # the heap asks when time and depth are equal: then one of the two entries is outlived

    def __hash__(self) -> int:  # that of every object; a compiled class that compares has none but its own
        return object.__hash__(self)


class _Sent:
    """Memory of what one instance was sent: its number of tokens, and the leaves in the order of eviction.

    Stale entries, whose time differs from the node's, are skipped when they come up.
    """

    __slots__ = ("again", "fresh", "orderly", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.orderly = _SLACK  # keys that may be inserted before stale entries are removed
        self.fresh: deque[tuple[int, _Node]] = deque()  # where inserted keys ended, by time
        self.again: list[tuple[int, int, _Node]] = []  # heap of nodes that became leaves by eviction

    def take_oldest(self) -> tuple[int, _Node]:
        """Remove and return the next leaf to evict: of one time the deepest, first where the key itself ended."""
        fresh, again = self.fresh, self.again
        if again and (not fresh or again[0][0] < fresh[0][0]):
            time, _, node = heappop(again)
            return time, node
        return fresh.popleft()

    def tidy(self, instance: int) -> None:
        """Drop stale entries."""
        self.fresh = deque(entry for entry in self.fresh if entry[1].sent.get(instance) == entry[0])
        self.again = [entry for entry in dict.fromkeys(self.again) if entry[2].sent.get(instance) == entry[0]]
        heapify(self.again)
        self.orderly = len(self.fresh) + len(self.again) + _SLACK


_NO_CHILDREN: dict[bytes, _Node] = {}  # of all leaves: most stay leaves
_Place = tuple[_Node, int, _Node | None, int]
"""The last node that a key passes whole, the bytes up to there, and the child and bytes of a match within an edge."""


class PrefixIndex:
    """Prefixes of token keys (`request.token_bytes`) by instance."""

    def __init__(self) -> None:
        self._sent: defaultdict[int, _Sent] = defaultdict(_Sent)  # by instance
        self._root = _Node(b"", 0, None, {})
        self._nowhere: _Place = self._root, 0, None, 0
        self._clock = 0
        self._nodes = 0
        self._found: tuple[bytes, _Place] | None = None  # the last key asked for, until something changes

    @property
    def tokens(self) -> dict[int, int]:
        """Number of tokens remembered, by instance."""
        return {instance: sent.tokens for instance, sent in self._sent.items()}

    def bytes_kept(self) -> int:
        """Return an upper bound of the memory in bytes: what several instances have in common counts for each."""
        return self._nodes * _NODE_BYTES + TOKEN_BYTES * sum(self.tokens.values())

    def longest(self, key: bytes, instances: Container[int], end: int | None = None) -> tuple[int, list[int]]:
        """Return the bytes of the longest prefix of `key[:end]` sent to any of these instances, and to which ones."""
        if key[:TOKEN_BYTES] not in self._root.children:  # like nothing before it, as most are in a plain load test
            self._found = key, self._nowhere
            return 0, []
        place = self._walk(key)
        self._found = key, place
        node, reached, child, common = place
        if child is not None:
            node, reached = child, reached + common
        if end is None:
            end = len(key)
        while (parent := node.parent) is not None:
            if parent.end < end:
                found = [index for index in node.sent if index in instances]
                if found:
                    return min(reached, end), found
            node, reached = parent, parent.end
        return 0, []

    def insert(self, key: bytes, instance: int, capacity_tokens: int) -> None:
        """Record that `key` is sent to an instance whose KV memory holds `capacity_tokens`."""
        self._clock += 1
        clock, found, size = self._clock, self._found, len(key)
        node, at, child, common = found[1] if found is not None and found[0] is key else self._walk(key)
        self._found = None
        if child is not None:
            node, at = self._split(child, common), at + common
        end, fresh = node, size - at
        if fresh:
            if not node.children and len(node.sent) == 1 and instance in node.sent and node.parent is not None:
                # A session continues on its instance: copying its edge takes less time than walking a node for every turn.
                node.edge, node.end = key[node.parent.end :], size
            else:
                end = _Node(key[at:], size, node, {instance: clock})
                self._adopt(node, end)
                self._nodes += 1
        while (parent := node.parent) is not None:
            if instance not in node.sent:
                fresh += node.end - parent.end
            node.sent[instance] = clock
            node = parent
        sent = self._sent[instance]
        sent.fresh.append((clock, end))
        sent.orderly -= 1
        sent.tokens += fresh // TOKEN_BYTES
        if not sent.orderly:
            sent.tidy(instance)
            while len(sent.fresh) + len(sent.again) > _MOST_ENDS:
                self._shrink(instance, sent, sent.tokens * 3 // 4)
                sent.tidy(instance)
        if sent.tokens > capacity_tokens:
            self._shrink(instance, sent, capacity_tokens)

    def forget(self, instance: int) -> None:
        """Forget an instance that has lost its KV."""
        self._found = None
        self._shrink(instance, self._sent[instance], 0)
        del self._sent[instance]

    def _walk(self, key: bytes) -> _Place:
        node, at, end = self._root, 0, len(key)
        while at < end:
            child = node.children.get(key[at : at + TOKEN_BYTES])
            if child is None:
                break
            if child.end > end or not key.startswith(child.edge, at):  # not all of it, or something was cut off there
                common = common_bytes(child.edge, 0, child.end - at, key, at, end, TOKEN_BYTES)
                if at + common < child.end:
                    return node, at, child, common
            node, at = child, child.end
        return node, at, None, 0

    def _adopt(self, parent: _Node, child: _Node) -> None:
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[child.edge[:TOKEN_BYTES]] = child
        child.parent = parent

    def _split(self, lower: _Node, size: int) -> _Node:
        parent = lower.parent
        assert parent is not None
        upper = _Node(lower.edge[:size], parent.end + size, parent, lower.sent.copy())
        self._adopt(parent, upper)
        lower.edge = lower.edge[size : lower.end - parent.end]
        self._adopt(upper, lower)
        self._nodes += 1
        return upper

    def _shrink(self, instance: int, sent: _Sent, capacity_tokens: int) -> None:
        """Forget the least recently sent tails of the instance, until it is within its capacity."""
        excess, fresh = TOKEN_BYTES * (sent.tokens - capacity_tokens), sent.fresh
        while excess > 0:
            time, node = sent.take_oldest() if sent.again else fresh.popleft()
            times, parent = node.sent, node.parent
            if times.get(instance) != time:
                continue
            # Nothing below it is left: it was sent no later, and at equal times the deeper node is evicted first.
            assert parent is not None
            kept = node.end - parent.end - excess
            if kept > 0 and len(times) == 1:
                node.end -= excess
                fresh.appendleft((time, node))  # still the oldest
                excess = 0
                break
            if kept > 0:
                parent = self._split(node, kept)
            del times[instance]
            excess -= node.end - parent.end
            if not times:
                del parent.children[node.edge[:TOKEN_BYTES]]
                self._nodes -= 1
            if parent.parent is not None:
                heappush(sent.again, (parent.sent[instance], -parent.end, parent))
                if not times:
                    self._join(parent)
        sent.tokens = capacity_tokens + excess // TOKEN_BYTES

    def _join(self, upper: _Node) -> None:
        """Merge two edges that no instance distinguishes any more, so that a long-lived path does not fragment."""
        parent = upper.parent
        assert parent is not None
        if len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        if upper.sent != lower.sent or lower.end - parent.end > MERGED_BYTES:
            return
        lower.edge = upper.edge[: upper.end - parent.end] + lower.edge[: lower.end - upper.end]
        self._adopt(parent, lower)
        upper.sent = {}
        self._nodes -= 1
