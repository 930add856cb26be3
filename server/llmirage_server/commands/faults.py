"""`llmirage faults`: its options. The work is done by fault_list.py."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import switch


class FaultsSettings:
    """Settings of `llmirage faults`."""

    json: bool = switch(OPTIONS, "Print JSON.")


faults = command(
    "faults",
    "llmirage_server.commands.fault_list:faults",
    [argument("kind", metavar="[KIND]", required=False), *options(FaultsSettings)],
    """List the faults that a server can be told to make, or explain one.

    `llmirage serve --faults FILE` makes them (docs/faults.md).
    """,
    examples=(
        "llmirage faults",
        "llmirage faults cut",
    ),
)
