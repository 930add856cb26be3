"""tracelab: rounds of coding agents as UW SyFI's TraceLab has them: JSON lines of its release, or its session_runner's CSV.

A round's prompt begins with `prefix` tokens of what its session has said, then come new ones. A CSV says how long after a
reply the next round goes out; in JSON lines that is the time from the round's last event to the next one's last input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.hash_blocks import GrowingPrompts, recorded_turn
from llmirage_client.workload.loading import Loading, header_line, header_of
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Session, Turn, Workload
from llmirage_shared.plural import plural

BLOCK_TOKENS = 64
_COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
_INPUTS = ("user_message", "tool_result")
_OUTPUTS = ("reasoning", "text", "tool_call")


@dataclass(slots=True, frozen=True)
class _Round:
    """number: its place in the session. start_s, end_s: in the recording; None where the file does not say."""

    number: int
    prefix_tokens: int
    tokens: int
    output_tokens: int
    line: int
    wait_after_s: float = 0.0
    start_s: float | None = None
    end_s: float | None = None


@dataclass(slots=True)
class _Rounds:
    line: int
    arrival_s: float | None = None
    rounds: list[_Round] = field(default_factory=list)


def load(path: str, *, block_size: int = BLOCK_TOKENS, add_reasoning: bool = False) -> Workload:
    """Load every session of the file or folder. block_size: tokens to which prompts share what they have in common.

    add_reasoning: replies are longer by their reasoning tokens, for providers that count these apart.
    Raises WorkloadError with all problems, each with line and field.
    """
    file = Loading(path)
    found: dict[str, _Rounds] = {}
    from_csv = recognises_header(header_line(path))  # of a folder it is empty
    if from_csv:
        for cells, check in file.table(_COLUMNS):
            _read_cells(cells, check, found)
    else:
        for row, check in file.rows_below():
            _read_row(row, check, found, add_reasoning)
    file.finish(found, "has no rounds")
    sessions = [_session(name, one, block_size, from_csv) for name, one in found.items()]
    file.without_reply = sum(not one.output_tokens for rounds in found.values() for one in rounds.rounds)
    order = _order_notes(found.values()) if from_csv else ()
    return scheduled(FORMAT.name, path, sessions, (*order, *file.notes()))


def _order_notes(sessions: Collection[_Rounds]) -> Iterator[str]:
    """Yield notes on rows that follow a later round of their session, and on those with the number of another one."""
    pairs = [pair for session in sessions for pair in pairwise(session.rounds)]
    if early := [one.line for before, one in pairs if one.number < before.number]:
        rounds = plural(len(early), "round")
        yield f"{rounds} after a later one of the session, the first on line {min(early)}: sent in the order of round_idx"
    again: list[int] = []
    for session in sessions:
        lines: dict[int, int] = {}
        again += [one.line for one in session.rounds if lines.setdefault(one.number, one.line) != one.line]
    if again:
        rounds = plural(len(again), "round")
        yield f"{rounds} with the number of one before, the first on line {min(again)}: all are sent, in file order"


def _read_cells(cells: Mapping[str, str], check: Checker, found: dict[str, _Rounds]) -> None:
    name = check.name(cells.get("session_id") or cells.get("id") or "", "session_id")
    numbers = [check.tokens_from_0(cells[column], column) or 0 for column in _COLUMNS[:4]]
    wait_s = check.ms_as_s(cells, _COLUMNS[4]) or 0.0
    arrival_s = check.ms_as_s(cells, "arrival_time") if cells.get("arrival_time") else None
    number, prefix, new, output = numbers
    if not check.problems and not prefix + new:
        check.fail("input_len", "a round has at least one token")
    if name is None or check.problems:
        return
    rounds = found.setdefault(name, _Rounds(check.line or 0))
    if arrival_s is not None:
        rounds.arrival_s = min(arrival_s, rounds.arrival_s if rounds.arrival_s is not None else float("inf"))
    rounds.rounds.append(_Round(number, prefix, prefix + new, output, check.line or 0, wait_s))


def _read_row(row: Mapping[str, Any], check: Checker, found: dict[str, _Rounds], add_reasoning: bool) -> None:
    name = check.need(row, "session_id", check.name)
    number = check.integer(check.required(row, "round_index"), "round_index", minimum=0)
    prefix = check.need(row, "prefix_tokens", check.tokens_from_0) or 0
    new = check.need(row, "newly_append_tokens", check.tokens_from_0)
    output = check.need(row, "output_tokens", check.tokens_from_0) or 0
    reasoning = check.given(row, "reasoning_output_tokens", check.integer) or 0
    total = check.given(row, "input_tokens_total", check.integer)
    tokens = prefix + (new or 0)
    if total is not None and new is not None and not check.problems and total != tokens:
        check.rule(f"is {total}, but prefix_tokens + newly_append_tokens is {tokens}", "input_tokens_total")
    start_s, end_s = _times(row, check)
    if not check.problems and not tokens:
        check.fail("newly_append_tokens", "a round has at least one token")
    if name is None or number is None or check.problems:
        return
    rounds = found.setdefault(name, _Rounds(check.line or 0))
    output += reasoning if add_reasoning else 0
    rounds.rounds.append(_Round(number, prefix, tokens, output, check.line or 0, 0.0, start_s, end_s))


def _times(row: Mapping[str, Any], check: Checker) -> tuple[float | None, float | None]:
    """Return the times of the round's last input, when it was sent, and of its last output."""
    last: dict[bool, float] = {}
    for at, event in check.each(check.need(row, "timing_events", check.items), "timing_events"):
        kind = event.get("event_type")
        if kind in _INPUTS or kind in _OUTPUTS:
            time_s = check.need(event, "timestamp", check.moment, at)
            if time_s is not None:
                last[kind in _INPUTS] = max(time_s, last.get(kind in _INPUTS, time_s))
    start_s, end_s = last.get(True), last.get(False)
    if start_s is None:
        return end_s, end_s
    return start_s, max(start_s, end_s if end_s is not None else start_s)


def _session(name: str, found: _Rounds, block_tokens: int, from_csv: bool) -> Session:
    """Return rounds in order, as their replayers do: by number in a CSV, by time in JSON lines, then by line."""
    by_time = not from_csv and all(one.start_s is not None for one in found.rounds)
    rounds = sorted(found.rounds, key=lambda one: (one.start_s if by_time and one.start_s is not None else 0.0, one.number))
    prompts = GrowingPrompts(block_tokens, "tracelab", name)
    turns: list[Turn] = []
    previous: _Round | None = None
    for one in rounds:
        wait_s = 0.0
        if previous is not None:
            wait_s = previous.wait_after_s
            if one.start_s is not None and previous.end_s is not None:
                wait_s = max(one.start_s - previous.end_s, 0.0)
        prompt = prompts.next(one.tokens, one.prefix_tokens)
        turns.append(replace(recorded_turn(prompt, one.output_tokens), delay_s=wait_s))
        previous = one
    arrival_s = found.arrival_s if from_csv else rounds[0].start_s
    return Session(name, tuple(turns), "isolated", arrival_s, line=found.line)


def recognises_header(line: str) -> bool:
    """Return whether a first line is this format's header."""
    return {"round_idx", "prefix_len", "input_len"} <= header_of(line)


FORMAT = Format(
    name="tracelab",
    summary="rounds of coding agents (UW SyFI TraceLab): tokens kept and added, replies, waits; JSON lines or CSV",
    needs="'session_id', 'round_index' and 'newly_append_tokens' on every line, or a header with 'round_idx', 'prefix_len'",
    recognises=any_of(("round_index", "newly_append_tokens"), ("prefix_tokens", "timing_events")),
    load=load,
    order=18,
    options=(
        Option("block_size", "integer", "tokens to which prompts share what they have in common", BLOCK_TOKENS, minimum=1),
        Option("add_reasoning", "boolean", "add reasoning tokens to replies whose count is without them", False),
    ),
    recognises_header=recognises_header,
    folder=True,
)
