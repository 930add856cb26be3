"""The conversations of a run as trees, and which of many are worth drawing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmirage_client.report.html.run_view import RunView

MOST_LANES = 72
MOST_REQUESTS = 1500


@dataclass(slots=True)
class Talk:
    """One conversation. rows: of the run view, by start. parent: None for a root, or when nothing is known of it.

    silent: it sent nothing itself, as an orchestrator does; its name is not in the records then.
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
    """A root with all that came of it. talks: depth first, children by their start. depth: of each talk below the root."""

    root: str
    talks: list[Talk]
    depth: list[int]
    start_s: float
    end_s: float

    @property
    def requests(self) -> int:
        return sum(len(t.rows) for t in self.talks)


@dataclass(frozen=True, slots=True)
class Choice:
    """trees: to be drawn, by start. of: how many there are. cut: conversations of a chosen tree that found no room."""

    trees: list[Tree]
    of: int
    cut: int


def trees_of(view: RunView) -> list[Tree]:
    """All trees, by start."""
    talks = _talks(view)
    start, end = view.start_s, view.end_s
    children: dict[str, list[Talk]] = {}
    for talk in talks.values():
        if talk.parent is not None:
            children.setdefault(talk.parent, []).append(talk)
    trees = []
    for root in talks.values():
        if root.parent is not None:
            continue
        order = list(_depth_first(root, children))
        rows = [row for talk, _ in order for row in talk.rows]
        trees.append(
            Tree(
                root=root.id,
                talks=[talk for talk, _ in order],
                depth=[depth for _, depth in order],
                start_s=float(start[rows].min()),
                end_s=float(np.nanmax(end[rows])),
            )
        )
    return sorted(trees, key=lambda t: t.start_s)


def choose(view: RunView, trees: Sequence[Tree]) -> Choice:
    """In turn one with failures, the widest, the slowest first token, the longest, the most usual, while there is room."""
    bad = ~view.columns.ok & ~view.columns.cancelled
    ttft = np.nan_to_num(view.value("time_to_first_token"), nan=-1.0)
    usual_s = float(np.median([t.end_s - t.start_s for t in trees])) if trees else 0.0
    rows = {t.root: [r for talk in t.talks for r in talk.rows] for t in trees}
    rankings = [
        sorted((t for t in trees if bad[rows[t.root]].any()), key=lambda t: -int(bad[rows[t.root]].sum())),
        sorted((t for t in trees if len(t.talks) > 1), key=lambda t: -len(t.talks)),
        sorted(trees, key=lambda t: -float(ttft[rows[t.root]].max())),
        sorted(trees, key=lambda t: t.start_s - t.end_s),
        sorted(trees, key=lambda t: abs(t.end_s - t.start_s - usual_s)),
    ]
    chosen: dict[str, Tree] = {}
    lanes = requests = cut = 0
    for tree in itertools.chain.from_iterable(itertools.zip_longest(*rankings)):
        if tree is None or tree.root in chosen:
            continue
        if not chosen and (len(tree.talks) > MOST_LANES or tree.requests > MOST_REQUESTS):
            tree, cut = _pruned(tree)
        if lanes + len(tree.talks) > MOST_LANES or requests + tree.requests > MOST_REQUESTS:
            continue
        chosen[tree.root] = tree
        lanes, requests = lanes + len(tree.talks), requests + tree.requests
    return Choice(sorted(chosen.values(), key=lambda t: t.start_s), len(trees), cut)


def _pruned(tree: Tree) -> tuple[Tree, int]:
    """The start of a tree that is too large to draw, and how many conversations that leaves out."""
    kept, requests = 0, 0
    for talk in tree.talks[:MOST_LANES]:
        requests += len(talk.rows)
        if requests > MOST_REQUESTS and kept:
            break
        kept += 1
    talks = list(tree.talks[:kept])
    if len(talks) == 1 and len(talks[0].rows) > MOST_REQUESTS:
        one = talks[0]
        talks = [Talk(one.id, one.name, one.rows[:MOST_REQUESTS], one.parent, one.branch_mode, one.parent_turn)]
    return Tree(tree.root, talks, tree.depth[:kept], tree.start_s, tree.end_s), len(tree.talks) - kept


def _talks(view: RunView) -> dict[str, Talk]:
    talks: dict[str, Talk] = {}
    for row, record in enumerate(view.records):
        talk = talks.get(record.correlation_id)
        if talk is None:
            talk = talks[record.correlation_id] = Talk(
                record.correlation_id,
                record.conversation_id,
                parent=record.parent_correlation_id,
                branch_mode=record.branch_mode,
                parent_turn=record.parent_turn_index,
            )
        talk.rows.append(row)
    # A parent without requests: an orchestrator, or one whose requests were all lost.
    for talk in list(talks.values()):
        if talk.parent is not None and talk.parent not in talks:
            root = view.records[talk.rows[0]].root_correlation_id
            above = None if root == talk.parent else root
            talks[talk.parent] = Talk(talk.parent, "orchestrator", parent=above, silent=True)
            if above is not None and above not in talks:
                talks[above] = Talk(above, "orchestrator", silent=True)
    return talks


def _depth_first(root: Talk, children: dict[str, list[Talk]]) -> Iterator[tuple[Talk, int]]:
    """Without recursion: chains of spawns may be long. A loop of parents in a broken file ends."""
    seen = set()
    stack = [(root, 0)]
    while stack:
        talk, depth = stack.pop()
        if talk.id in seen:
            continue
        seen.add(talk.id)
        yield talk, depth
        below = sorted(children.get(talk.id, ()), key=lambda t: t.rows[0] if t.rows else 0, reverse=True)
        stack += [(child, depth + 1) for child in below]
