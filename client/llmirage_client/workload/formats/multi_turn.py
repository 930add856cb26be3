"""multi_turn: one conversation a line, its turns written like the lines of single_turn. Documented by AIPerf.

The history grows by the file's turns and the live replies. A first turn that is nothing but a system prompt is no request
of its own: it stands before the history of every turn. Lines that share a session_id are one conversation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from llmirage_client.workload.authored_turn import AuthoredTurn, TurnReader, check_type
from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import read_bytes, read_json_lines
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import free_names, scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_client.workload.user_content import MODALITY_KEYS

_KEYS = ("type", "session_id", "turns")


def load(path: str) -> Workload:
    """Every conversation of the file. Raises WorkloadError with all problems, each with line and field."""
    problems: list[Problem] = []
    reader = TurnReader()
    groups: dict[str | int, list[AuthoredTurn]] = {}  # by session_id, or by line where there is none
    lines: dict[str | int, int] = {}
    for line, value in read_json_lines(read_bytes(path), problems):
        check = Checker(line)
        row = check.mapping(value, None)
        if row is not None:
            reader.stray.look(row, _KEYS, check)
            check_type(row, FORMAT.name, check)
            session_id = check.text(row["session_id"], "session_id") if row.get("session_id") is not None else None
            entries = check.items(check.required(row, "turns"), "turns", may_be_empty=False) or []
            read = [(check.mapping(entry, f"turns.{i}"), f"turns.{i}.") for i, entry in enumerate(entries)]
            authored = [reader.read(turn, check, at) for turn, at in read if turn is not None]
            groups.setdefault(session_id or line, []).extend(authored)
            lines.setdefault(session_id or line, line)
        problems += check.problems
    if problems:
        raise WorkloadError(path, sorted(problems, key=lambda problem: problem.line or 0))
    names = free_names((key for key in groups if isinstance(key, str)), (key for key in groups if isinstance(key, int)))
    sessions = []
    for key, group in groups.items():
        turns = _with_system_prompt(group)
        name = key if isinstance(key, str) else names[key]
        sessions.append(Session(name, turns, arrival_s=turns[0].arrival_s, line=lines[key]))
    return scheduled(FORMAT.name, path, sessions, reader.stray.notes())


def _with_system_prompt(authored: Sequence[AuthoredTurn]) -> tuple[Turn, ...]:
    """The turns; a leading system prompt is part of the first, unless a further system turn or nothing comes after it."""
    turns = tuple(entry.turn for entry in authored)
    prompt = authored[0].system_text
    if prompt is None or len(authored) == 1 or authored[1].role == "system":
        return turns
    first = turns[1]
    return (replace(first, messages=({"role": "system", "content": prompt}, *first.messages)), *turns[2:])


def recognises(keys: Collection[str]) -> bool:
    return "turns.messages" not in keys and any(f"turns.{key}" in keys for key in MODALITY_KEYS)


FORMAT = Format(
    name="multi_turn",
    summary="conversations of text, images, sounds and videos, one a line",
    needs="'turns', each with 'text' or the like, on every line",
    recognises=recognises,
    load=load,
    order=85,
)
