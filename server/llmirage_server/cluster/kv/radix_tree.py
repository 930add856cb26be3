"""The radix tree over token ids that records which prefixes have their KV in memory.

Keys are the bytes of int32 token ids (`request.token_bytes`): comparing them is memcmp, so that matching a 60,000-token
conversation costs some microseconds. Only whole pages are matched and stored.

The tokens lie in runs. A run is not cut where others branch off: they hang from nodes, the relevant positions of a run. So
the cost of an operation is that of the runs on its path, however many branches they have. A run that begins at the root
keeps the last stored key itself where there is one (`extend_to`): then it grows without copying.

A path is locked for as long as a sequence uses it. `unlock` also dates a path: ends that are not in use are evicted from the
tail, in the order in which they were last unlocked (the order of vLLM's free queue), never a locked one. Locks and dates are
kept at the node where they were given. A token is in use if a node at or beyond it is. Its last use is the latest date of
all nodes that are or were at or beyond it; a node's own date is enough to order evictions, for an end is evicted only when
it is the oldest: the node it uncovers is younger by its own date, or the next to be evicted.

Most requests share nothing: theirs is a run that begins at the root and has no branches (`Run.plain`). Every operation first
tests for that case, and then skips the calls of the general one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

TOKEN_BYTES = 4
_QUEUE_SLACK = 1024
MERGED_BYTES = 1 << 16  # bytes are not joined to more than this: joining must stay cheap


class RadixTree:
    """Prefixes of token ids, in whole pages of `page_size` tokens."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.total_tokens = 0
        self.locked_tokens = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = 0
        # Nodes in the order of their dates. Entries are never updated: stale ones are skipped. A node
        # that cannot be evicted loses its entry when its turn comes; should it become an end later, it is the next to go.
        self._queue: deque[tuple[int, TreeNode]] = deque()
        self._queue_size = 0  # when it was last cleared of the skipped ones
        self._clear_at = _QUEUE_SLACK  # clock value of the next check of the size
        self.root = Run(b"", 0, None, plain=False).tail
        self.root.children = {}

    def emptied(self) -> RadixTree:
        """Return an empty tree of the same kind, to replace this one."""
        return RadixTree(self.page_size)

    @property
    def evictable_tokens(self) -> int:
        return self.total_tokens - self.locked_tokens

    def match(self, key: bytes, tokens: int | None = None) -> int:
        """Return the number of leading tokens of `key` (of its first `tokens`, if given) that are stored."""
        if key[: self._page_bytes] not in self.root.children:
            return 0
        _, _, at = self._walk(self.root, key, 0, _end(key, tokens))
        return at // TOKEN_BYTES

    def lock(self, key: bytes, tokens: int | None = None) -> tuple[TreeNode, int]:
        """Lock the longest stored prefix of `key` (of its first `tokens`); return its end node and its length in tokens."""
        root = self.root
        if key[: self._page_bytes] not in root.children:
            return root, 0
        run, end, at = self._walk(root, key, 0, _end(key, tokens))
        node = run.tail if end == run.size else self._node(run, end)
        if run.plain and not node.locks:
            node.locks = 1
            self.locked_tokens += end // TOKEN_BYTES
        else:
            self._lock_path(node)
        return node, at // TOKEN_BYTES

    def extend_to(self, node: TreeNode, key: bytes, start: int, stop: int) -> TreeNode:
        """Store `key[start:stop]` (in tokens, cut to whole pages) beyond `node`, and move the caller's lock to its end.

        key: the tokens from the root on, of which the first `start` lead to `node`. The tree may keep the key itself.
        """
        stop -= stop % self.page_size
        run = node.run
        if run.plain and node.locks == 1:
            grown = stop - start
            run.tokens = key
            run.size = node.end = stop * TOKEN_BYTES
            self.total_tokens += grown
            self.locked_tokens += grown
            return node
        if node is self.root and stop and (first := key[: self._page_bytes]) not in node.children:
            run = node.children[first] = Run(key, stop * TOKEN_BYTES, node, True)
            node = run.tail
            node.locks = 1
            self.total_tokens += stop
            self.locked_tokens += stop
            return node
        return self._extend(node, key, start * TOKEN_BYTES, stop * TOKEN_BYTES)

    def finish(self, node: TreeNode, key: bytes, start: int, stop: int) -> None:
        """Extend and unlock in one call, for a sequence that ends with `key`."""
        run = node.run
        if not run.plain or node.locks > 1:
            self.unlock(self.extend_to(node, key, start, stop))
            return
        stop -= stop % self.page_size
        run.tokens = key
        run.size = node.end = stop * TOKEN_BYTES
        node.locks = 0
        self.total_tokens += stop - start
        self.locked_tokens -= start
        self._clock = node.last_used = clock = self._clock + 1
        self._queue.append((clock, node))
        if clock > self._clear_at:
            self._clear_queue()

    def unlock(self, node: TreeNode) -> None:
        """Remove one lock and date the path as last used now."""
        run = node.run
        if run.plain and node.locks == 1:
            node.locks = 0
            self.locked_tokens -= run.size // TOKEN_BYTES
        elif run.parent is not None:
            self._unlock_path(node)
        else:
            return  # nothing was locked
        run.trim()
        self._clock = node.last_used = clock = self._clock + 1
        self._queue.append((clock, node))
        if clock > self._clear_at:
            self._clear_queue()

    def evict(self, tokens: int) -> int:
        """Evict at least `tokens` unlocked tokens, in whole pages, as far as there are any; return the number evicted.

        The path that was unlocked longest ago goes first, and only as much of its tail as is needed.
        """
        wanted = -(-tokens // self.page_size) * self._page_bytes
        left = wanted
        queue = self._queue
        while left > 0 and queue:
            last_used, node = queue[0]
            run = node.run
            size = run.size
            if node.last_used != last_used or node.end != size or node.locks or node.children:
                queue.popleft()
                continue
            ends = run.ends
            tail = size - ends[-1] if ends else size  # bytes beyond the last inner node
            if tail <= left:
                queue.popleft()
                left -= tail
                if ends:
                    self._shorten(run)
                else:
                    self._remove(run)
                continue
            run.size = node.end = size = size - left
            if size < len(run.tokens) // 2:  # not each time: a tail that goes page by page costs O(1) a page
                run.tokens = run.tokens[:size]
            left = 0
        evicted = (wanted - left) // TOKEN_BYTES
        self.total_tokens -= evicted
        return evicted

    def _walk(self, node: TreeNode, key: bytes, at: int, end: int) -> tuple[Run, int, int]:
        """Follow `key[at:end]` from `node` on as far as it is stored; return the run, and the bytes of it and of the key."""
        run, here, page = node.run, node.end, self._page_bytes
        if here < run.size:
            common = common_bytes(run.tokens, here, run.size, key, at, end, page)
            here += common
            at += common
        while at + page <= end and (place := run.node_at(here)) is not None:
            child = place.children.get(key[at : at + page])
            if child is None:
                break
            run, here = child, child.size
            if at + here > end or not key.startswith(run.tokens, at):
                here = run.common_bytes(key, at, end, page)
            at += here
        return run, here, at

    def _extend(self, node: TreeNode, key: bytes, at: int, end: int) -> TreeNode:
        """Store `key[at:end]` (in bytes) beyond `node`; `key` begins at the root."""
        run, size = node.run, node.end + end - at
        keep = run.parent is self.root  # the key itself
        if node.locks == 1 and node.end == run.size < size and not node.children and (keep or size <= MERGED_BYTES):
            # No other sequence is at the end of the run, nor beyond: the node moves to the new end.
            run.tokens = key if keep else key[at - node.end : end]
            run.size = node.end = size
            self.total_tokens += (end - at) // TOKEN_BYTES
            self.locked_tokens += (end - at) // TOKEN_BYTES
            return node
        run, here, at = self._walk(node, key, at, end)
        last = self._append(run, here, key, at, end) if at < end else self._node(run, here)
        if last is not node:
            self._lock_path(last)
            self._unlock_path(node)
            if not node.locks:
                self._drop(node)
            if last.run is not node.run:
                node.run.trim()
        return last

    def _node(self, run: Run, end: int) -> TreeNode:
        """Return the node at that position, creating it if needed."""
        if end == run.size:
            return run.tail
        i = bisect_left(run.ends, end)
        if i < len(run.ends) and run.ends[i] == end:
            return run.nodes[i]
        node = TreeNode(run, end)
        run.place(i, node)
        return node

    def _append(self, run: Run, here: int, key: bytes, at: int, end: int) -> TreeNode:
        """Store new tokens beyond this place: in the same run at its end if that is cheap, else in a new one."""
        self.total_tokens += (end - at) // TOKEN_BYTES
        place = self._node(run, here)
        keep = run.parent is self.root  # the key itself
        size = here + end - at
        if here == run.size and run.parent is not None and (keep or size <= MERGED_BYTES):
            run.tokens = key if keep else key[at - here : end]
            run.size = size
            last = run.tail = TreeNode(run, size)
            if place.locks:
                run.locked = [*run.locked, here]  # few are
            if place.locks or place.children:
                run.place(len(run.ends), place)
            else:  # the tokens beyond it will be unlocked later than it was
                place.end = -1
            return last
        if place.children is NONE:
            place.children = {}
        tokens = key[at:end]
        child = place.children[tokens[: self._page_bytes]] = Run(tokens, len(tokens), place, plain=place is self.root)
        run.plain = False
        return child.tail

    def _lock_path(self, node: TreeNode) -> None:
        """Lock `node` and everything before it that is not locked yet."""
        while (parent := (run := node.run).parent) is not None:
            node.locks += 1
            if node.locks > 1:
                return
            end, locked = node.end, run.locked
            before = locked[-1] if locked else 0
            if end < run.size:
                if locked:
                    insort(locked, end)
                else:
                    run.locked = [end]
                if run.tail.locks:
                    return
            if end > before:
                self.locked_tokens += (end - before) // TOKEN_BYTES
            if before:
                return
            node = parent

    def _unlock_path(self, node: TreeNode) -> None:
        """Undo `_lock_path`."""
        while (parent := (run := node.run).parent) is not None:
            node.locks -= 1
            if node.locks:
                return
            end, locked = node.end, run.locked
            if end < run.size:
                del locked[bisect_left(locked, end)]
                if run.tail.locks:
                    return
            before = locked[-1] if locked else 0
            if end > before:
                self.locked_tokens -= (end - before) // TOKEN_BYTES
            if before:
                return
            node = parent

    def _clear_queue(self) -> None:
        """Remove stale entries from the queue, if it has grown much by them."""
        if len(self._queue) > 2 * self._queue_size + _QUEUE_SLACK:
            self._queue = deque([(date, node) for date, node in self._queue if node.last_used == date and node.end > 0])
            self._queue_size = len(self._queue)
        self._queue_size = min(self._queue_size, len(self._queue))
        self._clear_at = self._clock + _QUEUE_SLACK

    def _shorten(self, run: Run) -> None:
        """Remove from a run the tokens beyond the last node before its tail: the oldest that are not locked."""
        run.tail.end = -1
        run.size = run.ends.pop()
        run.tail = run.nodes.pop()
        if run.tail.locks:
            run.locked.pop()
        if run.size < len(run.tokens) // 2:
            run.tokens = run.tokens[: run.size]
        self._uncover(run.tail)

    def _remove(self, run: Run) -> None:
        """Remove a run that has no node but its tail: the oldest that is not locked."""
        node, place = run.tail, run.parent
        assert place is not None
        del place.children[run.tokens[: self._page_bytes]]
        node.end, run.tokens, run.size = -1, b"", 0
        run.tail = place  # no longer one that refers to the run: so the memory of both is free at once
        if place.children or place is self.root:
            return
        place.children = NONE
        self._uncover(place)
        if not place.locks and place.last_used <= node.last_used:
            self._drop(place)  # the tokens beyond it are at least as young

    def _uncover(self, node: TreeNode) -> None:
        """Queue a node that has become a leaf, if its turn has been passed over."""
        queue = self._queue
        if not queue or node.last_used <= queue[0][0]:
            queue.appendleft((node.last_used, node))

    def _drop(self, node: TreeNode) -> None:
        """Remove a redundant node: nothing branches off, and the tokens beyond it were used later."""
        run = node.run
        if node.children or node.end == run.size:
            return
        i = bisect_left(run.ends, node.end)
        del run.ends[i], run.nodes[i]
        node.end = -1


def _end(key: bytes, tokens: int | None) -> int:
    return len(key) if tokens is None else min(len(key), tokens * TOKEN_BYTES)


class TreeNode:
    """A position in the tree where a path ended or others branch off. Its fields belong to the tree."""

    __slots__ = ("children", "end", "last_used", "locks", "run")

    def __init__(self, run: Run, end: int) -> None:
        self.run = run
        self.end = end  # bytes of the run up to here; -1 when the node is gone
        self.children: dict[bytes, Run] = NONE  # the runs that branch off here, by their first page
        self.locks = 0  # sequences whose path ends here, plus children that are locked
        self.last_used = 0  # when a path that ends here was unlocked for the last time


class Run:
    """Consecutive tokens from a node of another run on."""

    __slots__ = ("ends", "locked", "nodes", "parent", "plain", "size", "tail", "tokens")

    def __init__(self, tokens: bytes, size: int, parent: TreeNode | None, plain: bool) -> None:
        self.tokens = tokens
        self.size = size  # bytes of `tokens` that are stored: fewer than there are when the tail was evicted or is to come
        self.parent = parent  # None for the root's
        self.plain = plain  # only if it begins at the root, has no node but its tail, and nothing branches off there
        self.tail = TreeNode(self, size)  # the node at its end
        self.ends: list[int] = _NOWHERE  # of the other nodes, ascending
        self.nodes: list[TreeNode] = _NOBODY
        self.locked: list[int] = _NOWHERE  # ends of the locked ones, ascending

    def node_at(self, end: int) -> TreeNode | None:
        if end == self.size:
            return self.tail
        i = bisect_left(self.ends, end)
        return self.nodes[i] if i < len(self.ends) and self.ends[i] == end else None

    def place(self, i: int, node: TreeNode) -> None:
        """Insert a further node before the tail, at index `i`."""
        self.plain = False
        if not self.ends:
            self.ends, self.nodes = [], []
        self.ends.insert(i, node.end)
        self.nodes.insert(i, node)

    def common_bytes(self, key: bytes, at: int, end: int, page_bytes: int) -> int:
        """Return the length of the common prefix of the run and `key[at:end]`, in whole pages; nodes are tried first."""
        tokens, view = self.tokens, memoryview(self.tokens)
        same, most = 0, min(self.size, end - at)
        low, high = 0, len(self.ends)
        while low < high:
            middle = (low + high) // 2
            place = self.ends[middle]
            if place <= most and key.startswith(view[same:place], at + same):
                same, low = place, middle + 1
            else:
                most, high = min(most, place - 1), middle
        if tokens[same : same + page_bytes] != key[at + same : at + same + page_bytes]:
            return same
        return same + common_bytes(tokens, same, most, key, at + same, end, page_bytes)

    def trim(self) -> None:
        """Drop tokens that are not stored, if they are many."""
        if self.size < len(self.tokens) - (len(self.tokens) >> 3):
            self.tokens = self.tokens[: self.size]


# What most nodes and runs have, in one piece of memory; never written to.
NONE: dict[bytes, Run] = {}
_NOWHERE: list[int] = []
_NOBODY: list[TreeNode] = []


def common_bytes(tokens: bytes, start: int, stop: int, key: bytes, at: int, end: int, page_bytes: int) -> int:
    """Return the length in bytes of the common prefix of `tokens[start:stop]` and `key[at:end]`, in whole pages."""
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
