"""Runs at several points of load: sweeps, and the search for the highest load that meets an objective."""

from __future__ import annotations

from typing import Literal

from llmirage_shared.settings import switch, under

POINTS = "Sweeps and searches (a list of loads above makes a sweep)"
_points = under(POINTS)


class PointSettings:
    """What a sweep and a search need besides the load of each point."""

    stop_at_saturation: bool = switch(
        POINTS,
        "End a sweep at the first saturated point (docs/load.md defines saturation).",
    )
    find_max: str | None = _points(
        None,
        'Search for the highest load that meets these objectives, such as "ttft_p99<500ms,tpot_p95<30ms", by '
        "doubling and bisection.",
        aliases=("sla_params",),
        metavar="SLO",
    )
    find_max_variable: Literal["concurrency", "rate", "parallel", "request_rate"] | None = _points(
        None,
        "What --find-max varies.",
        aliases=("sla_variable",),
        unset="rate with --request-rate, else concurrency",
    )
    find_max_lower_bound: float | None = _points(
        None, "Lowest load to try.", aliases=("sla_lower_bound",), above=0, unset="1; a hundredth of the first rate"
    )
    find_max_upper_bound: float = _points(
        1024.0, "Highest load to try.", aliases=("sla_upper_bound",), above=0, infinite=True
    )
    find_max_precision: float = _points(0.05, "Relative precision of the answer.", least=0.001, most=1)
    sleep_interval: float = _points(0.0, "Pause between points.", metavar="S", least=0)
