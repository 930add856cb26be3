"""Reading workload files: plain or gzip, JSON Lines or one JSON document, every fault a WorkloadError with its line.

On which line of a document a value stands is only asked for once something is wrong there.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from pathlib import Path
from typing import Any, NoReturn

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.session import Problem, WorkloadError

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_LONG_INTEGER = re.compile(r"\d{4000}")
_BRACKETS = re.compile(r"[\[\]{}]")
_DEEP = 500  # more than any workload has, fewer than the parser takes


def read_bytes(path: str) -> bytes:
    """The whole file without its byte order mark, unpacked if it is gzip.

    Raises WorkloadError when it cannot be read, is empty, or is no UTF-8 text.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise fault(path, "no such file") from None
    except IsADirectoryError:
        raise fault(path, "is a directory, not a workload file") from None
    except (OSError, ValueError) as error:
        raise fault(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise fault(path, f"is a damaged gzip file: {error}") from None
    data = data.removeprefix(_BOM)
    if not data.strip():
        raise fault(path, "is empty; a workload needs at least one session")
    if b"\0" in data[:65536]:
        raise fault(path, "is a binary file, not a workload in JSON or JSON Lines (UTF-8)")
    return data


def read_json_lines(data: bytes, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """Yields (line number from 1, value) of every line that holds JSON; blank lines are skipped, bad ones noted."""
    if _is_one_document(data):
        problems.append(Problem("the file is one JSON object over several lines; this format needs each on one line", 1))
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        line = line.strip()
        if not line:
            continue
        try:
            value = parse(line)
        except JsonFault as error:
            problems.append(Problem(f"invalid JSON: {error}", number))
        else:
            yield number, value


def read_rows(data: bytes, problems: list[Problem]) -> Iterator[tuple[dict[str, Any], Checker]]:
    """Yields the object of every line with its checker. What the checker finds goes to the problems, as other faults do."""
    for line, value in read_json_lines(data, problems):
        check = Checker(line)
        row = check.mapping(value, None)
        if row is not None:
            yield row, check
        problems += check.problems


def _is_one_document(data: bytes) -> bool:
    """Whether the lines make sense only together, as pretty-printed JSON does."""
    first, _, rest = data.strip().partition(b"\n")
    if first.strip() not in (b"{", b"[") or not rest:
        return False
    try:
        parse(data)
    except JsonFault:
        return False
    return True


class JsonFault(ValueError):
    """Text that is no JSON; `line` counts from 1 within the text, None where the place is not known.

    pattern: what to look for in the text to find the place.
    """

    def __init__(self, message: str, line: int | None = None, pattern: re.Pattern[str] | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.pattern = pattern


def _line_of(pattern: re.Pattern[str] | None, text: str) -> int | None:
    match = pattern.search(text) if pattern else None
    return text.count("\n", 0, match.start()) + 1 if match else None


def _line_of_depth(text: str) -> int:
    """The line on which more brackets are open than anywhere before, and so many that it is too many."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += 1 if match.group() in "[{" else -1
        if depth > _DEEP:
            return text.count("\n", 0, match.start()) + 1
    return 1


def parse(data: bytes) -> Any:
    """One JSON value of UTF-8 text. Raises JsonFault with a message fit for users."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = error.start - data.rfind(b"\n", 0, error.start)
        line = data.count(b"\n", 0, error.start) + 1
        raise JsonFault(f"not UTF-8 text: byte 0x{data[error.start]:02x} at column {column}", line) from None
    try:
        value = json.loads(text, parse_constant=_no_constants, parse_float=_finite)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise JsonFault(f"{error.msg} at column {error.colno}", error.lineno) from None
    except UnicodeEncodeError:
        message = "a \\u escape gives half of a surrogate pair, which is not a character"
        raise JsonFault(message, _line_of(_SURROGATE, text)) from None
    except RecursionError:
        raise JsonFault("nested too deeply", _line_of_depth(text)) from None
    except JsonFault as error:
        raise JsonFault(str(error), _line_of(error.pattern, text)) from None
    except ValueError as error:  # an integer of thousands of digits
        raise JsonFault(str(error), _line_of(_LONG_INTEGER, text)) from None
    return value


def fault(path: str, message: str, line: int | None = None, field: str | None = None) -> WorkloadError:
    """A WorkloadError of a single problem."""
    return WorkloadError(path, [Problem(message, line, field)])


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise JsonFault(f"the number {digits[:20]} is too large", pattern=re.compile(re.escape(digits)))
    return number


def _no_constants(name: str) -> NoReturn:
    raise JsonFault(f"{name} is not a JSON number", pattern=re.compile(re.escape(name)))


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
