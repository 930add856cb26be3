"""What a run is asked to do. All times are of the cluster's own life: a run at speed N divides them by N."""

# ruff: noqa: RUF009  `again` is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llmirage_client.choices import ArrivalPattern
from llmirage_client.load.load_options import LoadOptions
from llmirage_shared import settings
from llmirage_shared.settings import make_plain

WARM_UP = "Warm-up (turns of root conversations before the measured run, not counted in its metrics)"
_THERE_IS_ONE = "{}: there is no warm-up; set {warmup_request_count}, {num_warmup_sessions} or {warmup_duration}"
_again = partial(settings.again, LoadOptions, prefix="warmup", group=WARM_UP, needs=_THERE_IS_ONE)
_begins = partial(_again, needs="")


def _number_or_share(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a number, not {value!r}") from None
    if 1 < number < math.inf and number != int(number):
        raise ValueError(f"{number:g} is neither a whole number nor a share below 1")
    return number


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions(LoadOptions):
    """One run's settings; the defaults run every root of the file once, one after the other.

    The warm-up is a phase before the measured one, with the load of the run where it has none of its own. There is one when
    it has a number of requests or conversations, or a duration.
    """

    warmup_request_count: int = _begins(
        "request_count",
        0,
        "Warm up with N requests.",
        aliases=("warmup_requests", "num_warmup_requests"),
        least=0,
        study=True,
    )
    warmup_num_conversations: int | None = _begins(
        "num_conversations",
        None,
        "Warm up with N conversations, or, below 1, with this share of --num-conversations; the run continues after them.",
        name="num_warmup_sessions",
        aliases=("warmup_num",),
        metavar="N|SHARE",
        least=None,
        above=0,
        read=_number_or_share,
    )
    warmup_duration_s: float | None = _begins("benchmark_duration_s", None, "Warm up for S seconds.", name="warmup_duration")
    warmup_grace_period_s: float = _again(
        "benchmark_grace_period_s",
        math.inf,
        "Wait S seconds after --warmup-duration for replies in progress.",
        name="warmup_grace_period",
        needs="{} needs {warmup_duration}",
        unset="until all are complete",
    )
    warmup_concurrency: int | None = _again("concurrency", None, "Concurrency of the warm-up.", unset="that of the run")
    warmup_concurrency_ramp_s: float | None = _again(
        "concurrency_ramp_s",
        None,
        "Raise the warm-up concurrency from 1 to --warmup-concurrency over S seconds.",
        needs="{} needs {warmup_concurrency}, the end of the ramp",
    )
    warmup_request_rate_per_s: float | None = _again(
        "request_rate_per_s", None, "Request rate of the warm-up.", unset="that of the run"
    )
    warmup_request_rate_ramp_s: float | None = _again(
        "request_rate_ramp_s",
        None,
        "Raise the warm-up rate linearly from 0 to --warmup-request-rate over S seconds.",
        needs="{} needs {warmup_request_rate}, the end of the ramp",
    )
    warmup_arrival_pattern: ArrivalPattern | None = _again(
        "arrival_pattern", None, "Distribution of the gaps between arrivals in the warm-up.", unset="that of the run"
    )

    def __post_init__(self) -> None:
        make_plain(self)

    def of_warm_up(self) -> RunOptions | None:
        """The options of the phase before; None when there is none."""
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
