"""`llmirage compare`: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

from llmirage_client.settings.output import CompareOutput, CompareSettings
from llmirage_shared.command_line import argument, command, options

compare = command(
    "compare",
    "llmirage_client.commands.actions.compare:compare",
    [argument("baseline"), argument("runs", "RUN...", many=True), *options(CompareSettings), *options(CompareOutput)],
    """Compare the metrics of each RUN with those of BASELINE.

    A run is a folder of `llmirage run` or AIPerf, or its profile_export.jsonl. The confidence interval of a difference comes
    from a bootstrap over conversations and over parts of the run; a difference is significant if its interval does not
    include zero. Exit status: 1 if --fail-if-worse finds a worse metric, 2 if a run cannot be read or judged.
    """,
    bare={"--fail-if-worse": "0"},
    examples=(
        "llmirage compare artifacts/low artifacts/high",
        "llmirage compare artifacts/low artifacts/high --fail-if-worse 5%",
    ),
)
