"""SGLang's request files.

sglang_token_trace: requests in token ids with the lengths of their replies, one a line, as SGLang's token-trace has them.

`ts` is the time of a request in milliseconds. Rows without tokens, and those with an empty reply, are left out.

sglang_autobench: requests of SGLang's autobench data sets, one a line.

A prompt is a text, an array of messages, token ids, or a list of texts or of arrays of messages, the turns of a conversation
with the live replies between them. Every key that the format does not know is a request parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmirage_client.workload.checking import ABSENT, MOST_TOKENS, Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import ContextMode, Session, TokenSpec, Turn, Workload

_LARGEST_ID = np.iinfo(np.int32).max


def load(path: str) -> Workload:
    """Load every request of the file. Raises WorkloadError with all problems, each with line and field."""
    file = Loading(path)
    sessions: list[Session] = []
    for row, check in file.rows():
        spec = _tokens(row, check)
        arrival_s = check.ms_as_s(row, "ts")
        if check.problems or spec is None:
            continue
        if not spec.input_tokens or not spec.output_tokens:
            file.left_out.add("rows without tokens of a prompt or of a reply")
            continue
        turn = Turn(tokens=spec, arrival_s=arrival_s)
        sessions.append(Session(f"request_{check.line}", (turn,), "tokens", arrival_s, line=check.line))
    file.finish(sessions, "has no request that can run")
    return scheduled(FORMAT.name, path, sessions, file.notes())


def _tokens(row: Mapping[str, Any], check: Checker) -> TokenSpec | None:
    ids = _ids(check.required(row, "input_tokens"), "input_tokens", check)
    output_ids = None if row.get("output_tokens") is None else _ids(row["output_tokens"], "output_tokens", check)
    count = check.given(row, "num_output_tokens", check.integer)
    if count is None and output_ids is None and "num_output_tokens" not in row:
        check.required(row, "num_output_tokens")
    if count is not None and not 0 <= count <= MOST_TOKENS:
        check.fail("num_output_tokens", f"Input should be 0 to {MOST_TOKENS}")
    if ids is None or check.problems:
        return None
    output_tokens = count if count is not None else 0 if output_ids is None else len(output_ids)
    same = output_ids is not None and len(output_ids) == output_tokens
    return TokenSpec(len(ids), output_tokens, ids, output_ids if same else None)


def _ids(value: object, field: str, check: Checker) -> Any:
    entries = check.items(value, field)
    for i, entry in enumerate(entries or []):
        if type(entry) is not int or not 0 <= entry <= _LARGEST_ID:
            check.fail(f"{field}.{i}", f"Input should be a token id, 0 to {_LARGEST_ID}")
            return None
    return None if entries is None else np.array(entries, dtype=np.int32)


FORMAT = Format(
    name="sglang_token_trace",
    summary="requests in token ids with the lengths of their replies, one a line (SGLang token-trace)",
    needs="'input_tokens', and 'output_tokens' or 'num_output_tokens', on every line",
    recognises=any_of(("input_tokens", "output_tokens"), ("input_tokens", "num_output_tokens")),
    load=load,
    aliases=("token_trace",),
    order=37,
)


_OUTPUT_TOKENS = 256
_LIMITS = ("output_len", "max_tokens", "max_completion_tokens", "completion_tokens")
_RESERVED = (
    "prompt", "messages", "prompt_origin", *_LIMITS, "prompt_len", "text_prompt_len", "vision_prompt_len", "image_data",
    "timestamp", "routing_key", "metadata", "extra_request_body", "param_send", "system", "content",
)  # fmt: skip

_MARKS = ("output_len", "prompt_len", "extra_request_body", "param_send", "routing_key")

Prompt = tuple[ContextMode, list[tuple[dict[str, Any], ...]]]


def load_autobench(path: str, *, output_len: int = _OUTPUT_TOKENS) -> Workload:
    """Load every row of the file.

    output_len: of a reply where the row does not say. Raises WorkloadError with all problems.
    """
    file = Loading(path)
    sessions: list[Session] = []
    for row, check in file.rows():
        session = _session(row, output_len, check)
        if session is not None and not check.problems:
            sessions.append(session)
    file.finish(sessions, "has no rows")
    return scheduled(AUTOBENCH.name, path, sessions)


def _session(row: Mapping[str, Any], output_len: int, check: Checker) -> Session | None:
    limit_key = next((key for key in _LIMITS if row.get(key)), None)
    limit = output_len
    if limit_key is not None:
        limit = check.tokens(row[limit_key], limit_key) or limit
    arrival_s = check.ms_as_s(row, "timestamp")
    extra = _extra(row, check)
    name = f"request_{check.line}"
    prompt = _json(row.get("prompt"))
    if row.get("messages") is None and isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        ids = _ids(prompt, "prompt", check)
        if ids is None:
            return None
        turn = Turn(tokens=TokenSpec(len(ids), limit, ids), arrival_s=arrival_s, extra=extra)
        return Session(name, (turn,), "tokens", arrival_s, line=check.line)
    found = _turns(row, prompt, check)
    if found is None:
        return None
    mode, messages = found
    turns = (Turn(one, max_tokens=limit, extra=extra) for one in messages)
    return Session(name, tuple(turns), mode, arrival_s, line=check.line)


def _turns(row: Mapping[str, Any], prompt: Any, check: Checker) -> Prompt | None:
    if row.get("messages") is not None:
        return "isolated", [_messages(_json(row["messages"]), "messages", check)]
    if isinstance(prompt, str) and prompt:
        return "isolated", [({"role": "user", "content": prompt},)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(entry, str) for entry in prompt):
            return "accumulate", [({"role": "user", "content": entry},) for entry in prompt]
        if all(isinstance(entry, list) for entry in prompt):
            return "accumulate", [_messages(entry, f"prompt.{i}", check) for i, entry in enumerate(prompt)]
        return "isolated", [_messages(prompt, "prompt", check)]
    if row.get("prompt_origin") is not None:
        return "isolated", [_messages(_json(row["prompt_origin"]), "prompt_origin", check)]
    if isinstance(row.get("content"), list) and row["content"]:
        texts = check.texts(row["content"], "content") or ()
        said = texts[:-1] if len(texts) % 2 == 0 else texts  # the last one of an even number is the recorded reply
        roles = ("user", "assistant")
        system = check.given(row, "system", check.text)
        head = [{"role": "system", "content": system}] if system else []
        return "isolated", [(*head, *({"role": roles[i % 2], "content": text} for i, text in enumerate(said)))]
    check.required({} if not row.get("prompt") else row, "prompt")
    if row.get("prompt"):
        check.fail("prompt", "Input should be a text, messages, token ids, or a list of turns")
    return None


def _messages(value: Any, field: str, check: Checker) -> tuple[dict[str, Any], ...]:
    messages = []
    for at, message in check.each(check.some_items(value, field), field):
        check.need(message, "role", check.text, at)
        check.required(message, "content", at)
        messages.append(message)
    return tuple(messages)


def _extra(row: Mapping[str, Any], check: Checker) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for key in ("param_send", "extra_request_body"):
        value = None if row.get(key) in (None, "") else check.json_of(row[key], key)
        if value is not None and value is not ABSENT:
            extra |= check.mapping(value, key) or {}
        if key == "param_send":
            extra |= {name: held for name, held in row.items() if name not in _RESERVED}
    return extra


def _json(value: Any) -> Any:
    """Return a text that holds JSON of a list or object as that, anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    found = Checker(None).json_of(value, "")
    return value if found is ABSENT else found


AUTOBENCH = Format(
    name="sglang_autobench",
    summary="requests of SGLang's autobench data sets: texts, messages, token ids or turns, with lengths of replies",
    needs="'prompt' and 'output_len' on every line",
    recognises=any_of(*(("prompt", mark) for mark in _MARKS), ("prompt_origin",), ("system", "content")),
    load=load_autobench,
    aliases=("autobench",),
    order=36,
    options=(Option("output_len", "integer", "tokens of a reply where the row does not say", _OUTPUT_TOKENS, minimum=1),),
)
