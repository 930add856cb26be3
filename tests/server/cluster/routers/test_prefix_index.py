"""What the prefix router remembers of what it has sent where: by hand, and against a model of single tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import token_bytes
from llmirage_server.cluster.routers import prefix_index
from llmirage_server.cluster.routers.prefix_index import PrefixIndex

Tokens = tuple[int, ...]


def key(*tokens: int) -> bytes:
    return token_bytes(np.array(tokens, dtype=np.int32))


def longest(index: PrefixIndex, tokens: Tokens, *instances: int) -> tuple[int, list[int]]:
    size, found = index.longest(key(*tokens), instances)
    return size // TOKEN_BYTES, sorted(found)


def test_the_longest_match_and_all_who_have_it_are_found() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2, 3, 4), 0, 100)
    index.insert(key(1, 2, 3, 9), 1, 100)
    index.insert(key(1, 2), 2, 100)
    assert longest(index, (1, 2, 3, 4, 5), 0, 1, 2) == (4, [0])
    assert longest(index, (1, 2, 3, 4, 5), 1, 2) == (3, [1])
    assert longest(index, (1, 2, 3), 0, 1, 2) == (3, [0, 1])
    assert longest(index, (1, 2, 7), 0, 1, 2) == (2, [0, 1, 2])
    assert longest(index, (1, 2, 3, 4), 2) == (2, [2])
    assert longest(index, (1,), 2) == (1, [2])
    assert longest(index, (2, 2), 0, 1, 2) == (0, [])
    assert longest(index, (1, 2), 3) == (0, [])
    assert dict(index.tokens) == {0: 4, 1: 4, 2: 2}


def test_no_more_is_remembered_than_the_instance_holds_and_the_oldest_goes_from_its_tail() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2, 3, 4), 0, 6)
    index.insert(key(1, 2, 5, 6), 0, 6)
    assert index.tokens[0] == 6
    index.insert(key(8), 0, 6)
    assert longest(index, (1, 2, 3, 4), 0) == (3, [0])
    assert longest(index, (1, 2, 5, 6), 0) == (4, [0])
    index.insert(key(8, 9), 1, 6)
    index.insert(key(7, 7, 7, 7, 7, 7, 7, 7), 0, 6)
    assert longest(index, (7,) * 8, 0) == (6, [0])
    assert longest(index, (1, 2), 0) == (0, [])
    assert longest(index, (8, 9), 0, 1) == (2, [1])
    assert dict(index.tokens) == {0: 6, 1: 2}


def test_an_instance_is_forgotten_without_the_others() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2, 3), 0, 100)
    index.insert(key(1, 2, 4), 1, 100)
    index.forget(0)
    index.forget(0)
    assert longest(index, (1, 2, 3), 0, 1) == (2, [1])
    assert dict(index.tokens) == {1: 3}
    index.forget(1)
    assert (longest(index, (1, 2, 3), 0, 1), index._nodes) == ((0, []), 0)


def test_edges_grow_together_again_when_a_branch_is_forgotten() -> None:
    index = PrefixIndex()
    for branch in range(100, 1, -1):
        index.insert(key(*range(branch), 1000 + branch), 0, 200)
    for _ in range(3):
        index.insert(key(*range(100)), 0, 100)
    assert (index.tokens[0], index._nodes) == (100, 1)


def test_a_tail_that_was_cut_off_is_not_found_and_can_come_again() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2, 3, 4, 5, 6), 0, 8)
    index.insert(key(9, 9, 9, 9), 0, 8)  # takes 5 and 6
    assert longest(index, (1, 2, 3, 4, 5, 6), 0) == (4, [0])
    assert index._nodes == 2  # cut in place
    index.insert(key(1, 2, 3, 4, 7), 1, 8)
    assert longest(index, (1, 2, 3, 4, 5, 6), 0, 1) == (4, [0, 1])
    assert longest(index, (1, 2, 3, 4, 7), 0, 1) == (5, [1])
    index.insert(key(1, 2, 3, 4, 5, 6), 0, 100)
    assert longest(index, (1, 2, 3, 4, 5, 6), 0, 1) == (6, [0])
    assert index.tokens == {0: 10, 1: 5}


def test_a_session_that_goes_on_where_it_was_stays_one_edge() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2), 0, 100)
    for turn in range(3, 30):
        index.insert(key(*range(1, turn)), 0, 100)
    assert (index._nodes, index.tokens) == (1, {0: 28})
    index.insert(key(*range(1, 20), 99), 1, 100)  # another one goes on from its middle
    index.insert(key(*range(1, 40)), 0, 100)
    index.insert(key(*range(1, 40), 40), 1, 100)
    assert longest(index, tuple(range(1, 41)), 0) == (39, [0])
    assert longest(index, tuple(range(1, 41)), 0, 1) == (40, [1])
    assert (index._nodes, index.tokens) == (4, {0: 39, 1: 41})


def test_what_was_asked_for_before_something_changed_is_looked_for_again() -> None:
    index = PrefixIndex()
    asked = key(1, 2, 3)
    assert index.longest(asked, (0,)) == (0, [])
    index.insert(key(1, 2, 4), 0, 100)
    index.insert(asked, 0, 100)
    assert index.longest(asked, (0,)) == (3 * TOKEN_BYTES, [0])
    index.forget(0)
    index.insert(asked, 1, 100)
    assert longest(index, (1, 2, 3), 0, 1) == (3, [1])
    assert (index.tokens, index._nodes) == ({1: 3}, 1)


def test_only_what_is_asked_for_counts_though_more_was_sent() -> None:
    index = PrefixIndex()
    index.insert(key(1, 2), 0, 100)
    index.insert(key(1, 2, 3, 4), 1, 100)
    whole = key(1, 2, 3, 4, 5)
    for end, expected in ((5, (4, [1])), (4, (4, [1])), (3, (3, [1])), (2, (2, [0, 1])), (1, (1, [0, 1]))):
        size, found = index.longest(whole, (0, 1), end * TOKEN_BYTES)
        assert (size // TOKEN_BYTES, sorted(found)) == expected


def test_entries_that_are_outlived_do_not_pile_up() -> None:
    index = PrefixIndex()
    for number in range(10_000):
        index.insert(key(1, 2, 3 + number % 3), 0, 100)
    assert len(index._sent[0].fresh) < 1100
    assert index.tokens == {0: 5}


def test_outlived_entries_are_looked_for_where_branches_were_forgotten() -> None:
    index = PrefixIndex()
    for number in range(3_000):  # entries are looked for every 1,024 keys; compiled, a node had no hash then
        index.insert(key(1, 2, number), 0, 4)
        index.insert(key(7, number), 1, 100)
    assert (index.tokens, len(index._sent[0].again)) == ({0: 4, 1: 100}, 3)
    for number in (2_998, 2_999):
        assert longest(index, (1, 2, number), 0) == (3, [0])
    assert longest(index, (1, 2, 2_997), 0) == (2, [0])
    assert longest(index, (7, 2_901), 0, 1) == (2, [1])
    assert longest(index, (7, 2_900), 0, 1) == (1, [1])


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)
SENT = st.lists(st.tuples(TOKENS, st.integers(0, 3), st.booleans()), max_size=40)


@given(capacity=st.integers(1, 25), sent=SENT, probes=st.lists(TOKENS, max_size=4))
def test_it_remembers_what_a_model_of_single_tokens_remembers(
    capacity: int, sent: list[tuple[Tokens, int, bool]], probes: list[Tokens]
) -> None:
    index = PrefixIndex()
    times: list[dict[Tokens, int]] = [{} for _ in range(4)]  # of every prefix sent to an instance, when last
    for time, (tokens, instance, lost) in enumerate(sent):
        index.insert(key(*tokens), instance, capacity)
        known = times[instance]
        for n in range(1, len(tokens) + 1):
            known[tokens[:n]] = time
        while len(known) > capacity:
            del known[min(known, key=lambda prefix: (known[prefix], -len(prefix)))]
        if lost and time % 5 == 4:
            index.forget(instance)
            known.clear()
        for i in range(4):
            assert index.tokens.get(i, 0) == len(times[i])
        for probe in (*probes, tokens):
            by_instance = [max((n for n in range(len(probe) + 1) if probe[:n] in known), default=0) for known in times]
            best = max(by_instance)
            part = len(probe) // 2
            assert index.longest(key(*probe), range(4), part * TOKEN_BYTES)[0] == min(best, part) * TOKEN_BYTES
            expected = [i for i in range(4) if by_instance[i] == best] if best else []
            assert longest(index, probe, 0, 1, 2, 3) == (best, expected)
            assert longest(index, probe, 2)[0] == by_instance[2]


def test_short_keys_without_end_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "_MOST_ENDS", 1000)
    index = PrefixIndex()
    sizes = []
    for number in range(20_000):
        index.insert(key(number, 1), number % 2, 1 << 40)
        sizes.append(index.bytes_kept())
    assert max(sizes) < 3 * (1000 + 1024) * 500 < 20_000 * 488
    assert longest(index, (19_999, 1), 0, 1) == (2, [1])
    assert longest(index, (1, 1), 0, 1) == (0, [])
    index.forget(0)
    index.forget(1)
    assert index.bytes_kept() == 0
