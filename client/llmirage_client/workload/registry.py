"""The workload formats by name, which one a file is in, and the workloads that ship with the package.

Every Format at the top level of a module of `formats/` is found; there is nothing else to register.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from llmirage_client.workload import formats
from llmirage_client.workload.checking import kind_of
from llmirage_client.workload.files import (
    ARRAY_OF_OBJECTS,
    JsonFault,
    fault,
    other_files_note,
    parse,
    read_head,
    read_magic,
)
from llmirage_client.workload.format import DATASET_OFFSET, Format, first_keys, folder_marks, never, read_options, skip
from llmirage_client.workload.loading import delimiter_of
from llmirage_client.workload.session import Workload
from llmirage_shared.extensions import find_extension, installed, is_extension

BUNDLED_PREFIX = "bundled:"
BUNDLED_DIRECTORY = Path(__file__).resolve().parents[1] / "bundled"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
_LINES_TO_LOOK_AT = 100


def find_formats() -> dict[str, Format]:
    """Return the formats of all modules of `formats/` by name, in the order in which they are tried."""
    modules = pkgutil.iter_modules(formats.__path__, f"{formats.__name__}.")
    values = [value for module in modules for value in vars(importlib.import_module(module.name)).values()]
    found = [value for value in values if isinstance(value, Format)]
    return {declared.name: declared for declared in sorted(found, key=lambda declared: (declared.order, declared.name))}


FORMATS: dict[str, Format] = find_formats()
ALIASES: Mapping[str, str] = {alias: name for name, declared in FORMATS.items() for alias in declared.aliases}


def load(
    path: str, format: str | None = None, options: Mapping[str, Any] | None = None, offered: Mapping[str, Any] | None = None
) -> Workload:
    """Read and validate a workload file, or a bundled one by `bundled:NAME`; format: detected when not given.

    path may also be the name of a format that needs no file. options: the format must know them. offered: settings of the
    run (tokenizer, seed and the like) for formats that have an option of that name.
    Raises WorkloadError with every problem of the file.
    """
    if not path:  # pathlib would take it for the current folder
        raise fault("''", "no such file")
    name = _named(path) if format is None else ALIASES.get(format, format)
    for known in FORMATS.values():
        if name is not None and known.named and name.startswith(f"{known.name}_"):
            options = {known.named: name.removeprefix(f"{known.name}_"), **(options or {})}
            name = known.name
    file = resolve_bundled(path) if path.startswith(BUNDLED_PREFIX) else path
    chosen = find_format(path, detect(file) if name is None else name)
    name, declared = chosen.name, chosen.options
    itself = any(option.name == DATASET_OFFSET.name for option in declared)
    values = read_options(path, name, declared if itself else (*declared, DATASET_OFFSET), options or {}, offered or {})
    offset = 0 if itself else values.pop(DATASET_OFFSET.name)
    with _without_collector():
        loaded = chosen.load(file, **values)
    notes = other_files_note(file) if chosen.folder and Path(file).is_dir() else ()
    return skip(replace(loaded, path=path, notes=(*loaded.notes, *notes)), offset)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hold up the cycle collector, which would walk what is loaded again and again: there are no cycles in it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def find_format(path: str, name: str) -> Format:
    """Return the format of that name, one of FORMATS or an extension. path: for the message of WorkloadError."""
    if name in FORMATS:
        return FORMATS[name]
    if not is_extension("format", name):
        raise fault(path, f"unknown format '{name}'; choose one of {', '.join([*FORMATS, *ALIASES, *installed('format')])}")
    try:
        found = find_extension("format", name)
    except ValueError as error:
        raise fault(path, str(error)) from None
    if not isinstance(found, Format):
        raise fault(path, f"format {name!r}: it must be an llmirage.WorkloadFormat, not {found!r}")
    return found


def _named(path: str) -> str | None:
    """Return the format that `path` names, when there is no such file.

    Raises WorkloadError when that format needs a file.
    """
    name = ALIASES.get(path, path)
    if name not in FORMATS or Path(path).exists():
        return None
    if not FORMATS[name].generates:
        fetch = f": fetch {FORMATS[name].fetch} and give its path" if FORMATS[name].fetch else ", and needs a file"
        raise fault(path, f"no such file; this is the name of a format{fetch}")
    return name


def detect(path: str) -> str:
    """Return the name of the format a file is in, judged by its content; extensions are asked where no other format fits.

    Raises WorkloadError when none does.
    """
    if path.startswith(BUNDLED_PREFIX):
        path = resolve_bundled(path)
    if (name := _detected(path, FORMATS)) is not None:
        return name
    others = {name: find_format(path, name) for name in installed("format")}
    if others and (name := _detected(path, others)) is not None:
        return name
    known = FORMATS | others
    if Path(path).is_dir():
        possible = ", ".join(
            name for name, declared in known.items() if declared.folder or declared.recognises_directory is not never
        )
        raise fault(path, f"is a directory, and its files are not those of a format that may be one ({possible})")
    data = read_head(path)
    keys = first_keys(data).keys
    number, first_line = next((number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip())
    text = first_line.decode("utf-8", "replace")
    columns = [column.strip() for column in text.split(delimiter_of(text))]
    of_csv = not keys and len(columns) > 1 and all(columns) and columns[0][0] not in "{["
    if of_csv:
        known = {name: declared for name, declared in known.items() if declared.recognises_header is not never}
    needs = "; ".join(f"{name} needs {declared.needs}" for name, declared in known.items())
    if of_csv:
        header = ", ".join(map(repr, columns[:8]))
        raise fault(path, f"no known CSV: its header has the columns {header}. Known tables: {needs}", number)
    raise fault(path, f"{_describe(first_line, keys)}. Known formats: {needs}", None if keys else number)


def _detected(path: str, known: Mapping[str, Format]) -> str | None:
    """Return the first of these formats that recognises the file."""

    def first(by: str, value: object) -> str | None:
        """Return the first format that recognises the value by this function."""
        return next((name for name, declared in known.items() if getattr(declared, by)(value)), None)

    if Path(path).is_dir():
        below = cache(partial(folder_marks, Path(path)))
        return next((name for name, declared in known.items() if declared.is_folder(Path(path), below)), None)
    if name := first("recognises_magic", read_magic(path)):
        return name
    data = read_head(path)
    lines = [line for line in data.split(b"\n") if line.strip()]
    lines = lines[:_LINES_TO_LOOK_AT]
    for line in [data, *lines] if ARRAY_OF_OBJECTS.match(data) else [*lines, data]:  # data: what is over several lines
        seen = first_keys(line)
        for marks in (seen.marks, seen.row_marks):
            if seen.keys and (name := first("recognises", marks)):
                return name
        if line.lstrip().startswith(b"["):
            try:
                value = parse(line)
            except JsonFault:
                continue
            if name := first("recognises_array", value):
                return name
    return first("recognises_header", lines[0].decode("utf-8", "replace").strip())


def _describe(first_line: bytes, keys: Sequence[str]) -> str:
    """Describe the first line of a file of no known format."""
    if keys:
        return f"the format is not known: the first object has the keys {', '.join(map(repr, keys[:8]))}"
    try:
        value = parse(first_line)
    except JsonFault as error:
        return f"invalid JSON: {error}"
    if value == {}:
        return "the format is not known: the first object is empty"
    return f"Input should be a valid dictionary (a JSON object), got {kind_of(value)}"


def bundled() -> dict[str, Path]:
    """Return every workload that ships with the package, by name."""
    files = list(BUNDLED_DIRECTORY.iterdir()) if BUNDLED_DIRECTORY.is_dir() else []
    named = {file.name.removesuffix(end): file for file in files for end in _SUFFIXES if file.name.endswith(end)}
    return dict(sorted(named.items()))


def resolve_bundled(name: str) -> str:
    """Return the path of the bundled workload called `bundled:NAME`. Raises WorkloadError that lists the names there are."""
    known = bundled()
    file = known.get(name.removeprefix(BUNDLED_PREFIX))
    if file is None:
        raise fault(name, f"there is no such bundled workload; choose one of {', '.join(known)}")
    return str(file)
