"""When the conversations of a run start, which of them, and when the run ends."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llmirage_client.choices import ArrivalPattern, SamplingStrategy
from llmirage_client.load.rates import RateSeries
from llmirage_client.load.request_options import RequestOptions
from llmirage_client.load.share import Share
from llmirage_shared.settings import at_call, switch, under

LOAD, STOP = "Load", "Stop conditions"
_load = under(LOAD)
_stop = under(STOP)
_AT_A_RATE = "{} is about {request_rate} or {request_rate_series}, and neither is given"
_SCHEDULED = "{} needs a {fixed_schedule:fixed schedule}, and this run has none"


@dataclass(slots=True, frozen=True, kw_only=True, init=False, repr=False, eq=False)  # of RunOptions, which has these
class LoadOptions(RequestOptions):
    """Without a rate, a schedule or a pace of users, conversations start as slots come free.

    first_root: so many conversations of the order are left to runs before this one.
    share: what of all this one of several workers does; every other field is about the whole run.
    fail_fast_children: end the run at the first failed request of a fork or spawn.
    """

    concurrency: int | None = _load(
        None,
        "Root conversations at a time, each with all its children; several numbers make a sweep.",
        aliases=("parallel",),
        least=1,
        several=True,
        study=True,
        unset="1, unless a rate or schedule rules",
    )
    concurrency_ramp_s: float = _load(
        0.0,
        "From 1 to --concurrency by ones over S seconds.",
        name="concurrency_ramp_duration",
        above=0,
        needs="{} needs {concurrency}, where the ramp ends",
    )
    request_rate_per_s: float | None = _load(
        None,
        "Turns of root conversations per second; several numbers make a sweep.",
        name="request_rate",
        aliases=("rate",),
        above=0,
        several=True,
        study=True,
    )
    request_rate_ramp_s: float = _load(
        0.0,
        "From 0 to --request-rate along a line over S seconds.",
        name="request_rate_ramp_duration",
        above=0,
        needs="{} needs {request_rate}, where the ramp ends",
    )
    request_rate_series: RateSeries | None = _load(
        None,
        "A rate along straight lines between points, such as 0:1,60:10,120:10 or a file of them; then the last holds.",
        metavar="S:R,...|FILE",
        read=at_call("llmirage_client.load.rate_series:series_text"),
    )
    arrival_pattern: ArrivalPattern = _load(
        "poisson",
        "Gaps between arrivals at a rate.",
        aliases=("request_rate_mode",),
        needs=_AT_A_RATE,
        study=True,
        unset="poisson; gamma with --arrival-smoothness",
    )
    arrival_smoothness: float = _load(
        1.0,
        "Shape of gamma gaps: below 1 bursts, 1 is poisson, above 1 more regular.",
        aliases=("vllm_burstiness", "burstiness"),
        metavar="K",
        above=0,
        needs=_AT_A_RATE,
        study=True,
    )
    user_rate_per_s: float | None = _load(
        None,
        "Turns per second of --num-users together: each user sends one every num-users / R seconds.",
        name="user_centric_rate",
        above=0,
        needs="{} and {num_users} go together: the one says how often all users send, the other how many",
    )
    num_users: int = _load(
        0,
        "Users of --user-centric-rate.",
        least=1,
        needs="{user_centric_rate} and {} go together: the one says how often all users send, the other how many",
    )
    fixed_schedule: bool = _load(
        False,
        "Start conversations at the file's own arrival times.",
        study=True,
        unset="if it has them and nothing above is given",
    )
    schedule_speedup: float = _load(
        1.0,
        "Arrivals N times as fast as in the file; think times and tool waits stay.",
        name="fixed_schedule_speedup",
        above=0,
        needs=_SCHEDULED,
        study=True,
    )
    schedule_start_s: float = _load(
        0.0,
        "Leave out what arrives before MS milliseconds of the schedule, and begin there.",
        name="fixed_schedule_start_offset",
        per=1000,
        least=0,
        needs=_SCHEDULED,
    )
    schedule_end_s: float = _load(
        math.inf,
        "Leave out what arrives after MS milliseconds of the schedule.",
        name="fixed_schedule_end_offset",
        per=1000,
        least=0,
        infinite=True,
        needs=_SCHEDULED,
    )
    schedule_auto_offset: bool = switch(
        LOAD,
        "Begin with the first arrival, whatever its time.  [traces do so by themselves]",
        name="fixed_schedule_auto_offset",
        needs=_SCHEDULED,
    )
    inter_turn_delay_mean_s: float | None = _load(
        None,
        "Think times before further turns, normal around MS milliseconds, instead of the file's own.",
        name="conversation_turn_delay_mean",
        aliases=("session_turn_delay_mean",),
        per=1000,
        least=0,
    )
    inter_turn_delay_std_s: float = _load(
        0.0,
        "Their standard deviation.",
        name="conversation_turn_delay_stddev",
        aliases=("session_turn_delay_stddev",),
        per=1000,
        least=0,
        needs="{} needs {conversation_turn_delay_mean}, around which think times are drawn",
        unset="0",
    )
    inter_turn_delay_cap_s: float | None = _load(
        None,
        "The longest a think time or tool wait may be, once it was multiplied.",
        name="inter_turn_delay_cap_seconds",
        least=0,
        infinite=True,
    )
    inter_turn_delay_factor: float = _load(
        1.0,
        "Think times and tool waits N times as long as in the file.",
        name="conversation_turn_delay_ratio",
        aliases=("session_delay_ratio",),
        least=0,
    )
    sampling: SamplingStrategy = _load(
        "sequential",
        "Order of the conversations: the file's; all in a random order, then all in another; or drawn with replacement. "
        "By --random-seed.",
        name="dataset_sampling_strategy",
    )
    cancellation_share: float = _load(
        0.0,
        "Cancel so many of the requests; they are recorded as cancelled, and their conversations go on.",
        name="request_cancellation_rate",
        per=100,
        least=0,
        most=100,
        unset="0",
    )
    cancellation_delay_s: float = _load(
        0.0,
        "Cancel S seconds after the whole request is out, unless the reply is complete.",
        name="request_cancellation_delay",
        least=0,
        needs="{} needs {request_cancellation_rate}, which says how many are cancelled",
        unset="0",
    )
    speed: float = _load(
        1.0,
        "The server runs N times faster than life (`llmirage serve --speed N`): arrivals and waits are divided by N, "
        "measured times multiplied by it.",
        above=0,
    )
    seed: int | None = _load(
        None,
        "Same seed: same ids, order, arrivals, cancellations and texts.",
        name="random_seed",
        study="seed",
        unset="drawn anew",
    )
    first_root: int = 0
    share: Share = field(default_factory=Share)

    request_count: int | None = _stop(
        None,
        "Send at most N requests, those of forks and spawns included; what is cut short is counted in branch_stats.",
        aliases=("num_requests",),
        least=1,
        several=True,
        study=True,
    )
    num_conversations: int | None = _stop(
        None,
        "Run N root conversations with all their children, from the top again when the file has fewer.",
        aliases=("num_sessions", "number"),
        least=1,
        several=True,
        study=True,
        unset="each once",
    )
    soft_duration_s: float | None = _stop(
        None,
        "Begin no conversation after S seconds; each one that began sends all its turns.",
        name="duration",
        above=0,
        infinite=True,
        study=True,
    )
    benchmark_duration_s: float | None = _stop(
        None,
        "Send nothing more after S seconds, in the middle of conversations too.",
        name="benchmark_duration",
        above=0,
        infinite=True,
    )
    benchmark_grace_period_s: float = _stop(
        30.0,
        "Wait so long after --benchmark-duration for replies under way; inf waits for all.",
        name="benchmark_grace_period",
        least=0,
        infinite=True,
        needs="{} comes after {benchmark_duration}, which is not given (--duration needs none)",
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
