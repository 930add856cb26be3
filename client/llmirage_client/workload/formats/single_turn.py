"""single_turn: one request a line, of text, images, sounds and videos. Documented by AIPerf.

Lines that share a session_id go out one after the other; each is complete in itself, nothing is carried over.
"""

from __future__ import annotations

from llmirage_client.workload.authored_turn import AuthoredTurn, TurnReader
from llmirage_client.workload.files import read_rows
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import Problem, Session, Workload, WorkloadError
from llmirage_client.workload.user_content import MODALITY_KEYS


def load(path: str) -> Workload:
    """Every line of the file. Raises WorkloadError with all problems, each with line and field."""
    problems: list[Problem] = []
    reader = TurnReader()
    lines: SessionLines[AuthoredTurn] = SessionLines()
    for row, check in read_rows(path, problems):
        turn = reader.read(row, check)
        lines.add(turn.session_id, check.line or 0, [turn])
    if problems:
        raise WorkloadError(path, problems)
    sessions = [
        Session(name, tuple(row.turn for row in group), mode="isolated", arrival_s=group[0].turn.arrival_s, line=line)
        for name, line, group in lines.sessions()
    ]
    return scheduled(FORMAT.name, path, sessions, reader.stray.notes())


FORMAT = Format(
    name="single_turn",
    summary="one request a line: text, images, sounds, videos",
    needs="'text', 'texts', 'image' or the like on every line",
    recognises=lambda keys: bool(set(MODALITY_KEYS) & set(keys)) and "turns" not in keys,
    load=load,
    order=90,
)
