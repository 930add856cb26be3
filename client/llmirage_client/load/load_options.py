"""When the conversations of a run start, which of them, and when the run ends."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llmirage_client.choices import ArrivalPattern, RateOf, SamplingStrategy
from llmirage_client.load.rates import RateSeries
from llmirage_client.load.request_options import RequestOptions
from llmirage_client.load.share import Share
from llmirage_shared.settings import at_call, switch, under

LOAD, STOP = "Load", "Stop conditions"
_load = under(LOAD)
_stop = under(STOP)
_AT_A_RATE = "{} needs {request_rate} or {request_rate_series}"
_SCHEDULED = "{} needs a {fixed_schedule:fixed schedule}"


@dataclass(slots=True, frozen=True, kw_only=True, init=False, repr=False, eq=False)  # of RunOptions, which has these
class LoadOptions(RequestOptions):
    """Without a rate, a schedule or a pace of users, conversations start as slots come free.

    first_root: so many conversations of the order are left to runs before this one.
    share: what of all this one of several workers does; every other field is about the whole run.
    fail_fast_children: end the run at the first failed request of a fork or spawn.
    """

    concurrency: int | None = _load(
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
    )
    concurrency_ramp_s: float = _load(
        0.0,
        "Raise the concurrency from 1 to --concurrency over S seconds; 0 starts all at once.",
        name="concurrency_ramp_duration",
        least=0,
        study=True,
        needs="{} needs {concurrency}, the end of the ramp",
    )
    request_rate_per_s: float | None = _load(
        None,
        "Turns of root conversations per second; several numbers make a sweep.",
        name="request_rate",
        aliases=("rate",),
        above=0,
        several=True,
        study=True,
        usual=True,
    )
    request_rate_ramp_s: float = _load(
        0.0,
        "Raise the rate linearly from 0 to --request-rate over S seconds.",
        name="request_rate_ramp_duration",
        above=0,
        needs="{} needs {request_rate}, the end of the ramp",
    )
    request_rate_of: RateOf = _load(
        "turns",
        "What the rate counts: turns of root conversations, each of which waits for its turn; or new conversations, "
        "whose further turns go out when they are ready.",
        needs=_AT_A_RATE,
        study=True,
        unset="turns",
    )
    request_rate_series: RateSeries | None = _load(
        None,
        "Rate over time, linear between points such as 0:1,60:10,120:10, or a file of points; the last rate holds.",
        metavar="S:R,...|FILE",
        read=at_call("llmirage_client.load.rate_series:series_text"),
    )
    arrival_pattern: ArrivalPattern = _load(
        "poisson",
        "Distribution of the gaps between arrivals at a rate.",
        aliases=("request_rate_mode",),
        needs=_AT_A_RATE,
        study=True,
        unset="poisson; gamma with --arrival-smoothness",
    )
    arrival_smoothness: float = _load(
        1.0,
        "Shape of the gamma distribution: below 1 bursty, 1 is poisson, above 1 more regular.",
        aliases=("vllm_burstiness", "burstiness"),
        metavar="K",
        above=0,
        needs=_AT_A_RATE,
        study=True,
    )
    user_rate_per_s: float | None = _load(
        None,
        "Turns per second of all --num-users together; each user sends one every num-users / R seconds.",
        name="user_centric_rate",
        above=0,
        needs="{} needs {num_users}, the number of users",
    )
    num_users: int = _load(
        0,
        "Number of users for --user-centric-rate.",
        least=1,
        needs="{} needs {user_centric_rate}, the rate of all users together",
    )
    fixed_schedule: bool = _load(
        False,
        "Start conversations at the arrival times of the file.",
        study=True,
        unset="on if the file has them and no other load is given",
    )
    schedule_speedup: float = _load(
        1.0,
        "Divide arrival times by N; think times and tool waits stay as they are.",
        name="fixed_schedule_speedup",
        above=0,
        needs=_SCHEDULED,
        study=True,
    )
    schedule_start_s: float = _load(
        0.0,
        "Start the schedule at MS milliseconds; skip earlier arrivals.",
        name="fixed_schedule_start_offset",
        per=1000,
        least=0,
        needs=_SCHEDULED,
    )
    schedule_end_s: float = _load(
        math.inf,
        "End the schedule at MS milliseconds; skip later arrivals.",
        name="fixed_schedule_end_offset",
        per=1000,
        least=0,
        infinite=True,
        needs=_SCHEDULED,
    )
    schedule_auto_offset: bool = switch(
        LOAD,
        "Start the schedule at the first arrival; traces always do.",
        name="fixed_schedule_auto_offset",
        needs=_SCHEDULED,
    )
    inter_turn_delay_mean_s: float | None = _load(
        None,
        "Replace the file's think times by normally distributed ones with this mean.",
        name="conversation_turn_delay_mean",
        aliases=("session_turn_delay_mean",),
        per=1000,
        least=0,
    )
    inter_turn_delay_std_s: float = _load(
        0.0,
        "Standard deviation of these think times.",
        name="conversation_turn_delay_stddev",
        aliases=("session_turn_delay_stddev",),
        per=1000,
        least=0,
        needs="{} needs {conversation_turn_delay_mean}, the mean of the think times",
        unset="0",
    )
    inter_turn_delay_cap_s: float | None = _load(
        None,
        "Longest think time or tool wait, after scaling.",
        name="inter_turn_delay_cap_seconds",
        least=0,
        infinite=True,
    )
    inter_turn_delay_factor: float = _load(
        1.0,
        "Multiply think times and tool waits by N.",
        name="conversation_turn_delay_ratio",
        aliases=("session_delay_ratio",),
        least=0,
    )
    sampling: SamplingStrategy = _load(
        "sequential",
        "Order of conversations: as in the file, shuffled in each pass over the file, or drawn with replacement.",
        name="dataset_sampling_strategy",
    )
    vary: bool = _load(
        False,
        "Give repeats of a conversation fresh user messages, tool results and replies, of as many tokens; system prompts, "
        "tools and what several conversations share stay.",
        study=True,
        unset="on for bundled workloads and lengths; files are repeated as they are",
    )
    cancellation_share: float = _load(
        0.0,
        "Cancel this share of the requests; they are recorded as cancelled and their conversations continue.",
        name="request_cancellation_rate",
        per=100,
        least=0,
        most=100,
        unset="0",
    )
    cancellation_delay_s: float = _load(
        0.0,
        "Cancel S seconds after the request was sent, unless the reply is complete.",
        name="request_cancellation_delay",
        least=0,
        needs="{} needs {request_cancellation_rate}, the share to cancel",
        unset="0",
    )
    speed: float = _load(
        1.0,
        "The server runs N times faster than real time (`llmirage serve --speed N`): waits are divided by N, "
        "measured times multiplied.",
        above=0,
        usual="run",
    )
    seed: int | None = _load(
        None,
        "Seed of ids, order, arrivals, cancellations and texts.",
        name="random_seed",
        study="seed",
        unset="random",
    )
    first_root: int = 0
    share: Share = field(default_factory=Share)

    request_count: int | None = _stop(
        None,
        "Send at most N requests, including those of forks and spawns; branch_stats counts what is cut short.",
        aliases=("num_requests",),
        least=1,
        several=True,
        study=True,
        usual="run",
    )
    num_conversations: int | None = _stop(
        None,
        "Run N root conversations with all their children; the file is repeated if it has fewer.",
        aliases=("num_sessions", "number"),
        least=1,
        several=True,
        study=True,
        unset="each of the file once",
        usual=True,
    )
    soft_duration_s: float | None = _stop(
        None,
        "Start no conversation after S seconds; started ones send all their turns.",
        name="duration",
        above=0,
        infinite=True,
        study=True,
        usual=True,
    )
    benchmark_duration_s: float | None = _stop(
        None,
        "Send no request after S seconds, even within a conversation.",
        name="benchmark_duration",
        above=0,
        infinite=True,
    )
    benchmark_grace_period_s: float = _stop(
        30.0,
        "Wait S seconds after --benchmark-duration for replies in progress; inf: for all of them.",
        name="benchmark_grace_period",
        least=0,
        infinite=True,
        needs="{} needs {benchmark_duration} (--duration has no grace period)",
        unset="30",
    )
    fail_fast: bool = switch(STOP, "Stop at the first failed request, with exit status 1.")
    fail_fast_children: bool = False

    @property
    def open_ended(self) -> bool:
        """Whether something else than a number of conversations limits the run."""
        return not (self.request_count is self.soft_duration_s is self.benchmark_duration_s is None)

    @property
    def rates(self) -> RateSeries | None:
        """How many turns of roots per second, when; None when no rate rules."""
        if self.request_rate_per_s is not None:
            return RateSeries.constant(self.request_rate_per_s, self.request_rate_ramp_s)
        return self.request_rate_series
