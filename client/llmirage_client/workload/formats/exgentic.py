"""exgentic: sessions of benchmark agents as spans (Exgentic agent-llm-traces, v1 and v2), an object a session.

Each call of a model is a whole request: its messages, tools and limit as recorded. The calls of a session follow each other,
each as long after the previous one's end as recorded. When sessions began relative to each other the file does not say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.conversation_lines import LeftOut
from llmirage_client.workload.files import read_rows_below
from llmirage_client.workload.format import Format
from llmirage_client.workload.format_options import Option
from llmirage_client.workload.request_graph import free_name
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_client.workload.span_messages import input_messages, request_parameters, tool_definitions

_FAILED = 2
_PROVIDERS = ("openai/azure/", "azure/", "aws/", "gcp/")
_ENDINGS = (".jsonl", ".jsonl.gz", ".json")


def load(
    path: str, *, harness: str | None = None, source_model: str | None = None, benchmark: str | None = None
) -> Workload:
    """Every session of the file or folder that the options let pass.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    problems: list[Problem] = []
    left_out = LeftOut()
    sessions: list[Session] = []
    names: set[str] = set()
    for _, row, check in read_rows_below(path, _ENDINGS, problems):
        if not _wanted(row, check, harness, source_model, benchmark):
            left_out.add("sessions of another harness, model or benchmark")
            continue
        session = _session(row, check, names, left_out)
        if session is not None and session.turns:
            sessions.append(session)
        elif session is not None:
            left_out.add("sessions without a call of a model that succeeded")
    if not sessions and not problems:
        problems.append(Problem("; ".join(["has no session that can run", *left_out.notes()])))
    if problems:
        raise WorkloadError(path, problems)
    return Workload.of_roots(FORMAT.name, path, sessions, left_out.notes())


def _wanted(row: Mapping[str, Any], check: Checker, harness: str | None, model: str | None, benchmark: str | None) -> bool:
    models = check.given(row, "models", check.texts) or ()
    if harness is not None and row.get("harness") != harness:
        return False
    if model is not None and _plain(model) not in [_plain(one) for one in models]:
        return False
    return benchmark is None or row.get("benchmark") == benchmark


def _plain(model: str) -> str:
    """The name without its provider."""
    model = model.casefold()
    return next((model.removeprefix(prefix) for prefix in _PROVIDERS if model.startswith(prefix)), model)


def _session(row: Mapping[str, Any], check: Checker, names: set[str], left_out: LeftOut) -> Session | None:
    name = check.text(check.required(row, "session_id"), "session_id", may_be_empty=False)
    calls = []
    for i, entry in enumerate(check.items(check.required(row, "spans"), "spans") or []):
        span = check.mapping(entry, f"spans.{i}")
        call = None if span is None else _call(span, f"spans.{i}.", check, left_out)
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


def _call(span: Mapping[str, Any], at: str, check: Checker, left_out: LeftOut) -> tuple[float, float, Turn] | None:
    """Start, end and request of a span; None for what is no call of a model, or failed."""
    attributes = check.given(span, "attributes", check.mapping, at) or {}
    kind = span.get("type")
    if kind != "llm_call" and (kind is not None or attributes.get("gen_ai.operation.name") != "chat"):
        return None
    status = check.given(span, "status", check.mapping, at) or {}
    if status.get("code") == _FAILED:
        left_out.add("calls that failed when they were recorded")
        return None
    within = f"{at}attributes."
    usage = "gen_ai.usage.output_tokens"
    output = check.integer(check.required(attributes, usage, within), f"{within}{usage}", minimum=0, maximum=MOST_TOKENS)
    if output == 0:
        left_out.add("calls with a reply of 0 tokens")
        return None
    start_s = check.moment(check.required(span, "start_time", at), f"{at}start_time")
    end_s = check.moment(check.required(span, "end_time", at), f"{at}end_time")
    limit = attributes.get("gen_ai.request.max_tokens")
    if limit is not None:
        limit = check.integer(limit, f"{within}gen_ai.request.max_tokens", minimum=1, maximum=MOST_TOKENS)
    messages = input_messages(attributes, check, within)
    tools = tool_definitions(attributes, check, within)
    extra = request_parameters(attributes, check, within)
    if start_s is None or end_s is None:
        return None
    return start_s, max(end_s, start_s), Turn(messages, max_tokens=limit or output, tools=tools, extra=extra)


def recognises(keys: Collection[str]) -> bool:
    known = set(keys)
    return {"harness", "spans"} <= known or {"[].harness", "[].spans"} <= known


FORMAT = Format(
    name="exgentic",
    summary="sessions of benchmark agents (Exgentic agent-llm-traces): whole requests with their tools, and waits",
    needs="'harness', 'session_id' and 'spans' in every object",
    recognises=recognises,
    load=load,
    aliases=("exgentic_v2",),
    order=13,
    options=(
        Option("harness", "text", "only sessions of this harness"),
        Option("source_model", "text", "only sessions recorded with this model"),
        Option("benchmark", "text", "only sessions of this benchmark (v2)"),
    ),
    fetch="huggingface.co/datasets/Exgentic/agent-llm-traces, write its rows as JSON lines",
)
