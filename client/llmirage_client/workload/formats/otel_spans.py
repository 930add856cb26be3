"""otel_spans: traces of agents by OpenTelemetry's gen_ai conventions, plain spans or OTLP/JSON, a file or a folder of them.

A trace is one tree of requests, each sent with the messages of its span. A call waits for those whose replies are among its
messages; where none is, for the last one that had ended within the span that holds it, or the next one outwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import ABSENT, MOST_TOKENS, Checker
from llmirage_client.workload.conversation_lines import LeftOut
from llmirage_client.workload.files import read_rows_below
from llmirage_client.workload.first_keys import folder_begins_with
from llmirage_client.workload.format import Format
from llmirage_client.workload.request_graph import Need, RecordedRequest, sessions_of_play
from llmirage_client.workload.schedule import scheduled_trees
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_client.workload.span_messages import input_messages, output_text, request_parameters, tool_definitions

_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_OPERATIONS = ("chat", "generate_content", "text_completion")
_FAILED = (2, "ERROR", "STATUS_CODE_ERROR")
_NS_PER_S = 1e9


@dataclass(slots=True, frozen=True)
class _Call:
    id: str
    parent: str | None
    start_s: float
    end_s: float
    turn: Turn
    reply: str | None
    line: int


def load(path: str) -> Workload:
    """Every trace of the file or folder. Raises WorkloadError with all problems, each with file, line and field."""
    problems: list[Problem] = []
    left_out = LeftOut()
    traces: dict[str, list[_Call]] = {}
    parents: dict[str, dict[str, str | None]] = {}
    first: dict[tuple[str, str], str] = {}
    for _, row, check in read_rows_below(path, _ENDINGS, problems):
        for at, span in _spans(row, check):
            trace = check.text(check.required(span, "trace_id", at), f"{at}trace_id", may_be_empty=False)
            name = check.text(check.required(span, "span_id", at), f"{at}span_id", may_be_empty=False)
            if trace is None or name is None:
                continue
            place = f"{check.file or ''} line {check.line} {at}".strip()
            if first.setdefault((trace, name), place) != place:
                check.fail(f"{at}span_id", f"'{name}' is also in {first[trace, name]}; ids are unique in their trace")
                continue
            parents.setdefault(trace, {})[name] = check.given(span, "parent_span_id", check.text, at) or None
            call = _call(span, name, at, check, left_out)
            if call is not None:
                traces.setdefault(trace, []).append(call)
    if not traces and not problems:
        problems.append(Problem("; ".join(["has no span of a model's call with its messages", *left_out.notes()])))
    if problems:
        raise WorkloadError(path, problems)
    first_s = min(call.start_s for calls in traces.values() for call in calls)
    sessions: list[Session] = []
    names: set[str] = set()
    for trace, calls in traces.items():
        requests = list(_requests(trace, sorted(calls, key=lambda call: call.start_s), parents[trace]))
        sessions += sessions_of_play(requests, names, requests[0].start_s - first_s)
    return scheduled_trees(FORMAT.name, path, sessions, left_out.notes())


def _spans(row: Mapping[str, Any], check: Checker) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and span of a row: a trace with its spans, an OTLP export, or a single span."""
    if "resourceSpans" in row:
        for i, resource in enumerate(check.mappings(row["resourceSpans"], "resourceSpans") or ()):
            at = f"resourceSpans.{i}.scopeSpans"
            for j, scope in enumerate(check.mappings(resource.get("scopeSpans", []), at) or ()):
                for k, span in enumerate(check.mappings(scope.get("spans", []), f"{at}.{j}.spans") or ()):
                    yield f"{at}.{j}.spans.{k}.", _plain(span, f"{at}.{j}.spans.{k}.", check)
    elif "spans" in row:
        for i, span in enumerate(check.mappings(row["spans"], "spans") or ()):
            if "trace_id" not in span and "trace_id" in row:
                span = {**span, "trace_id": row["trace_id"]}
            yield f"spans.{i}.", span
    elif "traceId" in row:
        yield "", _plain(row, "", check)
    else:
        yield "", dict(row)


def _plain(span: Mapping[str, Any], at: str, check: Checker) -> dict[str, Any]:
    """A span of OTLP/JSON as a plain one."""
    attributes = {}
    for entry in check.mappings(span.get("attributes", []), f"{at}attributes") or ():
        attributes[entry.get("key")] = _value(entry.get("value"))
    found: dict[str, Any] = {"attributes": attributes, "status": span.get("status"), "name": span.get("name")}
    for ours, theirs in (("trace_id", "traceId"), ("span_id", "spanId"), ("parent_span_id", "parentSpanId")):
        if span.get(theirs):
            found[ours] = span[theirs]
    for ours, theirs in (("start_ns", "startTimeUnixNano"), ("end_ns", "endTimeUnixNano")):
        if theirs in span:
            found[ours] = check.integer(span[theirs], f"{at}{theirs}", minimum=0)
    return found


def _value(value: Any) -> Any:
    """What an OTLP value holds."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((kind, held),) = value.items()
    if kind == "intValue":
        return int(held) if isinstance(held, str) and held.lstrip("-").isdigit() else held
    if kind == "arrayValue" and isinstance(held, dict):
        entries = held.get("values", [])
        return [_value(entry) for entry in entries] if isinstance(entries, list) else None
    return held


def _call(span: Mapping[str, Any], name: str, at: str, check: Checker, left_out: LeftOut) -> _Call | None:
    """A span that is a model's call with its messages; None for others."""
    attributes = check.given(span, "attributes", check.mapping, at) or {}
    operation = attributes.get("gen_ai.operation.name")
    if operation not in _OPERATIONS and (operation is not None or "gen_ai.input.messages" not in attributes):
        return None
    status = check.given(span, "status", check.mapping, at) or {}
    if status.get("code") in _FAILED:
        left_out.add("calls that failed when they were recorded")
        return None
    if "gen_ai.input.messages" not in attributes:
        left_out.add("calls without gen_ai.input.messages")
        return None
    within = f"{at}attributes."
    start_s, end_s = (_time(span, key, at, check) for key in ("start", "end"))
    limit = output = None
    if attributes.get("gen_ai.request.max_tokens") is not None:
        key = "gen_ai.request.max_tokens"
        limit = check.integer(attributes[key], f"{within}{key}", minimum=1, maximum=MOST_TOKENS)
    if attributes.get("gen_ai.usage.output_tokens") is not None:
        key = "gen_ai.usage.output_tokens"
        output = check.integer(attributes[key], f"{within}{key}", minimum=0, maximum=MOST_TOKENS)
    turn = Turn(
        input_messages(attributes, check, within),
        max_tokens=output or limit,
        min_tokens=output or None,
        tools=tool_definitions(attributes, check, within),
        extra=request_parameters(attributes, check, within),
    )
    if start_s is None or end_s is None or check.problems:
        return None
    parent = span.get("parent_span_id") or None
    return _Call(name, parent, start_s, max(start_s, end_s), turn, output_text(attributes), check.line or 0)


def _time(span: Mapping[str, Any], which: str, at: str, check: Checker) -> float | None:
    if span.get(f"{which}_ns") is not None:
        return float(span[f"{which}_ns"]) / _NS_PER_S
    value = check.required(span, f"{which}_time", at)
    return None if value is ABSENT else check.moment(value, f"{at}{which}_time")


def _requests(trace: str, calls: Sequence[_Call], parents: Mapping[str, str | None]) -> Iterator[RecordedRequest]:
    """The calls of a trace by start, each with those that it waits for."""
    replies: dict[str, list[_Call]] = {}
    for call in calls:
        if call.reply:
            replies.setdefault(call.reply, []).append(call)
    scopes = {call.id: _scopes(call, parents) for call in calls}
    streams: dict[str, str] = {}
    tails: set[str] = set()
    known: dict[str, set[str]] = {}  # all that a call comes after
    for number, call in enumerate(calls):
        before = _heard(call, replies) or _last_before(call, calls[:number], scopes)
        implied: set[str] = set().union(*(known[one.id] for one in before))
        known[call.id] = implied | {one.id for one in before}
        before = [one for one in before if one.id not in implied]
        wait_s = min((call.start_s - one.end_s for one in before), default=0.0)
        needs = tuple(Need(one.id, max(wait_s, 0.0)) for one in before)
        follows = next((one for one in reversed(before) if one.id in tails), None)
        streams[call.id] = streams[follows.id] if follows else (f"{trace}/{call.id}" if number else trace)
        if follows:
            tails.discard(follows.id)
        tails.add(call.id)
        yield RecordedRequest(call.id, streams[call.id], call.turn, call.start_s, needs, call.line)


def _heard(call: _Call, replies: Mapping[str, Sequence[_Call]]) -> list[_Call]:
    """Calls that had ended and whose replies are among the messages of this one: of equal replies the last."""
    found: dict[str, _Call] = {}
    for message in call.turn.messages:
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            ended = [one for one in replies.get(message["content"], ()) if one.end_s <= call.start_s and one.id != call.id]
            if ended:
                found[ended[-1].id] = ended[-1]
    return sorted(found.values(), key=lambda one: one.end_s)


def _last_before(call: _Call, earlier: Sequence[_Call], scopes: Mapping[str, Sequence[str]]) -> list[_Call]:
    """The last call that had ended, in the innermost span around this one that has such a call."""
    ended = [one for one in earlier if one.end_s <= call.start_s]
    for scope in scopes[call.id]:
        within = [one for one in ended if scope in scopes[one.id]]
        if within:
            return [max(within, key=lambda one: one.end_s)]
    return []


def _scopes(call: _Call, parents: Mapping[str, str | None]) -> list[str]:
    """The spans that hold a call, from the inside; the trace itself, '', is the last."""
    found: list[str] = []
    scope = call.parent
    while scope and scope not in found:
        found.append(scope)
        scope = parents.get(scope)
    return [*found, ""]


def recognises(keys: Collection[str]) -> bool:
    known = set(keys)
    plain = {"trace_id", "spans"} <= known or "spans.span_id" in known or {"trace_id", "span_id"} <= known
    return plain or "resourceSpans" in known or {"traceId", "spanId"} <= known or {"[].trace_id", "[].span_id"} <= known


FORMAT = Format(
    name="otel_spans",
    summary="traces of agents by OpenTelemetry's gen_ai conventions: requests with their messages, and what waits for what",
    needs="'trace_id' and 'spans', or 'resourceSpans', or 'trace_id' and 'span_id' in every object",
    recognises=recognises,
    load=load,
    aliases=("otel", "otlp_json"),
    order=14,
    recognises_directory=lambda path: folder_begins_with(path, _ENDINGS, recognises),
)
