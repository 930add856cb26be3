"""The number of instances a pool should have: rules on queue, load, KV memory, rate or latency, as a pure state machine.

The arithmetic is that of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2, metrics of type AverageValue): each target
proposes total / target instances, rounded up; the largest proposal counts; one within 10 % of the current number changes
nothing; and stabilisation windows look back at earlier proposals, so that short peaks or lulls have no effect. A latency
above its target proposes what a metric of type Value does there: instances that serve * latency / target. One below 80 % of
it proposes one instance fewer, as the load-based scaling of Dynamo's planner does (load_scaling_down_sensitivity): the ratio
would propose far too few, since an idle instance is not infinitely fast.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

TOLERANCE = 0.1
_CALM = 0.8
TARGETS = ("queue", "concurrency", "kv", "rate", "ttft_ms", "itl_ms")
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """Targets for one instance, and limits and timing of the scaling.

    queue, concurrency, kv, rate: targets per instance: waiting requests; waiting or running requests; the share of its KV
        memory in use; requests that arrive in a second. None: does not count. At least one counts.

    ttft_ms, itl_ms: targets of the percentile over the requests since the last decision. A request that still waits for its
        first token counts once it is above the target; the ITL is the mean of each request that has finished.
    advisory: decisions are logged and not carried out.

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
    ttft_ms: float | None = None
    itl_ms: float | None = None
    percentile: float = 90.0
    advisory: bool = False
    interval_s: float = 15.0
    start_up_s: float = 60.0
    up_after_s: float = 0.0
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        problems = []
        if not self.targets:
            problems.append(f"a rule needs a target: {', '.join(TARGETS)}")
        if any(not 0 < target < math.inf for target in self.targets.values()):
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
    def targets(self) -> dict[str, float]:
        """The targets that count, by name."""
        return {name: target for name in TARGETS if (target := getattr(self, name)) is not None}

    @property
    def at_first(self) -> int:
        return self.least if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The work of all instances of a pool.

    kv: the sum of the shares in use. rate: arrivals in a second since last time. ready: instances that serve.
    ttft_ms, itl_ms: the percentile since last time; None: of no request.
    """

    waiting: int
    running: int
    kv: float
    rate: float
    ready: int = 0
    ttft_ms: float | None = None
    itl_ms: float | None = None


class Decision(NamedTuple):
    """The wanted number of instances. observed: by target, as it is compared with."""

    observed: dict[str, float | None]
    desired: int
    reason: str


class Autoscaler:
    """Decisions of one rule, to be asked for every `rule.interval_s`; earlier proposals are remembered."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self._wishes: deque[tuple[float, int]] = deque()

    def decide(self, now: float, load: PoolLoad, current: int) -> Decision:
        """Return the number of instances there should be, with `current` there or starting."""
        rule = self.rule
        wish, observed, reason = self._wish(load, current)
        self._wishes.append((now, wish))
        window_s = max(rule.up_after_s, rule.down_after_s)
        while self._wishes[0][0] < now - window_s - _ROUNDING:
            self._wishes.popleft()
        up = min(wish for at, wish in self._wishes if at >= now - rule.up_after_s - _ROUNDING)
        down = max(wish for at, wish in self._wishes if at >= now - rule.down_after_s - _ROUNDING)
        desired = up if up > current else min(current, down)
        return Decision(observed, desired, reason if desired == wish else f"{reason}, not for long enough")

    def _wish(self, load: PoolLoad, current: int) -> tuple[int, dict[str, float | None], str]:
        """Return the number of instances that the load proposes, with what was observed, and why."""
        rule, busy = self.rule, load.waiting or load.running
        totals = {"queue": load.waiting, "concurrency": load.waiting + load.running, "kv": load.kv, "rate": load.rate}
        observed: dict[str, float | None] = {}
        proposals: dict[str, int] = {}
        for name, target in rule.targets.items():
            if (total := totals.get(name)) is not None:
                observed[name] = total / max(current, 1)
                proposals[name] = _instances(total / target, current)
            else:
                observed[name] = latency = getattr(load, name)
                idle = 0 if latency is None and not busy else current
                proposals[name] = idle if latency is None else _for_latency(latency / target, load.ready, current)
        by = max(proposals, key=proposals.__getitem__)
        wish = max(proposals[by], 1 if busy else 0)  # at least one must serve them
        limited = min(max(wish, rule.least), rule.most)
        reason = f"{by} above target" if wish > current else "below target" if wish < current else "on target"
        limit = "" if limited == wish else f", {limited} is the {'most' if wish > limited else 'least'}"
        return limited, observed, reason + limit


def _for_latency(ratio: float, ready: int, current: int) -> int:
    """Return the number of instances for a latency of `ratio` times its target."""
    if ratio > 1.0 + TOLERANCE + _ROUNDING:
        return max(math.ceil(ready * ratio - _ROUNDING), current, 1)
    return current - 1 if ratio < _CALM else current


def _instances(wanted: float, current: int) -> int:
    if current and abs(wanted / current - 1.0) <= TOLERANCE + _ROUNDING:
        return current
    return math.ceil(wanted - _ROUNDING)
