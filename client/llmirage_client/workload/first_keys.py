"""What the first object of a file shows of its format: its keys, those one level below, and its `type`; broken JSON too."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmirage_client.workload.files import JsonFault, files_below, parse, read_head
from llmirage_client.workload.session import WorkloadError

_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_JSON_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[\[{]|[\]}]')


@dataclass(slots=True, frozen=True)
class FirstKeys:
    """keys: of the object itself. marks: these, "turns.text" for a key of the first object of a list under a key, and
    "type=name" for a text under `type` or `schema`. Of the first object of an array, all marks begin with "[].".
    """

    keys: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    @property
    def marks(self) -> frozenset[str]:
        return frozenset((*self.keys, *self.below))


def first_keys(data: bytes) -> FirstKeys:
    """Of the object that `data` is, or begins with if it is no valid JSON, or of the first of an array."""
    if (array := _ARRAY_OF_OBJECTS.match(data)) is not None:
        first = _of_broken_object(data[array.end() - 1 :].decode("utf-8", "replace"))
        return FirstKeys(tuple(f"[].{key}" for key in first.keys), tuple(f"[].{key}" for key in first.below))
    try:
        value = parse(data)
    except JsonFault:
        return _of_broken_object(data.decode("utf-8", "replace"))
    if not isinstance(value, dict):
        return FirstKeys()
    below = []
    for key, entry in value.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            below += [f"{key}.{inner}" for inner in entry[0]]
    below += [f"{key}={value[key]}" for key in ("type", "schema") if isinstance(value.get(key), str)]
    return FirstKeys(tuple(value), tuple(below))


def folder_begins_with(path: Path, endings: Sequence[str], recognises: Callable[[Collection[str]], bool]) -> bool:
    """Whether the first file below the folder with such a name begins with an object of a format."""
    try:
        head = read_head(str(files_below(str(path), endings)[0]))
    except WorkloadError:
        return False
    lines = (line for line in head.split(b"\n") if line.strip())
    return recognises(first_keys(next(lines, b"")).marks) or recognises(first_keys(head).marks)


def _of_broken_object(text: str) -> FirstKeys:
    """As far as it can be read; without `type`."""
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
