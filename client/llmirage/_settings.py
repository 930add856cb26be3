"""Keyword arguments as settings: the names, conversions, limits and messages of the command line's options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from llmirage_shared.settings import About, ConfigError, did_you_mean, settings_of


def settings_named(given: Mapping[str, Any], kind: type[Any], but: Iterable[str] = ()) -> dict[str, Any]:
    """What was given, by the names of the settings. Raises ConfigError with all problems.

    kind: the class that declares the settings. but: names that are not among them here. None: not given.
    """
    known = keywords(settings_of(kind), but)
    found: dict[str, Any] = {}
    problems: list[str] = []
    for keyword, value in given.items():
        about = known.get(keyword)
        if about is None:
            problems.append(unknown(keyword, known))
        elif about.name in found:
            problems.append(f"{keyword}: given twice, the other time as {about.name}")
        elif value is not None:
            try:
                found[about.name] = about.convert(os.fspath(value) if isinstance(value, os.PathLike) else value)
            except ValueError as error:
                problems.append(f"{keyword} {error}")
    if problems:
        raise ConfigError(problems)
    return found


def keywords(settings: Mapping[str, About], but: Iterable[str] = ()) -> dict[str, About]:
    """The settings by every keyword that stands for them: the flag's name, and its other names."""
    known: dict[str, About] = {}
    for name, about in settings.items():
        if name not in but:
            names = (about.flag or name, name, *about.other_names)
            known |= {one.replace("-", "_"): about for one in names if len(one) > 1}
    return known


def unknown(keyword: str, known: Iterable[str]) -> str:
    return f"{keyword}: there is no such setting{did_you_mean(keyword, known)}"
