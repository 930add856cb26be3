"""The settings of a run. All times are of the cluster's own life: a run at speed N divides them by N."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llmirage_client.settings import (
    ArrivalPattern,
    EndpointKind,
    EndpointName,
    RateOf,
    SamplingStrategy,
    SessionPrefix,
    ToolResults,
)
from llmirage_client.workload.rates import RateSeries
from llmirage_shared.settings import make_plain

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class Share:
    """The part of a run that one of several workers does, such that all parts together are the run.

    Places (of roots in their order, ticks of a rate, slots, seats of users) are dealt out in turn: worker `index` of `of`
    has those that leave the remainder `index`. A single worker has all.
    """

    index: int = 0
    of: int = 1

    def part(self, count: int, start: int = 0) -> int:
        """Return how many of `count` places from `start` on are its own; over all shares the sum is `count`."""
        return len(range(self.first(start), start + count, self.of))

    def first(self, start: int) -> int:
        """Return the first of its places from `start` on."""
        return start + (self.index - start) % self.of

    def has(self, place: int) -> bool:
        return place % self.of == self.index

    def pick(self, things: Iterable[_T]) -> Iterator[_T]:
        """Return its own of things that have the places 0, 1, 2, ..."""
        return itertools.islice(things, self.index, None, self.of)


@dataclass(slots=True, frozen=True, kw_only=True)
class LaneOptions:
    """The load of AgentX: `RunOptions.concurrency` lanes that replay recorded trees (see load.lanes). Times in seconds.

    run_id: part of the markers before prompts; another one makes all prompts new to a server.
    start_min, start_max: shares of the recorded time between which the instants are sampled at which lanes begin.
    marks: every play of a tree has a marker before its prompts.
    burst: lanes do not wait for each other's first requests.
    pressure_requests: of the warm-up, a lane; pressure_s: its time.
    warm_up_grace_s: after which a warm-up whose requests are not over has failed.
    system_idle_cap_s, tree_idle_cap_s: longest time without a request in flight at all, or of a tree.
    failed_request_threshold: share of failed requests above which the run ends.
    overflow: texts of errors that say that a prompt is too long for the model.
    """

    run_id: str
    start_min: float = 0.25
    start_max: float = 0.75
    marks: bool = True
    burst: bool = False
    pressure_requests: int | None = None
    pressure_s: float | None = None
    warm_up_grace_s: float = math.inf
    system_idle_cap_s: float | None = None
    tree_idle_cap_s: float | None = None
    failed_request_threshold: float | None = None
    overflow: tuple[str, ...] = ()

    @property
    def has_pressure(self) -> bool:
        return self.pressure_requests is not None or self.pressure_s is not None


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions:
    """One run's settings; the defaults run every root of the file once, one after the other.

    Without a rate, a schedule or a pace of users, conversations start as slots come free. settings.load has what each field
    means, under the setting that it comes from.

    class_objectives: TTFT and TPOT of service classes, in ms.
    first_root: number of conversations of the order that earlier runs have taken.
    share: the part of one of several workers; every other field is about the whole run.
    fail_fast_children: end the run at the first failed request of a fork or spawn.
    scenario, violations: the rules of the run, and those that it does not keep.

    The warm-up is a phase before the measured one, with the load of the run where it has none of its own. There is one when
    it has a number of requests or conversations, or a duration.
    """

    model: str = ""
    endpoint_type: EndpointName | None = None
    endpoint_kind: EndpointKind = "other"
    endpoint_path: str | None = None
    tool_results: ToolResults | None = None
    streaming: bool = True
    extra_inputs: Mapping[str, Any] = field(default_factory=dict)
    use_legacy_max_tokens: bool = False
    session_header: str | None = None
    session_headers: tuple[str, ...] = ()
    class_objectives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    session_prefix: SessionPrefix = "extend"
    tokenizer: str | None = None

    concurrency: int | None = None
    agents: int | None = None
    concurrency_ramp_s: float = 0.0
    request_rate_per_s: float | None = None
    request_rate_ramp_s: float = 0.0
    request_rate_of: RateOf = "turns"
    request_rate_series: RateSeries | None = None
    arrival_pattern: ArrivalPattern = "poisson"
    arrival_smoothness: float = 1.0
    user_rate_per_s: float | None = None
    num_users: int = 0
    fixed_schedule: bool = False
    schedule_speedup: float = 1.0
    schedule_start_s: float = 0.0
    schedule_end_s: float = math.inf
    schedule_auto_offset: bool = False
    inter_turn_delay_mean_s: float | None = None
    inter_turn_delay_std_s: float = 0.0
    inter_turn_delay_cap_s: float | None = None
    inter_turn_delay_factor: float = 1.0
    sampling: SamplingStrategy = "sequential"
    vary: bool = False
    cancellation_share: float = 0.0
    cancellation_delay_s: float = 0.0
    speed: float = 1.0
    seed: int | None = None
    scenario: str | None = None
    violations: tuple[str, ...] = ()
    lanes: LaneOptions | None = None
    first_root: int = 0
    share: Share = field(default_factory=Share)

    request_count: int | None = None
    num_conversations: int | None = None
    soft_duration_s: float | None = None
    benchmark_duration_s: float | None = None
    benchmark_grace_period_s: float = 30.0
    fail_fast: bool = False
    fail_fast_children: bool = False

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

    def of_warm_up(self) -> RunOptions | None:
        """Return the options of the warm-up phase; None if there is none."""
        if self.lanes is not None:
            return replace(self, request_count=None, soft_duration_s=None, benchmark_duration_s=None, cancellation_share=0.0)
        if not self.warmup_request_count and self.warmup_num_conversations is None and self.warmup_duration_s is None:
            return None
        own: dict[str, Any] = {}
        if self.warmup_concurrency is not None or self.warmup_request_rate_per_s is not None:
            own = {"concurrency": self.warmup_concurrency, "request_rate_per_s": self.warmup_request_rate_per_s}
            own["request_rate_series"] = None
        for name in ("concurrency_ramp_s", "request_rate_ramp_s", "arrival_pattern"):
            if (value := getattr(self, f"warmup_{name}")) is not None:
                own[name] = value
        return replace(
            self,
            **own,
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
    def takes_engine_fields(self) -> bool:
        """True if the endpoint takes token ids as a prompt, `ignore_eos` and `min_tokens`."""
        return self.endpoint_kind != "other"

    @property
    def counts_prompts(self) -> bool:
        """True if the tokenizer here is the endpoint's, as far as can be known."""
        return self.endpoint_kind == "llmirage" or self.tokenizer is not None

    @property
    def open_ended(self) -> bool:
        """True if a number of requests or a time limits the run."""
        return not (self.request_count is self.soft_duration_s is self.benchmark_duration_s is None)

    @property
    def rates(self) -> RateSeries | None:
        """Turns of roots per second over time; None without a rate."""
        if self.request_rate_per_s is not None:
            return RateSeries.constant(self.request_rate_per_s, self.request_rate_ramp_s)
        return self.request_rate_series
