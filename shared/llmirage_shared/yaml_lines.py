"""YAML with the line of every key and value, so that an error can name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmirage_shared.settings import ConfigError
from llmirage_shared.texts import without_surrogates


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value. `value` is plain data: a scalar, or the content of `entries` and `items`."""

    line: int
    value: Any
    entries: tuple[Entry, ...] | None = None  # of a mapping
    items: tuple[YamlNode, ...] | None = None  # of a sequence


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key: value` of a mapping."""

    key: str
    line: int
    node: YamlNode


def read_mapping(path: str, what: str = "a cluster file") -> tuple[Entry, ...]:
    """Return the `key: value` lines of a file; none of an empty one. Raises ConfigError with `file:line: problem`.

    what: the kind of file it should be, for errors.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    if path.endswith(".json"):  # which may be indented by tabs, as YAML may not
        text = _INDENT.sub(lambda found: " " * len(found[0]), text)
    return parse_mapping(text, path, what)


def parse_mapping(text: str, path: str, what: str) -> tuple[Entry, ...]:
    """Return the `key: value` lines of a text, as read_mapping does. path: its name in errors."""
    try:
        root = compose(text, yaml.SafeLoader)
        if root is None:
            return ()
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError([f"{path}:{root.start_mark.line + 1}: {what} is a list of `key: value` lines"])
        entries = _locate(path, root, yaml.SafeLoader(""), depth=0).entries
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError([f"{path}:{line}: not valid YAML: {error.problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not valid YAML: {error}"]) from None
    assert entries is not None
    return entries


# libyaml's is ten times faster; PyYAML is not always built with it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_plain(text: str) -> Any:
    """Return the data of a YAML text. Raises YAMLError, and the ValueError of a date that no calendar has."""
    root = compose(text)
    return None if root is None else yaml.SafeLoader("").construct_document(root)


def compose(text: str, loader: Any = LOADER) -> Any:
    """Return the nodes of a YAML text, None if it is empty.

    Raises YAMLError, also for a key that stands twice in a mapping (PyYAML keeps the last one), and for aliases that
    contain themselves, or stand for far more than is written.
    """
    if text.count("[") + text.count("{") > _SURELY_FLAT or _INDENTED.search(text):
        depth = 0
        event: Any
        for event in yaml.parse(text, LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST_READ:  # libyaml's composer has no limit but the stack
                raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=event.start_mark)
    root = yaml.compose(text, loader)
    if "&" in text and "*" in text:
        _check_aliases(root)
    found = [root]
    seen = {id(root)}
    for node in found:
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        for each in _inner(node):
            if not isinstance(each, yaml.ScalarNode) and id(each) not in seen:
                seen.add(id(each))
                found.append(each)
    return root


def _check_aliases(root: Any) -> None:
    sizes: dict[int, int] = {}  # by node; 0 while it is looked at
    left = [root] if root is not None else []
    while left:
        node = left[-1]
        inner = _inner(node)
        if id(node) not in sizes:
            sizes[id(node)] = 0
            if any(sizes.get(id(each)) == 0 for each in inner):
                raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
            left += [each for each in inner if id(each) not in sizes]
            continue
        left.pop()
        if sizes[id(node)] == 0:
            sizes[id(node)] = 1 + sum(sizes[id(each)] for each in inner)
            if sizes[id(node)] > len(sizes) + _MOST_REPEATED:
                problem = f"aliases stand for more than {_MOST_REPEATED:,} values"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_keys(mapping: Any) -> None:
    known: dict[str, Any] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        if (first := known.setdefault(key.value, key)) is not key:
            problem = f"the key {key.value!r} stands twice in a mapping, first in line {first.start_mark.line + 1}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)


def _inner(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


_MOST_REPEATED = 100_000
_DEEPEST_READ = 200  # PyYAML's own composer takes about 300 levels
_SURELY_FLAT = 50  # brackets, or columns of indentation, of which each may be two levels
_INDENTED = re.compile(rf"^[ ?-]{{{_SURELY_FLAT}}}", re.MULTILINE)
_INDENT = re.compile(r"^\t+", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 32


def _locate(path: str, node: Any, constructor: Any, depth: int) -> YamlNode:
    line = node.start_mark.line + 1
    if depth > _DEEPEST:  # an alias may even contain itself
        raise ConfigError([f"{path}:{line}: nested more than {_DEEPEST} deep"])
    if isinstance(node, yaml.MappingNode):
        entries = tuple(
            Entry(str(_plain(path, key, constructor)), key.start_mark.line + 1, _locate(path, value, constructor, depth + 1))
            for key, value in node.value
        )
        return YamlNode(line, {entry.key: entry.node.value for entry in entries}, entries=entries)
    if isinstance(node, yaml.SequenceNode):
        items = tuple(_locate(path, item, constructor, depth + 1) for item in node.value)
        return YamlNode(line, [item.value for item in items], items=items)
    return YamlNode(line, _plain(path, node, constructor))


def _plain(path: str, node: Any, constructor: Any) -> Any:
    try:
        value = constructor.construct_object(node, deep=True)
        if isinstance(value, str) and _SURROGATE.search(value):  # JSON writes other characters as two of them
            value = without_surrogates(value)
        return value
    except ValueError as error:  # a date, for instance, that no calendar has
        raise ConfigError([f"{path}:{node.start_mark.line + 1}: not valid YAML: {error}"]) from None


def node_of(value: Any, depth: int = 0) -> YamlNode:
    """Return JSON data as a node; its lines are 0. Raises ConfigError for data nested too deeply."""
    if depth > _DEEPEST:
        raise ConfigError([f"nested more than {_DEEPEST} deep"])
    if isinstance(value, Mapping):
        entries = tuple(Entry(str(key), 0, node_of(item, depth + 1)) for key, item in value.items())
        return YamlNode(0, value, entries=entries)
    if isinstance(value, list | tuple):
        return YamlNode(0, value, items=tuple(node_of(item, depth + 1) for item in value))
    return YamlNode(0, value)
