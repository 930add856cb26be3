"""dag_jsonl: branching conversations, one a line. Forks inherit the parent's history, spawns start fresh."""

from __future__ import annotations

import re
from collections.abc import Collection

from llmirage_client.workload.dag_graph import check_graph, desugar
from llmirage_client.workload.dag_schema import read_conversation
from llmirage_client.workload.files import ARRAY_OF_OBJECTS, read_bytes, read_values
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import scheduled_trees
from llmirage_client.workload.session import Problem, Session, Workload, WorkloadError

_SESSION_ID = re.compile(rb'"session_id"\s*:\s*"([^"\\]+)"')


def load(path: str) -> Workload:
    """Load every conversation of the file. Raises WorkloadError with all problems, each with its line; never half a file."""
    data = read_bytes(path)
    problems: list[Problem] = []
    first_line: dict[str, int] = {}  # of every id, those of faulty lines too
    sessions: dict[str, Session] = {}
    for line, value in read_values(data, problems, ARRAY_OF_OBJECTS):
        sid = value.get("session_id") if isinstance(value, dict) else None
        if isinstance(sid, str) and sid:
            if sid in first_line:
                problems.append(Problem(f"duplicate session_id '{sid}' (first on line {first_line[sid]})", line))
            first_line.setdefault(sid, line)
        conversation, found = read_conversation(value, line)
        problems += found
        if conversation is not None and first_line[conversation.session.id] == line:
            sessions[conversation.session.id], found = desugar(conversation)
            problems += found
    problems += check_graph(sessions, first_line.keys() | _ids_on_broken_lines(data, problems))
    if problems:
        raise WorkloadError(path, list(dict.fromkeys(problems)))
    return scheduled_trees(FORMAT.name, path, sessions.values())


def _ids_on_broken_lines(data: bytes, problems: Collection[Problem]) -> set[str]:
    """Return ids written on lines that are no JSON, so that their users are not reported for naming an unknown session."""
    broken = {problem.line for problem in problems if problem.message.startswith("invalid JSON")}
    if not broken:
        return set()
    lines = [text for number, text in enumerate(data.split(b"\n"), start=1) if number in broken]
    return {match.group(1).decode("utf-8", "replace") for text in lines for match in _SESSION_ID.finditer(text)}


FORMAT = Format(
    name="dag_jsonl",
    summary="branching conversations (forks, spawns, joins), one a line",
    needs="'session_id' and 'turns' on every line",
    recognises=lambda keys: bool({"turns", "orchestrator", "pre_session_spawns"} & set(keys)) or set(keys) == {"session_id"},
    load=load,
)
