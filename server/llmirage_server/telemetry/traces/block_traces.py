"""Traces of lengths and block hashes: dynamo.request.trace.v1 and agentic_mooncake, a line a request, and WEKA's folders."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from llmirage_server.telemetry.traces.served import (
    MOST_SESSIONS,
    Earlier,
    PlacedRequest,
    Sessions,
    TracedRequest,
    TracedSession,
)
from llmirage_server.telemetry.traces.trace_file import SETTING, GrowingFile, json_line, milliseconds, opened
from llmirage_shared.settings import ConfigError


class _BlockWriter(ABC):
    """A file with a line for each request that was not refused."""

    def __init__(self, path: Path, block_tokens: int, beginning: bytes = b"") -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        self._file = opened(path, SETTING, beginning)
        self._block_tokens = block_tokens
        self._sessions = Sessions()

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            if served.refusal is None:
                self._file.add(json_line(self._row(self._sessions.place(served))))

    @abstractmethod
    def _row(self, placed: PlacedRequest) -> dict[str, Any]: ...


class DynamoWriter(_BlockWriter):
    """Schema dynamo.request.trace.v1: a request_end a request. All have a session, of one request where nothing tells."""

    def _row(self, placed: PlacedRequest) -> dict[str, Any]:
        served, session = placed.served, placed.session
        context = {"session_id": session.name}
        if session.parent is not None:
            context["parent_session_id"] = session.parent.name
        calls = [
            {"choice_index": served.choice, "tool_call_index": number, "id": call, "name": name}
            for number, (call, name, _) in enumerate(served.calls)
        ]
        request: dict[str, Any] = {"request_id": served.id}
        if served.caller_id:
            request["x_request_id"] = served.caller_id
        request |= {
            "model": served.model,
            "input_tokens": served.prompt_tokens,
            "output_tokens": served.output_tokens,
            "cached_tokens": served.cached_tokens,
            "kv_hit_rate": round(served.cached_tokens / served.prompt_tokens, 6),
            "request_received_ms": milliseconds(served.arrival_s),
            "total_time_ms": milliseconds(served.end_s - served.arrival_s),
        }
        if not math.isnan(served.first_token_s):
            request["ttft_ms"] = milliseconds(served.first_token_s - served.arrival_s)
        request["finish_reason_metadata"] = {"finish_reason": served.finish, "tool_calls": calls}
        request["replay"] = {
            "trace_block_size": self._block_tokens,
            "input_length": served.prompt_tokens,
            "input_sequence_hashes": placed.blocks(self._block_tokens),
        }
        return {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": round(served.end_s * 1000),
            "event_source": "llmirage",
            "agent_context": context,
            "request": request,
        }


class MooncakeWriter(_BlockWriter):
    """Schema dynamo.agentic_mooncake, version 2: a header, and a request with the events it waits for a line.

    Hashes mean the same in all plays, as the prompts of sessions may begin alike.
    """

    def __init__(self, path: Path, block_tokens: int) -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": block_tokens, "hash_id_scope": "global"}
        super().__init__(path, block_tokens, json_line(header | {"source": {"format": "llmirage"}}))
        self._plays: dict[str, int] = {}

    def _row(self, placed: PlacedRequest) -> dict[str, Any]:
        served, root = placed.served, placed.session.root.name
        dependencies = [
            {"request_id": one.id, "trigger": "completion", "delay_ms": _after(served, one), "relation": relation}
            for one, relation in (
                (placed.previous, "sequence"),
                (placed.spawned_by, "spawn"),
                *((last, "join") for _, last in placed.joins),
            )
            if one is not None
        ]
        return {
            "request_id": served.id,
            "play_id": root,
            "source_play_ordinal": self._plays.setdefault(root, len(self._plays)),
            "session_id": placed.session.name,
            "model": served.model,
            "input_length": served.prompt_tokens,
            "output_length": served.output_tokens,
            "hash_ids": placed.blocks(self._block_tokens, cut=True),
            "not_before_ms": max(milliseconds(served.arrival_s - served.since_s), 0.0),
            "recorded_api_time_ms": milliseconds(served.end_s - served.arrival_s),
            "dependencies": dependencies,
        }


def _after(served: TracedRequest, other: Earlier) -> float:
    return max(milliseconds(served.arrival_s - other.end_s), 0.0)


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 100  # characters of a file's name
_STOPS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
_OUTPUTS = {"reasoning": "thinking", "text": "text", "refusal": "text"}


@dataclass(slots=True)
class _Agent:
    """The requests of a session that its parent's do not hold yet. waiting: the same of sessions that it has started."""

    name: str
    begins_s: float
    end_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[str, _Agent] = field(default_factory=dict)


@dataclass(slots=True)
class _Tree:
    file: GrowingFile
    origin_s: float
    root: _Agent
    models: list[str] = field(default_factory=list)
    markers: dict[str, int] = field(default_factory=dict)  # of each subagent, so far
    begun: bool = False


class WekaWriter:
    """A folder of kv-cache-tester's traces, a file for each tree of sessions.

    A subagent stands before the request of its parent that came when all of it was over.
    """

    def __init__(self, folder: Path, block_tokens: int) -> None:
        """Create the folder. Raises ConfigError if it cannot be made."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError([f"{SETTING}: {folder}: {error.strerror or error}"]) from None
        self._folder = folder
        self._block_tokens = block_tokens
        self._sessions = Sessions()
        self._trees: OrderedDict[str, _Tree] = OrderedDict()

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            if served.refusal is None:
                self._add(self._sessions.place(served))

    def _add(self, placed: PlacedRequest) -> None:
        served = placed.served
        tree = self._tree(placed.session.root.name, served)
        if served.model not in tree.models:
            tree.models.append(served.model)
        agent = self._agent(placed.session, tree, placed)
        over = [agent.waiting.pop(child.name) for child, _ in placed.joins if child.name in agent.waiting]
        found = [_marker(child, tree) for child in over]
        found.append(self._entry(placed, tree.origin_s))
        for child in over:
            tree.markers[child.name] = tree.markers.get(child.name, 0) + 1
        agent.requests += found
        agent.end_s = max(agent.end_s, served.end_s - tree.origin_s)
        part = _joined(tree.root.requests)
        if part and tree.begun:
            part = b",\n" + part
        tree.root.requests.clear()
        waiting = _joined([_marker(child, tree) for child in tree.root.waiting.values()])
        separator = b",\n" if waiting and (part or tree.begun) else b""
        tree.file.add(part, separator + waiting + b'],"models":' + json_line(tree.models).strip() + b"}\n")
        tree.begun |= bool(part)

    def _tree(self, name: str, served: TracedRequest) -> _Tree:
        if (known := self._trees.get(name)) is not None:
            self._trees.move_to_end(name)
            return known
        stem = _UNSAFE.sub("_", name)[:_MOST_NAME].lstrip(".") or "session"
        for number in count(1):
            own = stem if number == 1 else f"{stem}-{number}"
            head = {
                "id": own,
                "block_size": self._block_tokens,
                "hash_id_scope": "local",
                "tool_tokens": 0,
                "system_tokens": 0,
            }
            try:
                file = GrowingFile(self._folder / f"{own}.json", b"{\n" + json_line(head).strip()[1:-1] + b',"requests":[\n')
                break
            except FileExistsError:
                continue
        tree = self._trees[name] = _Tree(file, served.arrival_s, _Agent(name, 0.0))
        if len(self._trees) > MOST_SESSIONS:
            self._trees.popitem(last=False)
        return tree

    def _agent(self, session: TracedSession, tree: _Tree, placed: PlacedRequest | None = None) -> _Agent:
        """Return the agent of a session, within those of its parents."""
        if session.parent is None:
            return tree.root
        within = self._agent(session.parent, tree).waiting
        if session.name not in within:
            begins_s = session.begun_s
            if placed is not None and placed.spawned_by is not None:
                begins_s = placed.spawned_by.end_s
            within[session.name] = _Agent(session.name, max(begins_s - tree.origin_s, 0.0))
        return within[session.name]

    def _entry(self, placed: PlacedRequest, origin_s: float) -> dict[str, Any]:
        served = placed.served
        roles = [message.get("role") for message in served.messages]
        entry: dict[str, Any] = {
            "t": max(round(served.arrival_s - origin_s, 6), 0.0),
            "type": "s" if served.sampling.stream else "n",
            "model": served.model,
            "in": served.prompt_tokens,
            "out": served.output_tokens,
            "hash_ids": placed.blocks(self._block_tokens),
            "input_types": ["tool_result" if roles and roles[-1] == "tool" else "text"],
            "output_types": list(dict.fromkeys([_OUTPUTS.get(kind, "tool_use") for kind, _, _ in served.parts])),
            "stop": _STOPS.get(served.finish, served.finish),
            "api_time": round(served.end_s - served.arrival_s, 6),
        }
        if served.sampling.stream and not math.isnan(served.first_token_s):
            entry["ttft"] = round(served.first_token_s - served.arrival_s, 6)
        previous = placed.previous
        entry["think_time"] = 0.0 if previous is None else max(round(served.arrival_s - previous.end_s, 6), 0.0)
        return entry


def _joined(entries: Iterable[dict[str, Any]]) -> bytes:
    return b",\n".join([json_line(entry).strip() for entry in entries])


def _marker(agent: _Agent, tree: _Tree) -> dict[str, Any]:
    """Return the entry of a subagent, with those that it has started and that nothing came after."""
    number = tree.markers.get(agent.name, 0)
    requests = [*agent.requests, *(_marker(child, tree) for child in agent.waiting.values())]
    calls = [entry for entry in agent.requests if entry["type"] != "subagent"]
    return {
        "t": round(agent.begins_s, 6),
        "type": "subagent",
        "agent_id": f"{agent.name}-{number + 1}" if number else agent.name,
        "subagent_type": "session",
        "duration_ms": round((agent.end_s - agent.begins_s) * 1000, 3),
        "total_tokens": sum([entry["in"] + entry["out"] for entry in calls]),
        "tool_use_count": sum([entry["stop"] == "tool_use" for entry in calls]),
        "status": "completed",
        "models": list(dict.fromkeys([entry["model"] for entry in calls])),
        "tool_tokens": 0,
        "system_tokens": 0,
        "requests": requests,
    }
