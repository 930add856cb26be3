"""Traces of lengths and block hashes, a line a request: dynamo.request.trace.v1 and agentic_mooncake."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmirage_server.telemetry.traces.served import Earlier, PlacedRequest, Sessions, TracedRequest
from llmirage_server.telemetry.traces.trace_file import SETTING, json_line, milliseconds, opened


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
