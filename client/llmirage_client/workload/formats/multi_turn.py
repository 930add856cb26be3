"""multi_turn: one conversation a line, its turns written like the lines of single_turn. Documented by AIPerf.

The history grows by the file's turns and the live replies. A first turn that is nothing but a system prompt is no request
of its own: it stands before the history of every turn. Lines that share a session_id are one conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmirage_client.workload.authored_turn import AuthoredTurn, TurnReader, check_type
from llmirage_client.workload.files import read_rows
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_client.workload.user_content import MODALITY_KEYS

_KEYS = ("type", "session_id", "turns")


def load(path: str) -> Workload:
    """Every conversation of the file. Raises WorkloadError with all problems, each with line and field."""
    problems: list[Problem] = []
    reader = TurnReader()
    lines: SessionLines[AuthoredTurn] = SessionLines()
    for row, check in read_rows(path, problems):
        reader.stray.look(row, _KEYS, check)
        check_type(row, FORMAT.name, check)
        session_id = check.given(row, "session_id", check.text)
        entries = check.items(check.required(row, "turns"), "turns", may_be_empty=False) or []
        read = [(check.mapping(entry, f"turns.{i}"), f"turns.{i}.") for i, entry in enumerate(entries)]
        lines.add(session_id, check.line or 0, [reader.read(turn, check, at) for turn, at in read if turn is not None])
    if problems:
        raise WorkloadError(path, problems)
    sessions = []
    for name, line, group in lines.sessions():
        turns = _with_system_prompt(group)
        sessions.append(Session(name, turns, arrival_s=turns[0].arrival_s, line=line))
    return scheduled(FORMAT.name, path, sessions, reader.stray.notes())


def _with_system_prompt(authored: Sequence[AuthoredTurn]) -> tuple[Turn, ...]:
    """The turns; a leading system prompt is part of the first, unless a further system turn or nothing comes after it."""
    turns = tuple(entry.turn for entry in authored)
    prompt = authored[0].system_text
    if prompt is None or len(authored) == 1 or authored[1].role == "system":
        return turns
    first = turns[1]
    return (replace(first, messages=({"role": "system", "content": prompt}, *first.messages)), *turns[2:])


FORMAT = Format(
    name="multi_turn",
    summary="conversations of text, images, sounds and videos, one a line",
    needs="'turns', each with 'text' or the like, on every line",
    recognises=lambda keys: "turns.messages" not in keys and any(f"turns.{key}" in keys for key in MODALITY_KEYS),
    load=load,
    order=85,
)
