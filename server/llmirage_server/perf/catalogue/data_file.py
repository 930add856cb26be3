"""A YAML file of the package whose entries are parsed one by one: a start asks for one model and one GPU, not for a hundred.

In such a file the last top-level key holds the entries; each begins with a line of two spaces, its name and a colon, and no
other line does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# The C parser is ten times faster; PyYAML is not always built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ENTRY = re.compile(r"^  (\S+):\n", re.MULTILINE)
_TITLE = re.compile(r"\bname: ([^,}]+)")
_ALIASES = re.compile(r"\baliases: \[([^\]]*)\]")
_CHECKPOINTS = re.compile(r"\bcheckpoints: \{([^}]*)\}")


class DataFile:
    """The entries of one data file, by name."""

    def __init__(self, file: str, key: str) -> None:
        """Read `file` of the package's data folder, whose entries follow the top-level `key`."""
        text = Path(__file__).with_name("data").joinpath(file).read_text(encoding="utf-8")
        self._head, _, rest = text.partition(f"\n{key}:\n")
        parts = _ENTRY.split(rest)
        self._bodies = dict(zip(parts[1::2], parts[2::2], strict=True))

    @property
    def names(self) -> list[str]:
        """Names of all entries, in the file's order."""
        return list(self._bodies)

    def head(self) -> dict[str, Any]:
        """What stands before the entries."""
        head: dict[str, Any] = yaml.load(self._head, Loader=_Loader) or {}
        return head

    def entry(self, name: str) -> dict[str, Any]:
        """Parse one entry. Raises KeyError."""
        entry: dict[str, Any] = yaml.load(self._bodies[name], Loader=_Loader)
        return entry

    def aliases(self, name: str) -> list[str]:
        """Other names of an entry, its `name` the first, without parsing it."""
        title = _TITLE.search(self._bodies[name])
        aliases = [alias.strip(" \"'") for alias in _listed(_ALIASES, self._bodies[name])]
        return [title[1], *aliases] if title else aliases

    def checkpoints(self, name: str) -> dict[str, str]:
        """Names of the same model in other formats, and the formats, without parsing the entry."""
        pairs = (pair.split(":") for pair in _listed(_CHECKPOINTS, self._bodies[name]))
        return {checkpoint.strip(): weights.strip() for checkpoint, weights in pairs}


@cache
def data_file(file: str, key: str) -> DataFile:
    """Return a data file, read once."""
    return DataFile(file, key)


def _listed(pattern: re.Pattern[str], body: str) -> Iterator[str]:
    match = pattern.search(body)
    return (item.strip() for item in match[1].split(",") if item.strip()) if match else iter(())
