"""A radix tree that tells which blocks come and go, by the chained hashes by which vLLM knows them.

The hash of a block is that of the hash before it, its token ids and the name of its LoRA adapter, if any: vLLM's
v1/core/kv_cache_utils.py, `hash_block_tokens` and `init_none_hash`, with its functions `sha256` (of the pickle) and
`sha256_cbor` (of canonical CBOR, RFC 8949).
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from llmirage_server.cluster.kv.radix_tree import RadixTree, Run, TreeNode
from llmirage_server.cluster.request import plain_ids

HashAlgorithm = Literal["sha256", "sha256_cbor"]
EventFormat = Literal["map", "array"]  # of those who are told
VLLM_SEED = "vllm-none-hash"  # DEFAULT_NONE_HASH_SEED
_CBOR_INT, _CBOR_BYTES, _CBOR_TEXT, _CBOR_ARRAY, _CBOR_NULL = 0x00, 0x40, 0x60, 0x80, b"\xf6"


@dataclass(slots=True, frozen=True)
class BlocksStored:
    """Blocks that follow each other. parent: the hash before the first; None at the start. tokens: int32 ids as bytes.

    adapter: number and name of the LoRA adapter that they are for.
    """

    hashes: Sequence[bytes]
    parent: bytes | None
    tokens: bytes
    adapter: tuple[int, str] | None = None


@dataclass(slots=True, frozen=True)
class BlocksRemoved:
    """Blocks that were evicted; hashes None: all blocks, in a crash."""

    hashes: Sequence[bytes] | None


KVChange = BlocksStored | BlocksRemoved


class BlockHasher:
    """The hashes of blocks. seed: what PYTHONHASHSEED is to vLLM. adapters: their names, by number."""

    def __init__(
        self, algorithm: HashAlgorithm = "sha256", seed: str = VLLM_SEED, adapters: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        self.adapters = adapters
        self._cbor = algorithm == "sha256_cbor"
        text = seed.encode()
        first = _cbor_head(_CBOR_TEXT, len(text)) + text if self._cbor else pickle.dumps(seed, pickle.HIGHEST_PROTOCOL)
        self._first = hashlib.sha256(first).digest()

    def hashes(self, parent: bytes | None, tokens: bytes, block_tokens: int, adapter: str | None = None) -> list[bytes]:
        """Return the hash of each whole block of `tokens` that follows `parent`; None: at the start."""
        extra = None if adapter is None else (adapter,)
        ids, before, found = np.frombuffer(tokens, np.int32).tolist(), parent or self._first, []
        for start in range(0, len(ids) - block_tokens + 1, block_tokens):
            block = ids[start : start + block_tokens]
            written = (
                _cbor(before, block, adapter)
                if self._cbor
                else pickle.dumps((before, tuple(block), extra), pickle.HIGHEST_PROTOCOL)
            )
            before = hashlib.sha256(written).digest()
            found.append(before)
        return found


class RecordedTree(RadixTree):
    """A radix tree that tells `changed` of each change.

    Runs grow and shrink at their ends and are never cut, so that the hashes of a run are a list of the same length.
    """

    def __init__(self, page_size: int, hasher: BlockHasher, changed: Callable[[KVChange], None]) -> None:
        super().__init__(page_size)
        self._hasher = hasher
        self._changed = changed
        self._hashes: dict[Run, list[bytes]] = {}

    def emptied(self) -> RecordedTree:
        self._changed(BlocksRemoved(None))
        return RecordedTree(self.page_size, self._hasher, self._changed)

    def extend_to(self, node: TreeNode, key: bytes, start: int, stop: int) -> TreeNode:
        node = super().extend_to(node, key, start, stop)
        self._grown(node.run)
        return node

    def finish(self, node: TreeNode, key: bytes, start: int, stop: int) -> None:
        super().finish(node, key, start, stop)  # if it is another run that grows, by `extend_to`
        self._grown(node.run)

    def evict(self, tokens: int) -> int:
        evicted = super().evict(tokens)
        if self._queue:  # the run of which a part remains
            self._shrunk(self._queue[0][1].run)
        return evicted

    def _shorten(self, run: Run) -> None:
        super()._shorten(run)
        self._shrunk(run)

    def _remove(self, run: Run) -> None:
        super()._remove(run)
        self._shrunk(run)

    def _grown(self, run: Run) -> None:
        if run.parent is None:
            return
        page, had = self._page_bytes, len(self._hashes.get(run, ()))
        if had * page < run.size:
            known = self._hashes.setdefault(run, [])
            tokens = run.tokens[had * page : run.size]
            parent = known[-1] if known else self._hash_at(run.parent)
            plain, number = plain_ids(tokens)
            adapter = (number, self._hasher.adapters[number]) if number else None
            known += (new := self._hasher.hashes(parent, plain, self.page_size, adapter and adapter[1]))
            self._changed(BlocksStored(new, parent, plain, adapter))

    def _shrunk(self, run: Run) -> None:
        if (known := self._hashes.get(run)) is None:
            return
        left = run.size // self._page_bytes
        if gone := known[left:]:
            del known[left:]
            self._changed(BlocksRemoved(gone[::-1]))  # the last first, as they are evicted
        if not left:
            del self._hashes[run]

    def _hash_at(self, node: TreeNode) -> bytes | None:
        """Return the hash of the block that ends at a node; None at the root."""
        return self._hashes[node.run][node.end // self._page_bytes - 1] if node.run.parent is not None else None


def _cbor(before: bytes, block: Sequence[int], adapter: str | None) -> bytes:
    """Return the canonical CBOR of [before, block, null], or of [before, block, [adapter]]."""
    ids = b"".join([_cbor_head(_CBOR_INT, token) for token in block])
    extra = _CBOR_NULL
    if adapter is not None:
        name = adapter.encode()
        extra = _cbor_head(_CBOR_ARRAY, 1) + _cbor_head(_CBOR_TEXT, len(name)) + name
    parts = _cbor_head(_CBOR_BYTES, len(before)), before, _cbor_head(_CBOR_ARRAY, len(block)), ids, extra
    return _cbor_head(_CBOR_ARRAY, 3) + b"".join(parts)


def _cbor_head(kind: int, value: int) -> bytes:
    """Return the shortest head of an item of CBOR: of an integer, its value; else its length."""
    if value < 24:
        return bytes([kind | value])
    for code, (form, bits) in enumerate((("B", 8), (">H", 16), (">I", 32))):
        if value < 1 << bits:
            return bytes([kind | 24 + code]) + struct.pack(form, value)
    raise ValueError(f"a token id of {value}")
