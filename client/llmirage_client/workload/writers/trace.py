"""mooncake_trace: conversations without branches, bodies, and prompts known by length and block hashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_client.workload.formats.mooncake_trace import BLOCK_TOKENS
from llmirage_client.workload.session import ContextMode, Session, SyntheticUser, Turn, Workload, with_tools
from llmirage_client.workload.writers.writer import Writer, Written, extra_of, line, milliseconds


def write(workload: Workload) -> Written:
    """A line a turn. A text given by its length keeps it, where the format can say as much."""
    rows = []
    block_tokens = BLOCK_TOKENS
    for name in workload.roots:
        session = workload.sessions[name]
        for index, (turn, tools) in enumerate(with_tools(session)):
            if turn.synthetic is not None and turn.synthetic.block_tokens:
                block_tokens = turn.synthetic.block_tokens
            rows.append(line(_row(session, turn, index, tools)))
    return Written(b"".join(rows), {} if block_tokens == BLOCK_TOKENS else {"block_size": block_tokens})


def _row(session: Session, turn: Turn, index: int, tools: list[Mapping[str, Any]] | None) -> dict[str, Any]:
    """tools: those of the request, whether they are the turn's own or were a turn's before it."""
    row: dict[str, Any] = {"session_id": session.id} if session.id else {}
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


WRITER = Writer("mooncake_trace", frozenset(("accumulate", "isolated", "verbatim")), write)
