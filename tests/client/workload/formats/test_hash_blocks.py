"""Prompts of hash blocks: exact lengths, equal tokens for equal blocks, nothing else in common."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.hash_blocks import block_content, read_prompt
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded


def content(ids: list[int], block_tokens: int, tokens: int, key: int = 1) -> npt.NDArray[np.int32]:
    return block_content(np.array(ids, dtype=np.int64), block_tokens, tokens, key)


def common_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if differ.size else size


@pytest.mark.parametrize(
    ("ids", "tokens", "other_ids", "other_tokens", "shared"),
    [
        ([1, 2, 3], 1300, [1, 2, 4], 1600, 1024),
        ([1, 2], 1024, [1, 2], 1024, 1024),
        ([1], 600, [1], 700, 512),
        ([1, 2], 700, [1, 2], 1024, 700),
        ([1, 2], 1024, [2, 1], 1024, 0),
        ([], 100, [], 100, 0),
        ([-5, 7], 600, [-5, 8], 600, 512),
    ],
)
def test_prompts_share_as_many_tokens_as_their_blocks_say(
    ids: list[int], tokens: int, other_ids: list[int], other_tokens: int, shared: int
) -> None:
    first, second = content(ids, 512, tokens, 1), content(other_ids, 512, other_tokens, 2)
    assert (len(first), len(second)) == (tokens, other_tokens)
    assert common_prefix(first, second) == shared


def test_the_text_has_the_tokens_and_shares_them() -> None:
    vocabulary = embedded()
    text = SyntheticText(vocabulary, 3)
    first, second = (
        vocabulary.encode(text.text_for_ids(content(ids, 16, tokens, key)))
        for ids, tokens, key in (([1, 2, 3], 45, 1), ([1, 2, 9, 4], 70, 2))
    )
    assert (len(first), len(second)) == (45, 70)
    assert common_prefix(first, second) == 32


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), st.integers(1, 20), st.integers(1, 130), st.integers())
def test_any_prompt_has_its_length_and_its_blocks(ids: list[int], block_tokens: int, tokens: int, key: int) -> None:
    prompt = content(ids, block_tokens, tokens, key)
    assert prompt.shape == (tokens,)
    assert prompt.min() >= 0
    for i, block in enumerate(ids):
        there = prompt[i * block_tokens : (i + 1) * block_tokens]
        assert np.array_equal(there, content([block], block_tokens, block_tokens)[: len(there)])


def test_many_prompts_without_blocks_have_nothing_in_common() -> None:
    beginnings = {content([], 512, 16, key)[:4].tobytes() for key in range(5000)}
    assert len(beginnings) == 5000


@pytest.mark.parametrize(
    ("tokens", "count", "fits"), [(1, 1, True), (16, 1, True), (17, 1, True), (17, 2, True), (16, 2, False), (1, 3, False)]
)
def test_a_prompt_may_end_within_its_last_block_and_not_before(tokens: int, count: int, fits: bool) -> None:
    check = Checker(4)
    read_prompt(tokens, list(range(count)), 16, 1, check, "hash_ids")
    assert bool(check.problems) is not fits
