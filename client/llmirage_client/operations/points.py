"""The points of a sweep, and what a search looks for, from the settings of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass

from llmirage_client.choices import Variable
from llmirage_client.load.points import Point, by_load, shared_out
from llmirage_client.measure.slo import Objective, SloError, parse_slo
from llmirage_client.settings.contradictions import SEVERAL, RunSettings
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError

_PROBES = 16  # about as many as a search takes
_SEARCHED = 16_384  # conversations for a search, when nothing says how many a probe takes
_VARIABLES: tuple[Variable, ...] = ("concurrency", "request_rate")


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


def sweep_points(workload: Workload, settings: RunSettings) -> list[Point]:
    """Return the points of a sweep; empty when no setting has several numbers."""
    lists = {name: getattr(settings, name) or () for name in SEVERAL}
    varied: list[Variable] = [name for name in _VARIABLES if len(lists[name]) > 1]
    if not varied:
        return []
    variable, loads = varied[0], lists[varied[0]]
    conversations, requests = (
        lists[name] * len(loads) if len(lists[name]) == 1 else lists[name] or (None,) * len(loads)
        for name in ("num_conversations", "request_count")
    )
    limited = not (settings.duration is settings.benchmark_duration is None and settings.request_count is None)
    if not lists["num_conversations"] and not limited:
        of_lengths = settings.isl is not None
        conversations = (
            by_load(workload, len(loads)) if of_lengths else (shared_out(workload, loads, variable),) * len(loads)
        )
    rows = zip(loads, conversations, requests, strict=True)
    return [Point(variable, load, number, own, sent) for number, (load, own, sent) in enumerate(rows, 1)]


def search_of(settings: RunSettings) -> Search | None:
    """Return the search of --find-max; None without it. Raises ConfigError."""
    if settings.find_max is None:
        return None
    slo = _slo_text(settings.find_max)
    try:
        objectives = parse_slo(slo)
    except SloError as error:
        raise ConfigError(f"--find-max: {problem}" for problem in error.problems) from None
    word = settings.find_max_variable
    by_rate = settings.request_rate is not None if word is None else word in ("rate", "request_rate")
    variable: Variable = "request_rate" if by_rate else "concurrency"
    given = settings.request_rate if by_rate else settings.concurrency
    start = float((given or (settings.find_max_lower_bound or 1,))[0])
    lower = settings.find_max_lower_bound or (start / 100 if by_rate else 1)
    upper = settings.find_max_upper_bound
    if not by_rate:
        start, lower, upper = int(start), int(max(lower, 1)), int(upper)
    if not lower <= start <= upper:
        swept = f"--{variable.replace('_', '-')} {start:g}"
        raise ConfigError([f"--find-max starts at {swept}, which is not within its bounds, {lower:g} to {upper:g}"])
    return Search(slo, objectives, variable, start, lower, upper, settings.find_max_precision)


def _slo_text(text: str) -> str:
    """Return the expression; evalscope's JSON, [{"avg_ttft": "<=2s"}], is turned into one."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError([f"--sla-params: not JSON: {error}"]) from None
    groups = value if isinstance(value, list) else [value]
    if len(groups) != 1 or not isinstance(groups[0], dict):
        raise ConfigError(["--sla-params: only one object of objectives is supported"])
    return ",".join(f"{name}{limit}" for name, limit in groups[0].items())


def conversations_wanted(settings: RunSettings) -> int | None:
    """How many conversations all points and the warm-up take together, for workloads that draw as many as are wanted."""
    counts = settings.num_conversations
    if counts is None:
        return _SEARCHED if settings.find_max else settings.agents
    points = max(len(settings.concurrency or ()), len(settings.request_rate or ())) if len(counts) == 1 else 1
    warm_up = settings.num_warmup_sessions or 0
    probes = _PROBES if settings.find_max else max(points, 1)
    return int(sum(counts)) * probes + (int(warm_up) if warm_up >= 1 else 0)
