"""Names and types of all settings that a flag or a line of a cluster file can give."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from llmirage_server.config.cluster import ClusterConfig
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.config.settings import About

_FIELDS = {field.name: field for field in dataclasses.fields(ClusterConfig) if "about" in field.metadata}

ABOUT: Mapping[str, About] = {name: field.metadata["about"] for name, field in _FIELDS.items()}
DEFAULTS: Mapping[str, Any] = {name: field.default for name, field in _FIELDS.items()}
FIELD_TYPES: Mapping[str, Any] = {name: hint for name, hint in get_type_hints(ClusterConfig).items() if name in _FIELDS}
ALIASES: Mapping[str, str] = {alias: name for name, about in ABOUT.items() for alias in about.aliases}
INSTANCE_SETTINGS = frozenset(field.name for field in dataclasses.fields(InstanceSettings))


def canonical_name(key: str) -> str | None:
    """The field that a key means; dashes and underscores are the same. None for an unknown key."""
    name = key.replace("-", "_").lower()
    name = ALIASES.get(name, name)
    return name if name in DEFAULTS else None


def convert(name: str, value: Any) -> Any:
    """A value of a cluster file as the field's type. Raises ValueError saying what was expected."""
    if name == "speed" and value == "max":
        return math.inf
    if isinstance(DEFAULTS[name], tuple):
        what = "a name" if name == "served_model_name" else "a text"
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise ValueError(f"must be {what} or a list of them, not {value!r}")
        return tuple(names)
    return convert_to(FIELD_TYPES[name], value, " or max" if name == "speed" else "")


def convert_to(hint: Any, value: Any, alternative: str = "") -> Any:
    """A YAML value as a plain type, a Literal or an optional one of these. Raises ValueError saying what was expected."""
    accepted = plain_types(hint)
    if value is None and type(None) in accepted:
        return None
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in accepted:
        expected = " or ".join(_TYPE_NAMES[kind] for kind in accepted if kind is not type(None))
        raise ValueError(f"must be {expected}{alternative}, not {value!r}")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def plain_types(hint: Any) -> tuple[type, ...]:
    """The plain types of a hint: those of a union, str for a Literal."""
    if get_origin(hint) is Literal:
        return (str,)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in plain_types(part))
    return (hint,)
