"""`llmirage compare`: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


class CompareSettings:
    confidence: float = setting(95.0, OPTIONS, "Confidence level of the intervals.", metavar="PERCENT", least=50, most=99.9)
    fail_if_worse: bool = switch(OPTIONS, "Exit with status 1 if a metric is significantly worse than the baseline's.")
    json: bool = switch(OPTIONS, "Print a JSON object instead of tables.")


compare = command(
    "compare",
    "llmirage_client.commands.actions.compare:compare",
    [argument("baseline"), argument("runs", "RUN...", many=True), *options(CompareSettings)],
    """Compare the metrics of each RUN with those of BASELINE.

    A run is a folder of `llmirage run` or AIPerf, or its profile_export.jsonl. The confidence interval of a difference comes
    from a bootstrap over conversations; a difference is significant if its interval does not include zero. Exit status: 2
    if a run cannot be read.
    """,
)
