"""The number of instances a pool should have: rules on queue, load, KV memory or rate, as a pure state machine.

The arithmetic is that of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2, metrics of type AverageValue): each target
proposes total / target instances, rounded up; the largest proposal counts; one within 10 % of the current number changes
nothing; and stabilisation windows look back at earlier proposals, so that short peaks or lulls have no effect.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

TOLERANCE = 0.1
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """Targets for one instance, and limits and timing of the scaling.

    queue, concurrency, kv, rate: targets per instance: waiting requests; waiting or running requests; the share of its KV
        memory in use; requests that arrive in a second. None: does not count. At least one counts.

    start_up_s: from the decision until the new instance accepts requests.
    up_after_s, down_after_s: only what was proposed all that time is carried out.

    Raises ValueError naming every invalid field.
    """

    most: int
    least: int = 1
    first: int | None = None  # instances at the beginning; None: the least
    queue: float | None = None
    concurrency: float | None = None
    kv: float | None = None
    rate: float | None = None
    interval_s: float = 15.0
    start_up_s: float = 60.0
    up_after_s: float = 0.0
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        problems = []
        targets = (self.queue, self.concurrency, self.kv, self.rate)
        if all(target is None for target in targets):
            problems.append("a rule needs a target: queue, concurrency, kv or rate")
        if any(target is not None and not 0 < target < math.inf for target in targets):
            problems.append("targets must be above 0")
        if not 0 <= self.least <= self.most:
            problems.append(f"the least instances ({self.least}) must be between 0 and the most ({self.most})")
        if self.first is not None and not self.least <= self.first <= self.most:
            problems.append(f"the first instances ({self.first}) must be between {self.least} and {self.most}")
        if not 0 < self.interval_s < math.inf:
            problems.append("the interval must be above 0 s")
        if any(not 0 <= seconds < math.inf for seconds in (self.start_up_s, self.up_after_s, self.down_after_s)):
            problems.append("times must be numbers of seconds from 0 up")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def at_first(self) -> int:
        return self.least if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The work of all instances of a pool. kv: the sum of the shares in use. rate: arrivals in a second since last time."""

    waiting: int
    running: int
    kv: float
    rate: float


class Autoscaler:
    """Decisions of one rule, to be asked for every `rule.interval_s`; earlier proposals are remembered."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self._wishes: deque[tuple[float, int]] = deque()

    def decide(self, now: float, load: PoolLoad, current: int) -> int:
        """Return the number of instances there should be, with `current` there or starting."""
        rule = self.rule
        self._wishes.append((now, self._wish(load, current)))
        window_s = max(rule.up_after_s, rule.down_after_s)
        while self._wishes[0][0] < now - window_s - _ROUNDING:
            self._wishes.popleft()
        up = min(wish for at, wish in self._wishes if at >= now - rule.up_after_s - _ROUNDING)
        down = max(wish for at, wish in self._wishes if at >= now - rule.down_after_s - _ROUNDING)
        if up > current:
            return up
        return min(current, down)

    def _wish(self, load: PoolLoad, current: int) -> int:
        rule = self.rule
        totals = (
            (load.waiting, rule.queue),
            (load.waiting + load.running, rule.concurrency),
            (load.kv, rule.kv),
            (load.rate, rule.rate),
        )
        wish = max(_instances(total / target, current) for total, target in totals if target is not None)
        if load.waiting or load.running:
            wish = max(wish, 1)  # at least one must serve them
        return min(max(wish, rule.least), rule.most)


def _instances(wanted: float, current: int) -> int:
    if current and abs(wanted / current - 1.0) <= TOLERANCE + _ROUNDING:
        return current
    return math.ceil(wanted - _ROUNDING)
