"""Keeps credentials out of what a run writes down: its command line, its options, its URL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "<hidden>"

_SECRET_NAME = re.compile(r"authorization|api[-_]?key|token$|secret|password|cookie", re.IGNORECASE)
_SECRET_HEADER = re.compile(r"([\w-]*(?:authorization|api[-_]?key|token|secret|cookie))\s*:.*", re.IGNORECASE | re.DOTALL)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def hide_in_text(text: str) -> str:
    """Hide the value of a secret header line, and user and password of a URL."""
    if match := _SECRET_HEADER.fullmatch(text):
        return f"{match[1]}: {HIDDEN}"
    return _URL_USER.sub(HIDDEN, text)


def hide_in_command(arguments: Sequence[str]) -> str:
    """Return a command line as a shell would read it, without the values of its secrets."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif argument.startswith("--") and _SECRET_NAME.search(name):
            shown.append(f"{name}={HIDDEN}" if equals else argument)
            hide_next = not equals
        elif name == "--header" and equals:
            shown.append(f"{name}={hide_in_text(argument[len(name) + 1 :])}")
        elif argument.startswith("-H") and len(argument) > 2:
            shown.append("-H" + hide_in_text(argument[2:]))
        else:
            shown.append(hide_in_text(argument))
    return shlex.join(shown)


def hide_in_options(value: Any, name: str = "") -> Any:
    """Return a copy of JSON-like settings without the values of secrets, however deep they lie."""
    if isinstance(value, str):
        return HIDDEN if value and _SECRET_NAME.search(name) else hide_in_text(value)
    if isinstance(value, Mapping):
        return {k: hide_in_options(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        # A pair (name, value) is how headers are often kept.
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str) and _SECRET_NAME.search(value[0]):
            return [value[0], HIDDEN]
        return [hide_in_options(v, name) for v in value]
    return value
