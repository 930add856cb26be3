"""OpenTelemetry spans of calls of a model, as exported and as Exgentic publishes them.

otel_spans: traces of agents by OpenTelemetry's gen_ai conventions, plain spans or OTLP/JSON, a file or a folder of them.

A trace is one tree of requests, each sent with the messages of its span. A call waits for those whose replies are among its
messages; where none is, for the last one that had ended within the span that holds it, or the next one outwards.

exgentic: sessions of benchmark agents as spans (Exgentic agent-llm-traces, v1 and v2), an object a session.

Each call of a model is a whole request: its messages, tools and limit as recorded. The calls of a session follow each other,
each as long after the previous one's end as recorded. When sessions began relative to each other the file does not say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import ABSENT, Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.loading import LeftOut, Loading
from llmirage_client.workload.request_graph import Need, RecordedRequest, free_name, sessions_of_play
from llmirage_client.workload.schedule import scheduled_trees
from llmirage_client.workload.session import Session, Turn, Workload

Message = dict[str, Any]


def input_messages(attributes: Mapping[str, Any], check: Checker, at: str) -> tuple[Message, ...]:
    """Return the request's messages, system instructions first. Problems go to the checker."""
    field = f"{at}gen_ai.input.messages"
    entries = check.json_of(check.required(attributes, "gen_ai.input.messages", at), field)
    messages = list(_system(attributes.get("gen_ai.system_instructions"), check, f"{at}gen_ai.system_instructions"))
    for at_message, message in check.each(check.items(entries, field, may_be_empty=bool(messages)), field):
        messages += _messages(message, check, at_message)
    return tuple(messages)


def output_text(attributes: Mapping[str, Any]) -> str | None:
    """Return the text of the reply, where it was recorded."""
    text = attributes.get("gen_ai.output.text")
    if isinstance(text, str):
        return text
    check = Checker(None)
    entries = check.json_of(attributes.get("gen_ai.output.messages"), "")
    if not isinstance(entries, list):
        return None
    texts = [
        message.get("content") for entry in entries if isinstance(entry, dict) for message in _messages(entry, check, "")
    ]
    return "".join(text for text in texts if isinstance(text, str)) or None


def tool_definitions(attributes: Mapping[str, Any], check: Checker, at: str) -> tuple[Message, ...] | None:
    """Return the tools of the request; a definition without "function" is put into one."""
    field = f"{at}gen_ai.tool.definitions"
    value = attributes.get("gen_ai.tool.definitions")
    entries = None if value is None else check.mappings(check.json_of(value, field), field)
    if not entries:
        return None
    keys = ("name", "description", "parameters")
    return tuple(
        tool
        if isinstance(tool.get("function"), dict)
        else {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}
        for tool in entries
    )


def request_parameters(attributes: Mapping[str, Any], check: Checker, at: str) -> dict[str, Any]:
    """Return temperature and stop sequences of the request."""
    extra: dict[str, Any] = {}
    temperature = check.given(attributes, "gen_ai.request.temperature", check.number, at)
    if temperature is not None:
        extra["temperature"] = temperature
    stop = check.given(attributes, "gen_ai.request.stop_sequences", check.texts, at)
    if stop:
        extra["stop"] = list(stop)
    return extra


def _system(value: object, check: Checker, field: str) -> Iterator[Message]:
    if value is None or value == "":
        return
    parts: object = value
    if isinstance(value, str):
        try:
            parts = json.loads(value)
        except (ValueError, RecursionError):
            parts = None
        if not isinstance(parts, list):
            yield {"role": "system", "content": value}
            return
    yield from _messages({"role": "system", "parts": parts}, check, f"{field}.")


def _messages(message: Mapping[str, Any], check: Checker, at: str) -> Iterator[Message]:
    """Yield a message with parts as messages; each tool's result becomes one of its own."""
    role = check.need(message, "role", check.name, at)
    if role is None:
        return
    if "parts" not in message:
        if "content" not in message and "tool_calls" not in message:
            check.required(message, "content", at)
        yield dict(message)
        return
    made = _Made("system" if role == "developer" else role)
    for at_part, part in check.each(check.items(message["parts"], f"{at}parts"), f"{at}parts"):
        if part.get("type") == "tool_call_response":
            yield from made.flushed()
            result = part["result"] if "result" in part else part.get("response")
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(result)}
        else:
            made.add(part, check, at_part)
    yield from made.flushed(may_be_empty=not message["parts"])


class _Made:
    """A message in the making."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Message] = []

    def add(self, part: Mapping[str, Any], check: Checker, at: str) -> None:
        match part.get("type"):
            case "text":
                self._texts.append(str(part.get("content") or part.get("text") or ""))
            case "thinking" | "reasoning":
                self._thoughts.append(str(part.get("thinking") or part.get("content") or ""))
            case "tool_call":
                function = {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}
                self._calls.append({"id": part.get("id"), "type": "function", "function": function})
            case other:
                check.fail(f"{at}type", f"Input should be text, thinking, tool_call or tool_call_response, got {other!r}")

    def flushed(self, may_be_empty: bool = False) -> Iterator[Message]:
        if not (self._texts or self._thoughts or self._calls or may_be_empty):
            return
        message: Message = {"role": self._role, "content": "".join(self._texts)}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
        yield message
        self._texts, self._thoughts, self._calls = [], [], []


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(None if value is ABSENT else value, ensure_ascii=False)


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
    """Load every trace of the file or folder. Raises WorkloadError with all problems, each with file, line and field."""
    file = Loading(path)
    traces: dict[str, list[_Call]] = {}
    parents: dict[str, dict[str, str | None]] = {}
    first: dict[tuple[str, str], str] = {}
    for row, check in file.rows_below():
        for at, span in _spans(row, check):
            trace = check.need(span, "trace_id", check.name, at)
            name = check.need(span, "span_id", check.name, at)
            if trace is None or name is None:
                continue
            place = f"{check.file or ''} line {check.line} {at}".strip()
            if first.setdefault((trace, name), place) != place:
                check.fail(f"{at}span_id", f"'{name}' is also in {first[trace, name]}; ids are unique in their trace")
                continue
            parents.setdefault(trace, {})[name] = check.given(span, "parent_span_id", check.text, at) or None
            call = _call(span, name, at, check, file.left_out)
            if call is not None:
                traces.setdefault(trace, []).append(call)
    file.finish(traces, "has no span of a model's call with its messages")
    first_s = min(call.start_s for calls in traces.values() for call in calls)
    sessions: list[Session] = []
    names: set[str] = set()
    for trace, calls in traces.items():
        requests = list(_requests(trace, sorted(calls, key=lambda call: call.start_s), parents[trace]))
        sessions += sessions_of_play(requests, names, requests[0].start_s - first_s)
    return scheduled_trees(FORMAT.name, path, sessions, file.notes())


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
    """Return a span of OTLP/JSON as a plain one."""
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
    """Return the Python value of an OTLP value."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((kind, held),) = value.items()
    if kind == "intValue":
        return int(held) if isinstance(held, str) and held.lstrip("-").isdigit() else held
    if kind == "arrayValue" and isinstance(held, dict):
        entries = held.get("values", [])
        return [_value(entry) for entry in entries] if isinstance(entries, list) else None
    if kind == "kvlistValue" and isinstance(held, dict):
        entries = held.get("values", [])
        pairs = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        return {str(entry.get("key")): _value(entry.get("value")) for entry in pairs}
    return held


def _call(span: Mapping[str, Any], name: str, at: str, check: Checker, left_out: LeftOut) -> _Call | None:
    """Return a span that is a model's call with its messages; None for others."""
    attributes = check.given(span, "attributes", check.mapping, at) or {}
    operation = attributes.get("gen_ai.operation.name")
    if operation not in _OPERATIONS and (operation is not None or "gen_ai.input.messages" not in attributes):
        if "gen_ai.input.messages" in attributes:
            left_out.add(f"spans with messages whose operation is {str(operation)[:40]!r}, none of {', '.join(_OPERATIONS)}")
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
    limit = check.given(attributes, "gen_ai.request.max_tokens", check.tokens, within)
    output = check.given(attributes, "gen_ai.usage.output_tokens", check.tokens_from_0, within)
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
    return check.need(span, f"{which}_time", check.moment, at)


def _requests(trace: str, calls: Sequence[_Call], parents: Mapping[str, str | None]) -> Iterator[RecordedRequest]:
    """Yield the calls of a trace by start, each with those that it waits for."""
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
    """Return calls that had ended and whose replies are among the messages of this one: of equal replies the last."""
    found: dict[str, _Call] = {}
    for message in call.turn.messages:
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            ended = [one for one in replies.get(message["content"], ()) if one.end_s <= call.start_s and one.id != call.id]
            if ended:
                found[ended[-1].id] = ended[-1]
    return sorted(found.values(), key=lambda one: one.end_s)


def _last_before(call: _Call, earlier: Sequence[_Call], scopes: Mapping[str, Sequence[str]]) -> list[_Call]:
    """Return the last call that had ended, in the innermost span around this one that has such a call."""
    ended = [one for one in earlier if one.end_s <= call.start_s]
    for scope in scopes[call.id]:
        within = [one for one in ended if scope in scopes[one.id]]
        if within:
            return [max(within, key=lambda one: one.end_s)]
    return []


def _scopes(call: _Call, parents: Mapping[str, str | None]) -> list[str]:
    """Return the spans that hold a call, from the inside; the trace itself, '', is the last."""
    found: list[str] = []
    scope = call.parent
    while scope and scope not in found:
        found.append(scope)
        scope = parents.get(scope)
    return [*found, ""]


FORMAT = Format(
    name="otel_spans",
    summary="traces of agents by OpenTelemetry's gen_ai conventions: requests with their messages, and what waits for what",
    needs="'trace_id' and 'spans', or 'resourceSpans', or 'trace_id' and 'span_id' in every object",
    recognises=any_of(
        ("trace_id", "spans"),
        ("spans.span_id",),
        ("trace_id", "span_id"),
        ("resourceSpans",),
        ("traceId", "spanId"),
        ("[].trace_id", "[].span_id"),
    ),
    load=load,
    aliases=("otel", "otlp_json"),
    order=14,
    folder=True,
)


_EXGENTIC_FAILED = 2
_PROVIDERS = ("openai/azure/", "azure/", "aws/", "gcp/")


def load_exgentic(
    path: str, *, harness: str | None = None, source_model: str | None = None, benchmark: str | None = None
) -> Workload:
    """Load every session of the file or folder that the options let pass.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    file = Loading(path)
    sessions: list[Session] = []
    names: set[str] = set()
    for row, check in file.rows_below():
        if not _wanted(row, check, harness, source_model, benchmark):
            file.left_out.add("sessions of another harness, model or benchmark")
            continue
        session = _session(row, check, names, file.left_out)
        if session is not None and session.turns:
            sessions.append(session)
        elif session is not None:
            file.left_out.add("sessions without a call of a model that succeeded")
    file.finish(sessions, "has no session that can run")
    return Workload.of_roots(EXGENTIC.name, path, sessions, file.notes())


def _wanted(row: Mapping[str, Any], check: Checker, harness: str | None, model: str | None, benchmark: str | None) -> bool:
    models = check.given(row, "models", check.texts) or ()
    if harness is not None and row.get("harness") != harness:
        return False
    if model is not None and _plain_row(model) not in [_plain_row(one) for one in models]:
        return False
    return benchmark is None or row.get("benchmark") == benchmark


def _plain_row(model: str) -> str:
    """Return the name without its provider."""
    model = model.casefold()
    return next((model.removeprefix(prefix) for prefix in _PROVIDERS if model.startswith(prefix)), model)


def _session(row: Mapping[str, Any], check: Checker, names: set[str], left_out: LeftOut) -> Session | None:
    name = check.need(row, "session_id", check.name)
    calls = []
    for at, span in check.each(check.need(row, "spans", check.items), "spans"):
        call = _exgentic_call(span, at, check, left_out)
        if call is not None:
            calls.append(call)
    if name is None or check.problems:
        return None
    calls.sort(key=lambda call: call[0])
    turns: list[Turn] = []
    ended_s: float | None = None
    for start_s, end_s, turn in calls:
        delay_s = 0.0 if ended_s is None else max(start_s - ended_s, 0.0)
        turns.append(Turn(turn.messages, max_tokens=turn.max_tokens, tools=turn.tools, extra=turn.extra, delay_s=delay_s))
        ended_s = end_s if ended_s is None else max(ended_s, end_s)
    return Session(free_name(name, names), tuple(turns), "isolated", line=check.line)


def _exgentic_call(span: Mapping[str, Any], at: str, check: Checker, left_out: LeftOut) -> tuple[float, float, Turn] | None:
    """Start, end and request of a span; None for what is no call of a model, or failed."""
    attributes = check.given(span, "attributes", check.mapping, at) or {}
    kind = span.get("type")
    if kind != "llm_call" and (kind is not None or attributes.get("gen_ai.operation.name") != "chat"):
        return None
    status = check.given(span, "status", check.mapping, at) or {}
    if status.get("code") == _EXGENTIC_FAILED:
        left_out.add("calls that failed when they were recorded")
        return None
    within = f"{at}attributes."
    output = check.need(attributes, "gen_ai.usage.output_tokens", check.tokens_from_0, within)
    if output == 0:
        left_out.add("calls with a reply of 0 tokens")
        return None
    start_s = check.need(span, "start_time", check.moment, at)
    end_s = check.need(span, "end_time", check.moment, at)
    limit = check.given(attributes, "gen_ai.request.max_tokens", check.tokens, within)
    messages = input_messages(attributes, check, within)
    tools = tool_definitions(attributes, check, within)
    extra = request_parameters(attributes, check, within)
    if start_s is None or end_s is None:
        return None
    return start_s, max(end_s, start_s), Turn(messages, max_tokens=limit or output, tools=tools, extra=extra)


EXGENTIC = Format(
    name="exgentic",
    summary="sessions of benchmark agents (Exgentic agent-llm-traces): whole requests with their tools, and waits",
    needs="'harness', 'session_id' and 'spans' in every object",
    recognises=any_of(("harness", "spans"), ("[].harness", "[].spans")),
    folder=True,
    load=load_exgentic,
    aliases=("exgentic_v2",),
    order=13,
    options=(
        Option("harness", "text", "only sessions of this harness"),
        Option("source_model", "text", "only sessions recorded with this model"),
        Option("benchmark", "text", "only sessions of this benchmark (v2)"),
    ),
    fetch="huggingface.co/datasets/Exgentic/agent-llm-traces, write its rows as JSON lines",
)
