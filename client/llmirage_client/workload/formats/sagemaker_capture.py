"""sagemaker_capture: requests that SageMaker endpoints captured, JSON lines in a folder of any depth, sent as they were.

Each is a conversation of its own at its time; all parameters of the captured body are sent, those of the run win.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.files import JsonFault, parse, read_rows_below
from llmirage_client.workload.format import Format, folder_begins_with
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

_ENDINGS = (".jsonl", ".jsonl.gz")
_OF_THE_RUN = ("messages", "tools", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens")


def load(path: str) -> Workload:
    """Load every captured request of the file or folder. Raises WorkloadError with all problems, each with file and line."""
    problems: list[Problem] = []
    sessions: list[Session] = []
    names: set[str] = set()
    for _, row, check in read_rows_below(path, _ENDINGS, problems):
        session = _session(row, check, names)
        if session is not None:
            sessions.append(session)
    if not sessions and not problems:
        problems.append(Problem("has no captured requests"))
    if problems:
        raise WorkloadError(path, problems)
    return scheduled(FORMAT.name, path, sessions)


def _session(row: Mapping[str, Any], check: Checker, names: set[str]) -> Session | None:
    metadata = check.mapping(check.required(row, "eventMetadata"), "eventMetadata") if "eventMetadata" in row else None
    if metadata is None:
        check.required(row, "eventMetadata")
        return None
    name = check.text(check.required(metadata, "eventId", "eventMetadata."), "eventMetadata.eventId", may_be_empty=False)
    at_s = check.moment(check.required(metadata, "inferenceTime", "eventMetadata."), "eventMetadata.inferenceTime")
    capture = check.given(row, "captureData", check.mapping) or {}
    within = "captureData.endpointInput"
    endpoint = check.given(capture, "endpointInput", check.mapping, "captureData.")
    if endpoint is None:
        check.required({}, within)
        return None
    body = _body(endpoint, f"{within}.", name, check)
    if body is None or name is None or at_s is None:
        return None
    messages = check.mappings(check.required(body, "messages"), f"{within}.data.messages")
    tools = check.given(body, "tools", check.mappings, f"{within}.data.")
    limit = next((body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None), None)
    if limit is not None:
        limit = check.integer(limit, f"{within}.data.max_tokens", minimum=1, maximum=MOST_TOKENS)
    if not messages or check.problems:
        if not check.problems:
            check.fail(f"{within}.data.messages", "a request has at least one message")
        return None
    extra = {key: value for key, value in body.items() if key not in _OF_THE_RUN}
    turn = Turn(messages, max_tokens=limit, tools=tools, extra=extra, arrival_s=at_s)
    return Session(free_name(name, names), (turn,), "isolated", at_s, line=check.line)


def _body(endpoint: Mapping[str, Any], at: str, name: str | None, check: Checker) -> dict[str, Any] | None:
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


def recognises(keys: Collection[str]) -> bool:
    """Return whether an object with these keys is of this format."""
    return {"captureData", "eventMetadata"} <= set(keys) or {"captureData", "eventVersion"} <= set(keys)


FORMAT = Format(
    name="sagemaker_capture",
    summary="chat requests that SageMaker endpoints captured, at their times",
    needs="'captureData' and 'eventMetadata' on every line",
    recognises=recognises,
    load=load,
    aliases=("sagemaker_data_capture",),
    order=16,
    recognises_directory=lambda path: folder_begins_with(path, _ENDINGS, recognises),
)
