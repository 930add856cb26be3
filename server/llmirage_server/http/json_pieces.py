"""JSON of many bytes, written piece by piece: an encoder lets no other thread run until it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from llmirage_server.http.turns import turn
from llmirage_shared.wire.output import json_text

SENT_BYTES = 1 << 18  # of a response: of a larger one the connection holds as many at a time
_PIECE_CHARACTERS = 1 << 17
_PIECE_BYTES = 1 << 16
_MANY = 1_000  # numbers of a list that are written at once


class LazyList(Sequence[Any]):
    """A list of a JSON value whose items are made when they are written: they may take a hundred times their bytes."""

    def __init__(self, make: Callable[[int], Any], places: Sequence[int]) -> None:
        """make: the item of a place."""
        self._make = make
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> LazyList: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return LazyList(self._make, self._places[index])
        return self._make(self._places[index])

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, LazyList) else other)

    __hash__ = None  # type: ignore[assignment]


def pieces(value: Any) -> Iterator[bytes]:
    """Yield the value as `json_text` writes it, in UTF-8."""
    begun: list[str] = []
    size = 0
    for part in _parts(value):
        begun.append(part)
        size += len(part)
        if size > _PIECE_BYTES:
            yield "".join(begun).encode("utf-8", "replace")
            begun, size = [], 0
    yield "".join(begun).encode("utf-8", "replace")


def written(value: Any) -> list[bytes]:
    """As `pieces`, all at once."""
    return list(pieces(value))


async def larger(written: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield written pieces in others of SENT_BYTES."""
    together: list[bytes] = []
    size = 0
    for piece in written:
        for start in range(0, len(piece), SENT_BYTES):
            together.append(piece[start : start + SENT_BYTES])
            size += len(together[-1])
            if size >= SENT_BYTES:
                yield b"".join(together)
                together, size = [], 0
                await turn()  # a connection that takes all at once waits for nothing
    yield b"".join(together)


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _PIECE_CHARACTERS:
        yield '"'
        for start in range(0, len(value), _PIECE_CHARACTERS):
            yield json_text(value[start : start + _PIECE_CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, dict) and value:
        for place, (name, inner) in enumerate(value.items()):
            yield f"{',' if place else '{'}{json_text(name)}:"
            yield from _parts(inner)
        yield "}"
    elif isinstance(value, LazyList):
        yield "["
        for place, item in enumerate(value):
            yield "," if place else ""
            yield json_text(item)
        yield "]"
    elif isinstance(value, list) and value:
        plain = not any(isinstance(item, dict | list | str | LazyList) for item in value)
        yield "["
        for start in range(0, len(value), _MANY if plain else 1):
            yield "," if start else ""
            if plain:
                yield json_text(value[start : start + _MANY])[1:-1]
            else:
                yield from _parts(value[start])
        yield "]"
    else:
        yield json_text(value)


def written_vectors(vectors: npt.NDArray[np.float64], decimals: int) -> Iterator[bytes]:
    """Yield each row as a JSON array: ten times as fast as an encoder, which looks for the shortest decimals.

    Args:
        vectors: Numbers below 10 of at most `decimals` decimals, shape (rows, columns).
        decimals: The decimals of each number in the text, at most 8.
    """
    units = np.rint(np.abs(vectors) * 10.0**decimals).astype(np.uint32)
    text = np.empty((*vectors.shape, decimals + 4), dtype=np.uint8)  # "-0.12345678,"
    text[:, :, 0] = np.where(vectors < 0, ord("-"), ord(" "))
    text[:, :, 2], text[:, :, -1] = ord("."), ord(",")
    text[:, -1, -1] = ord("]")
    for place in chain(range(decimals + 2, 2, -1), [1]):
        tenths = units // np.uint32(10)
        text[:, :, place] = units - tenths * np.uint32(10) + np.uint32(ord("0"))
        units = tenths
    for row in text:
        yield b"[" + row[row != ord(" ")].tobytes()
