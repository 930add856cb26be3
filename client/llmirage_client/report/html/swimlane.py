"""The conversations of a run as lanes: requests as bars, forks, spawns and joins as lines between them."""

from __future__ import annotations

import math

import numpy as np

from llmirage_client.measure.catalogue import PER_CONVERSATION
from llmirage_client.report.html.frame import LegendEntry
from llmirage_client.report.html.gantt import Bar, Lane, LaneGroup, Link, gantt
from llmirage_client.report.html.heat import LEVELS
from llmirage_client.report.html.page import Section, charts, figure, paragraph, table, toggle
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.scale import Axis
from llmirage_client.report.html.trees import ConversationNode, Selection, Tree, select, trees_of
from llmirage_client.report.numbers import count, number, plural

_ALIGNED_FROM = 3.0  # trees that last less than this part of the whole are drawn from a start of their own
_MOST_SINGLE = 40  # conversations of one request each: lanes of many show less than the chart of requests in flight
_DEEPEST = 6  # indentation beyond says nothing more
_ID = "swimlane"


def swimlane(view: RunView) -> Section:
    """Empty when there is nothing to draw."""
    trees = trees_of(view) if view.records else []
    if not trees:
        return Section("Conversations", [])
    single = all(tree.requests == 1 for tree in trees)
    if single and len(trees) > _MOST_SINGLE:
        return Section("Conversations", [paragraph("Every conversation is a single request: there are no lanes to draw.")])
    selection = select(view, trees)
    drawing = _Drawing(view, selection)
    ramp = "".join(
        f'<svg width="16" height="11"><rect class="h{n}" width="16" height="11"/></svg>' for n in range(1, LEVELS + 1)
    )
    tools = toggle("Colour by cached share", _ID, "by-cache")
    tools += f'<span class="ramp">0 % of the prompt cached {ramp} 100 %</span>'
    drawn = charts(figure(drawing.svg(), drawing.caption()), size="wide")
    body = f'<div id="{_ID}"><div class="tools">{tools}</div>{drawn}</div>'
    lead = "A lane is a conversation, a bar a request: the wait for its first token, then its tokens. Point at it for more."
    return Section("Conversations", [body, _figures(view)], lead)


def _figures(view: RunView) -> str:
    """What is measured of whole conversations."""
    found = view.metrics.per_conversation
    rows = [
        [PER_CONVERSATION[tag].heading, *(number(getattr(s, p)) for p in ("avg", "p50", "p90", "p99", "min", "max"))]
        for tag, s in found.items()
    ]
    return table(["Of a conversation", "mean", "p50", "p90", "p99", "min", "max"], rows) if rows else ""


class _Drawing:
    """Lanes are numbered in the order they are drawn; times are those of the x axis."""

    def __init__(self, view: RunView, selection: Selection) -> None:
        self._view = view
        self._selection = selection
        self._start, self._end = view.start_s, view.end_s
        self._first = view.since_start_s(view.columns.first_s)
        self._last = view.since_start_s(view.columns.last_s)
        self._share = view.cached_share
        whole_s = max(t.end_s for t in selection.trees) - min(t.start_s for t in selection.trees)
        usual_s = float(np.median([t.end_s - t.start_s for t in selection.trees]))
        several = any(tree.requests > 1 for tree in selection.trees)
        self._aligned = several and len(selection.trees) > 1 and whole_s > _ALIGNED_FROM * usual_s
        self._trees = sorted(selection.trees, key=lambda t: len(t.nodes) == 1)  # otherwise as they began
        self._lane_of: dict[str, int] = {}
        self._node_of: dict[str, tuple[ConversationNode, Tree]] = {}
        for tree in self._trees:
            for node in tree.nodes:
                self._lane_of[node.id] = len(self._lane_of)
                self._node_of[node.id] = (node, tree)

    def svg(self) -> str:
        links = [link for tree in self._selection.trees for node in tree.nodes for link in self._links(node, tree)]
        drawn = {link.css for link in links}
        ok = self._view.columns.ok
        rows = [row for node, _ in self._node_of.values() for row in node.rows]
        keys = [
            LegendEntry("waiting for the first token", "prefill", "box"),
            LegendEntry("receiving tokens", "decode", "box"),
        ]
        if (~ok[rows] & ~self._view.columns.cancelled[rows]).any():
            keys.append(LegendEntry("failed", "failed", "box"))
        if self._view.columns.cancelled[rows].any():
            keys.append(LegendEntry("cancelled", "cancelled", "box"))
        keys.append(LegendEntry("pause: a tool runs, or a user thinks", "idle"))
        words = {
            "fork": "fork",
            "spawn": "spawn",
            "child": "child, fork or spawn",
            "join": "join: a turn that waited for a child",
        }
        keys += [LegendEntry(text, f"k {css}") for css, text in words.items() if css in drawn]
        if any(span[2] == "waits" for tree in self._selection.trees for t in tree.nodes for span in self._spans(t, tree)):
            keys.append(LegendEntry("waiting for children", "waits"))
        axis = "Time since the tree's first request" if self._aligned else "Time since the first request of the run"
        return gantt(self._groups(), links, title="Swim-lane of conversations", x=Axis(axis, "s"), keys=keys)

    def caption(self) -> str:
        selection, said = self._selection, []
        hidden = selection.of - len(selection.trees)
        if hidden:
            said.append(
                f"Shown: {count(len(selection.trees))} of {plural(selection.of, 'conversation tree')}, "
                f"{count(hidden)} are not. "
                "Chosen in turn: with failures, most conversations, the slowest first token, the longest, the most usual."
            )
        if selection.cut:
            said.append(f"{plural(selection.cut, 'conversation')} of the first tree are not drawn: there is no room.")
        if self._aligned:
            said.append(
                "Every tree begins at 0, so that they can be compared; its heading or its tooltip says when that was."
            )
        return " ".join(said)

    def _groups(self) -> list[LaneGroup]:
        """A heading for each tree that branches; those that do not share one at the end."""
        if all(len(t.nodes) == 1 for t in self._selection.trees):
            return [LaneGroup("", [self._lane(t.nodes[0], t, 0) for t in self._trees])]
        groups: list[LaneGroup] = []
        alone: list[Lane] = []
        for tree in self._trees:
            lanes = [self._lane(node, tree, depth) for node, depth in zip(tree.nodes, tree.depth, strict=True)]
            if len(lanes) == 1:
                alone += lanes
                continue
            took = number(tree.end_s - tree.start_s)
            counted = f"{plural(len(lanes), 'conversation')}, {plural(tree.requests, 'request')}"
            heading = f"{tree.nodes[0].name}: {counted}, {took} s"
            groups.append(LaneGroup(f"{heading}, began at {number(tree.start_s)} s" if self._aligned else heading, lanes))
        return groups + ([LaneGroup("Conversations without children", alone)] if alone else [])

    def _x(self, time_s: float, tree: Tree) -> float:
        return time_s - tree.start_s if self._aligned else time_s

    def _lane(self, node: ConversationNode, tree: Tree, depth: int) -> Lane:
        kind = "" if node.branch_mode == "root" else f"{node.branch_mode} of turn {node.parent_turn}, "
        if node.parent is None and node.branch_mode != "root":
            kind = f"{node.branch_mode} before the first turn, "
        began = f"\nbegan at {number(tree.start_s)} s" if self._aligned else ""
        tip = f"{node.name}\n{kind}{plural(len(node.rows), 'request')}\n{node.id}{began}"
        return Lane(
            node.name, [self._bar(row, tree) for row in node.rows], self._spans(node, tree), min(depth, _DEEPEST), tip
        )

    def _bar(self, row: int, tree: Tree) -> Bar:
        view, columns = self._view, self._view.columns
        start, end = self._x(float(self._start[row]), tree), self._x(float(self._end[row]), tree)
        first, last = self._x(float(self._first[row]), tree), self._x(float(self._last[row]), tree)
        if columns.cancelled[row] or not columns.ok[row]:
            return Bar([(start, end, "cancelled" if columns.cancelled[row] else "failed")], self._tip(row))
        share = self._share[row]
        css = f"q{min(LEVELS, int(share * LEVELS) + 1)}" if math.isfinite(share) else "u"
        if not columns.streamed[row] or not math.isfinite(first):
            return Bar([(start, end, "decode")], self._tip(row), css)
        assert view.records
        return Bar([(start, first, "prefill"), (first, max(last, first), "decode")], self._tip(row), css)

    def _tip(self, row: int) -> str:
        view, record = self._view, self._view.records[row]
        said = [f"{record.conversation_id}, turn {record.turn_index}", f"sent at {number(float(self._start[row]))} s"]
        times = [
            f"{name} {number(float(value[row]))} ms"
            for name, tag in (
                ("TTFT", "time_to_first_token"),
                ("TPOT", "inter_token_latency"),
                ("latency", "request_latency"),
            )
            if math.isfinite((value := view.value(tag))[row])
        ]
        isl, osl = view.value("input_sequence_length")[row], view.value("output_sequence_length")[row]
        if times:
            said.append(", ".join(times))
        if math.isfinite(isl):
            share = self._share[row]
            said.append(f"{count(isl)} tokens in" + (f", {100 * share:.0f} % cached" if math.isfinite(share) else ""))
        if math.isfinite(osl):
            said.append(f"{count(osl)} tokens out")
        error = record.exchange.error
        if record.cancelled:
            said.append("cancelled by the client")
        elif error is not None:
            said.append(f"failed: {error.type}: {error.message[:120]}")
        return "\n".join([*said, record.request_id])

    def _spans(self, node: ConversationNode, tree: Tree) -> list[tuple[float, float, str]]:
        """The gaps between a conversation's requests: waiting for children, or a pause."""
        if node.silent:
            return [(self._x(tree.start_s, tree), self._x(tree.end_s, tree), "waits")]
        spans = []
        for before, after in zip(node.rows, node.rows[1:], strict=False):
            css = "waits" if self._view.records[after].joined else "idle"
            begin, finish = float(self._end[before]), float(self._start[after])
            if finish > begin:
                spans.append((self._x(begin, tree), self._x(finish, tree), css))
        return spans

    def _links(self, node: ConversationNode, tree: Tree) -> list[Link]:
        """The line from the parent's reply to this conversation's first request, and the joins of its turns."""
        links = []
        lane, records = self._lane_of[node.id], self._view.records
        if node.parent in self._lane_of and node.rows:
            above = self._node_of[node.parent][0]
            start = float(self._start[node.rows[0]])
            ends = [float(self._end[r]) for r in above.rows if records[r].turn_index == node.parent_turn]
            css = node.branch_mode if node.branch_mode in ("fork", "spawn") else "child"
            begin = self._x(ends[0] if ends else start, tree)
            links.append(
                Link(self._lane_of[above.id], begin, lane, self._x(start, tree), css, f"{css}: {above.name} to {node.name}")
            )
        for row in node.rows:
            for child in records[row].joined:
                joined = self._node_of.get(child)
                if joined is not None and joined[0].rows:
                    end = max(float(self._end[r]) for r in joined[0].rows)
                    tip = f"join: turn {records[row].turn_index} of {node.name} waited for {joined[0].name}"
                    x = self._x(float(self._start[row]), tree)
                    links.append(Link(self._lane_of[child], self._x(end, tree), lane, x, "join", tip))
        return links
