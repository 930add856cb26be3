"""Options that say what is reported, and where to."""

from __future__ import annotations

from typing import Any

import click

from llmirage_client.commands.flags.sections import flag, together

_SECTION = "Report"

measure_flags = together(
    flag(
        _SECTION,
        "--artifact-dir",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Where the files go.  [default: artifacts/MODEL-ENDPOINT-LOAD]",
    ),
)


def measure_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of RunOptions."""
    return {}
