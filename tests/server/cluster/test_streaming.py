"""Streams in intervals: which tokens go out together, and when clients see them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.limits import StreamInterval


@pytest.mark.parametrize(
    ("interval", "total", "ends"),
    [
        (StreamInterval(4), 10, [1, 5, 9, 10]),
        (StreamInterval(4), 9, [1, 5, 9]),
        (StreamInterval(4), 1, [1]),
        (StreamInterval(4, from_start=True), 10, [1, 4, 8, 10]),
        (StreamInterval(4, from_start=True), 8, [1, 4, 8]),
        (StreamInterval(1), 3, [1, 2, 3]),
        (StreamInterval(1, from_start=True), 3, [1, 2, 3]),
        (StreamInterval(100), 3, [1, 3]),
    ],
)
def test_tokens_go_out_first_then_every_nth_and_last(interval: StreamInterval, total: int, ends: list[int]) -> None:
    assert interval.ends(0, total, total) == ends


def test_tokens_wait_until_their_chunk_is_whole() -> None:
    assert StreamInterval(4).ends(1, 4, 10) == []
    assert StreamInterval(4).ends(1, 5, 10) == [5]
    assert StreamInterval(4, from_start=True).ends(0, 3, 10) == [1]
    assert StreamInterval(4, from_start=True).ends(1, 4, 10) == [4]


def test_clients_see_a_token_with_its_chunk() -> None:
    times_s = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert StreamInterval(3).seen_s(times_s, 6).tolist() == [1, 4, 4, 4, 6, 6]
    assert StreamInterval(3, from_start=True).seen_s(times_s, 6).tolist() == [1, 3, 3, 6, 6, 6]


def test_what_was_held_back_is_lost_with_a_request_that_does_not_end() -> None:
    times_s = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert StreamInterval(3).seen_s(times_s, 9).tolist() == [1, 4, 4, 4]
    assert StreamInterval(3).seen_s(times_s[:0], 9).tolist() == []


@given(st.integers(1, 9), st.booleans(), st.integers(1, 40), st.data())
def test_looking_often_leaves_the_chunks_the_same(tokens: int, from_start: bool, total: int, data: st.DataObject) -> None:
    interval = StreamInterval(tokens, from_start)
    looks = sorted({*data.draw(st.lists(st.integers(1, total))), total})
    found: list[int] = []
    for produced in looks:
        found += interval.ends(found[-1] if found else 0, produced, total)
    assert found == interval.ends(0, total, total)
    assert found[0] == 1
    assert found[-1] == total
    assert all(0 < later - earlier <= tokens for earlier, later in pairwise(found))
