"""Options that say how the workload file is read and its prompts are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import flag, together
from llmirage_client.commands.format_flags import format_options, given_options

if TYPE_CHECKING:
    from llmirage_client.workload.session import Workload

_SECTION = "Workload"

workload_flags = together(
    flag(
        _SECTION,
        "--format",
        "--custom-dataset-type",
        "format_name",
        metavar="FORMAT",
        help="Format of the file ('llmirage catalog formats' lists them).  [default: detected]",
    ),
    format_options,
    flag(
        _SECTION,
        "--session-prefix",
        type=click.Choice(["extend", "none"]),
        default="extend",
        show_default=True,
        help="Calls given as token counts: each continues its session's last one, or shares nothing with it.",
    ),
    flag(
        _SECTION,
        "--tokenizer",
        metavar="NAME",
        help="Folder or hub name of the endpoint's tokenizer, to write prompts of exact "
        "length.  [default: the one in the package, which `llmirage serve` uses]",
    ),
)


def load_workload(file: str, settings: dict[str, Any], conversations: int | None) -> Workload:
    """Raises WorkloadError. conversations: how many the run takes, where it says."""
    from llmirage_client.workload.registry import load

    offered = {
        "tokenizer": settings["tokenizer"],
        "seed": settings["random_seed"],
        "conversations": conversations,
    }
    return load(file, settings["format_name"], *given_options(settings, offered))


def workload_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions."""
    return {"session_prefix": settings["session_prefix"], "tokenizer": settings["tokenizer"]}
