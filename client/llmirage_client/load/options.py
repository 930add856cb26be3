"""What a run is asked to do. All times are of the cluster's own life: a run at speed N divides them by N."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from llmirage_client.load.rates import ArrivalPattern, RateSeries
from llmirage_client.load.sampling import SamplingStrategy
from llmirage_client.load.share import Share
from llmirage_shared.plain_numbers import make_plain

if TYPE_CHECKING:
    from llmirage_client.load.tool_results import ToolResults
    from llmirage_client.targets.endpoints import EndpointName

EndpointKind = Literal["llmirage", "vllm", "other"]
SessionPrefix = Literal["extend", "none"]


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions:
    """One run's settings; the defaults run every root of the file once, one after the other.

    Requests. model: for turns that name none. endpoint_type: None lets each turn go where its content belongs.
    endpoint_kind: llmirage and vllm accept token ids as a prompt, and `ignore_eos` and `min_tokens`.
    session_prefix: how calls without token ids relate to the call before; see load.token_calls.
    tokenizer: folder or hub name for counting and writing prompts; None: the embedded one.

    Which conversations. sampling: the order of roots. first_root: so many of that order are left to runs before this one.
    seed: of identifiers, arrivals, sampling, cancellations, think times and texts; None: drawn anew.

    When they start: as slots come free, unless there is a rate, a schedule or a pace of users.
    concurrency: root conversations at once, each with its whole tree; None: 1, or no limit where something else starts them.
    concurrency_ramp_s: from 1 to concurrency over so long.
    request_rate_per_s: turns of root conversations per second, growing from 0 over request_rate_ramp_s; or
    request_rate_series. Children start when their parent's reply is there, whatever the rate.
    arrival_pattern, arrival_smoothness: the gaps at that rate; see load.rates.
    fixed_schedule: start roots when the file says, schedule_speedup times as fast. schedule_start_s, schedule_end_s: only
        those from there to there, by the file's time; schedule_auto_offset: the first of them starts at once.
    user_rate_per_s, num_users: a pace of users; see load.users.
    inter_turn_delay_mean_s, inter_turn_delay_std_s: normal delays before further turns instead of the file's own.
    inter_turn_delay_cap_s: the longest any turn's delay may be, after it was multiplied by inter_turn_delay_factor.

    When it ends. num_conversations: how many roots to run, the file again from its start when it has fewer; None: each once,
        or as many as it takes when something else limits the run.
    request_count: at most so many requests go out, those of children included.
    soft_duration_s: afterwards no conversation begins, and those under way send all their turns.
    benchmark_duration_s: afterwards no request goes out; replies may still come for benchmark_grace_period_s.
    fail_fast: at the first failed request. fail_fast_children: at the first failed request of a fork or spawn.

    share: what of all this one of several workers does; every other field is about the whole run.
    cancellation_share: of the requests, 0 to 1, which are cancelled cancellation_delay_s after they went out.
    warmup_...: a phase before, which does not count, with what it has of its own; without count and duration there is none.
    """

    model: str = ""
    endpoint_type: EndpointName | None = None
    endpoint_kind: EndpointKind = "other"
    streaming: bool = True
    extra_inputs: Mapping[str, Any] = field(default_factory=dict)
    use_legacy_max_tokens: bool = False
    endpoint_path: str | None = None  # from the root of the host, instead of the endpoint's own
    tool_results: ToolResults | None = None  # see load.tool_results; None: as the API needs it
    session_header: str | None = None
    session_prefix: SessionPrefix = "extend"
    tokenizer: str | None = None
    speed: float = 1.0

    sampling: SamplingStrategy = "sequential"
    first_root: int = 0
    share: Share = field(default_factory=Share)
    seed: int | None = None

    concurrency: int | None = None
    concurrency_ramp_s: float = 0.0
    request_rate_per_s: float | None = None
    request_rate_ramp_s: float = 0.0
    request_rate_series: RateSeries | None = None
    arrival_pattern: ArrivalPattern = "poisson"
    arrival_smoothness: float = 1.0
    fixed_schedule: bool = False
    schedule_speedup: float = 1.0
    schedule_start_s: float = 0.0
    schedule_end_s: float = math.inf
    schedule_auto_offset: bool = False
    user_rate_per_s: float | None = None
    num_users: int = 0
    inter_turn_delay_mean_s: float | None = None
    inter_turn_delay_std_s: float = 0.0
    inter_turn_delay_cap_s: float | None = None
    inter_turn_delay_factor: float = 1.0

    num_conversations: int | None = None
    request_count: int | None = None
    soft_duration_s: float | None = None
    benchmark_duration_s: float | None = None
    benchmark_grace_period_s: float = 30.0
    fail_fast: bool = False
    fail_fast_children: bool = False

    cancellation_share: float = 0.0
    cancellation_delay_s: float = 0.0

    warmup_request_count: int = 0
    warmup_num_conversations: int | None = None
    warmup_duration_s: float | None = None
    warmup_grace_period_s: float = math.inf
    warmup_concurrency: int | None = None
    warmup_concurrency_ramp_s: float | None = None
    warmup_request_rate_per_s: float | None = None
    warmup_request_rate_ramp_s: float | None = None
    warmup_arrival_pattern: ArrivalPattern | None = None

    def __post_init__(self) -> None:
        make_plain(self)

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

    def of_warm_up(self) -> RunOptions | None:
        """The options of the phase before; None when there is none. It has the load of the run where it has none itself."""
        if not self.warmup_request_count and self.warmup_num_conversations is None and self.warmup_duration_s is None:
            return None
        own_load = self.warmup_concurrency is not None or self.warmup_request_rate_per_s is not None
        slots_ramp_s, rate_ramp_s = self.warmup_concurrency_ramp_s, self.warmup_request_rate_ramp_s
        return replace(
            self,
            concurrency=self.warmup_concurrency if own_load else self.concurrency,
            concurrency_ramp_s=self.concurrency_ramp_s if slots_ramp_s is None else slots_ramp_s,
            request_rate_per_s=self.warmup_request_rate_per_s if own_load else self.request_rate_per_s,
            request_rate_ramp_s=self.request_rate_ramp_s if rate_ramp_s is None else rate_ramp_s,
            request_rate_series=None if own_load else self.request_rate_series,
            arrival_pattern=self.warmup_arrival_pattern or self.arrival_pattern,
            fixed_schedule=False,
            user_rate_per_s=None,
            num_conversations=self.warmup_num_conversations,
            warmup_num_conversations=None,
            request_count=self.warmup_request_count or None,
            soft_duration_s=None,
            benchmark_duration_s=self.warmup_duration_s,
            benchmark_grace_period_s=self.warmup_grace_period_s,
            cancellation_share=0.0,
        )

    @property
    def takes_token_ids(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def knows_ignore_eos(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def counts_prompts(self) -> bool:
        """Whether the tokenizer here is, as far as anybody can know, the endpoint's."""
        return self.endpoint_kind == "llmirage" or self.tokenizer is not None
