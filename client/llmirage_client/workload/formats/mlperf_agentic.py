"""mlperf_agentic: recorded conversations of agents with tools, a message a line, as MLPerf Endpoints reads them.

Each row of a user or of tools is a request that is sent with all rows before it: the file's own replies, never live ones.
Rows of one conversation stand together, numbered from 1. A failed request ends its conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.session import Problem, Session, Turn, Workload

_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "": ("user",), "user": ("assistant",), "assistant": ("tool", "user"), "tool": ("assistant", "user")
}  # fmt: skip
_PARAMETERS = (
    "temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "seed",
    "chat_template_kwargs",
)  # fmt: skip
_LIMITS = ("max_completion_tokens", "max_new_tokens")

Message = dict[str, Any]


@dataclass(slots=True)
class _Conversation:
    line: int
    role: str = ""
    rows: int = 0
    called: bool = False
    new: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    system: str | None = None


def load(path: str, *, tool_delays: bool = True, salts: bool = False) -> Workload:
    """Load every conversation of the file.

    tool_delays: wait `delay_seconds` before a request. salts: see Session.salted.

    Raises WorkloadError with all problems, each with line and field.
    """
    file = Loading(path)
    found: dict[str, _Conversation] = {}
    last = ""
    for row, check in file.rows():
        if row.get("_type") == "dataset_metadata":
            continue
        name = check.need(row, "conversation_id", check.name)
        if name is None:
            continue
        if not (name.isascii() and name.isprintable()):
            check.fail("conversation_id", "Input should be printable ASCII: it goes out as a header")
        if name in found and name != last:
            message = f"the rows of '{name}', which began on line {found[name].line}, do not stand together"
            check.fail("conversation_id", message)
        last = name
        _read(row, found.setdefault(name, _Conversation(check.line or 0)), tool_delays, check)
    for name, one in found.items():
        if salts and one.system is None:
            file.problems.append(Problem(f"'{name}' has no system prompt, which the option salts needs", one.line, "system"))
    file.finish(found, "has no conversations")
    sessions = [_session(name, one, salts) for name, one in found.items()]
    return Workload.of_roots(FORMAT.name, path, sessions)


def _session(name: str, found: _Conversation, salted: bool) -> Session:
    first, *rest = found.turns
    if found.system is not None:
        messages = ({"role": "system", "content": found.system}, *first.messages)
        first = Turn(messages, None, None, first.model, first.max_tokens, first.tools, first.extra, first.delay_s)
    turns = (first, *rest)
    return Session(name, turns, "accumulate_authored", line=found.line, ends_on_failure=True, routed=True, salted=salted)


def _read(row: Mapping[str, Any], found: _Conversation, tool_delays: bool, check: Checker) -> None:
    number = check.integer(check.required(row, "turn"), "turn", minimum=1)
    found.rows += 1
    if number is not None and number != found.rows:
        check.fail("turn", f"is {number}, but this is row {found.rows} of its conversation")
    role = check.need(row, "role", check.text)
    if role is None:
        return
    if role not in _FOLLOWS or not role:
        check.fail("role", f"Input should be user, assistant or tool, got '{role}'")
        return
    if role not in _FOLLOWS[found.role]:
        allowed = " or ".join(_FOLLOWS[found.role])
        check.rule(f"{found.role or 'the beginning'} is followed by {allowed}, not by {role}", "role")
    if role == "tool" and not found.called:
        check.rule("a tool row needs a row of the assistant with tool_calls before it", "role")
    found.role = role
    if role == "assistant":
        found.new.append(_assistant(row, found, check))
        return
    if found.system is None:
        found.system = check.given(row, "system", check.text)
    found.new += _user(row, check) if role == "user" else _results(row, check)
    limit = next((row[key] for key in _LIMITS if row.get(key) is not None), None)
    delay_s = check.given(row, "delay_seconds", check.number) or 0.0
    found.turns.append(
        Turn(
            messages=tuple(found.new),
            model=check.given(row, "model", check.text),
            max_tokens=None if limit is None else check.tokens(limit, _LIMITS[0]),
            tools=check.given(row, "tools", check.mappings),
            extra={key: row[key] for key in _PARAMETERS if row.get(key) is not None},
            delay_s=delay_s if tool_delays else 0.0,
        )
    )
    found.new = []


def _assistant(row: Mapping[str, Any], found: _Conversation, check: Checker) -> Message:
    calls = check.given(row, "tool_calls", check.mappings)
    content = check.given(row, "content", check.text)
    if content is None and not calls:
        check.required(row, "content")
        if "content" in row:
            check.fail("content", "an assistant without tool_calls says something")
    found.called = bool(calls)
    message: Message = {"role": "assistant"}
    if content is not None:
        message["content"] = content
    if calls:
        message["tool_calls"] = list(calls)
    if row.get("reasoning_content") is not None:
        message["reasoning_content"] = check.text(row["reasoning_content"], "reasoning_content")
    return message


def _user(row: Mapping[str, Any], check: Checker) -> list[Message]:
    content = row.get("content")
    if not isinstance(content, list):
        content = check.need(row, "content", check.text)
    name = check.given(row, "name", check.text)
    return [{"role": "user", "content": content} | ({"name": name} if name else {})]


def _results(row: Mapping[str, Any], check: Checker) -> list[Message]:
    messages = []
    for at, result in check.each(check.need(row, "tool_results", check.some_items), "tool_results"):
        name = check.need(result, "tool_call_id", check.text, at)
        check.required(result, "content", at)
        messages.append({"role": "tool", "tool_call_id": name, "content": result.get("content")})
    return messages


FORMAT = Format(
    name="mlperf_agentic",
    summary="recorded agents' conversations with tools, a message a line (MLPerf Endpoints); the file's replies are sent",
    needs="'conversation_id', 'turn' and 'role' on every line",
    recognises=any_of(("conversation_id", "turn", "role"), ("_type=dataset_metadata",)),
    load=load,
    aliases=("agentic_inference",),
    order=22,
    options=(
        Option("tool_delays", "boolean", "wait delay_seconds before a request", True),
        Option("salts", "boolean", "put the system prompt between salts: repeats share nothing, as --enable-salt", False),
    ),
)
