"""From settings as a user gives them to the options of a run: settings that are not given follow from the rest.

Settings that cannot be meant together are refused. The settings that another one needs stand with it (`needs`).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.plan import scheduled_roots
from llmirage_client.measure.request_metrics import parse_goodput
from llmirage_client.settings.endpoint import ConnectionSettings
from llmirage_client.settings.load import LoadSettings, TrafficSettings
from llmirage_client.settings.output import PointSettings, ReportSettings, WorkerSettings
from llmirage_client.workload.rates import read_rate_series
from llmirage_client.workload.session import Workload
from llmirage_shared.plural import plural
from llmirage_shared.settings import About, ConfigError, settings_of


@dataclass(frozen=True, kw_only=True)
class RunSettings(ReportSettings, WorkerSettings, PointSettings, TrafficSettings, ConnectionSettings):
    """Settings of `llmirage run`."""


RUN_SETTINGS: Mapping[str, About] = settings_of(RunSettings)
SEVERAL = tuple(name for name, about in RUN_SETTINGS.items() if about.several)

# At most one of each group.
_ONE_OF = (
    (
        ("fixed_schedule", "request_rate", "request_rate_series", "user_centric_rate"),
        "exclude each other: each determines when requests start",
    ),
    (("fixed_schedule_start_offset", "fixed_schedule_auto_offset"), "both set the start of the schedule"),
)


_PACED, _COUNTED = "a rate would hide a faster endpoint", "both phases are of as many samples"
_NOT_AUDITED = {
    "find_max": "it is of one load",
    "share": "its verdict is on the whole load",
    "agents": "it sends samples, not agents",
    **dict.fromkeys(("request_rate", "request_rate_series", "user_centric_rate", "fixed_schedule"), _PACED),
    **dict.fromkeys(("duration", "benchmark_duration"), _COUNTED),
    **dict.fromkeys(("warmup_request_count", "num_warmup_sessions", "warmup_duration"), "samples would be sent twice"),
}


def _conflicts(given: LoadSettings) -> Iterator[str]:
    """Say what is wrong: {name} is a setting, {name:v} its value, {name:n} how many numbers it has."""
    if given.arrival_smoothness is not None and given.arrival_pattern in ("poisson", "constant"):
        yield "{arrival_smoothness} is the shape of gamma gaps, not of {arrival_pattern:v} ones"
    if (given.fixed_schedule_end_offset or math.inf) < (given.fixed_schedule_start_offset or 0):
        yield (
            "{fixed_schedule_end_offset} {fixed_schedule_end_offset:v} comes before "
            "{fixed_schedule_start_offset} {fixed_schedule_start_offset:v}"
        )
    if given.agents:
        others = ("concurrency", "fixed_schedule", "request_rate", "request_rate_series", "user_centric_rate", "find_max")
        yield from (
            f"{{agents}} excludes {{{name}}}: it is the number of agents at a time"
            for name in others
            if getattr(given, name, None)
        )
        if given.vary is False:
            yield "{agents} are distinct: without {vary} their prompts would be the same"
    if given.fixed_schedule and given.dataset_sampling_strategy in ("shuffle", "random"):
        yield "{dataset_sampling_strategy} {dataset_sampling_strategy:v}: a fixed schedule determines the order"
    if given.duration and given.benchmark_duration and given.duration >= given.benchmark_duration:
        yield "{duration} {duration:v} is never reached: {benchmark_duration} {benchmark_duration:v} ends the run first"
    if 0 < (given.num_warmup_sessions or 0) < 1 and not given.num_conversations:
        yield "{num_warmup_sessions} {num_warmup_sessions:v} is a share of {num_conversations}, which is not given"
    if given.context_mode in ("server_state", "server_conversation"):
        if given.endpoint_type != "responses":
            yield (
                "{context_mode} {context_mode:v} needs {endpoint_type} responses: only this API keeps the history "
                "on the server"
            )
        if isinstance(given, RunSettings) and len(given.url) > 1 and given.url_strategy == "round_robin":
            yield "{context_mode} {context_mode:v} needs {url_strategy} sticky: the history is on one server"
    if given.endpoint_type == "raw" and getattr(given, "endpoint_path", None) is None:
        yield "{endpoint_type} raw needs {endpoint_path}: it has no default path"
    if isinstance(given, RunSettings) and given.ray_address is not None and given.executor != "ray":
        yield "{ray_address} needs {executor} ray"
    if isinstance(given, RunSettings) and given.share is not None:
        if given.executor is not None:
            yield "{share} excludes {executor}: it is the part of one process"
        if given.find_max is not None or _lists(given):
            yield "{share} is a part of one load, not of several"
    yield from _sweep_conflicts(given)
    if isinstance(given, RunSettings) and given.find_max is not None:
        yield from _search_conflicts(given)
    if isinstance(given, RunSettings) and given.audit is not None:
        yield from (f"{{audit}} excludes {{{name}}}: {why}" for name, why in _NOT_AUDITED.items() if getattr(given, name))
        yield from (f"{{audit}} is of one load: give {{{name}}} one number" for name in _lists(given))


def _search_conflicts(given: RunSettings) -> Iterator[str]:
    if given.slo is not None:
        yield "{find_max} searches for the load that meets its own objectives: {slo} is for runs at a given load"
    yield from (f"{{find_max}} chooses the loads itself: give {{{name}}} one number" for name in _lists(given))
    for name in ("request_rate_series", "user_centric_rate"):
        if getattr(given, name) is not None:
            yield f"{{find_max}} varies {{concurrency}} or {{request_rate}}, not {{{name}}}"
    if given.fixed_schedule:
        yield "{find_max} varies {concurrency} or {request_rate}; a fixed schedule determines the rate"
    if given.request_rate and given.find_max_variable in ("concurrency", "parallel"):
        yield "{find_max_variable} {find_max_variable:v} excludes {request_rate}"


def _sweep_conflicts(given: LoadSettings) -> Iterator[str]:
    lists = _lists(given)
    swept = [name for name in ("concurrency", "request_rate") if name in lists]
    if len(swept) > 1:
        yield "{concurrency} and {request_rate} both have several numbers: a sweep varies only one of them"
    if lists and not swept:
        yield (
            "{num_conversations} and {request_count} take several numbers only beside as many of {concurrency} or "
            "{request_rate}"
        )
    if swept and given.fixed_schedule:
        yield "{fixed_schedule}: every point of a sweep would replay the same conversations"
    for name, other in itertools.product(swept, lists):
        if other not in swept and _count(getattr(given, name)) != _count(getattr(given, other)):
            yield f"{{{name}}} has {{{name}:n}} numbers and {{{other}}} {{{other}:n}}: give as many, or one"


def _lists(given: LoadSettings) -> list[str]:
    return [name for name in SEVERAL if _count(getattr(given, name)) > 1]


def _count(value: Any) -> int:
    return len(value) if isinstance(value, tuple) else 0 if value is None else 1


def as_flag(name: str) -> str:
    """Return the spelling of a setting on the command line."""
    return RUN_SETTINGS[name].as_option


def as_key(name: str) -> str:
    """Return the spelling of a setting in study files."""
    study = RUN_SETTINGS[name].study
    return study if isinstance(study, str) else name


class _Word:
    """A setting in a sentence: its name, its value for the format `v`, how many numbers it has for `n`, else other words."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self._value = value

    def __format__(self, form: str) -> str:
        one = self._value[0] if isinstance(self._value, tuple) and len(self._value) == 1 else self._value
        value = f"{one:g}" if isinstance(one, int | float) else str(one)
        return {"": self.name, "v": value, "n": str(_count(self._value))}.get(form, form)


def contradictions(settings: LoadSettings, spell: Callable[[str], str] = as_flag) -> Iterator[str]:
    """Yield one sentence for each contradiction. settings: fixed_schedule says whether the run keeps to one."""
    known = settings_of(type(settings))
    given = {name: getattr(settings, name) for name in known}
    words = {name: _Word(spell(name), given.get(name)) for name in RUN_SETTINGS}
    there = {name for name, value in given.items() if _is_given(value)}
    for names, why in _ONE_OF:
        if len(both := [words[name].name for name in names if name in there]) > 1:
            yield f"{' and '.join(both)} {why}"
    for name, about in known.items():
        if about.needs and name in there and not there.intersection(re.findall(r"\{(\w+)", about.needs)):
            yield about.needs.format(words[name], **words)
    yield from (text.format(**words) for text in _conflicts(settings))


def _is_given(value: Any) -> bool:
    """Return whether a setting says anything: a switch that is off and a count of zero do not."""
    return value is not None and not (isinstance(value, int) and not value)


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
