"""The conversations of a run as trees, and the selection of trees to draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmirage_client.report.html.run_view import RunView

MOST_LANES = 10_000
MOST_REQUESTS = 10_000


@dataclass(slots=True)
class ConversationNode:
    """One conversation. rows: of the run view, by start. parent: None for a root, or when it is not known.

    silent: it sent no request itself, as an orchestrator does; its name is not in the records then.
    """

    id: str
    name: str
    rows: list[int] = field(default_factory=list)
    parent: str | None = None
    branch_mode: str = "root"
    parent_turn: int | None = None
    silent: bool = False


@dataclass(slots=True)
class Tree:
    """A root and its descendants. nodes: depth first, children by their start. depth: of each node; 0 for the root."""

    root: str
    nodes: list[ConversationNode]
    depth: list[int]
    start_s: float
    end_s: float

    @property
    def requests(self) -> int:
        return sum(len(t.rows) for t in self.nodes)


@dataclass(frozen=True, slots=True)
class Selection:
    """trees: to be drawn, by start. of: how many there are. cut: conversations of a selected tree that are not drawn."""

    trees: list[Tree]
    of: int
    cut: int


def trees_of(view: RunView) -> list[Tree]:
    """All trees, by start."""
    nodes = _nodes(view)
    start, end = view.start_s, view.end_s
    children: dict[str, list[ConversationNode]] = {}
    for node in nodes.values():
        if node.parent is not None:
            children.setdefault(node.parent, []).append(node)
    trees = []
    for root in nodes.values():
        if root.parent is not None:
            continue
        order = list(_depth_first(root, children))
        rows = [row for node, _ in order for row in node.rows]
        trees.append(
            Tree(
                root=root.id,
                nodes=[node for node, _ in order],
                depth=[depth for _, depth in order],
                start_s=float(start[rows].min()),
                end_s=float(np.nanmax(end[rows])),
            )
        )
    return sorted(trees, key=lambda t: t.start_s)


def select(view: RunView, trees: Sequence[Tree]) -> Selection:
    """Select a tree of each ranking in turn while there is room.

    The rankings: failures, size, first token, duration, nearness to the median.
    """
    bad = ~view.columns.ok & ~view.columns.cancelled
    ttft = np.nan_to_num(view.value("time_to_first_token"), nan=-1.0)
    usual_s = float(np.median([t.end_s - t.start_s for t in trees])) if trees else 0.0
    rows = {t.root: [r for node in t.nodes for r in node.rows] for t in trees}
    rankings = [
        sorted((t for t in trees if bad[rows[t.root]].any()), key=lambda t: -int(bad[rows[t.root]].sum())),
        sorted((t for t in trees if len(t.nodes) > 1), key=lambda t: -len(t.nodes)),
        sorted(trees, key=lambda t: -float(ttft[rows[t.root]].max())),
        sorted(trees, key=lambda t: t.start_s - t.end_s),
        sorted(trees, key=lambda t: abs(t.end_s - t.start_s - usual_s)),
    ]
    chosen: dict[str, Tree] = {}
    lanes = requests = cut = 0
    for tree in itertools.chain.from_iterable(itertools.zip_longest(*rankings)):
        if tree is None or tree.root in chosen:
            continue
        if not chosen and (len(tree.nodes) > MOST_LANES or tree.requests > MOST_REQUESTS):
            tree, cut = _pruned(tree)
        if lanes + len(tree.nodes) > MOST_LANES or requests + tree.requests > MOST_REQUESTS:
            continue
        chosen[tree.root] = tree
        lanes, requests = lanes + len(tree.nodes), requests + tree.requests
    return Selection(sorted(chosen.values(), key=lambda t: t.start_s), len(trees), cut)


def _pruned(tree: Tree) -> tuple[Tree, int]:
    """Return the first nodes of a tree that is too large to draw, and how many that leaves out."""
    kept, requests = 0, 0
    for node in tree.nodes[:MOST_LANES]:
        requests += len(node.rows)
        if requests > MOST_REQUESTS and kept:
            break
        kept += 1
    nodes = list(tree.nodes[:kept])
    if len(nodes) == 1 and len(nodes[0].rows) > MOST_REQUESTS:
        one = nodes[0]
        nodes = [ConversationNode(one.id, one.name, one.rows[:MOST_REQUESTS], one.parent, one.branch_mode, one.parent_turn)]
    return Tree(tree.root, nodes, tree.depth[:kept], tree.start_s, tree.end_s), len(tree.nodes) - kept


def _nodes(view: RunView) -> dict[str, ConversationNode]:
    nodes: dict[str, ConversationNode] = {}
    for row, record in enumerate(view.records):
        node = nodes.get(record.correlation_id)
        if node is None:
            node = nodes[record.correlation_id] = ConversationNode(
                record.correlation_id,
                record.conversation_id,
                parent=record.parent_correlation_id,
                branch_mode=record.branch_mode,
                parent_turn=record.parent_turn_index,
            )
        node.rows.append(row)
    # A parent without requests: an orchestrator, or one whose requests were all lost.
    for node in list(nodes.values()):
        if node.parent is not None and node.parent not in nodes:
            root = view.records[node.rows[0]].root_correlation_id
            above = None if root == node.parent else root
            nodes[node.parent] = ConversationNode(node.parent, "orchestrator", parent=above, silent=True)
            if above is not None and above not in nodes:
                nodes[above] = ConversationNode(above, "orchestrator", silent=True)
    return nodes


def _depth_first(
    root: ConversationNode, children: dict[str, list[ConversationNode]]
) -> Iterator[tuple[ConversationNode, int]]:
    """Without recursion: chains of spawns may be long. A loop of parents in a broken file ends."""
    seen = set()
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        yield node, depth
        below = sorted(children.get(node.id, ()), key=lambda t: t.rows[0] if t.rows else 0, reverse=True)
        stack += [(child, depth + 1) for child in below]
