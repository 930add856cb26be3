"""Scenarios: named sets of rules for runs that are to be comparable. They lock settings, and fill in others.

AgentX (SemiAnalysis InferenceX) as its harness, agentx-harness 1.0.12, has it. A violated lock refuses the run; with
--unsafe-override it is a warning, and the run is no valid submission.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from llmirage_client.load.options import LaneOptions
from llmirage_client.settings.load import TrafficSettings
from llmirage_shared.settings import InputRefused

T = TypeVar("T", bound=TrafficSettings)

LEAST_DURATION_S = 900.0
SYSTEM_IDLE_CAP_S = 10.0
_MARKED: Literal["first_turn_prefix"] = "first_turn_prefix"
_OVERFLOW = "context length,maximum context,context_length_exceeded,prompt is too long"
_CORPUS = "the published corpora semianalysisai/cc-traces-weka-*"
_PACED = ("request_rate", "request_rate_series", "arrival_pattern", "user_centric_rate", "fixed_schedule", "agents")
_OTHER_LOADS = ("warmup_request_count", "num_warmup_sessions", "warmup_duration", "executor", "find_max", "steady_state")


@dataclass(slots=True, frozen=True)
class Scenario:
    """A scenario: its name, and the values of settings that are not given."""

    name: str
    defaults: dict[str, Any]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "agentx",
            {
                "benchmark_duration": 3600.0,
                "trajectory_start_min_ratio": 0.25,
                "trajectory_start_max_ratio": 0.75,
                "trace_idle_gap_cap_seconds": 300.0,
                "random_seed": 42,
                "num_dataset_entries": 393,
                "failed_request_threshold": 0.10,
                "warmup_requests_per_lane": 10,
                "agentic_warmup_grace_period": 1800.0,
                "slice_duration": 1.0,
            },
        ),
        Scenario(
            "inferencex-agentx-mvp",
            {
                "benchmark_duration": 1800.0,
                "trajectory_start_min_ratio": 0.0,
                "trajectory_start_max_ratio": 1.0,
            },
        ),
    )
}


class ScenarioRefused(InputRefused):
    """A run that its scenario does not allow. As the harness does, it ends with exit status 1."""

    status = 1


@dataclass(slots=True, frozen=True)
class Resolved(Generic[T]):
    """Settings with all that their scenario says.

    lanes: None without a scenario.
    """

    settings: T
    lanes: LaneOptions | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of RunOptions that follow from the scenario."""
        return {} if self.lanes is None else {"lanes": self.lanes, "vary": False}


def resolved(settings: T, format: str | None) -> Resolved[T]:
    """Return the settings as their scenario completes them.

    format: of the workload; None: there is no file. Raises ScenarioRefused with all violations.
    """
    if settings.scenario is None:
        return Resolved(settings)
    if (scenario := SCENARIOS.get(settings.scenario)) is None:
        raise ScenarioRefused([f"Unknown scenario {settings.scenario!r}. Valid scenarios: {', '.join(sorted(SCENARIOS))}"])
    _check(settings)
    hard = list(_hard_violations(settings, format))
    violations = [*hard, *_violations(settings, format)]
    if violations and (hard or not settings.unsafe_override):
        raise ScenarioRefused([_refusal(scenario.name, violations, not hard)])
    given: dict[str, Any] = {name: None for name in _PACED if getattr(settings, name)}
    defaults = dict(scenario.defaults)
    if settings.agentic_cache_warmup_duration is not None:
        defaults.pop("warmup_requests_per_lane", None)
    given |= {name: value for name, value in defaults.items() if getattr(settings, name, 0) is None}
    given |= {"cache_bust": settings.cache_bust or _MARKED, "concurrency": settings.concurrency or (1,)}
    if settings.system_idle_gap_cap_seconds is None:
        given["system_idle_gap_cap_seconds"] = SYSTEM_IDLE_CAP_S
    if "ignore_eos" not in settings.extra_inputs:
        given["extra_inputs"] = {**settings.extra_inputs, "ignore_eos": True}
    if settings.random_seed is None and "random_seed" not in given:
        given["random_seed"] = int.from_bytes(os.urandom(8)) >> 1
    if settings.ignore_trace_delays:
        given["conversation_turn_delay_ratio"] = 0.0
    if format == "weka_trace":
        given["format_option"] = (*settings.format_option, "recorded_order=true")
    complete = replace(settings, **given)
    return Resolved(complete, _lanes(complete, tuple(violations)))


def _lanes(settings: TrafficSettings, violations: tuple[str, ...]) -> LaneOptions:
    grace_s = settings.agentic_warmup_grace_period
    texts = os.environ.get("AIPERF_AGENTX_CONTEXT_OVERFLOW_SUBSTRINGS") or _OVERFLOW
    return LaneOptions(
        run_id=uuid.uuid4().hex,
        scenario=settings.scenario or "",
        violations=violations,
        start_min=settings.trajectory_start_min_ratio or 0.0,
        start_max=1.0 if settings.trajectory_start_max_ratio is None else settings.trajectory_start_max_ratio,
        burst=settings.burst_phase_starts,
        marks=settings.cache_bust == _MARKED,
        pressure_requests=settings.warmup_requests_per_lane,
        pressure_s=settings.agentic_cache_warmup_duration,
        warm_up_grace_s=math.inf if grace_s is None else grace_s,
        system_idle_cap_s=settings.system_idle_gap_cap_seconds,
        tree_idle_cap_s=settings.trace_idle_gap_cap_seconds,
        failed_request_threshold=settings.failed_request_threshold,
        overflow=tuple(text.strip().lower() for text in texts.strip("[]").replace('"', "").split(",") if text.strip()),
    )


def _check(settings: TrafficSettings) -> None:
    """Raise ScenarioRefused for settings that exclude each other in any scenario."""
    if settings.warmup_requests_per_lane is not None and settings.agentic_cache_warmup_duration is not None:
        raise ScenarioRefused(
            ["--warmup-requests-per-lane and --agentic-cache-warmup-duration are mutually exclusive: two warm-ups"]
        )
    defaults = SCENARIOS[settings.scenario or ""].defaults
    low, high = (
        defaults[name] if getattr(settings, name) is None else getattr(settings, name)
        for name in ("trajectory_start_min_ratio", "trajectory_start_max_ratio")
    )
    if low > high:
        raise ScenarioRefused(
            [f"--trajectory-start-min-ratio ({low:g}) must be at most --trajectory-start-max-ratio ({high:g})"]
        )


def _hard_violations(settings: TrafficSettings, format: str | None) -> Iterator[str]:
    """Yield the violations that no override allows."""
    if format is None:
        yield "--input-file: got no workload, required a WEKA trace: the scenario replays recorded agents"
    if len(settings.concurrency or ()) > 1:
        numbers = ",".join(map(str, settings.concurrency or ()))
        yield f"--concurrency: got {numbers}, required one number: a scenario is a single run, not a sweep"
    for name in _OTHER_LOADS:
        if getattr(settings, name, None):
            yield f"--{name.replace('_', '-')}: the scenario has a load and a warm-up of its own"


def _violations(settings: TrafficSettings, format: str | None) -> Iterator[str]:
    if paced := [f"--{name.replace('_', '-')}" for name in _PACED if getattr(settings, name)]:
        yield f"{', '.join(paced)}: required none of these: requests are sent when the recording says (agentic replay)"
    if not settings.streaming:
        yield "--no-streaming: required --streaming: times of single tokens are measured"
    if not settings.extra_inputs.get("ignore_eos", True):
        given = settings.extra_inputs["ignore_eos"]
        yield f"--extra-inputs ignore_eos: got {given}, required true: replies have the recorded length"
    if settings.ignore_trace_delays:
        yield "--ignore-trace-delays: required not to be set: the pauses of the recording are part of the load"
    if settings.synthesis_max_isl is not None:
        yield f"--synthesis-max-isl: got {settings.synthesis_max_isl}, required none: prompts have the recorded length"
    if (delay_cap_s := settings.inter_turn_delay_cap_seconds) is not None:
        yield f"--inter-turn-delay-cap-seconds: got {delay_cap_s:g}, required none: pauses are as recorded"
    if settings.conversation_turn_delay_ratio != 1 or settings.conversation_turn_delay_mean is not None:
        yield "--conversation-turn-delay-mean, --conversation-turn-delay-ratio: required none: pauses are as recorded"
    if format is not None and format != "weka_trace":
        yield f"--custom-dataset-type: got {format}, required weka_trace"
    elif format is not None:
        yield (
            f"--input-file: got a local WEKA trace, required {_CORPUS}: which corpus a local file is of cannot be verified, "
            "so the run is no submission"
        )
    if settings.cache_bust not in (None, _MARKED):
        yield f"--cache-bust: got {settings.cache_bust}, required {_MARKED}"
    if settings.benchmark_duration is not None and settings.benchmark_duration < LEAST_DURATION_S:
        yield f"--benchmark-duration: got {settings.benchmark_duration:g}, required {LEAST_DURATION_S:g} seconds or more"
    cap_s = settings.system_idle_gap_cap_seconds
    if cap_s is not None and cap_s != SYSTEM_IDLE_CAP_S:
        yield f"--system-idle-gap-cap-seconds: got {cap_s:g}, required {SYSTEM_IDLE_CAP_S:g}"
    if settings.vary:
        yield "--vary: required not to be set: repeats differ by their markers"


def _refusal(name: str, violations: list[str], may_override: bool) -> str:
    count = "1 conflict" if len(violations) == 1 else f"{len(violations)} conflicts"
    lines = "".join(f"\n  - {violation}" for violation in violations)
    hint = (
        "--unsafe-override makes warnings of them; the run is then no valid submission (submission_valid: false)."
        if may_override
        else "--unsafe-override cannot allow all of these."
    )
    return f"Scenario {name} does not allow this run ({count}):{lines}\n{hint}"
