"""The declaration of a workload format: its name, how its files are recognised by their first keys, and its options.

Options are typed values that a user may give besides the file, as `--format-option key=value`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import ARRAY_OF_OBJECTS, JsonFault, json_files_below, parse, read_head
from llmirage_client.workload.schedule import earlier
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_shared.plural import plural

_FILES_TO_LOOK_AT = 20
_JSON_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[\[{]|[\]}]')


@dataclass(slots=True, frozen=True)
class FirstKeys:
    """The keys at the beginning of a file.

    keys: of the object itself. marks: these, "turns.text" for a key of the first object of a list under a key, and
    "type=name" for a text under `type` or `schema`. Of the first object of an array, all marks begin with "[].".
    """

    keys: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    @property
    def marks(self) -> frozenset[str]:
        return frozenset((*self.keys, *self.below))

    @property
    def row_marks(self) -> frozenset[str]:
        """The marks of the first object of an array as those of an object by itself."""
        return frozenset(mark.removeprefix("[].") for mark in self.marks)


def first_keys(data: bytes) -> FirstKeys:
    """Return the keys of the object in `data`, valid JSON or its beginning, or of the first object of an array."""
    array = ARRAY_OF_OBJECTS.match(data)
    try:
        value = parse(data)
    except JsonFault:
        first = _of_broken_object(data[array.end() - 1 if array else 0 :].decode("utf-8", "replace"))
    else:
        first = _of_object(value[0] if array else value)
    if array:
        return FirstKeys(tuple(f"[].{key}" for key in first.keys), tuple(f"[].{key}" for key in first.below))
    return first


def _of_object(value: object) -> FirstKeys:
    if not isinstance(value, dict):
        return FirstKeys()
    below = []
    for key, entry in value.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            below += [f"{key}.{inner}" for inner in entry[0]]
    below += [f"{key}={value[key]}" for key in ("type", "schema") if isinstance(value.get(key), str)]
    return FirstKeys(tuple(value), tuple(below))


def folder_marks(path: Path) -> list[frozenset[str]]:
    """Return the marks of the first files below the folder: of their first lines, and of their beginnings."""
    found = []
    for file in json_files_below(path)[:_FILES_TO_LOOK_AT]:
        try:
            head = read_head(str(file))
        except WorkloadError:  # the reader of all files says what is wrong with it
            continue
        first = head.lstrip().partition(b"\n")[0]
        seen = first_keys(head)
        found += [seen.marks, seen.row_marks] + ([] if first == head else [first_keys(first).marks])
    return found


def _of_broken_object(text: str) -> FirstKeys:
    """Return the keys of a broken object, as far as it can be read; without `type`."""
    keys: dict[str, None] = {}
    below: dict[str, None] = {}
    depth = 0
    key = ""
    for token in _JSON_TOKEN.finditer(text if text.lstrip().startswith("{") else ""):
        mark = token.group()
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and token.group(2):
            key = token.group(1)
            keys[key] = None
        elif depth == 3 and token.group(2):
            below[f"{key}.{token.group(1)}"] = None
    return FirstKeys(tuple(keys), tuple(below))


Kind = Literal["integer", "number", "boolean", "text", "range"]
"""range: a whole number, or two for a value drawn between them, written LOW:HIGH or [LOW, HIGH]; read as (low, high)."""


@dataclass(slots=True, frozen=True)
class Option:
    """One option. required: it has no default. minimum and maximum hold for numbers and both ends of a range."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    minimum: int = 0
    maximum: int = 10_000_000
    required: bool = False


DATASET_OFFSET = Option("dataset_offset", "integer", "skip this many conversations of the file", 0)
"""Every format has it; one that declares it itself is given the value, for the others `skip` applies it."""


def read_options(
    path: str, format_name: str, declared: Sequence[Option], given: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of every declared option.

    given: must be known to the format. offered: used where the format knows it.

    Raises WorkloadError with every problem.
    """
    check = Checker(None)
    known = [option.name for option in declared]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
            check.fail(f"option {key}", f"{format_name} has no such option ({hint})")
    values = {}
    for option in declared:
        value = given.get(option.name, offered.get(option.name))
        if value is not None:
            values[option.name] = _read(option, value, check)
            continue
        if option.required:
            check.fail(f"option {option.name}", f"{format_name} needs it ({option.help})")
        values[option.name] = option.default
    if check.problems:
        raise WorkloadError(path, check.problems)
    return values


def _read(option: Option, value: Any, check: Checker) -> Any:
    field = f"option {option.name}"
    match option.kind:
        case "integer":
            return check.integer(value, field, minimum=option.minimum, maximum=option.maximum)
        case "number":
            return check.number(value, field, minimum=option.minimum, maximum=option.maximum)
        case "boolean":
            return check.boolean(value, field)
        case "text":
            return check.text(value, field)
        case "range":
            return _range(option, value, field, check)


def _range(option: Option, value: Any, field: str, check: Checker) -> tuple[int, int] | None:
    parts = value.split(":") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(parts) <= 2:
        check.fail(field, "Input should be one whole number, or LOW:HIGH")
        return None
    ends = [check.integer(part, field, minimum=option.minimum, maximum=option.maximum) for part in parts]
    low, high = ends[0], ends[-1]
    if low is None or high is None:
        return None
    if low > high:
        check.fail(field, f"has its end before its start ({low} > {high})")
        return None
    return low, high


def parse_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Return options from KEY=VALUE texts and JSON objects, merged in order.

    Raises ValueError with a message for the user.
    """
    merged: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{text!r} is neither key=value nor a JSON object")
        merged[key.strip().replace("-", "_")] = _json_list(value.strip())
    return merged


def _json_list(value: str) -> Any:
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def skip(workload: Workload, count: int) -> Workload:
    """Return the workload from its root number `count` on.

    A run that wants more roots than are left goes on with the skipped ones; where the file says when roots arrive, they are
    left out for good, and the schedule begins with the first that is left. Raises WorkloadError when nothing is left.
    """
    if count == 0:
        return workload
    size = len(workload.roots)
    if count >= size:
        message = f"{count} skips all of the {plural(size, 'conversation')} of the file"
        raise WorkloadError(workload.path, [Problem(message, field="option dataset_offset")])
    rest, skipped = workload.roots[count:], workload.roots[:count]
    if workload.timed:
        first_s = min(workload.sessions[root].arrival_s or 0.0 for root in rest)
        moved = {root: earlier(workload.sessions[root], first_s) for root in rest}
        return replace(workload, roots=rest, sessions={**workload.sessions, **moved})
    return replace(workload, roots=(*rest, *skipped), skipped=count)


def never(_: object) -> bool:
    """Return False, for formats without such a mark."""
    return False


def any_of(*alternatives: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return a function that says whether an object has all keys of one of the alternatives."""
    return lambda keys: any(set(alternative).issubset(keys) for alternative in alternatives)


@dataclass(slots=True, frozen=True)
class Format:
    """One workload format.

    recognises: says from the keys of one object whether it is of this format. Besides the top-level ones it is given
    "turns.text" for a key of the first object of a list under a top-level key, and "type=name" for a text under `type`.
    load: reads the file at a path, raises WorkloadError with every problem; the values of `options` come as keyword
    arguments. needs: what such a file must have, for the message when no format fits. order: formats with a lower one are
    asked first. recognises_array: the same as recognises for files whose lines are arrays. recognises_header: the same for
    files of no JSON, from their first line; recognises_magic: for those of no text, from their first bytes.
    recognises_directory: whether a directory is of this format. folder: a folder of such files of JSON is one workload.
    generates: there is no file, the name of the format stands for one and the options say what it holds. fetch: the
    published file in this format, and where it is. named: the option that the rest of a longer name gives, as in
    `speed_bench_math`.
    """

    name: str
    summary: str
    needs: str
    recognises: Callable[[Collection[str]], bool]
    load: Callable[..., Workload]
    aliases: tuple[str, ...] = ()
    order: int = 100
    options: tuple[Option, ...] = ()
    recognises_array: Callable[[list[object]], bool] = never
    recognises_header: Callable[[str], bool] = never
    recognises_directory: Callable[[Path], bool] = never
    recognises_magic: Callable[[bytes], bool] = never
    folder: bool = False
    generates: bool = False
    fetch: str = ""
    named: str = ""

    def is_folder(self, path: Path, marks: Callable[[], Sequence[Collection[str]]]) -> bool:
        """Return whether a directory is of this format. marks: of the files below it, see folder_marks."""
        return any(map(self.recognises, marks())) if self.folder else self.recognises_directory(path)
