"""The data of the swim-lane chart: conversations as lanes, their requests as columns of whole numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmirage_client.measure.arrays import Bools, Floats
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.trees import ConversationNode, Selection, Tree

KINDS = ("root", "fork", "spawn", "child")
OK, FAILED, CANCELLED = range(3)
_ALIGNED_FROM = 3.0  # trees that last less than this part of the whole are compared from a start of their own
_MOST_IDS = 1000  # of requests: they do not compress, and the records have all of them
_ERROR_CHARACTERS = 160
_UNITS_S = (1e-6, 1e-5, 1e-4, 1e-3)
_LARGEST = 10**7  # units of a run: eight digits of each time are enough for a screen


def lanes_json(view: RunView, selection: Selection) -> str:
    """What swimlane.js reads: the lanes tree after tree, the requests lane after lane in order of their start.

    Times are whole numbers of `unit_s`; `start` is that since the request before, `first` and `took` since the start. -1
    stands for what is not known.
    """
    return json.dumps(_Lanes(view, selection).data(), separators=(",", ":"), ensure_ascii=False)


def aligned(trees: Sequence[Tree]) -> bool:
    """Whether the trees are so short in the whole that they are better compared from a start of their own."""
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
        """up: how many lanes above the parent's is; 0: a root. turn_of_parent: that started it, from 1; 0: none."""
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
        """By request, which lanes its turn waited for: [request, lane, lane...]."""
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
        """The requests that one may want to find in a server's log: failures, then the longest."""
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
