"""The journal keeps little: a bounded number of entries of bounded size, and no secret."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.telemetry.journal import (
    MOST_CHARACTERS,
    MOST_HEADERS,
    MOST_HELD_BYTES,
    REDACTED,
    Journal,
    JournalEntry,
    RawHeaders,
)

SECRET_HEADERS = ["authorization", "Authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "x-auth-token",
                  "x-goog-api-key", "x-amz-security-token", "x-client-secret"]  # fmt: skip


def entry(headers: RawHeaders = (), path: str = "/v1/chat/completions") -> JournalEntry:
    return JournalEntry("POST", path, ("127.0.0.1", 4242), headers)


def test_the_oldest_entries_go_first_and_numbers_go_on() -> None:
    journal = Journal(most=3)
    for _ in range(5):
        journal.begin(entry())
    assert [kept.number for kept in journal.entries] == [3, 4, 5]
    journal.clear()
    journal.begin(entry())
    assert ([kept.number for kept in journal.entries], journal.last) == ([6], 6)


def test_the_entries_that_have_ended_are_bounded_in_bytes() -> None:
    journal = Journal(most_bytes=1 << 20)
    made = []
    for _ in range(40):
        journal.begin(one := entry())
        made.append(one)
        one.asked("model", "😀" * 5000, "😀" * 5000, [], [], stream=False)
        journal.end(one, 200, "complete", 0.5)
        assert journal.bytes_kept() <= 1 << 20
    assert [one.number for one in journal.entries] == [one.number for one in made[-len(journal.entries) :]]
    assert 25 < len(journal.entries) < 40
    journal.end(made[0], 200, "complete", 0.5)  # gone: it counts no more
    journal.end(made[-1], 200, "complete", 0.5)  # once
    assert journal.bytes_kept() == sum(one.size_bytes for one in journal.entries)
    journal.clear()
    journal.end(made[-1], 200, "complete", 0.5)
    assert journal.bytes_kept() == 0


def test_an_entry_that_is_larger_than_all_may_be_is_kept_alone() -> None:
    journal = Journal(most=10, most_bytes=1000)
    for _ in range(3):
        journal.begin(one := entry())
        journal.end(one, 200, "complete", 0.5)
    assert [one.number for one in journal.entries] == [3]


def test_bodies_of_running_requests_count_too() -> None:
    journal, entries = Journal(), []
    for size in (MOST_HELD_BYTES // 5, MOST_HELD_BYTES // 5, 30 << 20, *[MOST_HELD_BYTES // 5] * 4):
        journal.begin(entry := JournalEntry("POST", "/", None, []))
        entry.kept(bytes(size))
        entries.append(entry)
    assert [entry.body is None for entry in entries] == [True, False, True, *[False] * 4]
    assert journal.bytes_kept() <= MOST_HELD_BYTES


def test_an_entry_is_small_whatever_was_sent() -> None:
    long = "ü" * 100_000
    big = entry([(b"x-long-%d" % at, long.encode()) for at in range(1000)], path="/" + long)
    big.asked("model", long, long, [long] * 100, [long] * 100, stream=False)
    assert len(big.headers) == MOST_HEADERS
    texts = [big.path, big.user, big.system, *itertools.chain.from_iterable(big.results), *big.headers.values()]
    assert max(map(len, texts)) < MOST_CHARACTERS + 40
    assert sum(map(len, texts)) < 300_000
    assert big.user.endswith("… (100,000 characters)")


@given(st.sampled_from(SECRET_HEADERS), st.text("abcdef0123456789", min_size=8, max_size=40))
def test_no_key_is_shown(name: str, key: str) -> None:
    shown = entry([(name.encode(), b"Bearer " + key.encode()), (b"user-agent", b"sdk")]).shown()
    assert shown["headers"] == {name.lower(): REDACTED, "user-agent": "sdk"}
    assert key not in str(shown)


def test_what_tells_a_retry_is_no_secret() -> None:
    assert entry([(b"idempotency-key", b"a1")]).headers == {"idempotency-key": "a1"}


def test_since_reads_on_and_without_it_come_the_last() -> None:
    journal = Journal()
    for at in range(6):
        journal.begin(one := entry(path=f"/v1/{at % 2}"))
        journal.end(one, 200 + at, "complete", 0.5)
    assert [one.number for one in journal.found({}, 2, 3)] == [3, 4, 5]
    assert [one.number for one in journal.found({}, None, 2)] == [5, 6]
    assert [one.number for one in journal.found({"path": "/1"}, None, 10)] == [2, 4, 6]
    assert [one.number for one in journal.found({"status": "203"}, None, 10)] == [4]
    assert journal.found({"outcome": "cut"}, None, 10) == []


def test_observers_hear_of_each_end() -> None:
    journal, heard = Journal(), []
    journal.observers.append(lambda ended: heard.append((ended.number, ended.outcome)))
    journal.begin(one := entry())
    assert heard == []
    journal.end(one, None, "client_left", 1.0)
    assert heard == [(1, "client_left")]
