"""inputs_json: whole request bodies by session, sent as they are: {"data": [{"session_id": ..., "payloads": [...]}]}.

Nothing is added to a payload or taken from it, and the loader does not look inside.
"""

from __future__ import annotations

from llmirage_client.workload.checking import AT_LEAST_ONE_ITEM, kind_of
from llmirage_client.workload.files import JsonFault, Places, fault, parse, read_bytes
from llmirage_client.workload.format import Format
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

Path = tuple[str | int, ...]


def load(path: str) -> Workload:
    """Every session of the file in order. Raises WorkloadError with all problems, each with the line it is on."""
    data = read_bytes(path)
    try:
        document = parse(data)
    except JsonFault as error:
        raise fault(path, f"invalid JSON: {error}", error.line) from None
    faults: list[tuple[Path, str]] = []
    sessions = _sessions(document, faults)
    if faults:
        places = Places(data.decode("utf-8"))
        raise WorkloadError(path, [Problem(message, places.line(where)) for where, message in faults])
    return Workload.of_roots(FORMAT.name, path, sessions)


def _sessions(document: object, faults: list[tuple[Path, str]]) -> list[Session]:
    if not isinstance(document, dict):
        faults.append(((), f'the file must hold an object {{"data": [...]}}, got {kind_of(document)}'))
        return []
    if "data" not in document:
        faults.append(((), "missing required key 'data'"))
        return []
    data = document["data"]
    if not isinstance(data, list):
        faults.append((("data",), f"data: Input should be a valid list, got {kind_of(data)}"))
        return []
    if not data:
        faults.append((("data",), f"data: {AT_LEAST_ONE_ITEM}"))
    sessions = []
    first: dict[str, int] = {}
    for i, entry in enumerate(data):
        session = _session(entry, i, faults)
        if session is None:
            continue
        if session.id in first:
            where = f"already declared by data[{first[session.id]}]; each session_id must be unique"
            faults.append((("data", i, "session_id"), f"data[{i}] duplicate session_id '{session.id}' ({where})"))
        first.setdefault(session.id, i)
        sessions.append(session)
    return sessions


def _session(entry: object, i: int, faults: list[tuple[Path, str]]) -> Session | None:
    at = f"data[{i}]"
    if not isinstance(entry, dict):
        faults.append((("data", i), f"{at} must be an object, got {type(entry).__name__}"))
        return None
    missing = [key for key in ("session_id", "payloads") if key not in entry]
    faults += [(("data", i), f"{at} missing required key '{key}'") for key in missing]
    session_id, payloads = entry.get("session_id", ""), entry.get("payloads", [])
    if not isinstance(session_id, str):
        faults.append((("data", i, "session_id"), f"{at}.session_id: Input should be a valid string"))
    if not isinstance(payloads, list):
        faults.append((("data", i, "payloads"), f"{at}.payloads: Input should be a valid list"))
        payloads = []
    elif not payloads and "payloads" in entry:
        faults.append((("data", i, "payloads"), f"{at}.payloads: {AT_LEAST_ONE_ITEM}"))
    for j, payload in enumerate(payloads):
        if not isinstance(payload, dict):
            message = f"{at}.payloads[{j}]: Input should be a valid dictionary (a JSON object), got {kind_of(payload)}"
            faults.append((("data", i, "payloads", j), message))
    if "session_id" not in entry or not isinstance(session_id, str):
        return None
    turns = tuple(Turn(payload=payload) for payload in payloads)
    return Session(session_id, turns, mode="verbatim")


FORMAT = Format(
    name="inputs_json",
    summary="whole request bodies by session, sent as they are",
    needs='one object {"data": [{"session_id": ..., "payloads": [...]}]}',
    recognises=lambda keys: "data" in keys,
    load=load,
    order=10,
)
