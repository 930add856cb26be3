"""`llmirage inspect`: the shape of a workload, without sending anything."""

from __future__ import annotations

from llmirage_client.settings.workload import InspectSettings
from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import at_call, switch


class InspectOutput:
    """Output of `llmirage inspect`."""

    json: bool = switch(OPTIONS, "Print JSON.")


inspect = command(
    "inspect",
    "llmirage_client.commands.actions.inspect:inspect",
    [
        argument("file", names=at_call("llmirage_client.workload.synthesis.generated:workload_names")),
        *options(InspectSettings),
        *options(InspectOutput),
    ],
    """Show statistics of a workload file, or bundled:NAME: turns, branches, lengths, arrivals and prefix reuse.

    Prefix reuse is the share of prompt tokens that an unlimited prefix cache finds when requests run one after another. It
    is an upper bound for any server. Exit status: 2 if the file is not valid.
    """,
    examples=(
        "llmirage inspect bundled:rag",
        "llmirage inspect requests.jsonl --json",
    ),
)
