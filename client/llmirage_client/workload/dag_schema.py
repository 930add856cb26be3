"""One line of a dag_jsonl file, checked field by field on its own.

The schema is that of the format's documentation (session_id, turns, pre_session_spawns; per turn messages, model,
max_tokens, tools, extra, forks, spawns, delay) and of AIPerf 0.13 (orchestrator, spawns, rounds, think_time_*,
context_mode); timestamp, tenant and service_class are ours. Unknown keys are refused everywhere. Messages are the
documentation's.

An orchestrator conversation sends no request: rounds is a number (its spawns start that many times) or a list (each round
names its own); without it the spawns start once. Think time is the pause before a round: fixed, or drawn from a lognormal
around it with sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import AT_LEAST_ONE_ITEM, FIELD_REQUIRED, MS_PER_S, TENANT_KEYS, Checker
from llmirage_client.workload.session import ContextMode, Problem, Round, Session, ThinkTime, Turn

THINK_TIME_KEYS = ("think_time_ms", "think_time_sigma", "think_time_min_ms", "think_time_max_ms")
_MOST_ROUNDS = 100_000  # a round is an object in memory; more than this is a slip of the keyboard


@dataclass(slots=True, frozen=True)
class Orchestrator:
    """The rounds of an orchestrator conversation, and its think time."""

    rounds: tuple[Round, ...]
    think_time: ThinkTime | None


def read_orchestrator(value: Mapping[str, Any], check: Checker, is_orchestrator: bool) -> Orchestrator | None:
    """Return the rounds of an orchestrator; None for any other conversation, which must have none of these keys."""
    given = {key: value[key] for key in (*THINK_TIME_KEYS, "rounds") if value.get(key) is not None}
    spawns = check.texts(value.get("spawns", []), "spawns") or ()
    if not is_orchestrator:
        if "rounds" in given:
            check.rule("'rounds' is only valid on an orchestrator conversation (set 'orchestrator': true)")
        if value.get("spawns"):
            check.rule(
                "conversation-level 'spawns' is only valid on an orchestrator conversation "
                "(set 'orchestrator': true, or put 'spawns' on a turn)"
            )
        if given.keys() - {"rounds"}:
            check.rule(
                "'think_time_ms'/'think_time_sigma'/'think_time_min_ms'/'think_time_max_ms' "
                "are only valid on an orchestrator conversation with 'rounds' set"
            )
        return None
    think_time_s, think_time = _think_time(given, check)
    rounds = _rounds(value.get("rounds"), spawns, bool(value.get("spawns")), think_time_s, check)
    return Orchestrator(rounds, think_time)


def _rounds(
    value: object, spawns: tuple[str, ...], spawns_given: bool, think_time_s: float, check: Checker
) -> tuple[Round, ...]:
    if isinstance(value, list):
        if not value:
            check.rule("orchestrator 'rounds' list must be non-empty")
        if spawns_given:
            check.rule(
                "with a per-round 'rounds' list, omit conversation-level 'spawns' (each round declares its own 'spawns')"
            )
        rounds = tuple(_round(entry, f"rounds.{i}", think_time_s, check) for i, entry in enumerate(value))
        _check_children_differ(rounds, check)
        return rounds
    if not spawns_given:
        check.rule("orchestrator conversation requires a non-empty 'spawns' (or a per-round 'rounds' list)")
    if value is None:
        return (Round(spawns, awaited=False),)
    count = check.integer(value, "rounds", maximum=_MOST_ROUNDS)
    if count is not None and count < 1:
        check.rule("'rounds' count must be >= 1")
    return (Round(spawns, think_time_s),) * (count or 0)


def _round(value: object, at: str, think_time_s: float, check: Checker) -> Round:
    entry = check.mapping(value, at)
    if entry is None:
        return Round(())
    check.unknown_keys(entry, ("spawns", "think_time_ms"), f"{at}.")
    spawns = check.texts(check.required(entry, "spawns", f"{at}."), f"{at}.spawns", may_be_empty=False)
    if entry.get("think_time_ms") is not None:
        think_time_s = (check.number(entry["think_time_ms"], f"{at}.think_time_ms") or 0.0) / 1000
    return Round(spawns or (), think_time_s)


def _check_children_differ(rounds: tuple[Round, ...], check: Checker) -> None:
    first: dict[str, int] = {}
    for number, round_ in enumerate(rounds):
        for child in round_.children:
            if first.setdefault(child, number) != number:
                check.rule(
                    f"child session id '{child}' is spawned by more than one round (rounds {first[child]} and {number}); "
                    "each round of a list has children of its own",
                    f"rounds.{number}.spawns",
                )


def _think_time(given: Mapping[str, Any], check: Checker) -> tuple[float, ThinkTime | None]:
    """Return the pause before a round in seconds, and its distribution when it has one."""
    read: dict[str, float] = {}
    for key in THINK_TIME_KEYS:
        if key in given:
            is_sigma = key == "think_time_sigma"
            number = check.number(given[key], key, maximum=10.0 if is_sigma else float("inf"), above_minimum=is_sigma)
            read[key] = number or 0.0
    if "think_time_ms" in given and "rounds" not in given:
        check.rule("'think_time_ms' requires 'rounds' (it is the wait before each round)")
    if "think_time_sigma" in given and "think_time_ms" not in given:
        check.rule("'think_time_sigma' requires 'think_time_ms' (the lognormal median to sample around)")
    low_ms, high_ms = read.get("think_time_min_ms"), read.get("think_time_max_ms")
    if (low_ms is not None or high_ms is not None) and "think_time_sigma" not in given:
        check.rule("'think_time_min_ms'/'think_time_max_ms' require 'think_time_sigma' (they clamp the sampled draw)")
    if low_ms is not None and high_ms is not None and low_ms > high_ms:
        check.rule(f"'think_time_min_ms' must be <= 'think_time_max_ms' (got {low_ms:g} > {high_ms:g})")
    median_s = read.get("think_time_ms", 0.0) / 1000
    if "think_time_sigma" not in read:
        return median_s, None
    high_s = float("inf") if high_ms is None else high_ms / 1000
    return median_s, ThinkTime(median_s, read["think_time_sigma"], (low_ms or 0.0) / 1000, high_s)


CONVERSATION_KEYS = (
    "session_id", "turns", "pre_session_spawns", "orchestrator", "spawns", "rounds", "think_time_ms",
    "think_time_sigma", "think_time_min_ms", "think_time_max_ms", "context_mode", "timestamp",
    *TENANT_KEYS,
)  # fmt: skip
TURN_KEYS = ("messages", "model", "max_tokens", "tools", "extra", "forks", "spawns", "delay")
CONTEXT_MODES: Mapping[str, ContextMode] = {
    "deltas_without_responses": "accumulate",
    "deltas_with_responses": "accumulate_authored",
    "message_array_with_responses": "isolated",
}


@dataclass(slots=True, frozen=True)
class ForkEntry:
    """A fork that a turn names."""

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
    """A turn, and the children that it names."""

    turn: Turn
    forks: tuple[ForkEntry, ...] = ()
    spawns: tuple[SpawnEntry, ...] = ()


@dataclass(slots=True, frozen=True)
class ConversationLine:
    """The conversation of a line: its session, which has no turns yet, and these."""

    session: Session
    turns: tuple[TurnLine, ...]


def read_conversation(value: object, line: int) -> tuple[ConversationLine | None, list[Problem]]:
    """Return the conversation of one line, or None, and its problems."""
    check = Checker(line)
    if not isinstance(value, dict):
        check.mapping(value, None)
        return None, check.problems
    check.unknown_keys(value, CONVERSATION_KEYS)
    session_id = check.need(value, "session_id", check.name)
    is_orchestrator = bool(check.boolean(value.get("orchestrator", False), "orchestrator"))
    orchestrator = read_orchestrator(value, check, is_orchestrator)
    turns = _turns(value, check, is_orchestrator)
    pre = check.texts(value.get("pre_session_spawns", []), "pre_session_spawns") or ()
    if is_orchestrator and pre:
        check.rule("orchestrator conversation must not set 'pre_session_spawns'; use conversation-level 'spawns' instead")
    mode = _mode(value, check)
    arrival_s = check.ms_as_s(value, "timestamp")
    tenant = check.tenant(value)
    if check.problems or session_id is None:
        return None, check.problems
    session = Session(
        id=session_id,
        turns=(),
        mode=mode,
        arrival_s=arrival_s,
        pre_session_spawns=pre,
        rounds=orchestrator.rounds if orchestrator else (),
        think_time=orchestrator.think_time if orchestrator else None,
        line=line,
        tenant=tenant,
    )
    return ConversationLine(session, turns), []


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
    turn = check.mapping(value, at)
    if turn is None:
        return TurnLine(Turn())
    check.unknown_keys(turn, TURN_KEYS, f"{at}.", hint=" (request parameters go in 'extra')")
    messages = _messages(turn, at, check)
    model = check.given(turn, "model", check.text, f"{at}.")
    tools = check.given(turn, "tools", check.mappings, f"{at}.")
    extra = check.mapping(turn["extra"], f"{at}.extra") if turn.get("extra") is not None else {}
    forks = check.items(turn.get("forks", []), f"{at}.forks") or []
    spawns = check.items(turn.get("spawns", []), f"{at}.spawns") or []
    delay_ms = check.number(turn.get("delay", 0.0), f"{at}.delay") or 0.0
    return TurnLine(
        Turn(messages, None, None, model, _max_tokens(turn, at, check), tools, extra or {}, delay_ms / MS_PER_S),
        tuple(_fork(entry, f"{at}.forks.{i}", check) for i, entry in enumerate(forks)),
        tuple(_spawn(entry, f"{at}.spawns.{i}", check) for i, entry in enumerate(spawns)),
    )


def _messages(turn: Mapping[str, Any], at: str, check: Checker) -> tuple[dict[str, Any], ...]:
    entries = check.need(turn, "messages", check.items, f"{at}.")
    if entries == []:
        check.rule("'messages' must be a non-empty list", at)
    read = []
    for i, entry in enumerate(entries or ()):
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
    child = check.need(value, "child", check.name, f"{at}.")
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
