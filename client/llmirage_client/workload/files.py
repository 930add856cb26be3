"""Reading workload files: plain or gzip, JSON Lines or one JSON document, every fault a WorkloadError with its line.

Lines, and the elements of one large array, are read one after the other: a file may be larger than memory.

On which line of a document a value stands is only asked for once something is wrong there.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from json import JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.session import Problem, RowNumber, WorkloadError
from llmirage_shared.plural import plural

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_LONG_INTEGER = re.compile(r"\d{4000}")
_BRACKETS = re.compile(r"[\[\]{}]")
ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
ARRAY_OF_ARRAYS = re.compile(rb"\s*\[\s*\[")
_BETWEEN = re.compile(r"[ \t\n\r,]*")
_DEEP = 500  # more than any workload has, fewer than the parser takes
_HEAD_BYTES = 1 << 20  # what is looked at to tell what kind of file it is
_CHUNK_BYTES = 1 << 20
_MAGIC_BYTES = 16
ENDINGS = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
_ONE_A_LINE = " (the first line begins a value over several lines; `jq -c .` writes each value on one)"


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Open the file, unpacked if it is gzip, after its byte order mark. Raises WorkloadError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
            if unpacked.read(len(_BOM)) != _BOM:
                unpacked.seek(0)
            yield unpacked
    except FileNotFoundError:
        raise fault(path, "no such file") from None
    except IsADirectoryError:
        raise fault(path, "is a directory, not a workload file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise fault(path, f"is a damaged gzip file: {error}") from None
    except (OSError, ValueError) as error:
        raise fault(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_magic(path: str) -> bytes:
    """Return the first bytes of the file, which may be no text. Raises WorkloadError when it cannot be read."""
    with _opened(path) as file:
        return file.read(_MAGIC_BYTES)


def read_head(path: str) -> bytes:
    """Return the beginning of the file, as `read_bytes` gives the whole; all of a small one.

    Raises WorkloadError as it does.
    """
    with _opened(path) as file:
        head = file.read(_HEAD_BYTES)
        while not head.strip() and (more := file.read(_HEAD_BYTES)):
            head = more
    return _checked(path, head)


def first_line(path: str) -> bytes:
    """Return the first line that is not blank, or what the beginning of the file has of it; nothing of a bad file."""
    try:
        return read_head(path).lstrip().partition(b"\n")[0]
    except WorkloadError:
        return b""


def read_bytes(path: str) -> bytes:
    """Return the whole file without its byte order mark, unpacked if it is gzip.

    Raises WorkloadError when it cannot be read, is empty, or is no UTF-8 text.
    """
    with _opened(path) as file:
        data = file.read()
    return _checked(path, data)


def _checked(path: str, data: bytes) -> bytes:
    if not data.strip():
        raise fault(path, "is empty; a workload needs at least one session")
    if b"\0" in data[:65536]:
        raise fault(path, "is a binary file, not a workload in JSON or JSON Lines (UTF-8)")
    return data


def read_lines(path: str) -> Iterator[bytes]:
    """Yield every line, one after the other. Raises WorkloadError as `read_bytes` does."""
    read_head(path)
    with _opened(path) as file:
        yield from file


def read_records(path: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) of every value of a file of JSON lines, or of one array or object over lines.

    The elements of an array count, and one at a time is in memory. What is no JSON is noted.
    """
    head = read_head(path)
    if head.lstrip().startswith(b"[") and not _is_array_a_line(head):
        yield from _elements(path, head, problems)
    elif is_over_lines(head):
        try:
            yield head[: len(head) - len(head.lstrip())].count(b"\n") + 1, parse(read_bytes(path))
        except JsonFault as error:
            problems.append(Problem(f"invalid JSON: {error}{_ONE_A_LINE}", error.line))
    else:
        yield from read_json_lines(path, problems)


def read_values(source: bytes | str, problems: list[Problem], array: re.Pattern[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield what `read_json_lines` does, or the elements of one array where the source begins as `array` says."""
    head = source if isinstance(source, bytes) else read_head(source)
    if array.match(head) and not _is_array_a_line(head):
        yield from _elements(source, head, problems)
    else:
        yield from read_json_lines(source, problems)


def _elements(source: bytes | str, head: bytes, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) of the elements of a file's array.

    Where the array is on one line, a RowNumber stands for the line number: no two elements have the same number.
    """
    by_row = b"\n" not in head.strip()
    number = 0
    decode = JSONDecoder(parse_constant=_no_constants, parse_float=_finite).raw_decode
    text, line, position, more = "", 1, 0, True
    depth = 0
    as_text = codecs.getincrementaldecoder("utf-8")()
    with io.BytesIO(source) if isinstance(source, bytes) else _opened(source) as file:
        while True:
            match = _BETWEEN.match(text, position)
            end = match.end() if match else position
            line += text.count("\n", position, end)
            position = end
            if text[position : position + 1] in ("[", "]") and (text[position] == "]" or not depth):
                depth += 1 if text[position] == "[" else -1
                position += 1
                continue
            if not depth and position < len(text):
                problems.append(Problem("invalid JSON: extra data after the array", line))
                return
            try:
                if position == len(text) and not more:
                    if depth:
                        problems.append(Problem("invalid JSON: the array has no end", line))
                    return
                value, end = decode(text, position)
                if end == len(text) and more:
                    raise json.JSONDecodeError("a number may go on", text, position)
            except (ValueError, RecursionError) as error:
                if more:
                    read = file.read(max(_CHUNK_BYTES, len(text) - position))
                    try:
                        text = text[position:] + as_text.decode(read, not read)
                    except UnicodeDecodeError as wrong:
                        problems.append(
                            Problem(f"invalid JSON: not UTF-8 text: byte 0x{wrong.object[wrong.start]:02x}", line)
                        )
                        return
                    position, more = 0, bool(read)
                    continue
                if isinstance(error, json.JSONDecodeError):
                    line += error.doc.count("\n", position, error.pos)
                problems.append(Problem(f"invalid JSON: {getattr(error, 'msg', None) or error}", line))
                return
            if "\\u" in text[position:end] and _half_pair(value):
                problems.append(Problem(f"invalid JSON: {_HALF_PAIR}", line))
            else:
                number = RowNumber(number + 1) if by_row else max(line, number + 1)
                yield number, value
            line += text.count("\n", position, end)
            position = end


def read_json_lines(source: bytes | str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) of every line that holds JSON; blank lines are skipped, bad ones noted.

    source: the path of a file, or what is in it.
    """
    if is_over_lines(source if isinstance(source, bytes) else read_head(source)):
        try:
            parse(source if isinstance(source, bytes) else read_bytes(source))
        except JsonFault as error:
            problems.append(Problem(f"invalid JSON: {error}{_ONE_A_LINE}", error.line))
        else:
            problems.append(Problem("the file is one JSON object over several lines; this format needs each on one line", 1))
        return
    lines = source.split(b"\n") if isinstance(source, bytes) else read_lines(source)
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line:
            continue
        try:
            value = parse(line)
        except JsonFault as error:
            problems.append(Problem(f"invalid JSON: {error}", number))
        else:
            yield number, value


def read_rows(source: bytes | str, problems: list[Problem]) -> Iterator[tuple[dict[str, Any], Checker]]:
    """Yield the object of every line, or of one array, with its checker.

    What the checker finds goes to the problems, as other faults do.
    """
    for line, value in read_values(source, problems, ARRAY_OF_OBJECTS):
        check = Checker(line)
        row = check.mapping(value, None)
        if row is not None:
            yield row, check
        problems += check.problems


def files_below(path: str) -> list[Path]:
    """Return the file, or those below a folder and its links whose names end as those of JSON do, in the order of names.

    Hidden ones are left out. Raises WorkloadError when there are none, and for links to nothing.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    files = json_files_below(folder)
    if dead := [file for file in files if not file.exists()]:
        raise fault(path, f"{dead[0].relative_to(folder)} is a link to a file that is not there")
    if not files:
        raise fault(path, f"is a directory without files {' or '.join(f'*{ending}' for ending in ENDINGS)}")
    return files


def json_files_below(folder: Path) -> list[Path]:
    """Return what `files_below` does, and links to nothing; perhaps none."""
    return [file for file in _all_below(folder) if file.name.lower().endswith(ENDINGS)]


def other_files_note(path: str) -> tuple[str, ...]:
    """Return the note on files of a folder that `files_below` leaves out, where there are any."""
    names = [str(file.relative_to(path)) for file in _all_below(Path(path)) if not file.name.lower().endswith(ENDINGS)]
    if not names:
        return ()
    return (f"left out {plural(len(names), 'file')} without the ending of JSON ({', '.join(ENDINGS)}): {names[0]}",)


def _all_below(folder: Path) -> list[Path]:
    """Return the files below a folder, of folders to which several links lead once; without hidden ones."""
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if os.path.realpath(place) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        files = (Path(place, name) for name in names if not name.startswith("."))
        found += [file for file in files if file.is_file() or not file.exists()]
    return sorted(found)


@contextmanager
def problems_of(name: str | None, problems: list[Problem]) -> Iterator[list[Problem]]:
    """Give a list for the problems of one file of a folder, which go to `problems` with its name.

    So do those of a WorkloadError; it is raised where there is no name, for a file that is no part of a folder.
    """
    found: list[Problem] = []
    try:
        yield found
    except WorkloadError as error:
        if name is None:
            raise
        found += error.problems
    problems += [replace(problem, file=name) for problem in found]


def read_rows_below(path: str, problems: list[Problem]) -> Iterator[tuple[dict[str, Any], Checker]]:
    """Yield the object of every record of the file, or of those below a folder, as `read_rows` does."""
    for file in files_below(path):
        name = str(file.relative_to(path)) if Path(path) != file else None
        with problems_of(name, problems) as found:
            for line, value in read_records(str(file), found):
                check = Checker(line, name)
                row = check.mapping(value, None)
                if row is not None:
                    yield row, check
                problems += check.problems


def is_over_lines(head: bytes) -> bool:
    """Return whether a file begins with a JSON value over several lines, as pretty-printed JSON does. head: its start."""
    first, _, rest = head.strip().partition(b"\n")
    return bool(rest) and _breaks_off(first) and not _is_whole(rest.lstrip().partition(b"\n")[0])


def _is_array_a_line(head: bytes) -> bool:
    """Return whether the beginning of a file is a line that is all of its value, and more below it."""
    first_line, _, below = head.strip().partition(b"\n")
    return bool(below) and not _breaks_off(first_line)


def _breaks_off(line: bytes) -> bool:
    """Return whether a line is the beginning of a JSON value, not all of one."""
    text = line.decode("utf-8", "replace").strip()
    try:
        _DECODER.decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        pass
    return False


def _is_whole(line: bytes) -> bool:
    """Return whether a line is an object or an array."""
    try:
        return isinstance(parse(line), dict | list)
    except JsonFault:
        return False


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
    """Return the line with the most open brackets, more than the depth allowed."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += 1 if match.group() in "[{" else -1
        if depth > _DEEP:
            return text.count("\n", 0, match.start()) + 1
    return 1


def parse(data: bytes) -> Any:
    """Parse one JSON value of UTF-8 text. Raises JsonFault with a message fit for users."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = error.start - data.rfind(b"\n", 0, error.start)
        line = data.count(b"\n", 0, error.start) + 1
        raise JsonFault(f"not UTF-8 text: byte 0x{data[error.start]:02x} at column {column}", line) from None
    try:
        value = _DECODER.decode(text)
        if b"\\u" in data and _half_pair(value):
            raise JsonFault(_HALF_PAIR, pattern=_SURROGATE)
    except json.JSONDecodeError as error:
        raise JsonFault(f"{error.msg} at column {error.colno}", error.lineno) from None
    except RecursionError:
        raise JsonFault("nested too deeply", _line_of_depth(text)) from None
    except JsonFault as error:
        raise JsonFault(str(error), _line_of(error.pattern, text)) from None
    except ValueError as error:  # an integer of thousands of digits
        raise JsonFault(str(error), _line_of(_LONG_INTEGER, text)) from None
    return value


_HALF_PAIR = "a \\u escape gives half of a surrogate pair, which is not a character"


def _half_pair(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def fault(path: str, message: str, line: int | None = None, field: str | None = None) -> WorkloadError:
    """Return a WorkloadError of a single problem."""
    return WorkloadError(path, [Problem(message, line, field)])


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise JsonFault(f"the number {digits[:20]} is too large", pattern=re.compile(re.escape(digits)))
    return number


def _no_constants(name: str) -> NoReturn:
    raise JsonFault(f"{name} is not a JSON number", pattern=re.compile(re.escape(name)))


_DECODER = json.JSONDecoder(parse_constant=_no_constants, parse_float=_finite)  # to make one costs more than a line does
_SPACE = re.compile(r"[ \t\n\r]*")


class Places:
    """Finds the lines of values in `text`, a valid JSON document, by path: ("data", "0", "payloads")."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decode = JSONDecoder().raw_decode
        self._members: dict[int, dict[str, int]] = {}  # start of a container -> start of each of its values

    def line(self, path: Sequence[str]) -> int:
        """Return line number from 1 of the value at `path`, or of the innermost part of the path that there is."""
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

    def _walk(self, position: int) -> Iterator[tuple[str, int]]:
        opening = self._text[position]
        if opening not in "[{":
            return
        position = self._skip(position + 1)
        index = 0
        while self._text[position] not in "]}":
            key = str(index)
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


def placed(problems: Sequence[Problem], data: bytes, depth: int | None = None) -> list[Problem]:
    """Return problems of a JSON document with the lines of their fields, or of the first `depth` steps of these."""
    places = Places(data.decode("utf-8"))
    return [
        replace(problem, line=places.line((problem.field or "").split(".")[:depth]))
        if problem.field or problem.line is None
        else problem
        for problem in problems
    ]
