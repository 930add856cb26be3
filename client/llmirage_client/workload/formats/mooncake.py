"""Traces of prompt lengths and hash blocks in Mooncake's form.

mooncake_trace: requests of a trace, one a line: how long, which blocks of the prompt are known from where, and when.

Documented by AIPerf; the published traces are at github.com/kvcache-ai/Mooncake. A line gives its prompt in one of four
ways: input_length (with hash_ids: the prompt's blocks of 512 tokens), text_input, messages, or payload, a whole body. Lines
that share a session_id are one conversation. Lengths and texts are new user messages, with the live replies between them;
messages and payloads are complete in themselves ("message_mode": "delta" makes messages into additions, too).

agentic_mooncake: agents' requests that wait for each other, as lengths and block hashes, one a line.

Documented by NVIDIA Dynamo (dynamo.agentic_mooncake). Version 2 begins with a header line and names for each request the
events it waits for; the older rows without a header have `wait_for` and one delay. A request goes out when the last event
has happened and its delay is over, in version 2 on a schedule not before `not_before_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from llmirage_client.workload.checking import ABSENT, FIELD_REQUIRED, MS_PER_S, TENANT_KEYS, Checker
from llmirage_client.workload.files import fault, read_rows
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.formats.authored import NO_EXTRA, check_type
from llmirage_client.workload.hash_blocks import ids_within, key_of, read_prompt, recorded_turn
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.request_graph import GraphError, Need, RecordedRequest, plays_of, sessions_of_play
from llmirage_client.workload.schedule import SessionLines, scheduled, scheduled_trees
from llmirage_client.workload.session import (
    ContextMode,
    Problem,
    Session,
    SyntheticUser,
    Tenant,
    Turn,
    Workload,
)

Way = Literal["input_length", "text_input", "messages", "payload"]
_WAYS: tuple[Way, ...] = ("input_length", "text_input", "messages", "payload")
_OWN_KEYS = ("hash_ids", "output_length", "timestamp", "delay", "session_id", "message_mode")
_KEYS = frozenset((*_WAYS, *_OWN_KEYS, "type", "tools", "extra", "group_id", *TENANT_KEYS))
_PROMPTS = ("delta", "full")
_EITHER = "'input_length', 'text_input', 'messages', or 'payload'"
BLOCK_TOKENS = 512


@dataclass(slots=True, frozen=True)
class _TraceLine:
    line: int
    mode: ContextMode
    turn: Turn
    tenant: Tenant


def load(path: str, *, block_size: int = BLOCK_TOKENS, prompts: str = "delta") -> Workload:
    """Load every line of the file.

    block_size: tokens that a hash stands for. prompts: "delta", the lines of a session given by
    length are what each adds to the history, as AIPerf reads them; "full", each is a whole prompt.

    Raises WorkloadError with all problems, each with line and field.
    """
    if prompts not in _PROMPTS:
        raise fault(path, f"Input should be {' or '.join(_PROMPTS)}, got '{prompts}'", field="option prompts")
    file = Loading(path)
    lines: SessionLines[_TraceLine] = SessionLines()
    for row, check in file.rows():
        file.stray.look(row, _KEYS, check)
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
    file.raise_problems()
    sessions = [
        Session(
            name,
            tuple(row.turn for row in group),
            mode=group[0].mode,
            arrival_s=group[0].turn.arrival_s,
            line=line,
            tenant=group[0].tenant,
        )
        for name, line, group in lines.sessions()
    ]
    return scheduled(FORMAT.name, path, sessions, (*file.notes(), *_what_lines_mean(sessions)))


def _what_lines_mean(sessions: Sequence[Session]) -> list[str]:
    """Return the note on lengths in sessions of several turns, which the format's readers take in two ways."""
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
    """Return whether the blocks of a line are the first ones of the next."""
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
    arrival_s = check.ms_as_s(row, "timestamp")
    delay_s = check.ms_as_s(row, "delay") or 0.0
    max_tokens = check.given(row, "output_length", check.tokens)
    extra = check.given(row, "extra", check.mapping) or NO_EXTRA
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
            tokens = check.tokens(row["input_length"], "input_length") or 0
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
        turn = Turn(payload=payload, delay_s=delay_s, arrival_s=arrival_s)
    else:
        turn = Turn(
            messages=messages,
            synthetic=synthetic,
            max_tokens=max_tokens,
            min_tokens=max_tokens if synthetic else None,
            tools=tools,
            extra=extra,
            delay_s=delay_s,
            arrival_s=arrival_s,
        )
    return _TraceLine(line, mode, turn, check.tenant(row))


def _check_company(row: Mapping[str, Any], way: Way, check: Checker) -> None:
    """Check keys that may stand beside one way of giving the prompt only."""
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
    """Return whether an object with these keys is of this format."""
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


SCHEMA = "dynamo.agentic_mooncake"
AGENTIC_BLOCK_TOKENS = 512
_BLOCK_SIZES = tuple(2**power for power in range(3, 15))
_ROWS_THAT_TELL = 1000
_VERSION = 2
_RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
_BOTH = ("request_id", "session_id", "model", "input_length", "output_length", "output_token_ids", "hash_ids", "priority")
_POLICY = ("strict_priority", "policy_class")
_AGENTIC_KEYS = frozenset(
    (*_BOTH, *_POLICY, "play_id", "source_play_ordinal", "not_before_ms", "recorded_api_time_ms", "dependencies")
)
_OLD_KEYS = frozenset((
    *_BOTH, *_POLICY, "timestamp", "wait_for", "delay", "delay_ms", "tool_wait_ms", "branches", "prefix_reset",
    "tool_events",
))  # fmt: skip


def load_agentic(path: str, *, block_size: int | None = None) -> Workload:
    """Load every play of the file. block_size: tokens that a hash stands for, where no header says; None: as the rows fit.

    Raises WorkloadError with all problems, each with line and field.
    """
    file = Loading(path)
    reader = _MooncakeReader(file, block_size or _fitting_block_tokens(path))
    for row, check in file.rows():
        if "schema" in row:
            reader.read_header(row, check)
        else:
            reader.read(row, check)
    return reader.workload()


def _fitting_block_tokens(path: str) -> int:
    """Return the size of blocks, a power of two, with which prompts have as many as the rows say."""
    sizes = list(_BLOCK_SIZES)
    for row, _ in islice(read_rows(path, []), _ROWS_THAT_TELL):
        tokens, ids = row.get("input_length"), row.get("hash_ids")
        if type(tokens) is int and isinstance(ids, list) and ids:
            sizes = [size for size in sizes if -(-tokens // size) == len(ids)]
    return AGENTIC_BLOCK_TOKENS if AGENTIC_BLOCK_TOKENS in sizes or not sizes else sizes[0]


class _MooncakeReader:
    """The plays of a file. newer: it has a header."""

    def __init__(self, file: Loading, block_tokens: int) -> None:
        self._file = file
        self._block_tokens = block_tokens
        self._newer = False
        self._scoped = False
        self._lines: dict[tuple[str, str], int] = {}
        self._plays: dict[str, list[RecordedRequest]] = {}

    def read_header(self, row: Mapping[str, Any], check: Checker) -> None:
        if row["schema"] != SCHEMA:
            check.fail("schema", f"Input should be '{SCHEMA}'")
        if row.get("version") != _VERSION:
            check.fail("version", f"Input should be {_VERSION}")
        scope = row.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            check.fail("hash_id_scope", "Input should be 'local' or 'global'")
        if self._newer or self._lines:
            check.fail(None, "a header is the first line of its file")
        size = check.need(row, "block_size", check.tokens)
        self._block_tokens = size or self._block_tokens
        self._newer, self._scoped = True, scope == "local"

    def read(self, row: Mapping[str, Any], check: Checker) -> None:
        self._file.stray.look(row, _AGENTIC_KEYS if self._newer else _OLD_KEYS, check)
        name = check.need(row, "request_id", check.name)
        stream = check.need(row, "session_id", check.name)
        play = check.need(row, "play_id", check.name) if self._newer else ""
        tokens = check.need(row, "input_length", check.tokens) or 0
        output = check.need(row, "output_length", check.tokens_from_0)
        line = check.line or 0
        prompt = read_prompt(tokens, row.get("hash_ids"), self._block_tokens, line, check, "hash_ids")
        blocks = 0 if prompt.block_ids is None else len(prompt.block_ids)
        if row.get("hash_ids") is not None and tokens > blocks * self._block_tokens and not check.problems:
            few = f"{blocks} blocks of {self._block_tokens} tokens are too few for {tokens} tokens"
            check.fail("hash_ids", f"{few}; there is one for every block, the last may be cut")
        start_s, needs = self._needs(row, check) if self._newer else self._old_needs(row, check)
        if name is None or stream is None or play is None:
            return
        first = self._lines.setdefault((play, name), line)
        if first != line:
            check.fail("request_id", f"'{name}' is also on line {first}; ids must be unique")
            return
        if self._scoped and prompt.block_ids is not None and blocks:
            scope = key_of(SCHEMA, row.get("source_play_ordinal", play))
            prompt = replace(prompt, block_ids=ids_within(prompt.block_ids, scope))
        self._file.without_reply += output == 0
        turn = recorded_turn(prompt, output or 0)
        full_name = f"{play}/{stream}" if play else stream
        self._plays.setdefault(play, []).append(RecordedRequest(name, full_name, turn, start_s, needs, line))

    def _needs(self, row: Mapping[str, Any], check: Checker) -> tuple[float, tuple[Need, ...]]:
        start_ms = check.need(row, "not_before_ms", check.number) or 0.0
        needs = []
        for at, given in check.each(check.need(row, "dependencies", check.items), "dependencies"):
            check.unknown_keys(given, ("request_id", "trigger", "delay_ms", "relation"), at)
            name = check.need(given, "request_id", check.name, at)
            trigger = check.required(given, "trigger", at)
            if trigger is not ABSENT and trigger not in ("dispatch", "completion"):
                check.fail(f"{at}trigger", "Input should be 'dispatch' or 'completion'")
            relation = given.get("relation", "sequence")
            if relation not in _RELATIONS:
                check.fail(f"{at}relation", f"Input should be one of {', '.join(_RELATIONS)}")
            elif trigger == "dispatch" and relation != "spawn":
                check.rule("only a 'spawn' waits for a dispatch", f"{at}trigger")
            delay_ms = check.number(given.get("delay_ms", 0.0), f"{at}delay_ms") or 0.0
            if name is not None:
                needs.append(Need(name, delay_ms / MS_PER_S, "dispatch" if trigger == "dispatch" else "reply"))
        return start_ms / MS_PER_S, tuple(needs)

    def _old_needs(self, row: Mapping[str, Any], check: Checker) -> tuple[float, tuple[Need, ...]]:
        if row.get("delay") is not None and row.get("delay_ms") is not None:
            check.rule("'delay' and 'delay_ms' are two names of one value", "delay_ms")
        waits = [check.given(row, key, check.number) or 0.0 for key in ("delay", "delay_ms", "tool_wait_ms")]
        names = check.texts(row["wait_for"], "wait_for") if row.get("wait_for") is not None else ()
        timestamp_ms = check.given(row, "timestamp", check.number)
        if names and timestamp_ms is not None:
            check.rule("'timestamp' is only for requests that wait for none", "timestamp")
        if names is not None and not names and timestamp_ms is None:
            check.fail("timestamp", f"{FIELD_REQUIRED} (or 'wait_for')")
        needs = tuple(Need(name, sum(waits) / MS_PER_S) for name in names or ())
        return ((timestamp_ms or 0.0) + (0.0 if names else sum(waits))) / MS_PER_S, needs

    def workload(self) -> Workload:
        """Return the workload. Raises WorkloadError with all problems, those between requests included."""
        sessions: list[Session] = []
        names: set[str] = set()
        for requests in self._plays.values():
            try:
                for play in [requests] if self._newer else plays_of(requests):
                    arrival_s = min((request.start_s for request in play if not request.needs), default=0.0)
                    sessions += sessions_of_play(play, names, arrival_s, floors=self._newer)
            except GraphError as error:
                field = "dependencies" if self._newer else "wait_for"
                self._file.problems.append(Problem(f"'{error.request.id}' {error}", error.request.line, field))
        self._file.finish(self._lines, "has no requests")
        return scheduled_trees(AGENTIC.name, self._file.path, sessions, self._file.notes())


AGENTIC = Format(
    name="agentic_mooncake",
    summary="agents' requests that wait for each other, as lengths and block hashes",
    needs="'request_id', 'session_id' and 'input_length' on every line, or a header of the schema dynamo.agentic_mooncake",
    recognises=any_of((f"schema={SCHEMA}",), ("request_id", "input_length", "session_id")),
    load=load_agentic,
    order=25,
    options=(Option("block_size", "integer", "tokens per hash id, where no header says", minimum=1),),
)
