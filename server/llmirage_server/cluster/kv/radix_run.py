"""What the radix tree (`radix_tree.py`) is made of: runs of tokens, and the nodes on them."""

from __future__ import annotations

from bisect import bisect_left


class TreeNode:
    """A place in the tree where a path ended or others branch off. Its fields belong to the tree."""

    __slots__ = ("children", "end", "last_used", "locks", "run")

    def __init__(self, run: Run, end: int) -> None:
        self.run = run
        self.end = end  # bytes of the run up to here; -1 when the node is gone
        self.children: dict[bytes, Run] = NONE  # the runs that branch off here, by their first page
        self.locks = 0  # sequences whose path ends here, plus children that are locked
        self.last_used = 0  # when a path that ends here was unlocked for the last time


class Run:
    """Tokens that follow each other, from a node of another run on."""

    __slots__ = ("ends", "locked", "nodes", "parent", "plain", "size", "tail", "tokens")

    def __init__(self, tokens: bytes, size: int, parent: TreeNode | None, plain: bool) -> None:
        self.tokens = tokens
        self.size = size  # bytes of `tokens` that are stored: fewer than there are when the tail was evicted or is to come
        self.parent = parent  # None for the root's
        self.plain = plain  # only if it begins at the root, has no node but its tail, and nothing branches off there
        self.tail = TreeNode(self, size)  # the node at its end
        self.ends: list[int] = _NOWHERE  # of the other nodes, ascending
        self.nodes: list[TreeNode] = _NOBODY
        self.locked: list[int] = _NOWHERE  # ends of those of them that are locked, ascending

    def node_at(self, end: int) -> TreeNode | None:
        if end == self.size:
            return self.tail
        i = bisect_left(self.ends, end)
        return self.nodes[i] if i < len(self.ends) and self.ends[i] == end else None

    def place(self, i: int, node: TreeNode) -> None:
        """Have one more node before the tail, the `i`-th."""
        self.plain = False
        if not self.ends:
            self.ends, self.nodes = [], []
        self.ends.insert(i, node.end)
        self.nodes.insert(i, node)

    def common_bytes(self, key: bytes, at: int, end: int, page_bytes: int) -> int:
        """Length of the common prefix of the run and `key[at:end]`, in whole pages: likely up to where others left it."""
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
        """Let go of tokens that are not stored, if they are many."""
        if self.size < len(self.tokens) - (len(self.tokens) >> 3):
            self.tokens = self.tokens[: self.size]


# What most nodes and runs have, in one piece of memory; never written to.
NONE: dict[bytes, Run] = {}
_NOWHERE: list[int] = []
_NOBODY: list[TreeNode] = []


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
