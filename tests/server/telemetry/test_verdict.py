"""The rules of the verdict, each on entries with times by hand. tests/server/faults/ has clients."""

import itertools
from typing import Any

import pytest

from llmirage_server.telemetry import verdict
from llmirage_server.telemetry.journal import ClientConnection, JournalEntry, Outcome
from llmirage_server.telemetry.verdict import MOST_SHOWN, RULES, RuleVerdict, judge

NOW_S = 1000.0
Given = dict[str, str]


class Log:
    """Entries in the order of their arrival, numbered from 1."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def add(
        self,
        at_s: float,
        status: int | None = 200,
        took_s: float | None = 0.0,
        outcome: Outcome = "complete",
        body: str = "a",
        path: str = "/v1/chat/completions",
        advice: Given | None = None,
        connection: ClientConnection | None = None,
        address: str = "10.0.0.1",
        **headers: str,
    ) -> JournalEntry:
        """headers: `_` for `-`. took_s None: the request is under way."""
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        entry = JournalEntry("POST", path, (address, 4242), raw)
        entry.number = len(self.entries) + 1
        entry.arrived_s, entry.digest, entry.connection = at_s, hash(body), connection
        entry.status, entry.elapsed_s = status, took_s
        entry.outcome = "running" if took_s is None else outcome
        entry.advice = [(name.encode(), value.encode()) for name, value in (advice or {}).items()]
        self.entries.append(entry)
        return entry

    def rule(self, name: str, **options: Any) -> RuleVerdict:
        return next(one for one in judge(self.entries, NOW_S, **options) if one.rule == name)

    def verdict(self, name: str) -> tuple[str, list[tuple[int, ...]]]:
        """The verdict and the requests of each finding."""
        rule = self.rule(name)
        return rule.verdict, [finding.requests for finding in rule.findings]


@pytest.fixture
def log() -> Log:
    return Log()


def test_without_requests_nothing_is_seen(log: Log) -> None:
    assert [(one.rule, one.verdict) for one in judge([], NOW_S)] == [(rule, "not seen") for rule in RULES]
    log.add(0)
    assert {one.verdict for one in judge(log.entries, NOW_S)} == {"not seen"}


# --- what a retry is ---


@pytest.mark.parametrize(
    ("second", "flagged"),
    [
        ({}, True),
        ({"at_s": 61}, False),  # a new call
        ({"body": "b"}, False),
        ({"path": "/v1/responses"}, False),
        ({"address": "10.0.0.2"}, False),
        ({"authorization": "Bearer other"}, False),
        ({"user_agent": "other"}, False),
        ({"idempotency_key": "new"}, False),
        ({"x_stainless_retry_count": "0"}, False),
        ({"x_stainless_retry_count": "1"}, True),
        ({"took_s": None}, True),  # it is judged while it runs
    ],
)
def test_a_retry_is_the_same_request_of_the_same_caller_soon_after(log: Log, second: dict[str, Any], flagged: bool) -> None:
    first = {"authorization": "Bearer one", "user_agent": "sdk", "idempotency_key": "key"}
    log.add(0, 404, **first)  # type: ignore[arg-type]
    log.add(**{"at_s": 5, **first, **second})
    assert log.verdict("no_retry") == (("fail", [(1, 2)]) if flagged else ("pass", []))


def test_what_succeeded_or_came_before_the_answer_is_no_retry(log: Log) -> None:
    log.add(0, 200)
    log.add(1, 404, took_s=2)
    log.add(2, 200)
    assert log.verdict("no_retry") == ("pass", [])


def test_two_calls_with_one_body_each_have_their_own_retry(log: Log) -> None:
    for at_s in (0, 0.5, 1, 1.5):
        log.add(at_s, 503 if at_s < 1 else 200)
    assert log.rule("back_off").seen == 2
    assert log.verdict("back_off") == ("pass", [])  # each after 1 s; no call has been retried twice


def test_the_sdk_s_count_tells_to_which_call_a_retry_belongs(log: Log) -> None:
    log.add(0, 503, x_stainless_retry_count="0")
    log.add(1, 503, x_stainless_retry_count="1")
    log.add(1.5, 503, x_stainless_retry_count="0")
    log.add(1.55, 200, x_stainless_retry_count="2")
    log.add(3, 200, x_stainless_retry_count="1")
    assert [(one.failed.number, one.again.number) for one in _retries(log)] == [(1, 2), (2, 4), (3, 5)]


def _retries(log: Log) -> list[Any]:
    return list(itertools.chain.from_iterable(verdict._calls(log.entries)))


# --- retry_after ---


@pytest.mark.parametrize(
    ("advice", "wait_s", "flagged"),
    [
        ({"retry-after": "2"}, 1.9, True),
        ({"retry-after": "2"}, 1.96, False),  # a timer may be early
        ({"retry-after": "2"}, 2.5, False),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5, False),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.4, True),
        ({"Retry-After": "100"}, 90, True),  # 60 s after what the header says
    ],
)
def test_a_retry_before_its_time(log: Log, advice: Given, wait_s: float, flagged: bool) -> None:
    log.add(10, 429, took_s=1, advice=advice)
    log.add(11 + wait_s)
    assert log.verdict("retry_after") == (("fail", [(1, 2)]) if flagged else ("pass", []))
    assert log.verdict("back_off") == ("not seen", [])


@pytest.mark.parametrize("advice", [None, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {"retry-after": "0"}])
def test_a_refusal_without_seconds_is_not_looked_at(log: Log, advice: Given | None) -> None:
    log.add(0, 503, advice=advice)
    log.add(1, 503, advice=advice)
    assert log.verdict("retry_after") == ("not seen", [])


def test_who_gives_up_ignores_nothing(log: Log) -> None:
    log.add(0, 429, advice={"retry-after": "2"})
    assert log.verdict("retry_after") == ("pass", [])


# --- no_retry ---


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_must_not_be_retried(log: Log, status: int) -> None:
    log.add(0, status)
    assert log.verdict("no_retry") == ("pass", [])
    log.add(3)
    assert log.verdict("no_retry") == ("fail", [(1, 2)])
    assert log.verdict("back_off") == ("not seen", [])


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503, 529])
def test_what_may_be_retried(log: Log, status: int) -> None:
    log.add(0, status)
    log.add(3)
    assert log.verdict("no_retry") == ("not seen", [])
    assert log.verdict("back_off") == ("pass", [])


# --- back_off ---


@pytest.mark.parametrize(
    ("outcome", "waits_s", "findings"),
    [
        ("complete", [0.5, 1.0, 2.0], []),
        ("complete", [0.05], [(1, 2)]),
        ("complete", [0.5, 0.05], [(2, 3)]),
        ("complete", [1.0, 1.0], []),
        ("complete", [1.0, 1.1, 1.0], [(3, 4)]),  # a steady rate
        ("complete", [1.0, 1.21, 1.0], []),
        ("complete", [6.0, 6.0, 6.0], []),  # slow enough
        ("complete", [1.0, 1.0, 1.0, 1.0], [(3, 4), (4, 5)]),
        ("complete", [0.5, 1.0, 1.0, 1.0, 1.0], []),  # it has backed off as far as it does
        ("cut", [0.0], []),  # a connection that broke may be tried again at once
        ("cut", [0.0, 0.0], [(2, 3)]),
        ("client_left", [0.0, 0.5], []),
    ],
)
def test_waits_between_retries(log: Log, outcome: Outcome, waits_s: list[float], findings: list[tuple[int, ...]]) -> None:
    at_s = 0.0
    for wait_s in [*waits_s, 0.0]:
        log.add(at_s, 503 if outcome == "complete" else None, took_s=0.25, outcome=outcome)
        at_s += 0.25 + wait_s
    log.entries[-1].status, log.entries[-1].outcome = 200, "complete"
    assert log.verdict("back_off") == ("fail" if findings else "pass", findings)


def test_a_client_may_notice_before_the_server_that_a_connection_broke(log: Log) -> None:
    log.add(0, None, took_s=1, outcome="cut")
    log.add(0.95)
    assert log.rule("back_off").seen == 1
    log.add(2, 503, took_s=1, body="b")
    log.add(2.95, body="b")
    assert log.rule("back_off").seen == 1


# --- cut_stream ---


@pytest.mark.parametrize(("outcome", "status"), [("cut", 200), ("failed", 200), ("complete", 200), ("cut", None)])
def test_a_text_that_broke_off_as_a_reply(log: Log, outcome: Outcome, status: int | None) -> None:
    log.add(0, status, outcome=outcome).stream = True
    broke_off = outcome != "complete" and status == 200
    assert log.verdict("cut_stream") == ("pass" if broke_off else "not seen", [])
    log.add(1, body="b").continues = (1, 99)  # the journal has forgotten 99
    assert log.verdict("cut_stream") == (("fail", [(1, 2)]) if broke_off else ("not seen", []))


# --- connections ---


def connection(opened_s: float, unused_since_s: float | None = None, closed_s: float | None = None) -> ClientConnection:
    one = ClientConnection(opened_s)
    one.unused_since_s = unused_since_s
    if closed_s is not None:
        one.closed(closed_s)
    return one


@pytest.mark.parametrize(
    ("first", "opened_s", "flagged"),
    [
        (connection(0, 10), 15, True),
        (connection(0, 10), 14.9, False),  # perhaps it is still being read
        (connection(0, None), 15, False),  # under way
        (connection(0, 10, closed_s=15.1), 15, False),  # a pool that replaces it
        (connection(0, 10, closed_s=20), 15, True),
        (connection(0, 10, closed_s=14), 15, False),
        (connection(0, 10), NOW_S - 0.1, False),
    ],
)
def test_a_connection_that_is_left_open(log: Log, first: ClientConnection, opened_s: float, flagged: bool) -> None:
    log.add(1, connection=first)
    log.add(5, connection=first)
    log.add(opened_s, connection=connection(opened_s), body="b")
    log.add(opened_s, connection=connection(0, 1), address="10.0.0.2")  # someone else's
    assert log.verdict("connections") == (("fail", [(2, 3)]) if flagged else ("pass", []))
    assert log.rule("connections", unused_s=500).verdict == "pass"


def test_a_client_that_does_not_read(log: Log) -> None:
    stuck, slow, left = connection(0), connection(0), connection(0)
    stuck.blocked(NOW_S - 5)
    slow.blocked(0)
    slow.unblocked(4)
    left.blocked(0)
    left.closed(6)
    for one in (stuck, slow, left):
        log.add(1, took_s=None, connection=one)
    assert log.verdict("connections") == ("fail", [(1,), (3,)])


def test_there_are_no_connections_in_process(log: Log) -> None:
    log.add(0)
    log.add(20)
    assert log.verdict("connections") == ("not seen", [])


def test_of_many_findings_the_first_are_shown(log: Log) -> None:
    for at in range(MOST_SHOWN + 6):
        log.add(at, 404)
    shown = log.rule("no_retry").shown()
    assert (shown["broken"], len(shown["findings"])) == (MOST_SHOWN + 5, MOST_SHOWN)
    assert shown["findings"][0] == {"requests": [1, 2], "why": "404, and the same request after 1.00 s"}
