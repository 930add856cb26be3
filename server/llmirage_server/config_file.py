"""Cluster files: YAML with the names of `ClusterConfig`; every problem is told with its line, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmirage_server.config import ALIASES, DEFAULTS, ClusterConfig, ConfigError, canonical_name, convert, did_you_mean


def read_cluster_file(path: str) -> dict[str, Any]:
    """Return the settings of a file by field name, converted and each checked by itself.

    Raises ConfigError with `file:line: key: problem` for each unknown key, repeated key, wrong type or bad value.
    """
    import yaml  # only needed here, and start-up time counts

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    entries: list[tuple[Any, Any, int]] = []
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError([f"{path}:{root.start_mark.line + 1}: a cluster file is a list of `key: value` lines"])
        constructor = yaml.SafeLoader("")
        for key, value in root.value:
            line = key.start_mark.line + 1
            try:
                entry = constructor.construct_object(key, deep=True), constructor.construct_object(value, deep=True)
            except ValueError as error:  # a date, for instance, that no calendar has
                raise ConfigError([f"{path}:{line}: not valid YAML: {error}"]) from None
            entries.append((*entry, line))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError([f"{path}:{line}: not valid YAML: {error.problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not valid YAML: {error}"]) from None
    return _check(path, entries)


def _check(path: str, entries: list[tuple[Any, Any, int]]) -> dict[str, Any]:
    problems: list[str] = []
    settings: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value, line in entries:
        name = canonical_name(str(key))
        if name is None:
            known = [*DEFAULTS, *ALIASES]
            hint = did_you_mean(key, known) or f"; known: {', '.join(DEFAULTS)}"
            problems.append(f"{path}:{line}: {key}: unknown key{hint}")
        elif name in lines:
            problems.append(f"{path}:{line}: {key}: already set in line {lines[name]}")
        else:
            lines[name] = line
            try:
                settings[name] = convert(name, value)
                ClusterConfig(**{name: settings[name]})
            except ConfigError as error:
                problems += [f"{path}:{line}: {key}: {problem}" for problem in error.problems]
            except ValueError as error:
                problems.append(f"{path}:{line}: {key}: {error}")
    if problems:
        raise ConfigError(problems)
    return settings
