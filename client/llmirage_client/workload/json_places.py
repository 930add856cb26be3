"""On which line of a JSON document a value stands. Only asked for once something is wrong there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")


class Places:
    """Finds the lines of values in `text`, a valid JSON document, by path: ("data", 0, "payloads")."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decode = JSONDecoder().raw_decode
        self._members: dict[int, dict[str | int, int]] = {}  # start of a container -> start of each of its values

    def line(self, path: Sequence[str | int]) -> int:
        """Line number from 1 of the value at `path`, or of the innermost part of the path that there is."""
        position = self._skip(0)
        for step in path:
            if position not in self._members:
                self._members[position] = dict(self._walk(position))
            if step not in self._members[position]:
                break
            position = self._members[position][step]
        return self._text.count("\n", 0, position) + 1

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position

    def _walk(self, position: int) -> Iterator[tuple[str | int, int]]:
        opening = self._text[position]
        if opening not in "[{":
            return
        position = self._skip(position + 1)
        index = 0
        while self._text[position] not in "]}":
            key: str | int = index
            if opening == "{":
                key, position = self._value(position)
                position = self._skip(self._skip(position) + 1)  # past the colon
            yield key, position
            position = self._skip(self._value(position)[1])
            if self._text[position] == ",":
                position = self._skip(position + 1)
            index += 1

    def _value(self, position: int) -> tuple[Any, int]:
        return self._decode(self._text, position)
