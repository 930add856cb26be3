"""The verdict on a client: what the journal tells of how it met refusals, broken replies and its own connections.

docs/verdict.md has the rules in the same order.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmirage_server.telemetry.journal import ClientConnection, JournalEntry

UNUSED_S = 5.0  # a connection unused for so long, while the client opens another one, is leaked
MOST_SHOWN = 20  # findings of a rule
_RETRY_WITHIN_S = 60.0  # after the failure, or after what its Retry-After says: a later one is a new call
_EARLY_S = 0.05  # by which timers may fire early
_NOTICED_S = 0.1  # the server may notice a broken connection so much later than the client
_LEAST_WAIT_S = 0.1
_ALIKE = 1.2  # waits are alike if the longest is at most so much longer than the shortest
_MANY_WAITS = 3
_LONG_WAIT_S = 5.0  # waits that are all alike do no harm from here on
_STILL_OPEN_S = 0.2  # a pool may open a connection just before it closes an old one
_COUNT = b"x-stainless-retry-count"  # of the SDKs of OpenAI and Anthropic: 0 in a request that is no retry
_MAY_BE_RETRIED = (408, 409, 425, 429)  # of the 4xx


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule. requests: the entries of the journal that show it, by number."""

    requests: tuple[int, ...]
    why: str


@dataclass(slots=True)
class RuleVerdict:
    """rule, looks_at: as in RULES. seen: how many cases there were. findings: those that break the rule."""

    rule: str
    looks_at: str
    seen: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> Literal["pass", "fail", "not seen"]:
        return "fail" if self.findings else "pass" if self.seen else "not seen"

    def shown(self) -> dict[str, Any]:
        """As JSON data, with the first findings."""
        return {
            "rule": self.rule,
            "verdict": self.verdict,
            "looks_at": self.looks_at,
            "seen": self.seen,
            "broken": len(self.findings),
            "findings": [{"requests": list(one.requests), "why": one.why} for one in self.findings[:MOST_SHOWN]],
        }


@dataclass(frozen=True, slots=True)
class _Retry:
    """number: 1 for the first of its call. wait_s: from the end of the failed request to the arrival of the next."""

    failed: JournalEntry
    again: JournalEntry
    number: int
    wait_s: float

    def broken(self, why: str) -> Finding:
        return Finding((self.failed.number, self.again.number), why)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """calls: the retries of each call, in order."""

    entries: Sequence[JournalEntry]
    calls: Sequence[Sequence[_Retry]]
    now_s: float
    unused_s: float

    @property
    def retries(self) -> Iterator[_Retry]:
        return itertools.chain.from_iterable(self.calls)


def judge(entries: Iterable[JournalEntry], now_s: float, unused_s: float = UNUSED_S) -> list[RuleVerdict]:
    """Judge the clients that sent these requests. entries: oldest first. now_s: the present on the server's clock."""
    listed = list(entries)
    evidence = _Evidence(listed, _calls(listed), now_s, unused_s)
    verdicts = []
    for rule, (looks_at, look) in RULES.items():
        verdict = RuleVerdict(rule, looks_at)
        look(evidence, verdict)
        verdicts.append(verdict)
    return verdicts


# --- which request is a retry of which ----------------------------------------------------------------------------------


def _calls(entries: Iterable[JournalEntry]) -> list[list[_Retry]]:
    """Return the retries of each call that was retried.

    A retry has method, path, body, caller and Idempotency-Key of a request that has failed before. Where several have, it
    is that of the oldest that was not retried yet.
    """
    unanswered: defaultdict[tuple[Any, ...], list[list[JournalEntry]]] = defaultdict(list)
    found: list[list[_Retry]] = []
    retries: dict[int, list[_Retry]] = {}  # of a call, by its last request
    for entry in entries:
        if not entry.digest:
            continue
        same = (entry.method, entry.path, entry.digest, entry.caller, entry.header(b"idempotency-key"))
        count = entry.header(_COUNT)
        attempts = None if count == b"0" else _first_failed(unanswered[same], entry, count)
        if attempts is None:
            unanswered[same].append([entry])
            continue
        failed = attempts[-1]
        attempts.append(entry)
        call = retries.pop(failed.number, None)
        if call is None:
            found.append(call := [])
        call.append(_Retry(failed, entry, len(attempts) - 1, max(0.0, entry.arrived_s - _ended_s(failed))))
        retries[entry.number] = call
    return found


def _first_failed(calls: list[list[JournalEntry]], again: JournalEntry, count: bytes | None) -> list[JournalEntry] | None:
    """Return the requests of the first call of which this may be a retry. Calls beyond any retry are dropped."""
    calls[:] = [attempts for attempts in calls if not _over(attempts[-1], again.arrived_s)]
    for attempts in calls:
        failed = attempts[-1]
        if failed.elapsed_s is None:
            continue
        noticed_s = 0.0 if _refused(failed) else _NOTICED_S
        before = failed.header(_COUNT)
        follows = count is None or before is None or (count.isdigit() and before.isdigit() and int(count) == int(before) + 1)
        if follows and again.arrived_s >= _ended_s(failed) - noticed_s:
            return attempts
    return None


def _over(entry: JournalEntry, at_s: float) -> bool:
    if entry.elapsed_s is None:
        return False
    succeeded = entry.outcome == "complete" and not _refused(entry)
    return succeeded or at_s > _ended_s(entry) + (_advised_s(entry) or 0.0) + _RETRY_WITHIN_S


def _ended_s(entry: JournalEntry) -> float:
    return entry.arrived_s + (entry.elapsed_s or 0.0)


def _refused(entry: JournalEntry) -> bool:
    return entry.outcome == "complete" and entry.status is not None and entry.status >= 400


def _advised_s(entry: JournalEntry) -> float | None:
    """Return the shortest wait that the headers of a refusal allow, None if they tell none in seconds."""
    told = []
    for name, value in entry.advice:
        with_unit = {b"retry-after": 1.0, b"retry-after-ms": 0.001}.get(name.lower())
        if with_unit is not None and (seconds := _number(value)) is not None:
            told.append(seconds * with_unit)
    return min(told, default=None)


def _number(value: bytes) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


# --- the rules ----------------------------------------------------------------------------------------------------------


def _retry_after(evidence: _Evidence, verdict: RuleVerdict) -> None:
    verdict.seen = sum([_refused(entry) and _advised_s(entry) is not None for entry in evidence.entries])
    for retry in evidence.retries:
        advised_s = _advised_s(retry.failed) if _refused(retry.failed) else None
        if advised_s is not None and retry.wait_s < advised_s - _EARLY_S:
            why = f"{retry.failed.status} with Retry-After {advised_s:g} s, and the same request after {retry.wait_s:.2f} s"
            verdict.findings.append(retry.broken(why))


def _not_to_be_retried(entry: JournalEntry) -> bool:
    status = entry.status or 0
    return _refused(entry) and 400 <= status < 500 and status not in _MAY_BE_RETRIED


def _no_retry(evidence: _Evidence, verdict: RuleVerdict) -> None:
    verdict.seen = sum(map(_not_to_be_retried, evidence.entries))
    for retry in evidence.retries:
        if _not_to_be_retried(retry.failed):
            why = f"{retry.failed.status}, and the same request after {retry.wait_s:.2f} s"
            verdict.findings.append(retry.broken(why))


def _back_off(evidence: _Evidence, verdict: RuleVerdict) -> None:
    for call in evidence.calls:
        waits_s: list[float] = []  # of the retries in a row that this rule judges
        for retry in call:
            failed = retry.failed
            if _not_to_be_retried(failed) or _advised_s(failed) is not None:
                waits_s.clear()
                continue
            verdict.seen += 1
            waits_s.append(retry.wait_s)
            what = failed.status if _refused(failed) else "a broken reply"
            if retry.wait_s < _LEAST_WAIT_S and (_refused(failed) or retry.number > 1):
                verdict.findings.append(retry.broken(f"{what}, and the same request after {1000 * retry.wait_s:.0f} ms"))
            elif len(waits_s) >= _MANY_WAITS and max(waits_s) <= min(_ALIKE * min(waits_s), _LONG_WAIT_S):
                waits = ", ".join([f"{wait_s:.2f}" for wait_s in waits_s[-_MANY_WAITS:]])
                verdict.findings.append(retry.broken(f"retries at a steady rate: after {waits} s"))


def _cut_stream(evidence: _Evidence, verdict: RuleVerdict) -> None:
    broken = {
        one.number for one in evidence.entries if one.stream and one.outcome in ("cut", "failed") and one.status == 200
    }
    verdict.seen = len(broken)
    for entry in evidence.entries:
        for number in entry.continues:
            if number in broken:
                why = f"the text of {number}, which broke off, is in the conversation of {entry.number}"
                verdict.findings.append(Finding((number, entry.number), why))


def _connections(evidence: _Evidence, verdict: RuleVerdict) -> None:
    of_callers: defaultdict[tuple[str | bytes, ...], dict[int, tuple[ClientConnection, list[int]]]] = defaultdict(dict)
    for entry in evidence.entries:
        if (connection := entry.connection) is not None:
            of_callers[entry.caller].setdefault(id(connection), (connection, []))[1].append(entry.number)
    for connections in of_callers.values():
        used = sorted(connections.values(), key=lambda one: one[0].opened_s)
        opened_s = [connection.opened_s for connection, _ in used]
        verdict.seen += len(used)
        for connection, numbers in used:
            blocked_s = connection.longest_block_s(evidence.now_s)
            if blocked_s >= evidence.unused_s:
                why = f"the client kept the connection open and read nothing for {blocked_s:.1f} s"
                verdict.findings.append(Finding((numbers[-1],), why))
                continue
            if connection.unused_since_s is None:
                continue
            place = bisect.bisect_left(opened_s, connection.unused_since_s + evidence.unused_s)
            end_s = evidence.now_s if connection.closed_s is None else connection.closed_s
            if place < len(used) and opened_s[place] <= end_s - _STILL_OPEN_S:
                unused_s = opened_s[place] - connection.unused_since_s
                why = f"its connection was open and unused for {unused_s:.1f} s when the client opened another one"
                verdict.findings.append(Finding((numbers[-1], used[place][1][0]), why))


RULES: Mapping[str, tuple[str, Callable[[_Evidence, RuleVerdict], None]]] = {
    "retry_after": ("refusals with Retry-After: the same request must not come again earlier", _retry_after),
    "no_retry": ("refusals with 4xx but 408, 409, 425 and 429: the same request must not come again", _no_retry),
    "back_off": ("retries without Retry-After: neither at once nor at a steady rate", _back_off),
    "cut_stream": ("streams that broke off: their text must not stand in a later conversation as a reply", _cut_stream),
    "connections": ("connections: none is left unread, or open and unused while others are opened", _connections),
}
