"""Extensions: objects of the user's own, named `module:NAME`, or by the name of an entry point of an installed distribution.

One loader serves all kinds. A module is found as Python finds it, or in the working directory.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any, Literal

from llmirage_shared.settings import did_you_mean

Kind = Literal["router", "format", "fault", "reply source", "metric"]
GROUPS: Mapping[Kind, str] = {
    "router": "llmirage.routers",
    "format": "llmirage.formats",
    "fault": "llmirage.faults",
    "reply source": "llmirage.replies",
    "metric": "llmirage.metrics",
}


@cache
def installed(kind: Kind) -> Mapping[str, str]:
    """Return the extensions that installed distributions have: `module:NAME` by the name of the entry point."""
    found = metadata.entry_points(group=GROUPS[kind])
    return {one.name: one.value.replace(" ", "") for one in sorted(found, key=lambda one: one.name)}


def is_extension(kind: Kind, name: str) -> bool:
    """Return whether a name can only be that of an extension: `module:NAME`, or an entry point's."""
    return ":" in name or name in installed(kind)


def find_extension(kind: Kind, name: str) -> Any:
    """Return the object of that name. Raises ValueError, in one line, if there is none or its module cannot be imported."""
    module_name, _, path = installed(kind).get(name, name).partition(":")
    if not module_name or not path:
        raise ValueError(f"{kind} {name!r}: write it as module:name, like my_{kind.rpartition(' ')[2]}s:mine")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end: a file here must not hide an installed package
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{kind} {name!r}: cannot import {module_name!r}: {error_text(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{kind} {name!r}: {module_name!r} has no {path!r}{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    return found


def error_text(error: Exception) -> str:
    """Return an exception of the user's code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
