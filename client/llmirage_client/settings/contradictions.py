"""Settings of a run that cannot be meant together. What one setting needs of others stands with it (`needs`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmirage_client.load.options import RunOptions
from llmirage_client.settings.endpoint import ConnectionSettings
from llmirage_client.settings.output import ReportSettings, WorkerSettings
from llmirage_client.settings.points import PointSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_shared.settings import About, settings_of

_KINDS = (ConnectionSettings, WorkloadSettings, LengthSettings, RunOptions, PointSettings, WorkerSettings, ReportSettings)
RUN_SETTINGS: Mapping[str, About] = dict(itertools.chain.from_iterable(settings_of(kind).items() for kind in _KINDS))
SEVERAL = tuple(name for name, about in RUN_SETTINGS.items() if about.several)
_SWEPT = ("concurrency", "request_rate")

Given = Mapping[str, Any]

# At most one of each group.
_ONE_OF = (
    (
        ("fixed_schedule", "request_rate", "request_rate_series", "user_centric_rate"),
        "each say when requests start: give one of them",
    ),
    (("fixed_schedule_start_offset", "fixed_schedule_auto_offset"), "both say where the schedule begins"),
)


def _several(given: Given, *names: str) -> bool:
    """Whether each of these has several numbers."""
    return all(_count(given[name]) > 1 for name in names)


def _count(value: Any) -> int:
    return len(value) if isinstance(value, tuple) else 0 if value is None else 1


def _on_server(given: Given) -> bool:
    return given["context_mode"] in ("server_state", "server_conversation")


# What is wrong when, and how to say it: {name} is the setting, {name:v} its value, {name:n} how many numbers it has.
_CONFLICTS: tuple[tuple[Callable[[Given], Any], str], ...] = (
    (
        lambda given: given["arrival_smoothness"] is not None and given["arrival_pattern"] in ("poisson", "constant"),
        "{arrival_smoothness} is the shape of gamma gaps, not of {arrival_pattern:v} ones",
    ),
    (
        lambda given: (given["fixed_schedule_end_offset"] or math.inf) < (given["fixed_schedule_start_offset"] or 0),
        "{fixed_schedule_end_offset} {fixed_schedule_end_offset:v} comes before "
        "{fixed_schedule_start_offset} {fixed_schedule_start_offset:v}",
    ),
    (
        lambda given: given["fixed_schedule"] and given["dataset_sampling_strategy"] in ("shuffle", "random"),
        "{dataset_sampling_strategy} {dataset_sampling_strategy:v}: a fixed schedule has its own order",
    ),
    (
        lambda given: given["duration"] and given["duration"] >= (given["benchmark_duration"] or math.inf) != math.inf,
        "{duration} {duration:v} would never come: {benchmark_duration} {benchmark_duration:v} ends the run before",
    ),
    (
        lambda given: 0 < (given["num_warmup_sessions"] or 0) < 1 and not given["num_conversations"],
        "{num_warmup_sessions} {num_warmup_sessions:v} is a share of {num_conversations}, which is not given",
    ),
    (
        lambda given: _on_server(given) and given["endpoint_type"] != "responses",
        "{context_mode} {context_mode:v} needs {endpoint_type} responses: only this API keeps histories",
    ),
    (
        lambda given: _on_server(given) and "," in (given["url"] or "") and given["url_strategy"] == "round_robin",
        "{context_mode} {context_mode:v} needs {url_strategy} sticky: one server keeps the history",
    ),
    (
        lambda given: given["endpoint_type"] == "raw" and given["endpoint_path"] is None,
        "{endpoint_type} raw needs {endpoint_path}: there is no usual path",
    ),
    (lambda given: given["ray_address"] is not None and given["executor"] != "ray", "{ray_address} is about {executor} ray"),
    (
        lambda given: _several(given, "concurrency", "request_rate"),
        "{concurrency} and {request_rate} both have several numbers: one of them can be swept at a time",
    ),
    (
        lambda given: any(_several(given, name) for name in SEVERAL) and not any(_several(given, name) for name in _SWEPT),
        "{num_conversations} and {request_count} take several numbers only beside as many of {concurrency} or "
        "{request_rate}",
    ),
    (
        lambda given: given["fixed_schedule"] and any(_several(given, name) for name in _SWEPT),
        "{fixed_schedule}: every point of a sweep would replay the same conversations",
    ),
    *(
        (
            lambda given, pair=pair: _several(given, *pair) and len({_count(given[name]) for name in pair}) > 1,
            f"{{{pair[0]}}} has {{{pair[0]}:n}} numbers and {{{pair[1]}}} {{{pair[1]}:n}}: give as many, or one",
        )
        for pair in itertools.product(_SWEPT, ("num_conversations", "request_count"))
    ),
    *(
        (
            lambda given, name=name: given["find_max"] and _several(given, name),
            f"{{find_max}} chooses the loads itself: give {{{name}}} one number",
        )
        for name in SEVERAL
    ),
    *(
        (
            lambda given, name=name: given["find_max"] and given[name],
            f"{{find_max}} varies {{concurrency}} or {{request_rate}}, not {{{name}}}",
        )
        for name in ("request_rate_series", "user_centric_rate")
    ),
    (
        lambda given: given["find_max"] and given["fixed_schedule"],
        "{find_max} varies {concurrency} or {request_rate}; a fixed schedule has its own pace",
    ),
    (
        lambda given: (
            given["find_max"] and given["request_rate"] and given["find_max_variable"] in ("concurrency", "parallel")
        ),
        "{find_max_variable} {find_max_variable:v}: with {request_rate} the concurrency is not the load",
    ),
)


def as_flag(name: str) -> str:
    """How the command line spells a setting."""
    about = RUN_SETTINGS[name]
    return f"--{about.flag or name.replace('_', '-')}"


def as_key(name: str) -> str:
    """How study files spell it."""
    study = RUN_SETTINGS[name].study
    return study if isinstance(study, str) else name


class _Word:
    """A setting in a sentence: its name, its value for the format `v`, how many numbers it has for `n`, else other words."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self._value = value

    def __format__(self, form: str) -> str:
        value = f"{self._value:g}" if isinstance(self._value, int | float) else str(self._value)
        return {"": self.name, "v": value, "n": str(_count(self._value))}.get(form, form)


def contradictions(settings: Given, spell: Callable[[str], str] = as_flag) -> Iterator[str]:
    """One sentence for each contradiction. settings: by name; fixed_schedule says whether the run keeps to one."""
    given = {name: settings.get(name) for name in RUN_SETTINGS}
    words = {name: _Word(spell(name), value) for name, value in given.items()}
    there = {name for name, value in given.items() if _is_given(value, RUN_SETTINGS[name])}
    for names, why in _ONE_OF:
        if len(both := [words[name].name for name in names if name in there]) > 1:
            yield f"{' and '.join(both)} {why}"
    for name, about in RUN_SETTINGS.items():
        if about.needs and name in there and not there.intersection(re.findall(r"\{(\w+)", about.needs)):
            yield about.needs.format(words[name], **words)
    for wrong, text in _CONFLICTS:
        if wrong(given):
            yield text.format(**words)


def _is_given(value: Any, about: About) -> bool:
    """A switch that is off and a count of zero that is the default anyway say nothing."""
    return value is not None and not (isinstance(about.default, int) and value == about.default)
