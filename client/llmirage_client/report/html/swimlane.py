"""The conversations of a run as trees and, for a selection of trees, as lanes.

Requests are bars; forks, spawns and joins are lines between the lanes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmirage_client.measure.catalogue import PER_CONVERSATION
from llmirage_client.report.html.charts import LEVELS
from llmirage_client.report.html.page import Section, escape, table
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.screen import count, number
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Bools, Floats

MOST_LANES = 10_000
MOST_REQUESTS = 10_000


@dataclass(slots=True)
class ConversationNode:
    """One conversation. rows: of the run view, by start. parent: None for a root, or when it is not known."""

    id: str
    name: str
    rows: list[int] = field(default_factory=list)
    parent: str | None = None
    branch_mode: str = "root"
    parent_turn: int | None = None


@dataclass(slots=True)
class Tree:
    """A root and its descendants. nodes: depth first, children by their start."""

    root: str
    nodes: list[ConversationNode]
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
    """Return all trees, by start."""
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
        tree = list(_depth_first(root, children))
        rows = [row for node in tree for row in node.rows]
        trees.append(Tree(root.id, tree, float(start[rows].min()), float(np.nanmax(end[rows]))))
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
    """Return the first nodes of a tree that is too large to draw, and the number left out."""
    kept, requests = 0, 0
    for node in tree.nodes[:MOST_LANES]:
        requests += len(node.rows)
        if requests > MOST_REQUESTS and kept:
            break
        kept += 1
    nodes = tree.nodes[:kept]
    if kept == 1:
        nodes = [replace(nodes[0], rows=nodes[0].rows[:MOST_REQUESTS])]
    return replace(tree, nodes=nodes), len(tree.nodes) - kept


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
            nodes[node.parent] = ConversationNode(node.parent, "orchestrator", parent=above)
            if above is not None and above not in nodes:
                nodes[above] = ConversationNode(above, "orchestrator")
    return nodes


def _depth_first(root: ConversationNode, children: dict[str, list[ConversationNode]]) -> Iterator[ConversationNode]:
    """Walk a tree without recursion: chains of spawns may be long. A loop of parents in a broken file ends."""
    seen = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        yield node
        stack += sorted(children.get(node.id, ()), key=lambda t: t.rows[0] if t.rows else 0, reverse=True)


_LEAD = "A lane is a conversation, a bar a request: the wait for its first token, then its tokens. Point at it for more."
_HELP = (
    "Zoom: drag over a span, Ctrl and wheel, or + and \N{MINUS SIGN}; 0 shows the whole. Arrow keys go from request to "
    "request, left and right in a lane, up and down between lanes."
)
_BOX = '<rect x="2" y="2" width="18" height="10" rx="2" class="{}"/>'
_LINE = '<path d="M1 7h20" class="{}"/>'
_LINKS = {"fork": "fork", "spawn": "spawn", "root": "child"}  # by branch mode, of conversations with a parent


def swimlane(view: RunView) -> Section:
    """Return empty when there is nothing to draw."""
    trees = trees_of(view) if view.records else []
    if not trees:
        return Section("Conversations", [])
    selection = select(view, trees)
    drawn = (
        f'<div id="swimlane" hidden data-lanes="{escape(lanes_json(view, selection))}">\n{_tools(view, selection)}'
        '<div class="beside"><figure><div class="lanes" tabindex="0" role="group" aria-label="Swim-lane of conversations" '
        'aria-describedby="lanes-help"><div class="room"><canvas></canvas></div></div>'
        f'<figcaption id="lanes-help">{escape(" ".join(filter(None, (_HELP, _left_out(selection)))))}</figcaption></figure>'
        f'{_legend(view)}</div><p class="said" id="lanes-said" role="status"></p></div>\n'
        '<noscript><p class="muted">The swim-lane chart needs scripts.</p></noscript>\n'
    )
    return Section("Conversations", [drawn, _figures(view)], _LEAD, script="swimlane.js")


def _tools(view: RunView, selection: Selection) -> str:
    times = [("run", "since the start"), ("tree", "since its own start")]
    if view.result.url:
        times.insert(1, ("day", "time of day"))
    usual = "tree" if aligned(selection.trees) else "run"
    orders = [("start", "by start"), ("first", "slowest TTFT first"), ("took", "longest first"), ("size", "largest first")]
    states = [("", "any outcome"), ("0", "succeeded"), ("1", "failed"), ("2", "cancelled")]
    return (
        '<div class="tools">'
        '<label>Search <input type="search" id="lanes-search" placeholder="name, ID, error"></label>'
        f"<label>Outcome {_select('lanes-status', states)}</label>"
        '<label>Turn <input id="lanes-turn" size="5" inputmode="numeric" placeholder="0-3"></label>'
        f"<label>Order {_select('lanes-order', orders)}</label>"
        f"<label>Time {_select('lanes-time', times, usual)}</label>"
        f"<label>Colour {_select('lanes-color', [('', 'by phase'), ('cache', 'by cached share')])}</label>"
        '<span class="zoom"><button type="button" id="lanes-out" aria-label="Zoom out">\N{MINUS SIGN}</button>'
        '<button type="button" id="lanes-in" aria-label="Zoom in">+</button>'
        '<button type="button" id="lanes-whole">All</button></span></div>\n'
    )


def _select(name: str, choices: list[tuple[str, str]], chosen: str = "") -> str:
    options = "".join(
        f'<option value="{value}"{" selected" if value == chosen and chosen else ""}>{escape(text)}</option>'
        for value, text in choices
    )
    return f'<select id="{name}">{options}</select>'


def _legend(view: RunView) -> str:
    """Return the legend of this run; swimlane.js hides the parts that the chosen colours do not use."""
    columns, records = view.columns, view.records
    ramp = "".join(f'<rect x="{n * 6}" y="2" width="6" height="10" class="h{n + 1}"/>' for n in range(LEVELS))
    items = [
        _entry(_BOX.format("prefill"), "waiting for the first token", "phase"),
        _entry(_BOX.format("decode"), "receiving tokens", "phase"),
        _entry(ramp, "0 to 100 % of the prompt cached", "cache", 6 * LEVELS),
        _entry(_BOX.format("unknown"), "cached share unknown", "cache"),
    ]
    if (~columns.ok & ~columns.cancelled).any():
        items.append(_entry(_BOX.format("failed"), "failed"))
    if columns.cancelled.any():
        items.append(_entry(_BOX.format("cancelled"), "cancelled"))
    items.append(_entry(_LINE.format("idle"), "pause: a tool runs, or a user thinks"))
    modes = {record.branch_mode for record in records if record.parent_correlation_id is not None}
    names = {"fork": "fork", "spawn": "spawn", "root": "child, fork or spawn"}
    items += [_entry(_LINE.format(f"k {css}"), names[mode]) for mode, css in _LINKS.items() if mode in modes]
    if any(record.joined for record in records):
        items.append(_entry(_LINE.format("k join"), "join: a turn that waited for a child"))
        items.append(_entry(_LINE.format("waits"), "waiting for children"))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _entry(swatch: str, text: str, of: str = "", wide: int = 22) -> str:
    """Return an entry of the legend. of: the colouring it belongs to; "" for any."""
    svg = f'<svg viewBox="0 0 {wide} 14" width="{wide}" height="14" aria-hidden="true">{swatch}</svg>'
    return f'<li data-of="{of}">{svg} {text}</li>'


def _left_out(selection: Selection) -> str:
    said = []
    if hidden := selection.of - len(selection.trees):
        said.append(
            f"Shown: {count(len(selection.trees))} of {plural(selection.of, 'conversation tree')}, {count(hidden)} are not. "
            "Chosen in turn: with failures, most conversations, the slowest first token, the longest, the most usual."
        )
    if selection.cut:
        said.append(f"{plural(selection.cut, 'conversation')} of the first tree are not drawn: there is no room.")
    return " ".join(said)


def _figures(view: RunView) -> str:
    """Return a table of the metrics of whole conversations."""
    found = view.metrics.per_conversation
    rows = [
        [PER_CONVERSATION[tag].heading, *(number(getattr(s, p)) for p in ("avg", "p50", "p90", "p99", "min", "max"))]
        for tag, s in found.items()
    ]
    return table(["Of a conversation", "mean", "p50", "p90", "p99", "min", "max"], rows) if rows else ""


KINDS = ("root", "fork", "spawn", "child")
OK, FAILED, CANCELLED = range(3)
_ALIGNED_FROM = 3.0  # trees that last less than this part of the whole are compared from a start of their own
_MOST_IDS = 1000  # of requests: they do not compress, and the records have all of them
_ERROR_CHARACTERS = 160
_UNITS_S = (1e-6, 1e-5, 1e-4, 1e-3)
_LARGEST = 10**7  # units of a run: eight digits of each time are enough for a screen


def lanes_json(view: RunView, selection: Selection) -> str:
    """Return the data of swimlane.js: the lanes tree after tree, the requests lane after lane in order of their start.

    Times are whole numbers of `unit_s`; `start` is that since the request before, `first` and `took` since the start. -1
    stands for what is not known.
    """
    return json.dumps(_Lanes(view, selection).data(), separators=(",", ":"), ensure_ascii=False)


def aligned(trees: Sequence[Tree]) -> bool:
    """Return whether the trees are so short in the whole that they are better compared from a start of their own."""
    whole_s = max(t.end_s for t in trees) - min(t.start_s for t in trees)
    usual_s = float(np.median([t.end_s - t.start_s for t in trees]))
    several = any(tree.requests > 1 for tree in trees)
    return several and len(trees) > 1 and whole_s > _ALIGNED_FROM * usual_s


class _Lanes:
    def __init__(self, view: RunView, selection: Selection) -> None:
        self._view = view
        self._nodes = [node for tree in selection.trees for node in tree.nodes]
        self._rows = np.array([row for node in self._nodes for row in node.rows], dtype=np.int64)
        end_s = max(tree.end_s for tree in selection.trees)
        self._unit_s = next((unit for unit in _UNITS_S if end_s < unit * _LARGEST), _UNITS_S[-1])

    def data(self) -> dict[str, Any]:
        view, result = self._view, self._view.result
        started_s = result.start_unix_s + view.origin_s - result.start_s
        return {
            "unit_s": self._unit_s,
            "speed": result.speed,
            "unix_s": round(started_s, 3) if result.url else None,  # a simulation has no time of day
            **self._of_lanes(),
            **self._of_requests(),
        }

    def _of_lanes(self) -> dict[str, Any]:
        """Return a lane.

        up: how many lanes above the parent's is; 0: a root. turn_of_parent: that started it, from 1; 0: none.
        """
        numbers = {node.id: number for number, node in enumerate(self._nodes)}
        return {
            "name": "\n".join(node.name.replace("\n", " ") for node in self._nodes),
            "up": [0 if node.parent is None else at - numbers.get(node.parent, at) for at, node in enumerate(self._nodes)],
            "kind": "".join(str(_kind(node)) for node in self._nodes),
            "turn_of_parent": [0 if node.parent_turn is None else node.parent_turn + 1 for node in self._nodes],
            "requests": [len(node.rows) for node in self._nodes],
            "joins": self._joins(numbers),
        }

    def _joins(self, numbers: dict[str, int]) -> list[list[int]]:
        """Return by request, which lanes its turn waited for: [request, lane, lane...]."""
        found = []
        for at, row in enumerate(self._rows.tolist()):
            if joined := self._view.records[row].joined:
                found.append([at, *(numbers[child] for child in joined if child in numbers)])
        return found

    def _of_requests(self) -> dict[str, Any]:
        view, rows = self._view, self._rows
        columns, records = view.columns, [view.records[row] for row in rows.tolist()]
        start_s = view.start_s[rows]
        status = np.where(columns.ok[rows], OK, np.where(columns.cancelled[rows], CANCELLED, FAILED))
        streamed = columns.streamed[rows]
        first_s = np.where(streamed, view.since_start_s(columns.first_s)[rows] - start_s, np.nan)
        last_s = view.since_start_s(columns.last_s)[rows]
        end_s = np.where(streamed & (status == OK) & np.isfinite(last_s), last_s, view.end_s[rows])
        errors: dict[str, int] = {}
        failed = {
            at: errors.setdefault(f"{error.type}: {error.message}"[:_ERROR_CHARACTERS], len(errors))
            for at, record in enumerate(records)
            if (error := record.exchange.error) is not None
        }
        found = self._with_id(status == FAILED, end_s - start_s)
        return {
            "start": np.diff(self._units(start_s), prepend=0).tolist(),
            "first": self._units(first_s).tolist(),
            "took": self._units(end_s - start_s).tolist(),
            "status": "".join(map(str, status.tolist())),
            "turn": [record.turn_index for record in records],
            "tokens_in": _whole(view.value("input_sequence_length")[rows]),
            "tokens_out": _whole(view.value("output_sequence_length")[rows]),
            "cached": _whole(100 * view.cached_share[rows]),
            "errors": list(errors),
            "error": failed,
            "id_of": found,
            "id": "\n".join(records[at].request_id for at in found),
        }

    def _with_id(self, failed: Bools, took_s: Floats) -> list[int]:
        """Return the requests that one may want to find in a server's log: failures, then the longest."""
        order = np.lexsort((-np.nan_to_num(took_s), ~failed))
        return sorted(order[:_MOST_IDS].tolist())

    def _units(self, times_s: Floats) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.where(np.isfinite(times_s), np.rint(np.nan_to_num(times_s) / self._unit_s), -1).astype(np.int64)


def _kind(node: ConversationNode) -> int:
    if node.branch_mode == "root" and node.parent is not None:
        return KINDS.index("child")
    return KINDS.index(node.branch_mode)


def _whole(values: Floats) -> list[int]:
    whole: list[int] = np.where(np.isfinite(values), np.rint(np.nan_to_num(values)), -1).astype(np.int64).tolist()
    return whole
