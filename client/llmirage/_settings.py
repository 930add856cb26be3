"""Keyword arguments as settings: the names, conversions, limits and messages of the settings themselves."""

from __future__ import annotations

import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from llmirage_shared.settings import About, ConfigError, did_you_mean, instance_of, settings_of

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_WRAPPED = textwrap.TextWrapper(100, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
_FLAG = re.compile(r"(?<![\w`])--([a-z][a-z-]+)")

PathName = str | os.PathLike[str]


def takes_settings(kind: type[Any]) -> Callable[[F], F]:
    """Let a function take every setting of a kind by any of its names, beyond the arguments that its signature has.

    Other names of an argument stand for it; settings that are no arguments join those of `set`.
    """

    def decorate(function: F) -> F:
        written = inspect.signature(function).parameters
        needed = [name for name, one in written.items() if one.kind is one.KEYWORD_ONLY and one.default is one.empty]

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            if others := [name for name in given if name not in written]:
                _place(others, given, written, known_settings(kind))
            if missing := [name for name in needed if given.get(name) is None]:
                raise ConfigError(f"{name} must be given" for name in missing)
            return function(*arguments, **given)

        if call.__doc__:
            call.__doc__ = f"{inspect.cleandoc(call.__doc__)}\n\n{_settings_help(written, known_settings(kind))}"
        return cast("F", call)

    return decorate


def _settings_help(written: Iterable[str], known: Mapping[str, About]) -> str:
    """Return what `help()` lists below a function's docstring: its arguments that are settings, with their defaults."""
    by_name = {name: about for about in known.values() for name in about.keys}
    lines = []
    for name in written:
        if (about := by_name.get(name)) is not None:
            default = about.unset or ("" if about.default in (None, (), "") or about.required else f"{about.default}")
            text = f"{' '.join(about.help.split())}{f' Default: {default}.' if default else ''}"
            lines.append(f"{name}: {_FLAG.sub(lambda found: found[1].replace('-', '_'), text)}")
    return "\n".join(["Settings:", *[part for line in lines for part in _WRAPPED.wrap(line)]])


def _place(others: Iterable[str], given: dict[str, Any], written: Iterable[str], known: Mapping[str, About]) -> None:
    """Move keyword arguments to the places of their settings. Raises ConfigError with all problems."""
    by_name = {name: about for about in known.values() for name in about.keys}
    problems = []
    for name in others:
        if (about := by_name.get(name)) is None:
            problems.append(_unknown(name, by_name))
            continue
        value = given.pop(name)
        argument = next((one for one in about.keys if one in written), None)
        if argument is None:
            given["set"] = {**(given.get("set") or {}), name: value}
        elif value is not None and given.get(argument) is not None:
            problems.append(f"{name}: given twice, the other time as {argument}")
        elif value is not None:
            given[argument] = value
    if problems:
        raise ConfigError(problems)


def settings_from(kind: type[T], given: Mapping[str, Any], *, but: Iterable[str] = ()) -> T:
    """Make settings from keyword arguments. given: None stands for not given; `set` has more of them.

    but: names of arguments that are no settings. Raises ConfigError with all problems.
    """
    values = named_values(given, known_settings(kind), but)
    cluster = _cluster_kind(kind)
    return instance_of(kind, values) if cluster is None else instance_of(kind, values, cluster=cluster.of(values))


def known_settings(kind: type[Any]) -> dict[str, About]:
    """Return the settings of a kind by name, with those of its cluster."""
    cluster = _cluster_kind(kind)
    return {**({} if cluster is None else cluster.known()), **settings_of(kind)}


def _cluster_kind(kind: type[Any]) -> Any:
    field = getattr(kind, "__dataclass_fields__", {}).get("cluster")
    return None if field is None else field.default_factory


def named_values(given: Mapping[str, Any], settings: Mapping[str, About], but: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values by the names of the settings. Raises ConfigError with all problems."""
    by_name = {name: about for about in settings.values() for name in about.keys}
    arguments = [(name, value) for name, value in given.items() if name not in ("set", *but) and value is not None]
    found: dict[str, Any] = {}
    problems: list[str] = []
    for keyword, value in (*arguments, *(given.get("set") or {}).items()):
        if (about := by_name.get(keyword.replace("-", "_"))) is None:
            problems.append(_unknown(keyword, by_name))
        elif about.name in found:
            problems.append(f"{keyword}: given twice, the other time as {about.name}")
        elif value is not None:
            try:
                found[about.name] = about.read_value(_plain(about, value))
            except ValueError as error:
                problems.append(f"{keyword} {error}")
    if problems:
        raise ConfigError(problems)
    return found


def _unknown(keyword: str, known: Iterable[str]) -> str:
    return f"{keyword}: there is no such setting{did_you_mean(keyword, known)}"


def _plain(about: About, value: Any) -> Any:
    """Return a value of Python as files have it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if about.repeated and not about.several and isinstance(value, list | tuple):
        return [_text(one) for one in value]
    return value


def _text(value: Any) -> str:
    """Return an element of a list as the command line has it: (64, 4096) of `decode` is 64@4096."""
    return "@".join(map(str, value)) if isinstance(value, tuple) else str(value)
