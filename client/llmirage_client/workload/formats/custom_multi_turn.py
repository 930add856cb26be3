"""custom_multi_turn: a conversation a line, as an array of chat messages. Documented by evalscope.

A turn is the messages up to the next one of the assistant. The file's own assistant messages only mark where turns end and
are never sent: the live replies take their places.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import (
    LENGTHS,
    MAX_TURNS,
    SKIP_BAD_LINES,
    LeftOut,
    LengthFilter,
    load_lines,
    required,
)
from llmirage_client.workload.format import Format, never
from llmirage_client.workload.format_options import Option
from llmirage_client.workload.session import Turn, Workload

_ROLES = ("user", "assistant")
_ANY_ROLE_HINT = "any_role=true sends every role unchanged"


def load(
    path: str,
    *,
    max_turns: int | None = None,
    any_role: bool = False,
    skip_bad_lines: bool = False,
    min_prompt_length: int = 0,
    max_prompt_length: int = 131_072,
    tokenizer: str | None = None,
) -> Workload:
    """Every conversation of the file. Raises WorkloadError with all problems, each with its line."""
    left_out = LeftOut()
    lengths = LengthFilter(path, min_prompt_length, max_prompt_length, tokenizer, left_out)

    def read(value: Any, check: Checker) -> tuple[Turn, ...]:
        messages = _messages(value, check, any_role)
        if check.problems:
            return ()
        turns = _turns(messages)
        if not turns:
            left_out.add("conversations of assistant messages only")
            return ()
        first = next((m for m in turns[0].messages if m["role"] == "user"), None)
        measured = first is not None and isinstance(first["content"], str)
        return turns[:max_turns] if first is None or not measured or lengths.keeps(first["content"]) else ()

    return load_lines(path, FORMAT.name, read, left_out, skip_bad_lines)


def _messages(value: Any, check: Checker, any_role: bool) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        check.fail(None, f"a conversation is an array of messages, got {kind_of(value)}")
        return []
    if not value:
        check.fail(None, "a conversation needs at least one message")
        return []
    messages = []
    for i, entry in enumerate(value):
        message = check.mapping(entry, f"{i}")
        if message is None:
            continue
        has_role = required(check, message, "role", f"{i}.")
        has_content = required(check, message, "content", f"{i}.")
        if has_role and has_content:
            messages.append(message)
            if not any_role:
                _check_message(message, i, check)
    if not any_role and not check.problems and all(message["role"] != "user" for message in messages):
        check.fail(None, "a conversation must contain at least one user message")
    return messages


def _check_message(message: Mapping[str, Any], i: int, check: Checker) -> None:
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        near = difflib.get_close_matches(role, _ROLES, n=1, cutoff=0.6) if isinstance(role, str) else []
        hint = f"did you mean '{near[0]}'?" if near else _ANY_ROLE_HINT
        shown = f"'{role}'" if isinstance(role, str) else kind_of(role)
        check.fail(f"{i}.role", f"Input should be 'user' or 'assistant', got {shown} ({hint})")
    elif role == "user" and not isinstance(content, str):
        _check_parts(content, i, check)


def _check_parts(content: Any, i: int, check: Checker) -> None:
    """A user's content that is no text: the parts that chat completions take, text and pictures for instance."""
    if not isinstance(content, list) or not content:
        check.fail(f"{i}.content", f"Input should be a text or a list of parts, got {kind_of(content)}")
        return
    for j, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            check.fail(f"{i}.content.{j}", "Input should be an object with a 'type'")


def _turns(messages: list[dict[str, Any]]) -> tuple[Turn, ...]:
    runs: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            runs.append([])
        else:
            runs[-1].append(message)
    return tuple(Turn(messages=tuple(run)) for run in runs if run)


FORMAT = Format(
    name="custom_multi_turn",
    summary="conversations as arrays of chat messages, one a line; live replies take the assistant's places",
    needs="an array of messages with 'role' and 'content' on every line",
    recognises=never,
    recognises_array=lambda values: not values or any(isinstance(value, dict) for value in values),
    load=load,
    order=40,
    options=(
        MAX_TURNS,
        Option(
            "any_role", "boolean", "send messages of any role; without it user and assistant are what there may be", False
        ),
        SKIP_BAD_LINES,
        *LENGTHS,
    ),
)
