"""Prompts known by the hashes of their blocks, as published traces have them: equal hashes stand for equal tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.session import SyntheticUser

_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 over the golden ratio: neighbouring numbers end up far apart
_BLOCK, _TAIL = np.uint64(0x626C_6F63), np.uint64(0x7461_696C)  # keep the numbers of blocks and of tails apart


def block_content(block_ids: npt.NDArray[np.int64], block_tokens: int, tokens: int, tail_key: int) -> npt.NDArray[np.int32]:
    """A number for each token of a prompt, shape (tokens,): equal in equal blocks, random everywhere else.

    Prompts whose first blocks are equal begin with the same numbers; `SyntheticText.text_for_ids` makes words of them. A
    prompt that ends within its last block has the beginning of that block; tokens after the blocks depend on tail_key.
    """
    covered = min(len(block_ids) * block_tokens, tokens)
    starts = _mixed(block_ids.astype(np.uint64) ^ _BLOCK)
    within = np.arange(max(block_tokens, 1), dtype=np.uint64)
    blocks = (starts[:, None] + within[None, :block_tokens]).reshape(-1)[:covered]
    tail_start = _mixed(np.array([tail_key & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64) ^ _TAIL)
    tail = tail_start + np.arange(tokens - covered, dtype=np.uint64)
    return (_mixed(np.concatenate([blocks, tail])) >> np.uint64(33)).astype(np.int32)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers that have nothing to do with their neighbours (the finisher of MurmurHash3)."""
    x = numbers * _SPREAD
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51_AFD7_ED55_8CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CE_B9FE_1A85_EC53)
    x ^= x >> np.uint64(33)
    return x


def read_prompt(tokens: int, hash_ids: object, block_tokens: int, key: int, check: Checker, field: str) -> SyntheticUser:
    """The prompt of a trace's row: so many tokens, and the hashes of its blocks (None: nothing is known of it).

    The blocks may end before the prompt does, and the prompt within the last block, but not before it.
    """
    entries = [] if hash_ids is None else check.items(hash_ids, field)
    ids = _as_array(entries or [], check, field)
    if tokens and (len(ids) - 1) * block_tokens >= tokens:
        most = -(-tokens // block_tokens)
        check.fail(
            field,
            f"{len(ids)} blocks of {block_tokens} tokens are too many for {tokens} tokens, which end in block {most} "
            "(the option block_size says how many tokens a hash stands for)",
        )
    return SyntheticUser(tokens, key, block_ids=ids, block_tokens=block_tokens)


def _as_array(entries: Sequence[Any], check: Checker, field: str) -> npt.NDArray[np.int64]:
    """The hashes; larger ones than 64 bits hold are cut. Only the first bad one of a list is reported."""
    if not set(map(type, entries)) <= {int}:
        i = next(i for i, entry in enumerate(entries) if type(entry) is not int)
        check.fail(f"{field}.{i}", "Input should be a valid integer")
        return np.empty(0, dtype=np.int64)
    try:
        return np.array(entries, dtype=np.int64)
    except OverflowError:
        return np.array([entry & 0xFFFF_FFFF_FFFF_FFFF for entry in entries], dtype=np.uint64).view(np.int64)
