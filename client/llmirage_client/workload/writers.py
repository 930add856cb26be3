"""Workloads written as files: one Writer a format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmirage_client.workload.checking import TENANT_KEYS
from llmirage_client.workload.dag_schema import CONTEXT_MODES
from llmirage_client.workload.formats.mooncake import BLOCK_TOKENS
from llmirage_client.workload.session import (
    Branch,
    ContextMode,
    Session,
    SyntheticUser,
    TokenSpec,
    Turn,
    Workload,
    with_tools,
)


@dataclass(slots=True, frozen=True)
class Written:
    """A file, and the options of the format with which it has to be loaded."""

    data: bytes
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Writer:
    """One format that can be written.

    modes: of the sessions it can write at all. write: puts down all the format has a place for; the rest is left out,
    and the conversion finds out by loading the file.
    """

    format: str
    modes: frozenset[ContextMode]
    write: Callable[[Workload], Written]


def line(value: Any) -> bytes:
    """Return a line of compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def milliseconds(seconds: float) -> float | int:
    """Return milliseconds to the nanosecond; whole ones as integers."""
    value = round(seconds * 1000, 6)
    return int(value) if value.is_integer() else value


def extra_of(turn: Turn) -> dict[str, Any]:
    """Return the turn's further parameters, with the exact length of its reply where it has one."""
    exact = {} if turn.min_tokens is None else {"min_tokens": turn.min_tokens, "ignore_eos": True}
    return {**exact, **turn.extra}


def _labels(session: Session) -> dict[str, str]:
    values = session.tenant.name, session.tenant.service_class
    return {key: value for key, value in zip(TENANT_KEYS, values, strict=True) if value}


_NS_PER_S = 1_000_000_000


def write_tokens(workload: Workload) -> Written:
    """Write calls in tokens. Sessions without arrival time get 0: the format must have one."""
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        arrival: dict[str, Any] = {"arrival_time_ns": round((session.arrival_s or 0.0) * _NS_PER_S), **_labels(session)}
        rows_of_calls = [_call_row(turn.tokens, turn) for turn in session.turns if turn.tokens is not None]
        if len(rows_of_calls) == 1:
            rows.append(line(arrival | rows_of_calls[0]))
            continue
        waits = [*(turn.delay_s for turn in session.turns[1:]), 0.0]
        calls = [
            call | {"tool_duration_ns": round(wait_s * _NS_PER_S)} for call, wait_s in zip(rows_of_calls, waits, strict=True)
        ]
        rows.append(line({"session_id": session.id, **arrival, "sub_requests": calls}))
    return Written(b"".join(rows))


def _call_row(spec: TokenSpec, turn: Turn) -> dict[str, Any]:
    row: dict[str, Any] = {"input_toks": spec.input_tokens, "output_toks": spec.output_tokens}
    if "priority" in turn.extra:
        row["priority"] = turn.extra["priority"]
    if spec.input_ids is not None:
        row["input_tok_ids"] = spec.input_ids.tolist()
    if spec.output_ids is not None:
        row["output_tok_ids"] = spec.output_ids.tolist()
    return row


AGENTIC_JSONL = Writer("agentic_jsonl", frozenset(("tokens",)), write_tokens)


_MEDIA = {"image_url": "images", "video_url": "videos"}


def write_single(workload: Workload) -> Written:
    """Write a line a turn."""
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        named = {"session_id": session.id} if session.id else {}
        rows += [line({**named, **_authored_turn(session, turn, i, turn.messages)}) for i, turn in enumerate(session.turns)]
    return Written(b"".join(rows))


def write_multi(workload: Workload) -> Written:
    """Write a line a conversation. A system message before the first user message becomes a turn of its own."""
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        turns = []
        for index, turn in enumerate(session.turns):
            messages = turn.messages
            if index == 0 and len(messages) == 2 and messages[0].get("role") == "system":
                turns.append({"role": "system", "text": messages[0].get("content")})
                messages = messages[1:]
            turns.append(_authored_turn(session, turn, index, messages))
        named = {"session_id": session.id} if session.id else {}
        rows.append(line({**named, "turns": turns}))
    return Written(b"".join(rows))


def _authored_turn(session: Session, turn: Turn, index: int, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if messages:
        row |= _content(messages[-1].get("content"))
        if messages[-1].get("role") != "user":
            row["role"] = messages[-1].get("role")
    arrival_s = turn.arrival_s if index or turn.arrival_s is not None else session.arrival_s
    if arrival_s is not None:
        row["timestamp"] = milliseconds(arrival_s)
    elif turn.delay_s:
        row["delay"] = milliseconds(turn.delay_s)
    if turn.max_tokens is not None:
        row["output_length"] = turn.max_tokens
    extra = extra_of(turn)
    return row | ({"extra": extra} if extra else {})


def _content(content: Any) -> dict[str, Any]:
    if not isinstance(content, list):
        return {"text": content}
    row: dict[str, list[Any]] = {}
    uuids: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            row.setdefault("texts", []).append(part.get("text"))
        elif kind in _MEDIA:
            row.setdefault(_MEDIA[kind], []).append((part.get(kind) or {}).get("url"))
            if kind == "image_url":
                uuids.append(part.get("uuid"))
        elif kind == "input_audio":
            sound = part.get("input_audio") or {}
            row.setdefault("audios", []).append(f"{sound.get('format')},{sound.get('data')}")
    if uuids and None not in uuids:
        row["image_uuids"] = uuids
    return row


SINGLE = Writer("single_turn", frozenset(("isolated", "accumulate")), write_single)
MULTI = Writer("multi_turn", frozenset(("accumulate",)), write_multi)


def write_inputs(workload: Workload) -> Written:
    """Write the bodies of all sessions as one document."""
    sessions = [workload.sessions[name] for name in workload.roots]
    data = [{"session_id": s.id, "payloads": [turn.payload for turn in s.turns]} for s in sessions]
    return Written(json.dumps({"data": data}, ensure_ascii=False, indent=1).encode() + b"\n")


def write_raw(workload: Workload) -> Written:
    """Write a line a body."""
    turns = [turn for name in workload.roots for turn in workload.sessions[name].turns]
    return Written(b"".join(line(turn.payload) for turn in turns))


INPUTS = Writer("inputs_json", frozenset(("verbatim",)), write_inputs)
RAW = Writer("raw_payload", frozenset(("verbatim",)), write_raw)


_MODE_NAMES = {mode: name for name, mode in CONTEXT_MODES.items()}


def write_dag(workload: Workload) -> Written:
    """Write the roots in the order of the run, then the children."""
    rest = [name for name in workload.sessions if name not in set(workload.roots)]
    return Written(b"".join(line(_dag_session(workload.sessions[name])) for name in (*workload.roots, *rest)))


def _dag_session(session: Session) -> dict[str, Any]:
    row: dict[str, Any] = {"session_id": session.id, **_labels(session)}
    if session.arrival_s is not None:
        row["timestamp"] = milliseconds(session.arrival_s)
    if session.mode != "accumulate":
        row["context_mode"] = _MODE_NAMES[session.mode]
    if session.pre_session_spawns:
        row["pre_session_spawns"] = list(session.pre_session_spawns)
    if session.rounds:
        return row | _dag_orchestrator(session)
    row["turns"] = [_dag_turn(turn, index, len(session.turns)) for index, turn in enumerate(session.turns)]
    return row


def _dag_orchestrator(session: Session) -> dict[str, Any]:
    row: dict[str, Any] = {"orchestrator": True}
    first, think = session.rounds[0], session.think_time
    if not first.awaited:
        return row | {"spawns": list(first.children)}
    if all(round_ == first for round_ in session.rounds):  # rounds of a list may not share children
        row |= {"spawns": list(first.children), "rounds": len(session.rounds)}
        if first.think_time_s:
            row["think_time_ms"] = milliseconds(first.think_time_s)
    else:
        row["rounds"] = [
            {"spawns": list(r.children), "think_time_ms": milliseconds(r.think_time_s)} for r in session.rounds
        ]  # fmt: skip
    if think is not None:
        row |= {"think_time_ms": milliseconds(think.median_s), "think_time_sigma": think.sigma}
        if think.min_s:
            row["think_time_min_ms"] = milliseconds(think.min_s)
        if think.max_s != float("inf"):
            row["think_time_max_ms"] = milliseconds(think.max_s)
    return row


def _dag_turn(turn: Turn, index: int, count: int) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": [dict(message) for message in turn.messages]}
    if turn.model is not None:
        row["model"] = turn.model
    if turn.max_tokens is not None:
        row["max_tokens"] = turn.max_tokens
    if turn.tools is not None:
        row["tools"] = list(turn.tools)
    extra = extra_of(turn)
    if extra:
        row["extra"] = extra
    if turn.delay_s:
        row["delay"] = milliseconds(turn.delay_s)
    forks: list[Any] = []
    spawns: list[Any] = []
    groups = [branch for branch in turn.branches if branch.kind == "spawn"]
    for branch in turn.branches:
        if branch.kind == "fork":
            forks += [{"child": c, "background": True} if branch.background else c for c in branch.children]
        else:
            spawns += _dag_spawn(branch, index, count, alone=len(groups) == 1)
    return row | ({"forks": forks} if forks else {}) | ({"spawns": spawns} if spawns else {})


def _dag_spawn(branch: Branch, index: int, count: int, alone: bool) -> list[Any]:
    """Return bare names where they come to the same: neighbours among them would be one branch."""
    join_at = count if branch.join_at is None else branch.join_at
    if join_at == index + 1:
        return list(branch.children) if alone else [{"children": list(branch.children)}]
    return [{"children": list(branch.children), "join_at": join_at}]


DAG_JSONL = Writer("dag_jsonl", frozenset(("accumulate", "accumulate_authored", "isolated")), write_dag)


_NO_LIMIT = 10_000_000


def write_custom(workload: Workload) -> Written:
    """Write a line a conversation. Other roles than the user's need the option any_role, long openings a limit."""
    rows = []
    any_role = False
    for name in workload.roots:
        messages: list[Any] = []
        for turn in workload.sessions[name].turns:
            messages += [dict(message) for message in turn.messages]
            any_role = any_role or any(message.get("role") != "user" for message in turn.messages)
            messages.append({"role": "assistant", "content": ""})
        rows.append(line(messages[:-1]))
    options: dict[str, Any] = {"any_role": True} if any_role else {}
    return Written(b"".join(rows), options | _limit(workload))


def write_share_gpt(workload: Workload) -> Written:
    """Write a line a conversation, with empty replies."""
    rows = []
    for name in workload.roots:
        turns = workload.sessions[name].turns
        said = [turn.messages[-1].get("content") if turn.messages else None for turn in turns]
        rows.append(line({"conversation": [{"human": text, "assistant": ""} for text in said]}))
    return Written(b"".join(rows), _limit(workload))


def _limit(workload: Workload) -> dict[str, Any]:
    """Return the option that keeps long openings: by default more than 131,072 characters are left out."""
    opening = [
        len(message["content"])
        for name in workload.roots
        for turn in workload.sessions[name].turns[:1]
        for message in turn.messages
        if message.get("role") == "user" and isinstance(message.get("content"), str)
    ]
    return {"max_prompt_length": _NO_LIMIT} if max(opening, default=0) > 131_072 else {}


CUSTOM = Writer("custom_multi_turn", frozenset(("accumulate", "isolated")), write_custom)
SHARE_GPT = Writer("share_gpt", frozenset(("accumulate", "isolated")), write_share_gpt)


def write_mooncake(workload: Workload) -> Written:
    """Write a line a turn. A text given by its length keeps it where the format has a key for it."""
    rows = []
    block_tokens = BLOCK_TOKENS
    for name in workload.roots:
        session = workload.sessions[name]
        for index, (turn, tools) in enumerate(with_tools(session)):
            if turn.synthetic is not None and turn.synthetic.block_tokens:
                block_tokens = turn.synthetic.block_tokens
            rows.append(line(_mooncake_row(session, turn, index, tools)))
    return Written(b"".join(rows), {} if block_tokens == BLOCK_TOKENS else {"block_size": block_tokens})


def _mooncake_row(session: Session, turn: Turn, index: int, tools: list[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return the row of a turn. tools: of the request, the turn's own or an earlier turn's."""
    row: dict[str, Any] = ({"session_id": session.id} if session.id else {}) | _labels(session)
    arrival_s = turn.arrival_s if index or turn.arrival_s is not None else session.arrival_s
    if arrival_s is not None:
        row["timestamp"] = milliseconds(arrival_s)
    if turn.delay_s:
        row["delay"] = milliseconds(turn.delay_s)
    if session.mode == "verbatim":
        return row | {"payload": turn.payload}
    if turn.synthetic is not None and not turn.messages:
        row |= _lengths(turn.synthetic)
        extra = dict(turn.extra)
    else:
        row |= _messages(session.mode, turn, tools)
        extra = extra_of(turn)
    if tools == []:  # the format's own key takes no empty list
        extra.setdefault("tools", [])
    if turn.max_tokens is not None:
        row["output_length"] = turn.max_tokens
    return row | ({"extra": extra} if extra else {})


def _lengths(message: SyntheticUser) -> dict[str, Any]:
    if message.block_ids is None or not message.block_ids.size:
        return {"input_length": message.tokens}
    return {"input_length": message.tokens, "hash_ids": message.block_ids.tolist()}


def _messages(mode: ContextMode, turn: Turn, tools: list[Mapping[str, Any]] | None) -> dict[str, Any]:
    messages = [dict(message) for message in turn.messages]
    only = messages[0] if len(messages) == 1 else {}
    plain = only.keys() == {"role", "content"} and only["role"] == "user" and isinstance(only["content"], str)
    if mode == "accumulate" and plain and not turn.tools:
        return {"text_input": only["content"]}
    row: dict[str, Any] = {"messages": messages}
    if mode == "accumulate":
        row["message_mode"] = "delta"
    if tools:
        row["tools"] = tools
    return row


MOONCAKE = Writer("mooncake_trace", frozenset(("accumulate", "isolated", "verbatim")), write_mooncake)

WRITERS: Mapping[str, Writer] = {
    writer.format: writer for writer in (DAG_JSONL, MULTI, SINGLE, MOONCAKE, AGENTIC_JSONL, INPUTS, RAW, CUSTOM, SHARE_GPT)
}
