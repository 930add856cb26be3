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
    problems: list[str] = []
    lines: dict[Line, str] = {}
    _check_mapping(str(file), root, values, keys, (), problems, lines)
    if problems:
        raise DeploymentError(problems)
    return values, lines


def _check_mapping(
    file: str,
    node: yaml.MappingNode,
    value: Mapping[Any, Any],
    keys: Mapping[str, Key],
    way: Line,
    problems: list[str],
    lines: dict[Line, str],
) -> None:
    seen: set[str] = set()
    meant: set[str] = set()  # keys that a misspelt one stands for: they are not missing too
    for key_node, value_node in node.value:
        name, line = str(key_node.value), key_node.start_mark.line + 1
        where = f"{file}:{line}: {_dotted((*way, name))}"
        lines[(*way, name)] = f"{file}:{line}"
        seen.add(name)
        if name not in keys:
            near = difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
            meant.update(near)
            problems.append(
                f"{where}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(keys)}")
            )
        else:
            _check_value(file, where, value_node, value.get(name), keys[name], (*way, name), problems, lines)
    start = f"{file}:{node.start_mark.line + 1}"
    missing = [name for name, key in keys.items() if key.required and name not in seen and name not in meant]
    problems += [f"{start}: {_dotted((*way, name))}: missing" for name in missing]


def _check_value(
    file: str, where: str, node: Any, value: Any, key: Key, way: Line, problems: list[str], lines: dict[Line, str]
) -> None:
    if key.keys is not None:
        if isinstance(node, yaml.MappingNode):
            _check_mapping(file, node, value, key.keys, way, problems, lines)
        else:
            problems.append(f"{where}: must be a mapping of {', '.join(key.keys)}")
    elif key.items is not None:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            problems.append(f"{where}: must be a list of mappings of {', '.join(key.items)}")
            return
        for i, item in enumerate(node.value):
            lines[(*way, i)] = f"{file}:{item.start_mark.line + 1}"
            if isinstance(item, yaml.MappingNode):
                _check_mapping(file, item, value[i], key.items, (*way, i), problems, lines)
            else:
                problems.append(f"{lines[(*way, i)]}: {_dotted((*way, i))}: must be a mapping of {', '.join(key.items)}")
    elif problem := key.problem(value):
        problems.append(f"{where}: {problem}")


def _dotted(way: Line) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).lstrip(".")


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
