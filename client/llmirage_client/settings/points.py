"""Runs at several points of load: sweeps, and the search for the highest load that meets an objective."""

from __future__ import annotations

from typing import Literal

from llmirage_shared.settings import switch, under

POINTS = "Several loads (lists above make a sweep)"
_points = under(POINTS)


class PointSettings:
    """What a sweep and a search need besides the load of each point."""

    stop_at_saturation: bool = switch(
        POINTS,
        "End a sweep at the first point where the endpoint no longer follows the load (docs/load.md says how it is seen).",
    )
    find_max: str | None = _points(
        None,
        'Search the highest load that meets an SLO such as "ttft_p99<500ms,tpot_p95<30ms": doubling, then bisection, new '
        "conversations for every probe.",
        aliases=("sla_params",),
        metavar="SLO",
    )
    find_max_variable: Literal["concurrency", "rate", "parallel", "request_rate"] | None = _points(
        None,
        "What --find-max varies.",
        aliases=("sla_variable",),
        unset="rate with --request-rate, else concurrency; their value is tried first",
    )
    find_max_lower_bound: float | None = _points(
        None, "The lowest load tried.", aliases=("sla_lower_bound",), above=0, unset="1; a hundredth of the first for rates"
    )
    find_max_upper_bound: float = _points(
        1024.0, "The highest load tried.", aliases=("sla_upper_bound",), above=0, infinite=True
    )
    find_max_precision: float = _points(0.05, "End the search when the answer is known to this share.", least=0.001, most=1)
    sleep_interval: float = _points(0.0, "Pause between points.", metavar="S", least=0)
