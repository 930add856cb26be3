"""dynamo_request_trace: the requests that NVIDIA Dynamo served, one a line, and the tool calls of agents between them.

The schema dynamo.request.trace.v1, bare or in envelopes {"timestamp", "event"}; a file, or a folder of shards. A request is
a whole prompt of hash blocks. Without agents' contexts requests come at their times. With them the requests of a session
follow each other, each as long after the previous reply as recorded; a child's first one hangs on its parent's request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.workload.checking import FIELD_REQUIRED, MS_PER_S, Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.hash_blocks import key_of, read_prompt, recorded_turn, unknown_prompt
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.request_graph import GraphError, Need, RecordedRequest, plays_of, sessions_of_play
from llmirage_client.workload.schedule import scheduled_trees
from llmirage_client.workload.session import Problem, Session, SyntheticUser, Workload, WorkloadError

SCHEMA = "dynamo.request.trace.v1"
_SKIPPED = ("tool_start", "request_payload")
_TOOL_ENDS = ("tool_end", "tool_error")


@dataclass(slots=True, frozen=True)
class _Served:
    """One request. session: None without an agent's context."""

    id: str
    line: int
    file: str | None
    session: str | None
    start_s: float
    end_s: float
    prompt: SyntheticUser
    output_tokens: int


@dataclass(slots=True)
class _Link:
    """Links of a child session to its parent's requests: those that start it and those that wait for it."""

    source: str | None = None
    consumer: str | None = None
    background: bool = False


@dataclass(slots=True)
class _DynamoTrace:
    requests: list[_Served] = field(default_factory=list)
    parents: dict[str, str] = field(default_factory=dict)
    links: dict[str, _Link] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)


def load(path: str, *, block_size: int | None = None) -> Workload:
    """Load every request of the file or folder. block_size: tokens of a hash, where a row does not say.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    file = Loading(path)
    trace = _DynamoTrace()
    for row, check in file.rows_below():
        event = row
        if "event" in row and "schema" not in row:
            event = check.mapping(row["event"], "event") or {}
        _read(event, trace, block_size, check)
    with_session = [request for request in trace.requests if request.session is not None]
    if with_session and len(with_session) < len(trace.requests):
        without = next(request for request in trace.requests if request.session is None)
        message = "Field required: either all requests have one or none"
        file.problems.append(Problem(message, without.line, "agent_context.session_id", without.file))
    file.finish(trace.requests, "has no request_end")
    first_s = min(request.start_s for request in trace.requests)
    sessions: list[Session] = []
    names: set[str] = set()
    try:
        for play in plays_of(list(_requests(trace))):
            sessions += sessions_of_play(play, names, min(request.start_s for request in play) - first_s)
    except GraphError as error:
        raise WorkloadError(path, [Problem(f"'{error.request.id}' {error}", error.request.line)]) from None
    file.without_reply = sum(not request.output_tokens for request in trace.requests)
    return scheduled_trees(FORMAT.name, path, sessions, file.notes())


def _read(event: Mapping[str, Any], trace: _DynamoTrace, block_tokens: int | None, check: Checker) -> None:
    if event.get("schema") != SCHEMA:
        check.fail("schema", f"Input should be '{SCHEMA}'")
        return
    kind = check.need(event, "event_type", check.text)
    context = check.given(event, "agent_context", check.mapping) or {}
    session = check.given(context, "session_id", check.text, "agent_context.") or None
    parent = check.given(context, "parent_session_id", check.text, "agent_context.") or None
    if kind in _SKIPPED or kind is None:
        return
    if kind in _TOOL_ENDS:
        _read_tool(event, trace, check)
    elif kind != "request_end":
        known = ", ".join(("request_end", *_TOOL_ENDS, *_SKIPPED))
        check.fail("event_type", f"Input should be one of {known}")
    else:
        served = _read_request(event, session, block_tokens, check)
        if served is not None:
            place = f"{check.file or ''} line {check.line}".strip()
            if trace.first.setdefault(served.id, place) != place:
                check.fail("request.request_id", f"'{served.id}' is also on {trace.first[served.id]}")
                return
            trace.requests.append(served)
            if session is not None and parent is not None and parent != session:
                trace.parents[session] = parent


def _read_request(event: Mapping[str, Any], session: str | None, block_tokens: int | None, check: Checker) -> _Served | None:
    row = check.mapping(event.get("request"), "request")
    if row is None:
        return None
    at = "request."
    name = check.need(row, "request_id", check.name, at)
    output = check.need(row, "output_tokens", check.tokens_from_0, at)
    total_ms = check.given(row, "total_time_ms", check.number, at)
    start_ms = check.given(row, "request_received_ms", check.number, at)
    if start_ms is None:
        end_ms = check.given(event, "event_time_unix_ms", check.number)
        if end_ms is None:
            check.fail(f"{at}request_received_ms", FIELD_REQUIRED)
        start_ms = max((end_ms or 0.0) - (total_ms or 0.0), 0.0)
    prompt = _prompt(row, name or "", block_tokens, check)
    if name is None or prompt is None or check.problems:
        return None
    start_s = start_ms / MS_PER_S
    end_s = start_s + (total_ms or 0.0) / MS_PER_S
    return _Served(name, check.line or 0, check.file, session, start_s, end_s, prompt, output or 0)


def _prompt(row: Mapping[str, Any], name: str, block_tokens: int | None, check: Checker) -> SyntheticUser | None:
    replay = check.given(row, "replay", check.mapping, "request.")
    key = key_of(SCHEMA, name)
    if replay is None:
        tokens = check.need(row, "input_tokens", check.tokens, "request.")
        return None if tokens is None else unknown_prompt(tokens, key)
    at = "request.replay."
    tokens = check.need(replay, "input_length", check.tokens, at)
    size = replay.get("trace_block_size")
    size = block_tokens if size is None else check.tokens(size, f"{at}trace_block_size")
    if size is None and not check.problems:
        check.fail(f"{at}trace_block_size", FIELD_REQUIRED)
    if tokens is None or size is None:
        return None
    return read_prompt(tokens, replay.get("input_sequence_hashes"), size, key, check, f"{at}input_sequence_hashes")


def _read_tool(event: Mapping[str, Any], trace: _DynamoTrace, check: Checker) -> None:
    tool = check.mapping(event.get("tool"), "tool")
    claude = None if tool is None else check.given(tool, "claude", check.mapping, "tool.")
    if claude is None:
        return
    at = "tool.claude."
    child = check.given(claude, "child_session_id", check.text, at)
    source = check.given(claude, "source_request_id", check.text, at)
    consumer = check.given(claude, "consumer_request_id", check.text, at)
    mode = claude.get("execution_mode", "blocking")
    if mode not in ("blocking", "background"):
        check.fail(f"{at}execution_mode", "Input should be 'blocking' or 'background'")
    if child:
        trace.links[child] = _Link(source, consumer, mode == "background")


def _requests(trace: _DynamoTrace) -> Iterator[RecordedRequest]:
    """Yield the requests with what each waits for."""
    by_session: dict[str, list[_Served]] = {}
    by_id = {request.id: request for request in trace.requests}
    for request in sorted(trace.requests, key=lambda request: request.start_s):
        by_session.setdefault(request.session or request.id, []).append(request)
    joins: dict[str, list[Need]] = {}
    starts: dict[str, Need] = {}
    for name, own in by_session.items():
        parent = by_session.get(trace.parents.get(name, ""))
        link = trace.links.get(name, _Link())
        if not parent:
            continue
        source = by_id.get(link.source or "") or _last(parent, own[0].start_s)
        if source is not None and source.start_s <= own[0].start_s and source.session != name:
            starts[own[0].id] = Need(source.id, own[0].start_s - source.start_s, "dispatch")
        consumer = by_id.get(link.consumer or "") or next((one for one in parent if one.start_s >= own[-1].end_s), None)
        if consumer is not None and not link.background:
            before = [one for one in own if one.end_s <= consumer.start_s]
            if before:
                joins.setdefault(consumer.id, []).append(Need(before[-1].id, consumer.start_s - before[-1].end_s))
    for name, own in by_session.items():
        previous: _Served | None = None
        for request in own:
            needs = joins.get(request.id, [])
            if previous is not None:
                needs = [Need(previous.id, max(request.start_s - previous.end_s, 0.0)), *needs]
            elif request.id in starts:
                needs = [starts[request.id], *needs]
            turn = recorded_turn(request.prompt, request.output_tokens)
            yield RecordedRequest(request.id, name, turn, request.start_s, tuple(needs), request.line)
            previous = request


def _last(requests: Sequence[_Served], by_s: float) -> _Served | None:
    return next((request for request in reversed(requests) if request.start_s <= by_s), None)


FORMAT = Format(
    name="dynamo_request_trace",
    summary="requests that NVIDIA Dynamo served (dynamo.request.trace.v1), with agents' sessions, as lengths and hashes",
    needs="'schema': 'dynamo.request.trace.v1' and 'event_type' on every line",
    recognises=any_of((f"schema={SCHEMA}",), ("schema", "event_type", "request"), ("event.event_type",)),
    load=load,
    aliases=("dynamo.request.trace.v1",),
    order=12,
    options=(Option("block_size", "integer", "tokens per hash, where a row does not say", minimum=1),),
    folder=True,
)
