"""Request bodies, sent as they are. Documented by AIPerf.

raw_payload: a body a line, each a conversation of its own. A directory has one conversation a .jsonl file, named like the
file: its lines are the turns, in order.

inputs_json: bodies by session: {"data": [{"session_id": ..., "payloads": [...]}]}.

Nothing is added to a payload of these or taken from it, and the loader does not look inside.

sagemaker_capture: requests that SageMaker endpoints captured, JSON lines in a folder of any depth. Each is a conversation of
its own at its time; all parameters of the captured body are sent, those of the run win.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_client.workload.checking import ABSENT, AT_LEAST_ONE_ITEM, Checker, kind_of
from llmirage_client.workload.files import JsonFault, fault, first_line, parse, placed, problems_of, read_bytes, read_rows
from llmirage_client.workload.format import Format, any_of, first_keys
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

_ENDINGS = (".jsonl", ".jsonl.gz")
_OF_THE_RUN = ("messages", "tools", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens")


def load(path: str) -> Workload:
    """Load every body of the file or directory. Raises WorkloadError with all problems, each with file, line and field."""
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
        with problems_of(file.name, problems) as found:
            payloads = _payloads(read_bytes(str(file)), found)
            sessions.append(_session(file.stem, [payload for _, payload in payloads], None))
    return sessions


def _session(name: str, payloads: list[dict[str, Any]], line: int | None) -> Session:
    return Session(name, tuple(Turn(payload=payload) for payload in payloads), mode="verbatim", line=line)


def _payloads(data: bytes, problems: list[Problem]) -> list[tuple[int, dict[str, Any]]]:
    """Return the bodies with their lines. Only their `messages` are looked at: a body without is a mistake of the file."""
    read = []
    for body, check in read_rows(data, problems):
        messages = check.required(body, "messages")
        if messages is not ABSENT and not isinstance(messages, list):
            check.fail("messages", f"Input should be a valid list (the request's messages), got {kind_of(messages)}")
        read.append((check.line or 0, body))
    return read


def body_files(path: Path) -> list[Path]:
    """Return the JSON Lines files of a folder by name."""
    return sorted(file for file in path.glob("[!.]*.jsonl") if file.is_file())


def recognises(keys: Collection[str]) -> bool:
    """Return whether an object with these keys is of this format."""
    return "messages" in keys and "conversation_id" not in keys


def recognises_directory(path: Path) -> bool:
    """Return whether at least half of its .jsonl files begin with a request body; the others are then mistakes."""
    files = body_files(path)
    bodies = sum(recognises(first_keys(first_line(str(file))).marks) for file in files)
    return bool(files) and 2 * bodies >= len(files)


FORMAT = Format(
    name="raw_payload",
    summary="whole request bodies, one a line, sent as they are; or a directory, a conversation a file",
    needs="'messages' on every line",
    recognises=recognises,
    load=load,
    order=80,
    recognises_directory=recognises_directory,
)


def load_inputs(path: str) -> Workload:
    """Load every session of the file in order. Raises WorkloadError with all problems, each with the line it is on."""
    data = read_bytes(path)
    try:
        document = parse(data)
    except JsonFault as error:
        raise fault(path, f"invalid JSON: {error}", error.line) from None
    check = Checker(None)
    sessions = _inputs_sessions(document, check)
    if check.problems:  # their messages begin with the field
        raise WorkloadError(path, [replace(problem, field=None) for problem in placed(check.problems, data)])
    return Workload.of_roots(INPUTS.name, path, sessions)


def _inputs_sessions(document: object, check: Checker) -> list[Session]:
    if not isinstance(document, dict):
        check.fail(None, f'the file must hold an object {{"data": [...]}}, got {kind_of(document)}')
        return []
    if "data" not in document:
        check.fail(None, "missing required key 'data'")
        return []
    data = document["data"]
    if not isinstance(data, list):
        check.fail("data", f"data: Input should be a valid list, got {kind_of(data)}")
        return []
    if not data:
        check.fail("data", f"data: {AT_LEAST_ONE_ITEM}")
    sessions = []
    first: dict[str, int] = {}
    for i, entry in enumerate(data):
        session = _inputs_session(entry, i, check)
        if session is None:
            continue
        if session.id in first:
            where = f"already declared by data[{first[session.id]}]; each session_id must be unique"
            check.fail(f"data.{i}.session_id", f"data[{i}] duplicate session_id '{session.id}' ({where})")
        first.setdefault(session.id, i)
        sessions.append(session)
    return sessions


def _inputs_session(entry: object, i: int, check: Checker) -> Session | None:
    at, field = f"data[{i}]", f"data.{i}"
    if not isinstance(entry, dict):
        check.fail(field, f"{at} must be an object, got {type(entry).__name__}")
        return None
    for key in ("session_id", "payloads"):
        if key not in entry:
            check.fail(field, f"{at} missing required key '{key}'")
    session_id, payloads = entry.get("session_id", ""), entry.get("payloads", [])
    if not isinstance(session_id, str):
        check.fail(f"{field}.session_id", f"{at}.session_id: Input should be a valid string")
    if not isinstance(payloads, list):
        check.fail(f"{field}.payloads", f"{at}.payloads: Input should be a valid list")
        payloads = []
    elif not payloads and "payloads" in entry:
        check.fail(f"{field}.payloads", f"{at}.payloads: {AT_LEAST_ONE_ITEM}")
    for j, payload in enumerate(payloads):
        if not isinstance(payload, dict):
            message = f"{at}.payloads[{j}]: Input should be a valid dictionary (a JSON object), got {kind_of(payload)}"
            check.fail(f"{field}.payloads.{j}", message)
    if "session_id" not in entry or not isinstance(session_id, str):
        return None
    turns = tuple(Turn(payload=payload) for payload in payloads)
    return Session(session_id, turns, mode="verbatim")


INPUTS = Format(
    name="inputs_json",
    summary="whole request bodies by session, sent as they are",
    needs='one object {"data": [{"session_id": ..., "payloads": [...]}]}',
    recognises=lambda keys: "data" in keys,
    load=load_inputs,
    order=10,
)


def load_captures(path: str) -> Workload:
    """Load every captured request of the file or folder. Raises WorkloadError with all problems, each with file and line."""
    file = Loading(path)
    sessions: list[Session] = []
    names: set[str] = set()
    for row, check in file.rows_below():
        session = _captured(row, check, names)
        if session is not None:
            sessions.append(session)
    file.finish(sessions, "has no captured requests")
    return scheduled(CAPTURES.name, path, sessions)


def _captured(row: Mapping[str, Any], check: Checker, names: set[str]) -> Session | None:
    metadata = check.need(row, "eventMetadata", check.mapping)
    if metadata is None:
        return None
    name = check.need(metadata, "eventId", check.name, "eventMetadata.")
    at_s = check.need(metadata, "inferenceTime", check.moment, "eventMetadata.")
    capture = check.given(row, "captureData", check.mapping) or {}
    within = "captureData.endpointInput"
    endpoint = check.given(capture, "endpointInput", check.mapping, "captureData.")
    if endpoint is None:
        check.required({}, within)
        return None
    body = _captured_body(endpoint, f"{within}.", name, check)
    if body is None or name is None or at_s is None:
        return None
    messages = check.mappings(check.required(body, "messages"), f"{within}.data.messages")
    tools = check.given(body, "tools", check.mappings, f"{within}.data.")
    limit = next((body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None), None)
    if limit is not None:
        limit = check.tokens(limit, f"{within}.data.max_tokens")
    if not messages or check.problems:
        if not check.problems:
            check.fail(f"{within}.data.messages", "a request has at least one message")
        return None
    extra = {key: value for key, value in body.items() if key not in _OF_THE_RUN}
    turn = Turn(messages, max_tokens=limit, tools=tools, extra=extra, arrival_s=at_s)
    return Session(free_name(name, names), (turn,), "isolated", at_s, line=check.line)


def _captured_body(endpoint: Mapping[str, Any], at: str, name: str | None, check: Checker) -> dict[str, Any] | None:
    """Return the captured body; a problem names its event, as lines of captures are long."""
    event = f"event {name}: "
    data = endpoint.get("data")
    encoding = endpoint.get("encoding", "JSON")
    if encoding not in ("JSON", "BASE64"):
        check.fail(f"{at}encoding", f"{event}Input should be 'JSON' or 'BASE64'")
        return None
    if isinstance(data, str):
        try:
            raw = base64.b64decode(data, validate=True) if encoding == "BASE64" else data.encode("utf-8", "surrogatepass")
            data = parse(raw)
        except (binascii.Error, ValueError) as error:
            what = "JSON" if isinstance(error, JsonFault) else "base64"
            check.fail(f"{at}data", f"{event}no valid {what}: {error}")
            return None
    if not isinstance(data, dict) or "messages" not in data:
        check.fail(f"{at}data", f"{event}has no 'messages': only chat requests can be sent again")
        return None
    return data


CAPTURES = Format(
    name="sagemaker_capture",
    summary="chat requests that SageMaker endpoints captured, at their times",
    needs="'captureData' and 'eventMetadata' on every line",
    recognises=any_of(("captureData", "eventMetadata"), ("captureData", "eventVersion")),
    load=load_captures,
    aliases=("sagemaker_data_capture",),
    order=16,
    folder=True,
)
