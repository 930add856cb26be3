"""Options that say how the workload file is read and its prompts are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import flag, together
from llmirage_client.commands.format_flags import format_options, given_options

if TYPE_CHECKING:
    from llmirage_client.workload.session import Workload

_SECTION = "Workload"

_BATCHES = ("text", "image", "audio", "video")
_ALIASES = {"text": ("--batch-size-text", "--prompt-batch-size")} | {
    kind: (f"--{kind}-batch-size", f"--batch-size-{kind}") for kind in _BATCHES[1:]
}

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
    *(
        flag(
            _SECTION,
            *_ALIASES[kind],
            f"batch_size_{kind}",
            type=click.IntRange(0),
            metavar="N",
            help=f"{kind.capitalize()}s of a request drawn from a random_pool.  [default: 1]",
        )
        for kind in _BATCHES
    ),
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
    options, offered = given_options(settings, offered)
    options |= {name: settings[name] for name in (f"batch_size_{kind}" for kind in _BATCHES) if settings[name] is not None}
    return load(file, settings["format_name"], options, offered)


def workload_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions."""
    return {"session_prefix": settings["session_prefix"], "tokenizer": settings["tokenizer"]}
