"""The command-line options that go to the format of a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from llmirage_client.commands.flags.sections import flag

_SECTION = "Workload"


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --format-option and the words for the most common ones."""
    options = (
        flag(
            _SECTION,
            "--format-option",
            "--multi-turn-args",
            "--dataset-args",
            multiple=True,
            metavar="KEY=VALUE|JSON",
            help="An option of the file's format ('llmirage catalog formats --json' tells about them); may be repeated.",
        ),
        flag(
            _SECTION,
            "--min-turns",
            type=click.IntRange(1),
            metavar="N",
            help="Fewest turns, where the format draws their number.",
        ),
        flag(
            _SECTION,
            "--max-turns",
            type=click.IntRange(1),
            metavar="N",
            help="Leave out the turns of a conversation after N.",
        ),
        flag(
            _SECTION,
            "--dataset-offset",
            type=click.IntRange(0),
            metavar="N",
            help="Leave out the first N conversations of the file.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def given_options(settings: dict[str, Any], offered: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `registry.load` takes as options and as offered.

    --min-turns is only offered: formats that do not draw a number of turns have no use for it.
    """
    from llmirage_client.workload.format_options import parse_pairs

    try:
        options = parse_pairs(settings["format_option"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format-option") from None
    for name in ("max_turns", "dataset_offset"):
        if settings[name] is not None:
            options[name] = settings[name]
    return options, {**offered, "min_turns": settings["min_turns"]}
