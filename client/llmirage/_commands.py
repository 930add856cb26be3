"""Keyword arguments as a command's options: the same names, limits and messages, as the command's own parser reads them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from llmirage._settings import keywords, unknown
from llmirage_shared.command_line import SettingOption
from llmirage_shared.settings import About, ConfigError

# The commands, and what of their options functions have not: they return it, or take it under their own names.
COMMANDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "simulate": (
        "llmirage_client.commands.simulate:simulate",
        ("artifact_dir", "overwrite", "junit", "records", "json", "trace", "input_file", "open"),
    ),
    "size": ("llmirage_client.commands.size:size", ("json", "html", "open")),
    "sweep": ("llmirage_client.commands.sweep:sweep", ("json", "open")),
    "calibrate": ("llmirage_client.commands.calibrate:calibrate", ("json", "output")),
    "run": ("llmirage_client.commands.run:run", ("junit", "json", "open", "input_file")),
    "generate": ("llmirage_client.commands.generate:generate", ("output", "show", "json")),
    "inspect": ("llmirage_client.commands.inspect:inspect", ("json",)),
    "step": ("llmirage_server.commands.step:step", ("json",)),
}


def command_of(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def options_of(name: str) -> dict[str, SettingOption]:
    """The options that are keyword arguments, by the setting's name."""
    left_out = COMMANDS[name][1]
    found = [param for param in command_of(name).params if isinstance(param, SettingOption)]
    return {param.about.name: param for param in found if param.about.name not in left_out}


def parsed(name: str, arguments: Sequence[object], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the command's function gets when the command line says this. arguments: those without a flag.

    Raises ConfigError with all problems, in the words of the command.
    """
    options = options_of(name)
    known = keywords({one: option.about for one, option in options.items()})
    problems = [unknown(keyword, known) for keyword in given if keyword not in known]
    words: list[str] = []
    seen: set[str] = set()
    for keyword, value in given.items():
        if keyword in known and value is not None:
            if known[keyword].name in seen:
                problems.append(f"{keyword}: given twice, the other time as {known[keyword].name}")
            seen.add(known[keyword].name)
            try:
                words += _words(options[known[keyword].name], known[keyword], value)
            except ValueError as error:
                problems.append(f"{keyword} {error}")
    if problems:
        raise ConfigError(problems)
    texts = [os.fspath(one) if isinstance(one, os.PathLike) else str(one) for one in arguments if one is not None]
    try:
        context = command_of(name).make_context(name, [*words, "--", *texts])
    except click.UsageError as error:
        raise ConfigError(error.format_message().splitlines()) from None
    with context:
        return dict(context.params)


def _words(option: SettingOption, about: About, value: Any) -> Iterator[str]:
    """An argument as a command line has it. Raises ValueError for a value that it cannot have."""
    flag = next(one for one in option.opts if one.startswith("--"))
    if (bool in about.kinds) != isinstance(value, bool):
        raise ValueError("must be true or false, not " + repr(value) if bool in about.kinds else f"must not be {value}")
    if isinstance(value, bool):
        off = option.secondary_opts[0] if option.secondary_opts else None
        if word := flag if value else off:
            yield word
        return
    if isinstance(value, Mapping):
        value = [f"{key}={one}" for key, one in value.items()]
    if about.repeated and not isinstance(value, str | os.PathLike):
        yield from [f"{flag}={_text(one)}" for one in value]
    elif isinstance(value, list | tuple):
        yield f"{flag}={','.join(map(_text, value))}"
    else:
        yield f"{flag}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):  # decode=[(64, 4096)]
        return "@".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
