"""`llmirage compare`: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


class CompareSettings:
    confidence: float = setting(
        95.0, OPTIONS, "How sure the bounds of a difference are.", metavar="PERCENT", least=50, most=99.9
    )
    fail_if_worse: bool = switch(OPTIONS, "Exit status 1 when a figure is worse than the baseline's by more than noise.")
    json: bool = switch(OPTIONS, "Print a JSON object instead of tables.")


compare = command(
    "compare",
    "llmirage_client.commands.actions.compare:compare",
    [argument("baseline"), argument("runs", "RUN...", many=True), *options(CompareSettings)],
    """Compare the figures of each RUN with those of BASELINE.

    A run is the folder of its files, or its profile_export.jsonl; AIPerf's are read as well. The bounds of a difference come
    from drawing each run's conversations anew, again and again: a difference whose bounds do not include zero is more than
    the runs vary by chance. Exit status 2 when a run cannot be read.
    """,
)
