"""Options of runs at several points of load: sweeps, and the search for the highest load that meets an objective."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.lists import only
from llmirage_client.commands.flags.sections import flag, together

if TYPE_CHECKING:
    from llmirage_client.load.points import Point, Variable
    from llmirage_client.measure.slo import Objective
    from llmirage_client.workload.session import Workload

_SECTION = "Several loads (lists above make a sweep)"
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_UPPER = 1024
_PROBES = 16  # about as many as a search takes
_SEARCHED = 4096  # conversations for a search, when nothing says how many a probe takes
_LISTS = ("concurrency", "request_rate", "num_conversations", "request_count")
_VARIABLES: tuple[Variable, ...] = ("concurrency", "request_rate")

sweep_flags = together(
    flag(
        _SECTION,
        "--stop-at-saturation",
        is_flag=True,
        help="End a sweep at the first point where the endpoint no longer follows the load (docs/load.md says how it is "
        "seen).",
    ),
    flag(
        _SECTION,
        "--find-max",
        "--sla-params",
        metavar="SLO",
        help='Search the highest load that meets an SLO such as "ttft_p99<500ms,tpot_p95<30ms": doubling, then bisection, '
        "new conversations for every probe.",
    ),
    flag(
        _SECTION,
        "--find-max-variable",
        "--sla-variable",
        type=click.Choice(["concurrency", "rate", "parallel", "request_rate"]),
        help="What --find-max varies.  [default: rate with --request-rate, else concurrency; their value is tried first]",
    ),
    flag(
        _SECTION,
        "--find-max-lower-bound",
        "--sla-lower-bound",
        type=_ABOVE_ZERO,
        metavar="N",
        help="The lowest load tried.  [default: 1; a hundredth of the first for rates]",
    ),
    flag(
        _SECTION,
        "--find-max-upper-bound",
        "--sla-upper-bound",
        type=_ABOVE_ZERO,
        default=_UPPER,
        show_default=True,
        metavar="N",
        help="The highest load tried.",
    ),
    flag(
        _SECTION,
        "--find-max-precision",
        type=click.FloatRange(min=0.001, max=1),
        default=0.05,
        show_default=True,
        metavar="SHARE",
        help="End the search when the answer is known to this share.",
    ),
    flag(
        _SECTION,
        "--sleep-interval",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="S",
        help="Pause between points.",
    ),
)


@dataclass(slots=True, frozen=True)
class Search:
    """A search as the command line asks for it; start, lower and upper are loads of the variable."""

    slo: str
    objectives: tuple[Objective, ...]
    variable: Variable
    start: float
    lower: float
    upper: float
    precision: float


def sweep_points(workload: Workload, settings: dict[str, Any]) -> list[Point]:
    """The points of a sweep; empty when no option has several numbers. Raises click.UsageError."""
    from llmirage_client.load.points import Point, shared_out

    lists = {name: settings[name] or () for name in _LISTS}
    length = max(len(values) for values in lists.values())
    if length == 1 or not any(lists.values()):
        return []
    varied: list[Variable] = [name for name in _VARIABLES if len(lists[name]) > 1]
    if len(varied) > 1:
        raise click.UsageError(
            "--concurrency and --request-rate both have several numbers: one of them can be swept at a time"
        )
    if not varied:
        raise click.UsageError(
            "--num-conversations and --request-count take several numbers only beside as many of --concurrency or "
            "--request-rate"
        )
    variable, loads = varied[0], lists[varied[0]]
    if settings["fixed_schedule"]:
        raise click.UsageError("--fixed-schedule: every point of a sweep would replay the same conversations")
    for name in ("num_conversations", "request_count"):
        if len(lists[name]) not in (0, 1, len(loads)):
            word, swept = f"--{name.replace('_', '-')}", f"--{variable.replace('_', '-')}"
            raise click.UsageError(f"{swept} has {len(loads)} numbers and {word} {len(lists[name])}: give as many, or one")
    conversations, requests = (
        lists[name] * len(loads) if len(lists[name]) == 1 else lists[name] or (None,) * len(loads)
        for name in ("num_conversations", "request_count")
    )
    limited = any(settings[name] is not None for name in ("duration", "benchmark_duration", "request_count"))
    if not lists["num_conversations"] and not limited:
        conversations = (shared_out(workload, loads, variable),) * len(loads)
    rows = zip(loads, conversations, requests, strict=True)
    return [Point(variable, load, number, own, sent) for number, (load, own, sent) in enumerate(rows, 1)]


def search_of(settings: dict[str, Any]) -> Search | None:
    """What --find-max asks for; None without it. Raises click.UsageError."""
    from llmirage_client.measure.slo import SloError, parse_slo

    text = settings["find_max"]
    if text is None:
        return None
    for name in _LISTS:
        if len(settings[name] or ()) > 1:
            raise click.UsageError(f"--find-max chooses the loads itself: give --{name.replace('_', '-')} one number")
    for name in ("request_rate_series", "user_centric_rate"):
        if settings[name] is not None:
            raise click.UsageError(f"--find-max varies --concurrency or --request-rate, not --{name.replace('_', '-')}")
    if settings["fixed_schedule"]:
        raise click.UsageError("--find-max varies --concurrency or --request-rate; a fixed schedule has its own pace")
    slo = _slo_text(text)
    try:
        objectives = parse_slo(slo)
    except SloError as error:
        raise click.UsageError("\n".join(f"--find-max: {problem}" for problem in error.problems)) from None
    word = settings["find_max_variable"]
    by_rate = settings["request_rate"] is not None if word is None else word in ("rate", "request_rate")
    variable: Variable = "request_rate" if by_rate else "concurrency"
    if not by_rate and settings["request_rate"] is not None:
        raise click.UsageError("--find-max-variable concurrency: with --request-rate the concurrency is not the load")
    start = float((settings[variable] or (1,))[0])
    lower = settings["find_max_lower_bound"] or (start / 100 if by_rate else 1)
    upper = settings["find_max_upper_bound"]
    if not by_rate:
        start, lower, upper = int(start), int(max(lower, 1)), int(upper)
    if not lower <= start <= upper:
        swept = f"--{variable.replace('_', '-')}"
        raise click.UsageError(
            f"--find-max begins at {swept} {start:g}, which is not within its bounds, {lower:g} to {upper:g}"
        )
    return Search(slo, objectives, variable, start, lower, upper, settings["find_max_precision"])


def _slo_text(text: str) -> str:
    """The expression itself; evalscope's JSON, [{"avg_ttft": "<=2s"}], is turned into one."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--sla-params: not JSON: {error}") from None
    groups = value if isinstance(value, list) else [value]
    if len(groups) != 1 or not isinstance(groups[0], dict):
        raise click.UsageError("--sla-params: one object of objectives is searched at a time")
    return ",".join(f"{name}{limit}" for name, limit in groups[0].items())


def one_point(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with one number for each option: the first, where there are several."""
    return settings | {name: only(settings[name][:1]) if settings[name] else None for name in _LISTS}


def conversations_wanted(settings: dict[str, Any]) -> int | None:
    """How many conversations all points and the warm-up take together, for workloads that draw as many as are wanted."""
    counts = settings["num_conversations"]
    if counts is None:
        return _SEARCHED if settings["find_max"] else None
    points = max(len(settings[name] or ()) for name in _VARIABLES) if len(counts) == 1 else 1
    warm_up = settings["num_warmup_sessions"] or 0
    probes = _PROBES if settings["find_max"] else max(points, 1)
    return int(sum(counts)) * probes + (int(warm_up) if warm_up >= 1 else 0)
