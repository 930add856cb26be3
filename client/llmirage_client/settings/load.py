"""Settings of the load: which conversations start when, when the run ends, and its warm-up."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmirage_client.settings import ArrivalPattern, CacheBust, RateOf, SamplingStrategy
from llmirage_client.settings.endpoint import RequestSettings
from llmirage_client.settings.workload import LengthSettings, WorkloadSettings
from llmirage_client.workload.rates import series_text
from llmirage_shared.settings import again, switch, under

LOAD, STOP, SCENARIO = "Load", "Stop conditions", "Scenario"
WARM_UP = "Warm-up (turns of root conversations before the measured run, not counted in its metrics)"
_load, _stop = under(LOAD), under(STOP)
_AT_A_RATE = "{} needs {request_rate} or {request_rate_series}"
_SCHEDULED = "{} needs a {fixed_schedule:fixed schedule}"
_THERE_IS_ONE = "{}: there is no warm-up; set {warmup_request_count}, {num_warmup_sessions} or {warmup_duration}"


@dataclass(frozen=True, kw_only=True)
class MeasuredSettings(RequestSettings):
    """Settings of the measured run. None: not given, what follows from the rest."""

    concurrency: tuple[int, ...] | None = _load(
        None,
        "Root conversations in progress at a time, each with all its children; several numbers make a sweep.",
        aliases=("parallel",),
        least=1,
        several=True,
        study=True,
        unset="1 without a rate or schedule",
        usual=True,
    )
    agents: int | None = _load(
        None,
        "N distinct conversations in progress at a time: --concurrency N with --vary.",
        least=1,
        study=True,
        usual="run",
        flag=True,
    )
    concurrency_ramp_duration: float | None = _load(
        None,
        "Raise the concurrency from 1 to --concurrency over S seconds; 0 starts all at once.",
        least=0,
        study=True,
        needs="{} needs {concurrency}, the end of the ramp",
        option="concurrency_ramp_s",
        carried=True,
    )
    request_rate: tuple[float, ...] | None = _load(
        None,
        "Turns of root conversations per second; several numbers make a sweep.",
        aliases=("rate",),
        above=0,
        several=True,
        study=True,
        usual=True,
        option="request_rate_per_s",
    )
    request_rate_ramp_duration: float | None = _load(
        None,
        "Raise the rate linearly from 0 to --request-rate over S seconds.",
        above=0,
        needs="{} needs {request_rate}, the end of the ramp",
        option="request_rate_ramp_s",
        carried=True,
    )
    request_rate_of: RateOf | None = _load(
        None,
        "What the rate counts: turns of root conversations, each of which waits for its turn; or new conversations, "
        "whose further turns go out when they are ready.",
        needs=_AT_A_RATE,
        study=True,
        unset="turns",
    )
    request_rate_series: str | None = _load(
        None,
        "Rate over time, linear between points such as 0:1,60:10,120:10, or a file of points; the last rate holds.",
        metavar="S:R,...|FILE",
        read=series_text,
    )
    arrival_pattern: ArrivalPattern | None = _load(
        None,
        "Distribution of the gaps between arrivals at a rate.",
        aliases=("request_rate_mode",),
        needs=_AT_A_RATE,
        study=True,
        unset="poisson; gamma with --arrival-smoothness",
        flag=True,
    )
    arrival_smoothness: float | None = _load(
        None,
        "Shape of the gamma distribution: below 1 bursty, 1 is poisson, above 1 more regular.",
        aliases=("vllm_burstiness", "burstiness"),
        metavar="K",
        above=0,
        needs=_AT_A_RATE,
        study=True,
        carried=True,
    )
    user_centric_rate: float | None = _load(
        None,
        "Turns per second of all --num-users together; each user sends one every num-users / R seconds.",
        above=0,
        needs="{} needs {num_users}, the number of users",
        option="user_rate_per_s",
        carried=True,
    )
    num_users: int | None = _load(
        None,
        "Number of users for --user-centric-rate.",
        least=1,
        needs="{} needs {user_centric_rate}, the rate of all users together",
        carried=True,
    )
    fixed_schedule: bool | None = _load(
        None,
        "Start conversations at the arrival times of the file.",
        study=True,
        unset="on if the file has them and no other load is given",
        flag=True,
    )
    fixed_schedule_speedup: float | None = _load(
        None,
        "Divide arrival times by N; think times and tool waits stay as they are.",
        aliases=("synthesis_speedup_ratio",),
        above=0,
        needs=_SCHEDULED,
        study=True,
        option="schedule_speedup",
        flag=True,
    )
    fixed_schedule_start_offset: float | None = _load(
        None,
        "Start the schedule at MS milliseconds; skip earlier arrivals.",
        per=1000,
        least=0,
        needs=_SCHEDULED,
        option="schedule_start_s",
        carried=True,
    )
    fixed_schedule_end_offset: float | None = _load(
        None,
        "End the schedule at MS milliseconds; skip later arrivals.",
        per=1000,
        least=0,
        infinite=True,
        needs=_SCHEDULED,
        option="schedule_end_s",
        carried=True,
    )
    fixed_schedule_auto_offset: bool = switch(
        LOAD,
        "Start the schedule at the first arrival; traces always do.",
        needs=_SCHEDULED,
        option="schedule_auto_offset",
        carried=True,
    )
    conversation_turn_delay_mean: float | None = _load(
        None,
        "Replace the file's think times by normally distributed ones with this mean.",
        aliases=("session_turn_delay_mean",),
        per=1000,
        least=0,
        option="inter_turn_delay_mean_s",
        carried=True,
    )
    conversation_turn_delay_stddev: float | None = _load(
        None,
        "Standard deviation of these think times.",
        aliases=("session_turn_delay_stddev",),
        per=1000,
        least=0,
        needs="{} needs {conversation_turn_delay_mean}, the mean of the think times",
        unset="0",
        option="inter_turn_delay_std_s",
        carried=True,
    )
    inter_turn_delay_cap_seconds: float | None = _load(
        None,
        "Longest think time or tool wait, after scaling.",
        least=0,
        infinite=True,
        option="inter_turn_delay_cap_s",
        carried=True,
    )
    conversation_turn_delay_ratio: float = _load(
        1.0,
        "Multiply think times and tool waits by N.",
        aliases=("session_delay_ratio",),
        least=0,
        option="inter_turn_delay_factor",
        carried=True,
    )
    dataset_sampling_strategy: SamplingStrategy = _load(
        "sequential",
        "Order of conversations: as in the file, shuffled in each pass over the file, or drawn with replacement.",
        option="sampling",
        carried=True,
    )
    vary: bool | None = _load(
        None,
        "Give repeats of a conversation fresh user messages, tool results and replies, of as many tokens; system prompts, "
        "tools and what several conversations share stay.",
        study=True,
        unset="on for bundled workloads and lengths; files are repeated as they are",
        flag=True,
    )
    request_cancellation_rate: float | None = _load(
        None,
        "Cancel this share of the requests; they are recorded as cancelled and their conversations continue.",
        per=100,
        least=0,
        most=100,
        unset="0",
        option="cancellation_share",
        carried=True,
    )
    request_cancellation_delay: float | None = _load(
        None,
        "Cancel S seconds after the request was sent, unless the reply is complete.",
        least=0,
        needs="{} needs {request_cancellation_rate}, the share to cancel",
        unset="0",
        option="cancellation_delay_s",
        carried=True,
    )
    speed: float = _load(
        1.0,
        "The server runs N times faster than real time (`llmirage serve --speed N`): waits are divided by N, "
        "measured times multiplied.",
        above=0,
        usual="run",
        flag="run",
    )
    random_seed: int | None = _load(
        None,
        "Seed of ids, order, arrivals, cancellations and texts.",
        study="seed",
        unset="random",
        option="seed",
        flag=True,
    )
    request_count: tuple[int, ...] | None = _stop(
        None,
        "Send at most N requests, including those of forks and spawns; branch_stats counts what is cut short.",
        aliases=("num_requests",),
        least=1,
        several=True,
        study=True,
        usual="run",
        flag=True,
    )
    num_conversations: tuple[int, ...] | None = _stop(
        None,
        "Run N root conversations with all their children; the file is repeated if it has fewer.",
        aliases=("num_sessions", "conversation_num", "number"),
        least=1,
        several=True,
        study=True,
        unset="each of the file once",
        usual=True,
    )
    duration: float | None = _stop(
        None,
        "Start no conversation after S seconds; started ones send all their turns.",
        above=0,
        study=True,
        usual=True,
        option="soft_duration_s",
    )
    benchmark_duration: float | None = _stop(
        None,
        "Send no request after S seconds, even within a conversation.",
        above=0,
        option="benchmark_duration_s",
        carried=True,
    )
    benchmark_grace_period: float | None = _stop(
        None,
        "Wait S seconds after --benchmark-duration for replies in progress; inf: for all of them.",
        least=0,
        infinite=True,
        needs="{} needs {benchmark_duration} (--duration has no grace period)",
        unset="30",
        option="benchmark_grace_period_s",
        carried=True,
    )
    fail_fast: bool = switch(STOP, "Stop at the first failed request, with exit status 1.", flag="run")


def _number_or_share(value: Any) -> float:
    """Return a whole number, or a share below 1. Raises ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a number, not {value!r}") from None
    if 1 < number < math.inf and number != int(number):
        raise ValueError(f"{number:g} is neither a whole number nor a share below 1")
    return number


_again = partial(again, MeasuredSettings, prefix="warmup", group=WARM_UP, needs=_THERE_IS_ONE)
_begins = partial(_again, needs="")


_scenario = under(SCENARIO)
_of_scenario = partial(_scenario, None, needs="{} needs {scenario}", carried=True)


@dataclass(frozen=True, kw_only=True)
class ScenarioSettings:
    """Settings of a scenario; settings.scenario has what each scenario locks and which values it gives."""

    scenario: str | None = _scenario(
        None,
        "Keep the rules of agentx or inferencex-agentx-mvp (recorded agents on lanes), inferencex (random prompts) or "
        "mlperf-agentic (recorded conversations), with a verdict (docs/agentx.md).",
        metavar="NAME",
        flag="run simulate",
        carried=True,
    )
    unsafe_override: bool = switch(
        SCENARIO,
        "Run in spite of violated rules; the run is then no valid submission.",
        needs="{} needs {scenario}",
        carried=True,
    )
    trajectory_start_min_ratio: float | None = _of_scenario(
        "Earliest sampled instant, as a share of the recorded time.", least=0, most=1, unset="0.25 for agentx, else 0"
    )
    trajectory_start_max_ratio: float | None = _of_scenario(
        "Latest sampled instant, as a share of the recorded time.", least=0, most=1, unset="0.75 for agentx, else 1"
    )
    burst_phase_starts: bool = switch(
        SCENARIO, "Begin the phases on all lanes at once.", needs="{} needs {scenario}", carried=True
    )
    warmup_requests_per_lane: int | None = _of_scenario(
        "Warm up with N requests a lane after the primers, without pauses and with replies of one token.",
        least=1,
        unset="10 for agentx, else none",
    )
    agentic_cache_warmup_duration: float | None = _of_scenario("Warm up likewise for S seconds.", above=0)
    agentic_warmup_grace_period: float | None = _of_scenario(
        "Wait S seconds for the last replies of the warm-up.", least=0, infinite=True, unset="1800 for agentx, else all"
    )
    system_idle_gap_cap_seconds: float | None = _of_scenario(
        "Longest time without a request in flight.", least=0, unset="10, which scenarios lock"
    )
    trace_idle_gap_cap_seconds: float | None = _of_scenario(
        "Longest time in which no request of a tree is in flight.", least=0, unset="300 for agentx, else none"
    )
    failed_request_threshold: float | None = _of_scenario(
        "Stop the run when a larger share of its requests has failed.", least=0, most=1, unset="0.10 for agentx, else none"
    )
    cache_bust: CacheBust | None = _of_scenario(
        "Marker before the prompts of each play of a tree.", unset="first_turn_prefix, which scenarios lock"
    )
    ignore_trace_delays: bool = switch(
        SCENARIO, "Leave out the pauses of the recording; scenarios forbid it.", needs="{} needs {scenario}", carried=True
    )
    use_server_token_count: bool = switch(
        SCENARIO, "Take token counts from the endpoint's usage, as all runs do that get it.", carried=True
    )
    synthesis_max_isl: int | None = _of_scenario("Longest prompt in tokens; scenarios forbid it.", least=1)


@dataclass(frozen=True, kw_only=True)
class LoadSettings(ScenarioSettings, MeasuredSettings):
    """Settings of a run's load, its warm-up included. load.options.RunOptions is what follows from them."""

    warmup_request_count: int = _begins(
        "request_count",
        0,
        "Warm up with N requests.",
        aliases=("warmup_requests", "num_warmup_requests"),
        least=0,
        study=True,
        carried=True,
    )
    num_warmup_sessions: float | None = _begins(
        "num_conversations",
        None,
        "Warm up with N conversations, or, below 1, with this share of --num-conversations; the run continues after them.",
        name="num_warmup_sessions",
        aliases=("warmup_num",),
        metavar="N|SHARE",
        least=None,
        above=0,
        read=_number_or_share,
        option="warmup_num_conversations",
        carried=True,
    )
    warmup_duration: float | None = _begins(
        "benchmark_duration",
        None,
        "Warm up for S seconds.",
        name="warmup_duration",
        option="warmup_duration_s",
        carried=True,
    )
    warmup_grace_period: float | None = _again(
        "benchmark_grace_period",
        None,
        "Wait S seconds after --warmup-duration for replies in progress.",
        name="warmup_grace_period",
        needs="{} needs {warmup_duration}",
        unset="until all are complete",
        option="warmup_grace_period_s",
        carried=True,
    )
    warmup_concurrency: int | None = _again(
        "concurrency", None, "Concurrency of the warm-up.", unset="that of the run", carried=True
    )
    warmup_concurrency_ramp_duration: float | None = _again(
        "concurrency_ramp_duration",
        None,
        "Raise the warm-up concurrency from 1 to --warmup-concurrency over S seconds.",
        needs="{} needs {warmup_concurrency}, the end of the ramp",
        option="warmup_concurrency_ramp_s",
        carried=True,
    )
    warmup_request_rate: float | None = _again(
        "request_rate",
        None,
        "Request rate of the warm-up.",
        unset="that of the run",
        option="warmup_request_rate_per_s",
        carried=True,
    )
    warmup_request_rate_ramp_duration: float | None = _again(
        "request_rate_ramp_duration",
        None,
        "Raise the warm-up rate linearly from 0 to --warmup-request-rate over S seconds.",
        needs="{} needs {warmup_request_rate}, the end of the ramp",
        option="warmup_request_rate_ramp_s",
        carried=True,
    )
    warmup_arrival_pattern: ArrivalPattern | None = _again(
        "arrival_pattern",
        None,
        "Distribution of the gaps between arrivals in the warm-up.",
        unset="that of the run",
        carried=True,
    )


@dataclass(frozen=True, kw_only=True)
class TrafficSettings(LoadSettings, LengthSettings, WorkloadSettings):
    """Settings of the workload, a file or lengths, and of its load."""
