"""single_turn: one request a line, of text, images, sounds and videos. Documented by AIPerf.

Lines that share a session_id go out one after the other; each is complete in itself, nothing is carried over.
"""

from __future__ import annotations

from collections.abc import Collection

from llmirage_client.workload.authored_turn import AuthoredTurn, TurnReader
from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import read_bytes, read_json_lines
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import free_names, scheduled
from llmirage_client.workload.session import Problem, Session, Workload, WorkloadError
from llmirage_client.workload.user_content import MODALITY_KEYS


def load(path: str) -> Workload:
    """Every line of the file. Raises WorkloadError with all problems, each with line and field."""
    problems: list[Problem] = []
    reader = TurnReader()
    rows: dict[str | int, list[AuthoredTurn]] = {}  # by session_id, or by line where there is none
    lines: dict[str | int, int] = {}
    for line, value in read_json_lines(read_bytes(path), problems):
        check = Checker(line)
        row = check.mapping(value, None)
        if row is not None:
            turn = reader.read(row, check)
            key = turn.session_id or line
            rows.setdefault(key, []).append(turn)
            lines.setdefault(key, line)
        problems += check.problems
    if problems:
        raise WorkloadError(path, sorted(problems, key=lambda problem: problem.line or 0))
    names = free_names((key for key in rows if isinstance(key, str)), (key for key in rows if isinstance(key, int)))
    sessions = [
        Session(
            key if isinstance(key, str) else names[key],
            tuple(row.turn for row in group),
            mode="isolated",
            arrival_s=group[0].turn.arrival_s,
            line=lines[key],
        )
        for key, group in rows.items()
    ]
    return scheduled(FORMAT.name, path, sessions, reader.stray.notes())


def recognises(keys: Collection[str]) -> bool:
    return bool(set(MODALITY_KEYS) & set(keys)) and "turns" not in keys


FORMAT = Format(
    name="single_turn",
    summary="one request a line: text, images, sounds, videos",
    needs="'text', 'texts', 'image' or the like on every line",
    recognises=recognises,
    load=load,
    order=90,
)
