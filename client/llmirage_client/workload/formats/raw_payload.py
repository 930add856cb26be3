"""raw_payload: whole request bodies, sent unchanged. Documented by AIPerf.

A file has one body a line, each a conversation of its own. A directory has one conversation a .jsonl file, named like the
file: its lines are the turns, in order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_client.workload.checking import ABSENT, kind_of
from llmirage_client.workload.files import fault, read_bytes, read_rows
from llmirage_client.workload.first_keys import first_keys
from llmirage_client.workload.format import Format
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError


def load(path: str) -> Workload:
    """Every body of the file or directory. Raises WorkloadError with all problems, each with file, line and field."""
    problems: list[Problem] = []
    if Path(path).is_dir():
        sessions = _directory(Path(path), problems)
    else:
        payloads = _payloads(read_bytes(path), problems)
        sessions = [_session(f"request_{line}", [payload], line) for line, payload in payloads]
    if problems:
        raise WorkloadError(path, problems)
    return Workload.of_roots(FORMAT.name, path, sessions)


def _directory(path: Path, problems: list[Problem]) -> list[Session]:
    files = body_files(path)
    if not files:
        raise fault(str(path), "is a directory without .jsonl files; each is a conversation, each line of it a request body")
    sessions = []
    for file in files:
        found: list[Problem] = []
        try:
            payloads = _payloads(read_bytes(str(file)), found)
        except WorkloadError as error:
            found += error.problems
        else:
            sessions.append(_session(file.stem, [payload for _, payload in payloads], None))
        problems += [replace(problem, file=file.name) for problem in found]
    return sessions


def _session(name: str, payloads: list[dict[str, Any]], line: int | None) -> Session:
    return Session(name, tuple(Turn(payload=payload) for payload in payloads), mode="verbatim", line=line)


def _payloads(data: bytes, problems: list[Problem]) -> list[tuple[int, dict[str, Any]]]:
    """The bodies with their lines. Only their `messages` are looked at: a body without is a mistake of the file."""
    read = []
    for body, check in read_rows(data, problems):
        messages = check.required(body, "messages")
        if messages is not ABSENT and not isinstance(messages, list):
            check.fail("messages", f"Input should be a valid list (the request's messages), got {kind_of(messages)}")
        read.append((check.line or 0, body))
    return read


def body_files(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*.jsonl") if file.is_file())


def recognises(keys: Collection[str]) -> bool:
    return "messages" in keys and "conversation_id" not in keys


def recognises_directory(path: Path) -> bool:
    """Whether at least half of its .jsonl files begin with a request body; the others are then mistakes."""
    files = body_files(path)
    return bool(files) and 2 * sum(map(_begins_with_body, files)) >= len(files)


def _begins_with_body(file: Path) -> bool:
    try:
        data = read_bytes(str(file))
    except WorkloadError:
        return False
    return recognises(first_keys(next((line for line in data.split(b"\n") if line.strip()), b"")).marks)


FORMAT = Format(
    name="raw_payload",
    summary="whole request bodies, one a line, sent as they are; or a directory, a conversation a file",
    needs="'messages' on every line",
    recognises=recognises,
    load=load,
    order=80,
    recognises_directory=recognises_directory,
)
