"""From settings as a user gives them to the options of a run: settings that are not given follow from the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.plan import scheduled_roots
from llmirage_client.measure.request_metrics import parse_goodput
from llmirage_client.settings.contradictions import RunSettings, as_flag, contradictions
from llmirage_client.settings.load import LoadSettings
from llmirage_client.workload.rates import read_rate_series
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError, settings_of

T = TypeVar("T")


def run_options(
    workload: Workload, settings: LoadSettings, spell: Callable[[str], str] = as_flag, **fields: Any
) -> RunOptions:
    """Return the options of one run; where a setting has several numbers, those of the first point.

    spell: how the user writes the name of a setting. fields: of RunOptions, which win. Raises ConfigError with everything
    that cannot be meant together, or not with this workload.
    """
    rates = (settings.request_rate, settings.request_rate_series, settings.user_centric_rate)
    paced = any(rate is not None for rate in rates)
    searched = isinstance(settings, RunSettings) and settings.find_max is not None
    concurrency = settings.agents or first(settings.concurrency)
    schedule = settings.fixed_schedule
    if schedule is None:
        schedule = workload.timed and not paced and concurrency is None and not searched
    problems = list(contradictions(replace(settings, fixed_schedule=schedule), spell))
    if schedule and not workload.timed:
        problems.append(f"{spell('fixed_schedule')}: {workload.path} does not say when its conversations arrive")
    if goodput := getattr(settings, "goodput", None):
        problems += _unknown_classes(workload, goodput, spell("goodput"))
    if problems:
        raise ConfigError(problems)
    if concurrency is None and not paced and not schedule:
        concurrency = 1
    derived: dict[str, Any] = {
        "concurrency": concurrency,
        "vary": settings.agents is not None or workload.generated if settings.vary is None else settings.vary,
        "fixed_schedule": schedule,
        "fail_fast_children": os.environ.get("AIPERF_DAG_FAIL_FAST", "").lower() in ("1", "true", "yes", "on"),
    }
    if settings.request_rate_series is not None:
        derived["request_rate_series"] = read_rate_series(settings.request_rate_series)
    if (warm_up := settings.num_warmup_sessions) is not None:
        share = warm_up * (first(settings.num_conversations) or 0)
        derived["warmup_num_conversations"] = max(round(share), 1) if warm_up < 1 else int(warm_up)
    if settings.arrival_smoothness is not None:
        derived["arrival_pattern"] = "gamma"
    if isinstance(settings, RunSettings) and settings.share is not None:
        derived["share"] = Share(*map(int, settings.share.split("/")))
    if goodput:
        derived["class_objectives"] = _class_objectives(goodput)
    if settings.random_seed is None:
        derived["seed"] = int.from_bytes(os.urandom(6))
    options = RunOptions(**(_options_given(settings) | derived | fields))
    _check_schedule(workload, options, spell)
    return options


def _unknown_classes(workload: Workload, goodput: str, name: str) -> list[str]:
    """Return a problem for each service class with limits that no conversation has."""
    named = {key.rpartition("/")[0] for key in parse_goodput(goodput)} - {""}
    known = {session.tenant.service_class for session in workload.sample} - {""} if named else set()
    return [
        f"{name}: no conversation of {workload.path} has the class {one!r}; it has {', '.join(sorted(known)) or 'none'}"
        for one in sorted(named - known)
    ]


def _class_objectives(goodput: str) -> dict[str, dict[str, float]]:
    """Return the limits of service classes that headers of gateways can name, in ms."""
    found: dict[str, dict[str, float]] = {}
    for key, limit in parse_goodput(goodput).items():
        name, _, tag = key.rpartition("/")
        if name and tag in _OBJECTIVES:
            found.setdefault(name, {})[_OBJECTIVES[tag]] = limit
    return found


_OBJECTIVES = {"time_to_first_token": "TTFT", "inter_token_latency": "TPOT"}


def _options_given(settings: LoadSettings) -> dict[str, Any]:
    """Return the fields of RunOptions that follow from one setting each, in the units of the options."""
    found = {}
    for name, about in settings_of(type(settings)).items():
        field, value = about.option or name, getattr(settings, name)
        if value is not None and field in RunOptions.__dataclass_fields__:
            value = value[0] if about.several else value
            found[field] = value if about.per == 1 else value / about.per
    return found


def first(values: tuple[T, ...] | None) -> T | None:
    """Return the number of the first point, or None."""
    return values[0] if values else None


def with_distinct_conversations(workload: Workload, options: RunOptions) -> RunOptions:
    """Return the options, with a conversation for each slot where repeats are distinct and nothing says how many run.

    Lengths without a file are as many conversations as were asked for; more only for agents.
    """
    slots, roots = options.concurrency or 0, len(workload.roots) - workload.skipped
    extends = options.agents or (options.vary and workload.format != "synthetic")
    if not extends or slots <= roots or options.rates is not None or options.fixed_schedule:
        return options
    limited = options.open_ended or options.num_conversations is not None
    return options if limited else replace(options, num_conversations=slots)


def shown_settings(settings: Any) -> dict[str, Any]:
    """Return the settings as files of a run have them: those given, by name, with the number of the first point."""
    found = {}
    for name, about in settings_of(type(settings)).items():
        value = getattr(settings, name)
        if value not in (None, ()):
            found[name] = value[0] if about.several else ",".join(value) if name == "url" else value
    return found


def _check_schedule(workload: Workload, options: RunOptions, spell: Callable[[str], str]) -> None:
    """Raise ConfigError when a fixed schedule has fewer conversations than asked for."""
    if not options.fixed_schedule:
        return
    roots, wanted = scheduled_roots(workload, options), options.num_conversations
    if not roots:
        times = [workload.sessions[root].arrival_s or 0.0 for root in workload.roots]
        bounds = f"{spell('fixed_schedule_start_offset')} and {spell('fixed_schedule_end_offset')}"
        raise ConfigError(
            [
                f"no conversation arrives between {bounds}: the schedule of {workload.path} runs from "
                f"{min(times) * 1e3:,.0f} to {max(times) * 1e3:,.0f} ms"
            ]
        )
    if wanted is not None and wanted > roots:
        raise ConfigError(
            [
                f"{spell('num_conversations')} {wanted}: the schedule of {workload.path} has "
                f"{plural(roots, 'conversation')}; with "
                f"{'--no-fixed-schedule' if spell is as_flag else 'fixed_schedule: false'} they are repeated"
            ]
        )
