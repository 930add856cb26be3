"""`llmirage compare`: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

import contextlib
import math

from llmirage_shared.command_line import OPTIONS, argument, command, options
from llmirage_shared.settings import setting, switch


def tolerance(text: str) -> float:
    """A share, from percent with or without the sign. Raises ValueError."""
    with contextlib.suppress(ValueError):
        if 0 <= (percent := float(text.removesuffix("%"))) < math.inf:
            return percent / 100
    raise ValueError(f"must be a number of percent from 0 up, such as 5%, not {text!r}")


class CompareSettings:
    confidence: float = setting(95.0, OPTIONS, "Confidence level of the intervals.", metavar="PERCENT", least=50, most=99.9)
    fail_if_worse: float | None = setting(
        None,
        OPTIONS,
        "Exit with status 1 if a metric is worse than the baseline's by more than chance and this tolerance; without a "
        "value the tolerance is 0. Of 50 pairs of runs of one system about one fails by chance.",
        metavar="[PERCENT]",
        read=tolerance,
    )
    json: bool = switch(OPTIONS, "Print a JSON object instead of tables.")


compare = command(
    "compare",
    "llmirage_client.commands.actions.compare:compare",
    [argument("baseline"), argument("runs", "RUN...", many=True), *options(CompareSettings)],
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
