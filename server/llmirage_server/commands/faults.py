"""`llmirage faults`: its options. The work is done by fault_list.py."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import switch


class FaultsSettings:
    json: bool = switch(OPTIONS, "Print JSON.")


faults = command(
    "faults",
    "llmirage_server.commands.fault_list:faults",
    [argument("kind", metavar="[KIND]", required=False), *options(FaultsSettings)],
    """List the faults that a server can be told to make, or explain one.

    \b
    llmirage faults                    # all of them
    llmirage faults cut                # its parameters and an example
    llmirage serve --faults FILE       # a server that makes them (docs/faults.md)
    """,
)
