"""How turns become requests: AIPerf's names for it, and a run's own choice over the file's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmirage_client.workload.session import ContextMode, Workload

CONTEXT_MODES: Mapping[str, ContextMode] = {
    "deltas_without_responses": "accumulate",
    "deltas_with_responses": "accumulate_authored",
    "message_array_with_responses": "isolated",
    "server_state": "server_state",
    "server_conversation": "server_conversation",
}
ON_SERVER = ("server_state", "server_conversation")  # the server keeps the history


def in_context_mode(workload: Workload, name: str) -> Workload:
    """The workload with that mode in every session that has messages. Raises ValueError where that makes no sense."""
    mode = CONTEXT_MODES[name]
    sessions = dict(workload.sessions)
    having = [session for session in sessions.values() if session.mode in CONTEXT_MODES.values() and session.turns]
    if not having:
        raise ValueError(
            f"files of the format {workload.format} give whole bodies or token counts, which have no context mode"
        )
    forks = any(branch.kind == "fork" for session in having for turn in session.turns for branch in turn.branches)
    if mode == "isolated" and forks:
        raise ValueError("forked conversations inherit a history, which message arrays do not have")
    sessions |= {session.id: replace(session, mode=mode) for session in having}
    return replace(workload, sessions=sessions)
