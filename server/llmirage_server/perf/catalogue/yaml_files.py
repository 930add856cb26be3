"""YAML files of models, GPUs and more: the package's own, parsed entry by entry, and the user's, checked key by key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from llmirage_server.perf import DeploymentError
from llmirage_shared.yaml_lines import LOADER, compose

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
        return list(self._bodies)

    def head(self) -> dict[str, Any]:
        head: dict[str, Any] = yaml.load(self._head, LOADER) or {}
        return head

    def entry(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = yaml.load(self._bodies[name], LOADER)
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


@dataclass(frozen=True, slots=True)
class Key:
    """The content of a key: a value, a mapping of `keys`, or (`items`) a list of such mappings."""

    problem: Callable[[Any], str] = lambda value: ""  # of the value; "" where nothing is wrong with it
    keys: Mapping[str, Key] | None = None
    items: Mapping[str, Key] | None = None
    required: bool = False


Line = tuple[str | int, ...]  # the way to a value: keys, and indices of lists


def is_yaml_path(name: str) -> bool:
    """Return if a name is that of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def read_own(
    path: str, keys: Mapping[str, Key], about: str, given: tuple[str, Mapping[str, Key]] | None = None
) -> tuple[dict[str, Any], dict[Line, str]]:
    """Return the content of a file, and `file:line` of every value in it.

    given: a key, and the keys of files that have it. `about` ends the message for a file that is no mapping. Raises
    DeploymentError with every problem, each as `file:line: key: problem`.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
        root = compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise DeploymentError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DeploymentError(f"{file}: cannot be read: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise DeploymentError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:  # a date that no calendar has
        raise DeploymentError(f"{file}: not valid YAML: {error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise DeploymentError(f"{file}:1: {about}")
    if given is not None and given[0] in values:
        keys = given[1]
    checker = _Checker(str(file))
    checker.mapping(root, values, keys, ())
    if checker.problems:
        raise DeploymentError(checker.problems)
    return values, checker.lines


class _Checker:
    """The problems of one file, and `file:line` of its values."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[str] = []
        self.lines: dict[Line, str] = {}

    def mapping(self, node: yaml.MappingNode, value: Mapping[Any, Any], keys: Mapping[str, Key], way: Line) -> None:
        there: set[str] = set()  # with keys that a misspelt one stands for: they are not missing too
        for key_node, value_node in node.value:
            name = str(key_node.value)
            here = (*way, name)
            self.lines[here] = f"{self._file}:{key_node.start_mark.line + 1}"
            there.add(name)
            if name in keys:
                self._value(value_node, value.get(name), keys[name], here)
                continue
            near = difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
            there.update(near)
            self._problem(here, "unknown key; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(keys)}"))
        for name, key in keys.items():
            if key.required and name not in there:
                self.lines[*way, name] = f"{self._file}:{node.start_mark.line + 1}"
                self._problem((*way, name), "missing")

    def _value(self, node: Any, value: Any, key: Key, way: Line) -> None:
        if key.keys is not None:
            if isinstance(node, yaml.MappingNode):
                self.mapping(node, value, key.keys, way)
            else:
                self._problem(way, f"must be a mapping of {', '.join(key.keys)}")
        elif key.items is not None:
            if not isinstance(node, yaml.SequenceNode) or not node.value:
                self._problem(way, f"must be a list of mappings of {', '.join(key.items)}")
                return
            for i, item in enumerate(node.value):
                self.lines[*way, i] = f"{self._file}:{item.start_mark.line + 1}"
                self._value(item, value[i], Key(keys=key.items), (*way, i))
        elif problem := key.problem(value):
            self._problem(way, problem)

    def _problem(self, way: Line, problem: str) -> None:
        dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).lstrip(".")
        self.problems.append(f"{self.lines[way]}: {dotted}: {problem}")


def whole(value: Any) -> str:
    """Return the problem with a value that is no positive integer."""
    return "" if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "must be a positive integer"


def natural(value: Any) -> str:
    """Return the problem with a value that is no integer of 0 or more."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return "" if good else "must be an integer of 0 or more"


def positive(value: Any) -> str:
    """Return the problem with a value that is no positive number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return "" if good else "must be a positive number"


def truth(value: Any) -> str:
    """Return the problem with a value that is neither true nor false."""
    return "" if isinstance(value, bool) else "must be true or false"


def text(value: Any) -> str:
    """Return the problem with a value that is no text."""
    return "" if isinstance(value, str) and value.strip() else "must be text"


def one_of(*choices: str) -> Callable[[Any], str]:
    """Return a check that a value is one of these words."""
    return lambda value: "" if value in choices else f"must be one of {', '.join(choices)}"
