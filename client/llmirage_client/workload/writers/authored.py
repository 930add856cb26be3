"""single_turn and multi_turn: a message a turn, of text and media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.workload.session import Session, Turn, Workload
from llmirage_client.workload.writers.writer import Writer, Written, extra_of, line, milliseconds

_MEDIA = {"image_url": "images", "video_url": "videos"}


def write_single(workload: Workload) -> Written:
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        named = {"session_id": session.id} if session.id else {}
        rows += [line({**named, **_turn(session, turn, i, turn.messages)}) for i, turn in enumerate(session.turns)]
    return Written(b"".join(rows))


def write_multi(workload: Workload) -> Written:
    """A system message before the first user message becomes a turn of its own, as the format has it."""
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        turns = []
        for index, turn in enumerate(session.turns):
            messages = turn.messages
            if index == 0 and len(messages) == 2 and messages[0].get("role") == "system":
                turns.append({"role": "system", "text": messages[0].get("content")})
                messages = messages[1:]
            turns.append(_turn(session, turn, index, messages))
        named = {"session_id": session.id} if session.id else {}
        rows.append(line({**named, "turns": turns}))
    return Written(b"".join(rows))


def _turn(session: Session, turn: Turn, index: int, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
