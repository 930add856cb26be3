"""The radix tree over token ids that remembers which prefixes have their KV in memory.

Keys are the bytes of int32 token ids (`token_bytes`): comparing them is memcmp, which is what makes a match of a
60,000-token conversation cost some tens of microseconds. Only whole pages are matched and stored.

The tokens lie in runs. A run is not cut where others leave it: they hang from nodes, the places of a run that matter. So the
cost of an operation is that of the runs on its path, however many branches they have.

A path is locked for as long as a sequence uses it. `unlock` is also what dates a path: ends that nobody uses are evicted
from the tail, in the order in which they were last let go (the order of vLLM's free queue), never a locked one. Locks and
dates are kept where they were given. A token is in use if a node at or beyond it is. What it was last used for is the latest
of the dates of all nodes that are or were at or beyond it; a node's own is enough to order evictions, for an end is evicted
only when it is the oldest: what it uncovers is younger by its own date, or the next to go.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

from llmirage_server.cluster.request import token_bytes

__all__ = ["TOKEN_BYTES", "Node", "RadixTree", "token_bytes"]

TOKEN_BYTES = 4
_HEAP_SLACK = 1024
MERGED_BYTES = 1 << 16  # bytes are not joined to more than this: joining must stay cheap


class Node:
    """A place in the tree where a path ended or others branch off. Its fields belong to the tree."""

    __slots__ = ("children", "end", "last_used", "locks", "run")

    def __init__(self, run: _Run, end: int) -> None:
        self.run = run
        self.end = end  # bytes of the run up to here; -1 when the node is gone
        self.children: dict[bytes, _Run] = _NONE  # the runs that branch off here, by their first page
        self.locks = 0  # sequences whose path ends here, plus children that are locked
        self.last_used = 0  # when a path that ends here was let go for the last time

    def __lt__(self, other: Node) -> bool:
        return False  # the heap asks when dates are equal: at most one of the two is still there


class _Run:
    """Tokens that follow each other, from a node of another run on. There is a node at its end."""

    __slots__ = ("ends", "locked", "nodes", "parent", "size", "tokens")

    def __init__(self, tokens: bytes, parent: Node | None) -> None:
        self.tokens = tokens
        self.size = len(tokens)  # bytes of `tokens` that are stored: fewer than there are when the tail was evicted
        self.parent = parent  # None for the root's
        self.nodes: list[Node] = []
        self.ends: list[int] = []  # of the nodes, ascending
        self.locked: list[int] = _UNLOCKED  # ends of the nodes that are locked, ascending

    def node_at(self, end: int) -> Node | None:
        i = bisect_left(self.ends, end)
        return self.nodes[i] if i < len(self.ends) and self.ends[i] == end else None


# What most nodes and runs have, in one piece of memory; never written to.
_NONE: dict[bytes, _Run] = {}
_UNLOCKED: list[int] = []


class RadixTree:
    """Prefixes of token ids, in whole pages of `page_size` tokens."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.total_tokens = 0
        self.locked_tokens = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = 0
        self._nodes = 0
        # Ends by the time they were last used. Entries are never updated: those that a node has outlived are skipped.
        self._oldest: list[tuple[int, Node]] = []
        self.root = self._node(_Run(b"", None), 0)

    @property
    def evictable_tokens(self) -> int:
        return self.total_tokens - self.locked_tokens

    def match(self, key: bytes, tokens: int | None = None) -> int:
        """Return how many leading tokens of `key` (of its first `tokens`, if given) are stored. Changes nothing."""
        _, _, at = self._walk(self.root, key, _end(key, tokens))
        return at // TOKEN_BYTES

    def lock(self, key: bytes, tokens: int | None = None) -> tuple[Node, int]:
        """Lock the longest stored prefix of `key` (of its first `tokens`); return where it ends and its length in tokens."""
        run, end, at = self._walk(self.root, key, _end(key, tokens))
        node = self._node(run, end)
        self._hold(node)
        return node, at // TOKEN_BYTES

    def extend(self, node: Node, key: bytes) -> Node:
        """Store `key` (cut to whole pages) beyond `node`, on which the caller holds a lock, and move the lock to its end."""
        whole = len(key) - len(key) % self._page_bytes
        run, end, at = self._walk(node, key, whole)
        last = self._append(run, end, key[at:whole]) if at < whole else self._node(run, end)
        if last is not node:
            self._hold(last)
            self._let_go(node)
            if not node.locks:
                self._drop(node)
        return last

    def unlock(self, node: Node) -> None:
        """Give back one lock and date the path: it was last used now."""
        self._clock += 1
        node.last_used = self._clock
        self._let_go(node)
        self._offer(node)

    def evict(self, tokens: int) -> int:
        """Forget at least `tokens` unlocked tokens, in whole pages, if there are so many; return how many were forgotten.

        The path that was let go longest ago goes first, and only as much of its tail as is needed.
        """
        wanted = -(-tokens // self.page_size) * self._page_bytes
        left = wanted
        oldest = self._oldest
        while left > 0 and oldest:
            last_used, node = oldest[0]
            if not _evictable(node) or node.last_used != last_used:
                heappop(oldest)
                continue
            run = node.run
            tail = node.end - (run.ends[-2] if len(run.ends) > 1 else 0)  # what ends here and nowhere earlier
            if tail <= left:
                heappop(oldest)
            self._cut(node, min(tail, left))
            left -= min(tail, left)
        evicted = (wanted - left) // TOKEN_BYTES
        self.total_tokens -= evicted
        return evicted

    def _walk(self, node: Node, key: bytes, end: int) -> tuple[_Run, int, int]:
        """Follow `key[:end]` from `node` on as far as it is stored; return run, bytes of the run and bytes of the key."""
        run, here, at, page = node.run, node.end, 0, self._page_bytes
        while True:
            size = run.size
            if here == 0 and size == len(run.tokens) and at + size <= end and key.startswith(run.tokens, at):
                here = size
                at += size
            else:
                common = common_bytes(run.tokens, here, size, key, at, end, page)
                here += common
                at += common
            if at + page > end or (place := run.node_at(here)) is None:
                break
            child = place.children.get(key[at : at + page])
            if child is None:
                break
            run, here = child, 0
        return run, here, at

    def _node(self, run: _Run, end: int) -> Node:
        """The node there, a new one if there is none."""
        i = bisect_left(run.ends, end)
        if i < len(run.ends) and run.ends[i] == end:
            return run.nodes[i]
        node = Node(run, end)
        run.ends.insert(i, end)
        run.nodes.insert(i, node)
        self._nodes += 1
        return node

    def _append(self, run: _Run, end: int, tokens: bytes) -> Node:
        """Store new tokens beyond this place: in the same run at its end while it is short, else in a new one."""
        self.total_tokens += len(tokens) // TOKEN_BYTES
        place = self._node(run, end)
        if end == run.size and run.parent is not None and end + len(tokens) <= MERGED_BYTES:
            run.tokens = run.tokens[:end] + tokens
            run.size = len(run.tokens)
            last = self._node(run, run.size)
            if not place.locks:
                self._drop(place)  # what is beyond it will be let go later than it was
            return last
        if place.children is _NONE:
            place.children = {}
        child = place.children[tokens[: self._page_bytes]] = _Run(tokens, place)
        return self._node(child, child.size)

    def _hold(self, node: Node) -> None:
        """Lock `node`, and with it what is before it and not locked yet."""
        while (parent := node.run.parent) is not None:
            node.locks += 1
            if node.locks > 1:
                return
            locked = node.run.locked
            before = locked[-1] if locked else 0
            if node.end > before:
                self.locked_tokens += (node.end - before) // TOKEN_BYTES
            if locked:
                insort(locked, node.end)
                return
            node.run.locked = [node.end]
            node = parent

    def _let_go(self, node: Node) -> None:
        while (parent := node.run.parent) is not None:
            node.locks -= 1
            if node.locks:
                return
            locked = node.run.locked
            del locked[bisect_left(locked, node.end)]
            left = locked[-1] if locked else 0
            if node.end > left:
                self.locked_tokens -= (node.end - left) // TOKEN_BYTES
            if locked:
                return
            node.run.locked = _UNLOCKED
            node = parent

    def _offer(self, node: Node) -> None:
        """Remember a node as one to evict, if it is an unlocked end."""
        if not _evictable(node):
            return
        heappush(self._oldest, (node.last_used, node))
        if len(self._oldest) > 2 * self._nodes + _HEAP_SLACK:
            self._oldest = [(date, end) for date, end in self._oldest if end.last_used == date and _evictable(end)]
            heapify(self._oldest)

    def _cut(self, node: Node, tail: int) -> None:
        """Take so many bytes off the end of a run, where `node` is, at most down to the node before it."""
        run = node.run
        run.size -= tail
        if run.size < len(run.tokens) // 2:  # not each time: a tail that goes page by page costs O(1) a page
            run.tokens = run.tokens[: max(run.size, self._page_bytes)]
        before = run.ends[-2] if len(run.ends) > 1 else 0
        if run.size > before:
            node.end = run.ends[-1] = run.size
            return
        run.ends.pop()
        run.nodes.pop()
        node.end = -1
        self._nodes -= 1
        if before:
            self._offer(run.nodes[-1])
        else:
            self._take_off(run, node.last_used)

    def _take_off(self, run: _Run, last_used: int) -> None:
        """Remove an empty run, whose last token was the oldest of all that is not locked."""
        place = run.parent
        assert place is not None
        del place.children[run.tokens[: self._page_bytes]]
        if place.children:
            return
        place.children = _NONE
        self._offer(place)
        if not place.locks and place.last_used <= last_used:
            self._drop(place)  # what is beyond it is at least as young

    def _drop(self, node: Node) -> None:
        """Remove a node that says nothing any more: nothing branches off, and what is beyond it is used later."""
        run = node.run
        if node.children or node.end == run.size:
            return
        i = bisect_left(run.ends, node.end)
        del run.ends[i], run.nodes[i]
        node.end = -1
        self._nodes -= 1


def common_bytes(tokens: bytes, start: int, stop: int, key: bytes, at: int, end: int, page_bytes: int) -> int:
    """Length of the common prefix of `tokens[start:stop]` and `key[at:end]`, in whole pages."""
    view = memoryview(tokens)
    same, most = 0, min(stop - start, end - at) // page_bytes
    middle = most  # often all of it
    while same < most:
        if key.startswith(view[start + same * page_bytes : start + middle * page_bytes], at + same * page_bytes):
            same = middle
        else:
            most = middle - 1
        middle = (same + most + 1) // 2
    return same * page_bytes


def _evictable(node: Node) -> bool:
    return node.end == node.run.size > 0 and not node.children and not node.locks


def _end(key: bytes, tokens: int | None) -> int:
    return len(key) if tokens is None else min(len(key), tokens * TOKEN_BYTES)
