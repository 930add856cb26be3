"""Prompts known by the hashes of their blocks, as published traces have them: equal hashes stand for equal tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import JsonFault, parse
from llmirage_client.workload.session import SyntheticUser, Turn

_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 over the golden ratio: neighbouring numbers end up far apart
_BLOCK, _TAIL = np.uint64(0x626C_6F63), np.uint64(0x7461_696C)  # keep the numbers of blocks and of tails apart
_HALF, _FIRST, _SECOND = np.uint64(33), np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(0xC4CE_B9FE_1A85_EC53)


def block_content(block_ids: npt.NDArray[np.int64], block_tokens: int, tokens: int, tail_key: int) -> npt.NDArray[np.int32]:
    """Return a number for each token of a prompt, shape (tokens,): equal in equal blocks, random everywhere else.

    Prompts whose first blocks are equal begin with the same numbers; `SyntheticText.text_for_ids` makes words of them. A
    prompt that ends within its last block has the beginning of that block; tokens after the blocks depend on tail_key.
    """
    return growing_content(block_ids, block_tokens, [(tail_key, max(tokens - len(block_ids) * block_tokens, 0))])[:tokens]


def growing_content(
    block_ids: npt.NDArray[np.int64], block_tokens: int, tails: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int32]:
    """Return the same numbers for the whole blocks of a prompt that grows, then for the tails of its stages, one by one.

    tails: tail_key and number of tokens of each.
    """
    blocks, place = len(block_ids), len(block_ids) * block_tokens
    starts = np.empty(blocks + len(tails), dtype=np.uint64)
    starts[:blocks] = block_ids
    starts[blocks:] = [key & 0xFFFF_FFFF_FFFF_FFFF for key, _ in tails]
    starts[:blocks] ^= _BLOCK
    starts[blocks:] ^= _TAIL
    starts = _mixed(starts)
    within = np.arange(max(block_tokens, *[tokens for _, tokens in tails]), dtype=np.uint64)
    numbers = np.empty(place + sum([tokens for _, tokens in tails]), dtype=np.uint64)
    np.add(starts[:blocks, None], within[:block_tokens], out=numbers[:place].reshape(blocks, block_tokens))
    for start, (_, tokens) in zip(starts[blocks:], tails, strict=True):
        np.add(start, within[:tokens], out=numbers[place : place + tokens])
        place += tokens
    return (_mixed(numbers) >> _HALF).astype(np.int32)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers that have nothing to do with their neighbours (the finisher of MurmurHash3)."""
    x = numbers * _SPREAD
    x ^= x >> _HALF
    x *= _FIRST
    x ^= x >> _HALF
    x *= _SECOND
    x ^= x >> _HALF
    return x


def recorded_turn(prompt: SyntheticUser, output_tokens: int, arrival_s: float | None = None) -> Turn:
    """Return a request of a trace: its whole prompt, and a reply as long as the recorded one, of one token at least."""
    most = max(output_tokens, 1)
    return Turn(synthetic=prompt, max_tokens=most, min_tokens=most, arrival_s=arrival_s)


def key_of(*place: object) -> int:
    """Return the key of a synthetic text by its place in a workload; 62 bits."""
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest()) >> 2


NO_BLOCKS: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)


def unknown_prompt(tokens: int, key: int) -> SyntheticUser:
    """Return a prompt of which nothing is known but its length: all of it is like no other."""
    return SyntheticUser(tokens, key, block_ids=NO_BLOCKS)


def ids_within(ids: npt.NDArray[np.int64], scope: int) -> npt.NDArray[np.int64]:
    """Return ids that mean something within their scope only, as ids that differ from those of other scopes."""
    return _mixed(ids.astype(np.uint64) ^ _mixed(np.array([scope & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64))).view(np.int64)


class BlockLists:
    """Reads JSON whose longest parts are lists of hashes, which mostly begin as the one before them.

    A list that continues another one costs what it has more: in time, as only that is parsed, and in memory, as their
    arrays share what is equal. `scope`: see ids_within; None where ids mean the same in the whole file.
    """

    def __init__(self, key: str = "hash_ids", scope: int | None = None) -> None:
        self._key = f'"{key}"'.encode()
        self.scope = scope
        self._lists: list[npt.NDArray[np.int64]] = []
        self._recent: list[_Growing] = []
        self._buffers: list[npt.NDArray[np.int64]] = []

    def parse(self, data: bytes) -> Any:
        """Return the value with a list [n] for each list of hashes, for `ids`. Raises JsonFault as `files.parse` does."""
        parts: list[bytes] = []
        done = 0
        place = data.find(self._key)
        while place >= 0:
            start = data.find(b"[", place)
            if start < 0 or data[place + len(self._key) : start].strip() != b":":
                place = data.find(self._key, place + 1)
                continue
            end = data.find(b"]", start)
            parts += [data[done : start + 1], b"%d" % len(self._lists)]
            self._lists.append(self._read(data[start + 1 : end].strip()))
            done = end
            place = data.find(self._key, end)
        if self.scope is not None:
            for buffer in self._buffers:
                buffer[:] = ids_within(buffer, self.scope)
        self._recent, self._buffers = [], []
        return parse(b"".join([*parts, data[done:]]) if parts else data)

    def ids(self, value: list[int]) -> npt.NDArray[np.int64]:
        return self._lists[value[0]]

    def _read(self, text: bytes) -> npt.NDArray[np.int64]:
        for number, known in enumerate(self._recent):
            if (ids := known.continued(text, self._parsed)) is not None:
                self._recent.insert(0, self._recent.pop(number))
                if known.buffer is not self._buffers[known.number]:
                    known.number = len(self._buffers)
                    self._buffers.append(known.buffer)
                return ids
        known = _Growing(text, self._parsed(text), len(self._buffers))
        self._buffers.append(known.buffer)
        self._recent = [known, *self._recent[: _RECENT_LISTS - 1]]
        return known.ids

    def _parsed(self, text: bytes) -> npt.NDArray[np.int64]:
        if _INTEGERS.fullmatch(text):
            return np.array(list(map(int, text.split(b","))), dtype=np.int64)
        check = Checker(None)
        ids = _as_array(parse(b"[%b]" % text), check, "")
        if check.problems:
            raise JsonFault("not a list of integers")
        return ids


_INTEGERS = re.compile(rb"(?:[ \n]*(?:0|[1-9][0-9]{0,17})[ \n]*,)*[ \n]*(?:0|[1-9][0-9]{0,17})[ \n]*")  # of at most 63 bits
_RECENT_LISTS = 8  # of agents that take turns in a file


class _Growing:
    """A list of hashes as text and as an array with room for more at its end. number: of its buffer."""

    def __init__(self, text: bytes, ids: npt.NDArray[np.int64], number: int) -> None:
        self._text = text
        self._ids = _BlockIds(ids)
        self.number = number

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self._ids.first(self._ids.count)

    @property
    def buffer(self) -> npt.NDArray[np.int64]:
        return self._ids.buffer

    def continued(self, text: bytes, parsed: Callable[[bytes], npt.NDArray[np.int64]]) -> npt.NDArray[np.int64] | None:
        """Return the ids of a text that begins with this one, which it becomes, or with which this one begins."""
        mine = self._text
        if not mine or not text:
            return None
        if len(text) <= len(mine):
            whole = mine.startswith(text) and mine[len(text) : len(text) + 1] in (b"", b",")
            return self._ids.first(text.count(b",") + 1) if whole else None
        if not text.startswith(mine) or text[len(mine) : len(mine) + 1] != b",":
            return None
        self._text = text
        return self._ids.extended(parsed(text[len(mine) + 1 :]))


class _BlockIds:
    """Ids that grow at their end; arrays of the first ones share their memory."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.buffer = ids
        self.count = len(ids)

    def first(self, count: int) -> npt.NDArray[np.int64]:
        return self.buffer[:count]

    def extended(self, more: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        count = self.count + len(more)
        if count > len(self.buffer):
            buffer = np.empty(count + count // 2, dtype=np.int64)
            buffer[: self.count] = self.first(self.count)
            self.buffer = buffer
        self.buffer[self.count : count] = more
        self.count = count
        return self.first(count)


class GrowingPrompts:
    """Prompts of one conversation of which only lengths are known: how much each has in common with the one before it.

    place: of the conversation in the workload; others have nothing in common with it.
    """

    def __init__(self, block_tokens: int, *place: object) -> None:
        self._block_tokens = block_tokens
        self._place = place
        self._ids = _BlockIds(NO_BLOCKS)
        self._made = 0
        self._last_tokens = 0

    def next(self, tokens: int, shared_tokens: int | None = None) -> SyntheticUser:
        """Return the next prompt.

        shared_tokens: length of the beginning shared with the last prompt; None: all, if it is longer.
        """
        if shared_tokens is None:
            shared_tokens = self._last_tokens if tokens >= self._last_tokens else 0
        kept = min(shared_tokens, tokens) // self._block_tokens
        if kept < self._ids.count:
            self._ids = _BlockIds(self._ids.first(kept).copy())
        self._made += 1
        own = key_of(*self._place, self._made)
        more = tokens // self._block_tokens - self._ids.count
        ids = self._ids.extended(ids_within(np.arange(more, dtype=np.int64), own))
        self._last_tokens = tokens
        return SyntheticUser(tokens, own, block_ids=ids, block_tokens=self._block_tokens)


def read_prompt(tokens: int, hash_ids: object, block_tokens: int, key: int, check: Checker, field: str) -> SyntheticUser:
    """Return the prompt of a trace's row: its number of tokens and the hashes of its blocks (None: unknown).

    The blocks may end before the prompt does, and the prompt within the last block, but not before it.
    """
    ids = read_ids(hash_ids, check, field)
    if tokens and (len(ids) - 1) * block_tokens >= tokens:
        most = -(-tokens // block_tokens)
        check.fail(
            field,
            f"{len(ids)} blocks of {block_tokens} tokens are too many for {tokens} tokens, which end in block {most} "
            "(the option block_size says how many tokens a hash stands for)",
        )
    return SyntheticUser(tokens, key, block_ids=ids, block_tokens=block_tokens)


def read_ids(value: object, check: Checker, field: str) -> npt.NDArray[np.int64]:
    """Return hashes of blocks, none where the value is null."""
    if isinstance(value, np.ndarray):
        return value
    return _as_array((None if value is None else check.items(value, field)) or [], check, field)


def _as_array(entries: Sequence[Any], check: Checker, field: str) -> npt.NDArray[np.int64]:
    """Return the hashes; larger ones than 64 bits hold are cut. Only the first bad one of a list is reported."""
    if not set(map(type, entries)) <= {int}:
        i = next(i for i, entry in enumerate(entries) if type(entry) is not int)
        check.fail(f"{field}.{i}", "Input should be a valid integer")
        return np.empty(0, dtype=np.int64)
    try:
        return np.array(entries, dtype=np.int64)
    except OverflowError:
        return np.array([entry & 0xFFFF_FFFF_FFFF_FFFF for entry in entries], dtype=np.uint64).view(np.int64)
