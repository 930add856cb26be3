"""Scenarios: named sets of rules for runs that are to be comparable. They lock settings, and fill in others.

AgentX (SemiAnalysis InferenceX) as its harness, agentx-harness 1.0.12, has it; InferenceX's recipe of single requests; the
agentic rules of MLPerf Endpoints. A violated lock refuses the run; with --unsafe-override it is a warning, and the run is no
valid submission.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from llmirage_client.load.options import LaneOptions
from llmirage_client.measure.metrics import MLPERF
from llmirage_client.settings.load import TrafficSettings
from llmirage_client.settings.run import first
from llmirage_shared.plural import plural
from llmirage_shared.settings import InputRefused

T = TypeVar("T", bound=TrafficSettings)

LEAST_DURATION_S = 900.0
SYSTEM_IDLE_CAP_S = 10.0
_MARKED: Literal["first_turn_prefix"] = "first_turn_prefix"
_OVERFLOW = "context length,maximum context,context_length_exceeded,prompt is too long"
_UNKNOWN_CORPUS = (
    "--input-file: got a local WEKA trace, required the published corpora semianalysisai/cc-traces-weka-*: which corpus a "
    "local file is of cannot be verified, so the run is no submission"
)
_PACED = ("request_rate", "request_rate_series", "arrival_pattern", "user_centric_rate", "fixed_schedule", "agents")
_OTHER_LOADS = ("executor", "find_max", "steady_state", "audit")
_WARM_UPS = ("warmup_request_count", "num_warmup_sessions", "warmup_duration")
_OF_LANES = (
    "trajectory_start_min_ratio", "trajectory_start_max_ratio", "burst_phase_starts", "warmup_requests_per_lane",
    "agentic_cache_warmup_duration", "agentic_warmup_grace_period", "system_idle_gap_cap_seconds",
    "trace_idle_gap_cap_seconds", "failed_request_threshold", "cache_bust", "ignore_trace_delays", "synthesis_max_isl",
)  # fmt: skip
_REQUESTS_A_SLOT, _WARM_UPS_A_SLOT = 10, 2
_CONVERSATIONS = "mlperf_agentic"
_USUAL_TIMEOUT_S, _TURN_TIMEOUT_S = 600.0, 86_400.0  # of requests where none is given, and MLPerf's of a turn


class ScenarioRefused(InputRefused):
    """A run that its scenario does not allow. As the harness does, it ends with exit status 1."""

    status = 1


@dataclass(slots=True, frozen=True)
class Resolved(Generic[T]):
    """Settings with all that their scenario says.

    violations: of its rules, overridden. lanes: of a scenario that replays recorded trees.
    """

    settings: T
    violations: tuple[str, ...] = ()
    lanes: LaneOptions | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of RunOptions that follow from the scenario."""
        lanes = {} if self.lanes is None else {"lanes": self.lanes, "vary": False}
        return lanes | ({"violations": self.violations} if self.settings.scenario else {})


def resolved(settings: T, format: str | None, *, submission: bool = True) -> Resolved[T]:
    """Return the settings as their scenario completes them.

    format: of the workload; None: there is no file. submission: the run is one, so that its corpus must be known.
    Raises ScenarioRefused with all violations.
    """
    if settings.scenario is None:
        return Resolved(settings)
    if (scenario := SCENARIOS.get(settings.scenario)) is None:
        raise ScenarioRefused([f"Unknown scenario {settings.scenario!r}. Valid scenarios: {', '.join(sorted(SCENARIOS))}"])
    found = scenario.rules(settings, format)
    violations = tuple(one for one in (*found.hard, *found.soft) if submission or one != _UNKNOWN_CORPUS)
    if violations and (found.hard or not settings.unsafe_override):
        raise ScenarioRefused([_refusal(scenario.name, violations, not found.hard, submission)])
    complete = replace(settings, **found.given())
    lanes = _lanes(complete) if scenario.rules is _of_recorded_agents else None
    return Resolved(complete, violations, lanes)


@dataclass(slots=True, frozen=True)
class _Found:
    """The verdict of a scenario's rules on settings: violations that no override allows, others, and the values it gives.

    given: called where the run is allowed.
    """

    hard: tuple[str, ...]
    soft: tuple[str, ...]
    given: Callable[[], dict[str, Any]]


def _of_recorded_agents(settings: TrafficSettings, format: str | None) -> _Found:
    _check(settings)
    return _Found(
        tuple(_hard_violations(settings, format)),
        tuple(_violations(settings, format)),
        lambda: _given_to_recorded_agents(settings, format),
    )


def _given_to_recorded_agents(settings: TrafficSettings, format: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {name: None for name in _PACED if getattr(settings, name)}
    defaults = dict(SCENARIOS[settings.scenario or ""].defaults)
    if settings.agentic_cache_warmup_duration is not None:
        defaults.pop("warmup_requests_per_lane", None)
    given |= {name: value for name, value in defaults.items() if getattr(settings, name, 0) is None}
    given |= {"cache_bust": settings.cache_bust or _MARKED, "concurrency": settings.concurrency or (1,)}
    if settings.system_idle_gap_cap_seconds is None:
        given["system_idle_gap_cap_seconds"] = SYSTEM_IDLE_CAP_S
    given |= _with_ignore_eos(settings)
    if settings.random_seed is None and "random_seed" not in given:
        given["random_seed"] = int.from_bytes(os.urandom(8)) >> 1
    if settings.ignore_trace_delays:
        given["conversation_turn_delay_ratio"] = 0.0
    if format == "weka_trace":
        given["format_option"] = (*settings.format_option, "recorded_order=true")
    return given


def _with_ignore_eos(settings: TrafficSettings) -> dict[str, Any]:
    extra = settings.extra_inputs
    return {} if "ignore_eos" in extra else {"extra_inputs": {**extra, "ignore_eos": True}}


def _of_random_prompts(settings: TrafficSettings, format: str | None) -> _Found:
    """Return the rules of InferenceX: random prompts one by one, ten requests a slot after two to warm up, rate inf."""
    hard, soft = list(_of_one_load(settings, lanes=False)), list(_closed_loop(settings))
    if settings.isl is None or settings.osl is None:
        hard.append("--isl, --osl: required, as prompts are random and of a given length")
    if format is not None:
        soft.append("WORKLOAD: required none: prompts are random, of --isl tokens")
    if str(settings.turns) != "1":
        soft.append(f"--turns: got {settings.turns}, required 1")
    slots = first(settings.concurrency)
    asked = {
        "requests": (settings.requests, _REQUESTS_A_SLOT),
        "request_count": (first(settings.request_count), _REQUESTS_A_SLOT),
        "num_conversations": (first(settings.num_conversations), _REQUESTS_A_SLOT),
        "warmup_request_count": (settings.warmup_request_count, _WARM_UPS_A_SLOT),
    }
    for name, (got, each) in asked.items():
        if slots is not None and got not in (None, 0, each * slots):
            soft.append(f"--{name.replace('_', '-')}: got {got}, required {each * slots}: {each} times --concurrency")
    number = slots or 1
    given: dict[str, Any] = dict.fromkeys(("requests", "num_conversations"))
    if settings.concurrency_ramp_duration is None:
        given["concurrency_ramp_duration"] = 0.0
    given |= _with_ignore_eos(settings)
    given |= {
        "request_count": settings.request_count or (settings.requests or _REQUESTS_A_SLOT * number,),
        "warmup_request_count": settings.warmup_request_count or _WARM_UPS_A_SLOT * number,
    }
    return _Found(tuple(hard), tuple(soft), lambda: given)


def _of_recorded_conversations(settings: TrafficSettings, format: str | None) -> _Found:
    """Return the agentic rules of MLPerf Endpoints."""
    hard, soft = list(_of_one_load(settings, lanes=False)), list(_closed_loop(settings))
    if format is None:
        hard.append("--input-file: got no workload, required recorded conversations (mlperf_agentic)")
    elif format != _CONVERSATIONS:
        soft.append(f"--custom-dataset-type: got {format}, required {_CONVERSATIONS}")
    if settings.request_count:
        soft.append("--request-count: required none: whole conversations are replayed (--num-conversations)")
    soft += [
        f"--{name.replace('_', '-')}: required none: salts are the same in every phase, so it would fill caches"
        for name in _WARM_UPS
        if getattr(settings, name, None)
    ]
    soft += [
        f"--format-option {option}=false: required true"
        for option in ("salts", "tool_delays")
        if f"{option}=false" in settings.format_option
    ]
    given: dict[str, Any] = {}
    if format == _CONVERSATIONS:
        given["format_option"] = ("salts=true", "tool_delays=true", *settings.format_option)
    if getattr(settings, "request_timeout_seconds", None) == _USUAL_TIMEOUT_S:
        given["request_timeout_seconds"] = _TURN_TIMEOUT_S
    return _Found(tuple(hard), tuple(soft), lambda: given)


def _lanes(settings: TrafficSettings) -> LaneOptions:
    grace_s = settings.agentic_warmup_grace_period
    texts = os.environ.get("AIPERF_AGENTX_CONTEXT_OVERFLOW_SUBSTRINGS") or _OVERFLOW
    return LaneOptions(
        run_id=uuid.uuid4().hex,
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
    """Raise ScenarioRefused for settings of AgentX that exclude each other."""
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
    yield from _of_one_load(settings, lanes=True)


def _of_one_load(settings: TrafficSettings, *, lanes: bool) -> Iterator[str]:
    """Yield the violations of what asks for several runs or another load. lanes: the scenario replays recorded trees."""
    if len(settings.concurrency or ()) > 1:
        numbers = ",".join(map(str, settings.concurrency or ()))
        yield f"--concurrency: got {numbers}, required one number: a scenario is a single run, not a sweep"
    for name in (*_OTHER_LOADS, *_WARM_UPS) if lanes else _OTHER_LOADS:
        if getattr(settings, name, None):
            yield f"--{name.replace('_', '-')}: the scenario has a load and a warm-up of its own"
    if lanes:
        return
    if not settings.concurrency:
        yield "--concurrency: required, the number of requests in flight"
    for name in _OF_LANES:
        if getattr(settings, name) not in (None, False):
            yield f"--{name.replace('_', '-')}: only for scenarios that replay recorded trees (agentx)"


def _closed_loop(settings: TrafficSettings) -> Iterator[str]:
    """Yield the violations of scenarios whose requests go out as soon as a slot is free."""
    if paced := [f"--{name.replace('_', '-')}" for name in _PACED if getattr(settings, name)]:
        yield f"{', '.join(paced)}: required none of these: requests are sent as slots come free (--concurrency)"
    if not settings.streaming:
        yield "--no-streaming: required --streaming: times of single tokens are measured"
    if not settings.extra_inputs.get("ignore_eos", True) and settings.scenario == "inferencex":
        yield f"--extra-inputs ignore_eos: got {settings.extra_inputs['ignore_eos']}, required true"


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
        yield _UNKNOWN_CORPUS
    if settings.cache_bust not in (None, _MARKED):
        yield f"--cache-bust: got {settings.cache_bust}, required {_MARKED}"
    if settings.benchmark_duration is not None and settings.benchmark_duration < LEAST_DURATION_S:
        yield f"--benchmark-duration: got {settings.benchmark_duration:g}, required {LEAST_DURATION_S:g} seconds or more"
    cap_s = settings.system_idle_gap_cap_seconds
    if cap_s is not None and cap_s != SYSTEM_IDLE_CAP_S:
        yield f"--system-idle-gap-cap-seconds: got {cap_s:g}, required {SYSTEM_IDLE_CAP_S:g}"
    if settings.vary:
        yield "--vary: required not to be set: repeats differ by their markers"


def _refusal(name: str, violations: Sequence[str], may_override: bool, submission: bool) -> str:
    count = plural(len(violations), "conflict")
    lines = "".join(f"\n  - {violation}" for violation in violations)
    invalid = "; the run is then no valid submission (submission_valid: false)" if submission else ""
    hint = (
        f"--unsafe-override makes warnings of them{invalid}."
        if may_override
        else "--unsafe-override cannot allow all of these."
    )
    return f"Scenario {name} does not allow this run ({count}):{lines}\n{hint}"


@dataclass(slots=True, frozen=True)
class Scenario:
    """A scenario: its name, its rules, and the values of settings that are not given."""

    name: str
    rules: Callable[[TrafficSettings, str | None], _Found]
    defaults: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "agentx",
            _of_recorded_agents,
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
            _of_recorded_agents,
            {"benchmark_duration": 1800.0, "trajectory_start_min_ratio": 0.0, "trajectory_start_max_ratio": 1.0},
        ),
        Scenario("inferencex", _of_random_prompts),
        Scenario(MLPERF, _of_recorded_conversations),
    )
}


def default_seed(name: str | None) -> int:
    """Return the seed of simulations where none is given: that of the scenario, else 0."""
    scenario = SCENARIOS.get(name or "")
    return 0 if scenario is None else scenario.defaults.get("random_seed", 0)
