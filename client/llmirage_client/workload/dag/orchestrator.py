"""The keys of a request-less orchestrator conversation: spawns, rounds and think times.

rounds is a number (the conversation's spawns start that many times) or a list (each round names its own); without it
the spawns start once. Think time is the pause before a round: fixed, or drawn from a lognormal around it with sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.session import Round, ThinkTime

THINK_TIME_KEYS = ("think_time_ms", "think_time_sigma", "think_time_min_ms", "think_time_max_ms")
_MOST_ROUNDS = 100_000  # a round is an object in memory; more than this is a slip of the keyboard


@dataclass(slots=True, frozen=True)
class Orchestrator:
    rounds: tuple[Round, ...]
    think_time: ThinkTime | None


def read_orchestrator(value: Mapping[str, Any], check: Checker, is_orchestrator: bool) -> Orchestrator | None:
    """The rounds of an orchestrator; None for any other conversation, which must have none of these keys."""
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
    """The pause before a round in seconds, and its distribution when it has one."""
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
