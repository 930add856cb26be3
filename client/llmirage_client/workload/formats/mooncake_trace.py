"""mooncake_trace: requests of a trace, one a line: how long, which blocks of the prompt are known from where, and when.

Documented by AIPerf; the published traces are at github.com/kvcache-ai/Mooncake. A line gives its prompt in one of four
ways: input_length (with hash_ids: the prompt's blocks of 512 tokens), text_input, messages, or payload, a whole body. Lines
that share a session_id are one conversation. Lengths and texts are new user messages, with the live replies between them;
messages and payloads are complete in themselves ("message_mode": "delta" makes messages into additions, too).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmirage_client.workload.authored_turn import check_type, read_extra, read_output_length, read_timing
from llmirage_client.workload.checking import MOST_TOKENS, Checker, StrayKeys
from llmirage_client.workload.files import fault, read_rows
from llmirage_client.workload.format import Format
from llmirage_client.workload.format_options import Option
from llmirage_client.workload.hash_blocks import read_prompt
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import ContextMode, Problem, Session, SyntheticUser, Turn, Workload, WorkloadError

Way = Literal["input_length", "text_input", "messages", "payload"]
_WAYS: tuple[Way, ...] = ("input_length", "text_input", "messages", "payload")
_OWN_KEYS = ("hash_ids", "output_length", "timestamp", "delay", "session_id", "message_mode")
_KEYS = (*_WAYS, *_OWN_KEYS, "type", "tools", "extra", "group_id")
_PROMPTS = ("delta", "full")
_EITHER = "'input_length', 'text_input', 'messages', or 'payload'"
BLOCK_TOKENS = 512


@dataclass(slots=True, frozen=True)
class _TraceLine:
    line: int
    mode: ContextMode
    turn: Turn


def load(path: str, *, block_size: int = BLOCK_TOKENS, prompts: str = "delta") -> Workload:
    """Every line of the file. block_size: tokens that a hash stands for. prompts: "delta", the lines of a session given by
    length are what each adds to the history, as AIPerf reads them; "full", each is a whole prompt.


    Raises WorkloadError with all problems, each with line and field.
    """
    if prompts not in _PROMPTS:
        raise fault(path, f"Input should be {' or '.join(_PROMPTS)}, got '{prompts}'", field="option prompts")
    problems: list[Problem] = []
    stray = StrayKeys()
    lines: SessionLines[_TraceLine] = SessionLines()
    for row, check in read_rows(path, problems):
        stray.look(row, _KEYS, check)
        check_type(row, FORMAT.name, check)
        session_id = check.given(row, "session_id", check.text)
        read = _read(row, check, block_size)
        if read is not None and prompts == "full" and read.turn.synthetic is not None:
            read = replace(read, mode="isolated")
        group = lines.of(session_id, check.line or 0)
        if read is not None:
            if group and group[0].mode != read.mode:
                check.fail(None, _mixed(session_id or "", group[0]))
            group.append(read)
    if problems:
        raise WorkloadError(path, problems)
    sessions = [
        Session(name, tuple(row.turn for row in group), mode=group[0].mode, arrival_s=group[0].turn.arrival_s, line=line)
        for name, line, group in lines.sessions()
    ]
    return scheduled(FORMAT.name, path, sessions, (*stray.notes(), *_what_lines_mean(sessions)))


def _what_lines_mean(sessions: Sequence[Session]) -> list[str]:
    """The note on lengths in sessions of several turns, which the format's readers take in two ways."""
    said = [session for session in sessions if len(session.turns) > 1 and session.turns[1].synthetic is not None]
    if not said:
        return []
    if said[0].mode == "isolated":
        return ["lengths of a session are whole prompts (option prompts=full)"]
    repeating = sum(_repeats(*session.turns[:2]) for session in said)
    if 2 * repeating > len(said):
        return [
            "lengths of a session are read as what each line adds to the history, but the lines begin with the blocks of "
            "the line before: if they are whole prompts, give the option prompts=full"
        ]
    return ["lengths of a session are what each line adds to the history (option prompts=delta)"]


def _repeats(one: Turn, other: Turn) -> bool:
    """Whether the blocks of a line are the first ones of the next."""
    if one.synthetic is None or other.synthetic is None or one.synthetic.block_ids is None:
        return False
    whole = one.synthetic.block_ids[: one.synthetic.tokens // max(one.synthetic.block_tokens, 1)]
    more = other.synthetic.block_ids
    return more is not None and 0 < len(whole) <= len(more) and bool((more[: len(whole)] == whole).all())


def _mixed(session_id: str, first: _TraceLine) -> str:
    kinds = {
        "verbatim": "a payload",
        "isolated": "messages complete in themselves",
        "accumulate": "a part of a growing conversation (a length, a text, or messages with message_mode delta)",
    }
    return (
        f"session '{session_id}' began on line {first.line} with {kinds[first.mode]}; a session keeps to one way, so give "
        "lines of another way another session_id"
    )


def _read(row: Mapping[str, Any], check: Checker, block_tokens: int) -> _TraceLine | None:
    line = check.line or 0
    timing = read_timing(row, check)
    max_tokens = read_output_length(row, check)
    extra = read_extra(row, check)
    given = [way for way in _WAYS if row.get(way) is not None]
    if len(given) != 1:
        hint = " ('input_text' is called 'text_input')" if "input_text" in row else ""
        few = f"Exactly one of {_EITHER} must be provided{hint}"
        check.rule(f"{_EITHER} are mutually exclusive. Use only one of them." if given else few)
        return None
    way = given[0]
    _check_company(row, way, check)
    mode: ContextMode = "accumulate"
    messages: tuple[Mapping[str, Any], ...] = ()
    synthetic: SyntheticUser | None = None
    tools = None
    match way:
        case "input_length":
            tokens = check.integer(row["input_length"], "input_length", minimum=1, maximum=MOST_TOKENS) or 0
            synthetic = read_prompt(tokens, row.get("hash_ids"), block_tokens, line, check, "hash_ids")
        case "text_input":
            messages = ({"role": "user", "content": check.text(row["text_input"], "text_input") or ""},)
        case "messages":
            messages = _messages(row["messages"], check)
            tools = _tools(row, check)
            if row.get("message_mode") != "delta":
                mode = "isolated"
        case "payload":
            mode = "verbatim"
    if mode == "verbatim":
        payload = check.mapping(row["payload"], "payload")
        if payload is not None and not payload:
            check.rule("'payload' must be a non-empty dict", "payload")
        turn = Turn(payload=payload, delay_s=timing.delay_s, arrival_s=timing.arrival_s)
    else:
        turn = Turn(
            messages=messages,
            synthetic=synthetic,
            max_tokens=max_tokens,
            min_tokens=max_tokens if synthetic else None,
            tools=tools,
            extra=extra,
            delay_s=timing.delay_s,
            arrival_s=timing.arrival_s,
        )
    return _TraceLine(line, mode, turn)


def _check_company(row: Mapping[str, Any], way: Way, check: Checker) -> None:
    """What may stand beside one way of giving the prompt only."""
    if row.get("hash_ids") is not None and way != "input_length":
        check.rule(
            "'hash_ids' is only allowed when 'input_length' is provided, not when 'text_input', 'messages', or 'payload' "
            "are provided",
            "hash_ids",
        )
    if row.get("tools") is not None and way != "messages":
        check.rule("'tools' is only allowed when 'messages' is provided", "tools")
    mode = row.get("message_mode")
    if mode is not None and mode not in ("history", "delta"):
        check.fail("message_mode", "Input should be 'history' or 'delta'")
    elif mode == "delta" and way != "messages":
        check.rule("'message_mode' 'delta' is only allowed when 'messages' is provided", "message_mode")
    elif mode == "delta" and isinstance(row.get("extra"), dict) and "messages" in row["extra"]:
        check.rule("'messages' in 'extra' would replace the history of a 'delta' session", "extra.messages")


def _messages(value: object, check: Checker) -> tuple[Mapping[str, Any], ...]:
    entries = check.mappings(value, "messages")
    if entries is not None and not entries and value == []:
        check.rule("'messages' must be a non-empty list", "messages")
    for i, message in enumerate(entries or ()):
        if "role" not in message:
            check.rule(f"Each message must have a 'role' key, but message at index {i} does not", "messages")
    return entries or ()


def _tools(row: Mapping[str, Any], check: Checker) -> tuple[dict[str, Any], ...] | None:
    if row.get("tools") is None:
        return None
    tools = check.mappings(row["tools"], "tools")
    if tools is not None and not tools and row["tools"] == []:
        check.rule("'tools' must be a non-empty list", "tools")
    return tools


def recognises(keys: Collection[str]) -> bool:
    if {"input_length", "text_input"} & set(keys) or ("payload" in keys and "payloads" not in keys):
        return True
    return "messages" in keys and any(key in keys for key in _OWN_KEYS)


FORMAT = Format(
    name="mooncake_trace",
    summary="a trace: lengths with block hashes, texts, messages or bodies, with timestamps",
    needs="'input_length', 'text_input' or 'payload' on every line, or 'messages' with 'timestamp' or 'output_length'",
    recognises=recognises,
    load=load,
    order=40,
    aliases=("mooncake", "mooncake_delta"),
    options=(
        Option("block_size", "integer", "tokens per hash id", BLOCK_TOKENS, minimum=1),
        Option(
            "prompts", "text", "delta or full: whether lengths of a session add to its history or are whole prompts", "delta"
        ),
    ),
    fetch="a trace of github.com/kvcache-ai/Mooncake (FAST25-release/arxiv-trace/mooncake_trace.jsonl)",
)
