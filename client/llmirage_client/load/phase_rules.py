"""What the options mean for one phase of a run, whoever carries it out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal

from llmirage_client.load.options import RunOptions


def moments(options: RunOptions, start_s: float) -> list[tuple[float, Literal["close", "end", "cancel"]]]:
    """When a phase that begins at start_s closes, ends and is cancelled."""
    hard_s, soft_s, grace_s = options.benchmark_duration_s, options.soft_duration_s, options.benchmark_grace_period_s
    after: list[tuple[float, Literal["close", "end", "cancel"]]] = []
    if soft_s is not None:
        after.append((soft_s, "close"))
    if hard_s is not None:
        after += [(hard_s, "end"), (hard_s + grace_s, "cancel")]
    return [(start_s + after_s / options.speed, what) for after_s, what in after if after_s < math.inf]


def delay_s(options: RunOptions, given_s: float, index: int, name: Callable[[], str]) -> float:
    """The pause before a turn on the run's clock, by the file or as drawn. name: of the conversation."""
    if index and options.inter_turn_delay_mean_s is not None:
        rng = random.Random(f"delay {name()} {index}")
        given_s = max(rng.gauss(options.inter_turn_delay_mean_s, options.inter_turn_delay_std_s), 0.0)
    given_s *= options.inter_turn_delay_factor
    cap_s = options.inter_turn_delay_cap_s
    return (given_s if cap_s is None else min(given_s, cap_s)) / options.speed


def own_requests(options: RunOptions) -> int | None:
    """The cap on requests for this worker; 0 when it has no slot in which to send any."""
    share = options.share
    if options.concurrency is not None and not share.part(options.concurrency):
        return 0
    return None if options.request_count is None else share.part(options.request_count)
