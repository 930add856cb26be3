"""From settings as a user gives them to the options of a run: what is not given follows from the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import scheduled_roots
from llmirage_client.load.rate_series import read_rate_series
from llmirage_client.settings.contradictions import SEVERAL, as_flag, contradictions
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError, instance_of


def run_options(
    workload: Workload, settings: Mapping[str, Any], spell: Callable[[str], str] = as_flag, **fields: Any
) -> RunOptions:
    """The options of one run; where a setting has several numbers, those of the first point.

    settings: values by name, in the user's units. spell: how the user writes the name of a setting. fields: of RunOptions,
    which win. Raises ConfigError with everything that cannot be meant together, or not with this workload.
    """
    given = one_point(settings)
    agents = given.get("agents")
    series, sessions = given.get("request_rate_series"), given.get("num_warmup_sessions")
    paced = any(given.get(name) is not None for name in ("request_rate", "request_rate_series", "user_centric_rate"))
    schedule, concurrency = given.get("fixed_schedule"), agents or given.get("concurrency")
    if schedule is None:
        schedule = workload.timed and not paced and concurrency is None and given.get("find_max") is None
    problems = list(contradictions({**settings, "fixed_schedule": schedule}, spell))
    if schedule and not workload.timed:
        problems.append(f"{spell('fixed_schedule')}: {workload.path} does not say when its conversations arrive")
    if problems:
        raise ConfigError(problems)
    if concurrency is None and not paced and not schedule:
        concurrency = 1
    if sessions is not None:
        sessions = max(round(sessions * given["num_conversations"]), 1) if sessions < 1 else int(sessions)
    vary = given.get("vary")
    if vary is None:
        vary = agents is not None or workload.generated
    derived = {
        "concurrency": concurrency,
        "vary": vary,
        "request_rate_series": None if series is None else read_rate_series(series),
        "fixed_schedule": schedule,
        "warmup_num_conversations": sessions,
        "fail_fast_children": os.environ.get("AIPERF_DAG_FAIL_FAST", "").lower() in ("1", "true", "yes", "on"),
    }
    if given.get("arrival_smoothness") is not None:
        derived["arrival_pattern"] = "gamma"
    if given.get("random_seed") is None:
        derived["seed"] = int.from_bytes(os.urandom(6))
    options = instance_of(RunOptions, given, **(derived | fields))
    _check_schedule(workload, options, spell)
    return options


def with_distinct_conversations(workload: Workload, options: RunOptions) -> RunOptions:
    """The options, with a conversation for each slot where repeats are distinct and nothing says how many run.

    Lengths without a file are as many conversations as were asked for; more only for agents.
    """
    slots, roots = options.concurrency or 0, len(workload.roots) - workload.skipped
    extends = options.agents or (options.vary and workload.format != "synthetic")
    if not extends or slots <= roots or options.rates is not None or options.fixed_schedule:
        return options
    limited = options.open_ended or options.num_conversations is not None
    return options if limited else replace(options, num_conversations=slots)


def one_point(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with one number each: the first, where there are several."""
    return {name: value[0] if name in SEVERAL and isinstance(value, tuple) else value for name, value in settings.items()}


def _check_schedule(workload: Workload, options: RunOptions, spell: Callable[[str], str]) -> None:
    """Raises ConfigError when a fixed schedule has not the conversations that are asked for."""
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
                f"{spell('num_conversations')} {wanted}: the schedule of {workload.path} has {roots} conversations; with "
                f"{'--no-fixed-schedule' if spell is as_flag else 'fixed_schedule: false'} they are repeated"
            ]
        )
