"""One line of a dag_jsonl file, checked field by field on its own.

The schema is that of the format's documentation (session_id, turns, pre_session_spawns; per turn messages, model,
max_tokens, tools, extra, forks, spawns, delay) and of AIPerf 0.13 (orchestrator, spawns, rounds, think_time_*,
context_mode); timestamp is ours. Unknown keys are refused everywhere. Messages are the documentation's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import AT_LEAST_ONE_ITEM, FIELD_REQUIRED, Checker
from llmirage_client.workload.dag.orchestrator import Orchestrator, read_orchestrator
from llmirage_client.workload.session import ContextMode, Problem

CONVERSATION_KEYS = (
    "session_id", "turns", "pre_session_spawns", "orchestrator", "spawns", "rounds", "think_time_ms",
    "think_time_sigma", "think_time_min_ms", "think_time_max_ms", "context_mode", "timestamp",
)  # fmt: skip
TURN_KEYS = ("messages", "model", "max_tokens", "tools", "extra", "forks", "spawns", "delay")
CONTEXT_MODES: Mapping[str, ContextMode] = {
    "deltas_without_responses": "accumulate",
    "deltas_with_responses": "accumulate_authored",
    "message_array_with_responses": "isolated",
}


@dataclass(slots=True, frozen=True)
class ForkEntry:
    child: str
    background: bool = False


@dataclass(slots=True, frozen=True)
class SpawnEntry:
    """A bare string (bare: join on the next turn, neighbours share one branch) or an object with its own join_at."""

    children: tuple[str, ...]
    join_at: int | None = None
    bare: bool = False


@dataclass(slots=True, frozen=True)
class TurnLine:
    messages: tuple[dict[str, Any], ...]
    model: str | None
    max_tokens: int | None
    tools: tuple[dict[str, Any], ...] | None
    extra: dict[str, Any]
    forks: tuple[ForkEntry, ...]
    spawns: tuple[SpawnEntry, ...]
    delay_ms: float


@dataclass(slots=True, frozen=True)
class ConversationLine:
    line: int
    session_id: str
    turns: tuple[TurnLine, ...]
    pre_session_spawns: tuple[str, ...]
    orchestrator: Orchestrator | None
    mode: ContextMode
    arrival_s: float | None = None


def read_conversation(value: object, line: int) -> tuple[ConversationLine | None, list[Problem]]:
    """The conversation of one line, or None and everything that is wrong with it."""
    check = Checker(line)
    if not isinstance(value, dict):
        check.mapping(value, None)
        return None, check.problems
    check.unknown_keys(value, CONVERSATION_KEYS)
    session_id = check.text(check.required(value, "session_id"), "session_id", may_be_empty=False)
    is_orchestrator = bool(check.boolean(value.get("orchestrator", False), "orchestrator"))
    orchestrator = read_orchestrator(value, check, is_orchestrator)
    turns = _turns(value, check, is_orchestrator)
    pre = check.texts(value.get("pre_session_spawns", []), "pre_session_spawns") or ()
    if is_orchestrator and pre:
        check.rule("orchestrator conversation must not set 'pre_session_spawns'; use conversation-level 'spawns' instead")
    mode = _mode(value, check)
    timestamp_ms = check.given(value, "timestamp", check.number)
    arrival_s = None if timestamp_ms is None else timestamp_ms / 1000
    if check.problems or session_id is None:
        return None, check.problems
    return ConversationLine(line, session_id, turns, pre, orchestrator, mode, arrival_s), []


def _turns(value: Mapping[str, Any], check: Checker, is_orchestrator: bool) -> tuple[TurnLine, ...]:
    if "turns" not in value:
        if not is_orchestrator:
            check.fail("turns", f"{FIELD_REQUIRED} ('turns' must be non-empty unless 'orchestrator' is true)")
        return ()
    entries = check.items(value["turns"], "turns")
    if entries is None:
        return ()
    if is_orchestrator:
        if entries:
            check.rule("orchestrator conversation must have an empty authored 'turns' list (it sends no request itself)")
        return ()
    if not entries:
        check.fail("turns", f"{AT_LEAST_ONE_ITEM} ('turns' must be non-empty unless 'orchestrator' is true)")
    return tuple(_turn(entry, f"turns.{i}", check) for i, entry in enumerate(entries))


def _mode(value: Mapping[str, Any], check: Checker) -> ContextMode:
    name = value.get("context_mode")
    if name is None:
        return "accumulate"
    if isinstance(name, str) and name in CONTEXT_MODES:
        return CONTEXT_MODES[name]
    known = [f"'{mode}'" for mode in CONTEXT_MODES]
    check.fail("context_mode", f"Input should be {', '.join(known[:-1])} or {known[-1]}")
    return "accumulate"


def _turn(value: object, at: str, check: Checker) -> TurnLine:
    empty = TurnLine((), None, None, None, {}, (), (), 0.0)
    turn = check.mapping(value, at)
    if turn is None:
        return empty
    check.unknown_keys(turn, TURN_KEYS, f"{at}.", hint=" (request parameters go in 'extra')")
    messages = _messages(turn, at, check)
    model = check.given(turn, "model", check.text, f"{at}.")
    tools = check.given(turn, "tools", check.mappings, f"{at}.")
    extra = check.mapping(turn["extra"], f"{at}.extra") if turn.get("extra") is not None else {}
    forks = check.items(turn.get("forks", []), f"{at}.forks") or []
    spawns = check.items(turn.get("spawns", []), f"{at}.spawns") or []
    delay_ms = check.number(turn.get("delay", 0.0), f"{at}.delay")
    return TurnLine(
        messages,
        model,
        _max_tokens(turn, at, check),
        tools,
        extra or {},
        tuple(_fork(entry, f"{at}.forks.{i}", check) for i, entry in enumerate(forks)),
        tuple(_spawn(entry, f"{at}.spawns.{i}", check) for i, entry in enumerate(spawns)),
        delay_ms or 0.0,
    )


def _messages(turn: Mapping[str, Any], at: str, check: Checker) -> tuple[dict[str, Any], ...]:
    entries = check.items(check.required(turn, "messages", f"{at}."), f"{at}.messages")
    if entries is None:
        return ()
    if not entries:
        check.rule("'messages' must be a non-empty list", at)
    read = []
    for i, entry in enumerate(entries):
        message = check.mapping(entry, f"{at}.messages.{i}")
        if message is None:
            continue
        if "role" not in message:
            check.rule(f"Each message must have a 'role' key, but message at index {i} does not", at)
        read.append(message)
    return tuple(read)


def _max_tokens(turn: Mapping[str, Any], at: str, check: Checker) -> int | None:
    value = turn.get("max_tokens")
    if isinstance(value, bool):
        check.rule(f"max_tokens must be an integer, not a boolean (got {value})", f"{at}.max_tokens")
        return None
    return None if value is None else check.integer(value, f"{at}.max_tokens", minimum=1)


def _fork(value: object, at: str, check: Checker) -> ForkEntry:
    if isinstance(value, str):
        return ForkEntry(value)
    if not isinstance(value, dict):
        check.fail(at, 'Input should be a valid string or an object {"child": ..., "background": true}')
        return ForkEntry("")
    check.unknown_keys(value, ("child", "background"), f"{at}.")
    child = check.text(check.required(value, "child", f"{at}."), f"{at}.child", may_be_empty=False)
    background = check.boolean(value.get("background", False), f"{at}.background")
    return ForkEntry(child or "", bool(background))


def _spawn(value: object, at: str, check: Checker) -> SpawnEntry:
    if isinstance(value, str):
        return SpawnEntry((value,), bare=True)
    if not isinstance(value, dict):
        check.fail(at, 'Input should be a valid string or an object {"children": [...], "join_at": turn}')
        return SpawnEntry(())
    check.unknown_keys(value, ("children", "join_at"), f"{at}.")
    children = check.texts(check.required(value, "children", f"{at}."), f"{at}.children", may_be_empty=False)
    join_at = value.get("join_at")
    return SpawnEntry(children or (), None if join_at is None else check.integer(join_at, f"{at}.join_at"))
