"""What static and autoscaled deployments do with a day of hourly rates, for `size --day`.

Each hour is a steady load: numbers of instances come from the same verdicts as those of one rate. Some of the day's rates
are searched; between them a number is taken that carries no more per instance than a smaller number was seen to. The plan
that is answered is then simulated at each of its hours. Where instances are missing, as they start or are interrupted, a
fluid model says for how long requests wait: by priority, classes that fit into what is left still meet the objectives, the
others miss them until the backlog is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulator.deployments import Shape
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.size.day_file import Day, ScalingPolicy
from llmirage_client.size.error_margin import least_confident, margins_of, margins_of_answer
from llmirage_client.size.report import Question, missed_lines, shape_json, usd
from llmirage_client.size.sizing import Capacity, CapacitySearch, Sizing, Terms
from llmirage_client.size.trial import Trial, Trials
from llmirage_client.workload.rates import HOUR_S
from llmirage_shared.plural import rounded

_LEVELS = 12  # of the day's rates that are searched, at most; the others lie between them
_SCALE_DOWN_S = 300.0  # for which an instance stays that is not needed any more, as in `llmirage serve`


class CarriedLoads:
    """Numbers of instances of one shape with a rate that each carries; (instances, requests/s), of judged simulations.

    answered: requests/s that an instance answers at most, whatever the objectives, about.
    """

    def __init__(self, judged: Sequence[tuple[int, float]], answered: float = 0.0) -> None:
        self._judged = sorted(judged)
        self._answered = answered

    def carried(self, instances: int) -> float:
        """Return the requests/s that so many carry: as many each as in a smaller number that was judged."""
        return max((instances / count * rate for count, rate in self._judged if count <= instances), default=0.0)

    def answered(self, instances: int) -> float:
        """Estimate the requests/s that so many answer while a backlog waits."""
        return max(self.carried(instances), instances * self._answered)

    def needed(self, rate: float) -> int:
        """Return the fewest instances known to carry a rate; one at least."""
        each = [count if known >= rate else math.ceil(rate * count / known - 1e-9) for count, known in self._judged]
        return max(1, min(each))


def judged_loads(peak: Capacity, rates: Sequence[float], base: ClusterConfig, trials: Trials) -> list[tuple[int, float]]:
    """Search some of the rates, the highest of which needs as many as `peak` has.

    Next is always the middle of the two neighbouring rates between which most instances too many may be taken.
    """
    shape, levels = peak.shape, sorted({rate for rate in rates if rate > 0})
    known = {len(levels) - 1: peak.instances}

    def search(place: int, fewest: int, most: int, guess: float) -> None:
        rate, judge = levels[place], CapacitySearch(shape, base, trials, levels[place])
        low, high = max(fewest, min(judge.least or 1, most)), most
        count = min(max(low, math.ceil(guess)), max(low, high - 1))
        while low < high:
            trials.begin(f"{shape.named(count)} at {rounded(rate, 3)} req/s")
            if judge.decide(count).met:
                high = count
            else:
                low = count + 1
            count = max(low, min(count - 1, high - 1)) if high == count else low
        known[place] = high

    if len(levels) > 1:
        search(0, 1, peak.instances, peak.instances * levels[0] / levels[-1])
    while len(known) < _LEVELS:
        pairs = list(pairwise(sorted(known)))
        doubts = [(known[after] - known[before]) * (after - before - 1) for before, after in pairs]
        if not any(doubts):
            break
        before, after = pairs[doubts.index(max(doubts))]
        middle = (before + after) // 2
        share = (levels[middle] - levels[before]) / (levels[after] - levels[before])
        search(middle, known[before], known[after], known[before] + share * (known[after] - known[before]))
    return [(count, levels[place]) for place, count in known.items()]


@dataclass(frozen=True, slots=True)
class HourPlan:
    """An hour of a deployment. carries: requests/s. goodput: share of requests within the objectives, by class.

    trial: of its load; None where nothing arrives, or it was not simulated.
    """

    rate: float
    instances: int
    carries: float
    goodput: Mapping[str, float]
    trial: Trial | None = None

    @property
    def worst(self) -> float:
        return min(self.goodput.values())


@dataclass(frozen=True, slots=True)
class DayPlan:
    """One deployment over the day. usd: None without prices. interruptions: of spot instances, expected.

    goodput: share of each class's requests within the objectives.
    """

    shape: Shape
    hours: tuple[HourPlan, ...]
    gpu_hours: float
    usd: float | None
    cold_start_s: float
    interruptions: float
    goodput: Mapping[str, float]

    @property
    def worst_hour(self) -> int:
        """The hour with the lowest goodput of a class; of equal ones, that which uses most of its instances."""
        return min(range(len(self.hours)), key=lambda at: (self.hours[at].worst, -self._use(at)))

    def _use(self, at: int) -> float:
        hour = self.hours[at]
        return hour.rate / hour.carries if hour.carries else 0.0


def cold_start_s(config: ClusterConfig, policy: ScalingPolicy) -> float:
    """Return the time from an instance's start until it takes requests: its weights are read from one disk."""
    [pool] = plan_of(config)
    weights_gb = pool.deployment.memory.weights_bytes * pool.deployment.gpus / 1e9
    return policy.start_s + weights_gb / policy.disk_gb_per_s


def plan_day(
    day: Day, shape: Shape, loads: CarriedLoads, counts: Sequence[int], usd_per_h: float | None, start_s: float
) -> DayPlan:
    """Return a deployment of so many instances in each hour; the day comes again and again.

    usd_per_h: of one instance. start_s: cold start.
    """
    hours, instance_hours = [], 0.0
    for at, (rate, count) in enumerate(zip(day.rates, counts, strict=True)):
        before = counts[at - 1]
        instance_hours += count + max(0, before - count) * _SCALE_DOWN_S / HOUR_S
        missing_s = 0.0
        if day.policy.policy == "scheduled":
            instance_hours += max(0, count - before) * start_s / HOUR_S
        elif count > before:
            missing_s = _waits_s(rate, loads, before, count, start_s)
        goodput = _goodput(day, at, loads, min(before, count), missing_s / HOUR_S, count, start_s)
        hours.append(HourPlan(rate, count, loads.carried(count), goodput))
    gpus = sum(shape.gpus_of(1).values())
    price = 1.0 if day.spot is None else day.spot.price
    return DayPlan(
        shape,
        tuple(hours),
        instance_hours * gpus,
        None if usd_per_h is None else instance_hours * usd_per_h * price,
        start_s,
        0.0 if day.spot is None else instance_hours * day.spot.interruptions_per_h,
        _mean_goodput(day, hours),
    )


def _waits_s(rate: float, loads: CarriedLoads, before: int, after: int, start_s: float) -> float:
    """Return for how much of the hour requests wait: until instances are there, and their backlog is gone."""
    if rate <= loads.carried(before):
        return 0.0
    backlog, spare = max(0.0, rate - loads.answered(before)) * start_s, loads.answered(after) - rate
    if not backlog:
        return min(HOUR_S, start_s)
    return min(HOUR_S, start_s + backlog / spare) if spare > 0 else HOUR_S


def _answered(shape: Shape, base: ClusterConfig, trials: Trials) -> float:
    """Estimate the requests/s that an instance answers at most: each takes its prefill, and its share of large batches."""
    bounds, lengths = trials.bounds(shape.config(base, 1)), trials.traffic.source.lengths
    if lengths is None:
        return 0.0
    prefill, decode = bounds.prefill_requests_per_s(lengths), bounds.decode_requests_per_s(lengths)
    return 0.0 if prefill is None or decode is None else 1 / (1 / prefill + 1 / decode)


def _goodput(
    day: Day, at: int, loads: CarriedLoads, before: int, missing: float, count: int, start_s: float
) -> dict[str, float]:
    """Return the share of each class's requests in an hour that meet the objectives.

    before: instances in the share of the hour in which others are `missing`; count: in the rest.
    """
    down = 0.0
    if day.spot is not None:  # share of the time for which an instance is not there
        down = min(1.0, day.spot.interruptions_per_h * max(0.0, start_s - day.spot.notice_s) / HOUR_S)
    sums: dict[str, list[float]] = {}
    for tenant in day.tenants:
        due = sum(other.rates[at] for other in day.tenants if other.priority <= tenant.priority)
        rest = sum(
            math.comb(count, lost) * down**lost * (1 - down) ** (count - lost)
            for lost in range(count + 1)
            if loads.carried(count - lost) >= due
        )
        met = missing * (loads.carried(before) >= due) + (1 - missing) * min(1.0, rest)
        one = sums.setdefault(tenant.service_class, [0.0, 0.0])
        one[0] += met * tenant.rates[at]
        one[1] += tenant.rates[at]
    return {name: met / offered if offered else 1.0 for name, (met, offered) in sums.items()}


def _mean_goodput(day: Day, hours: Sequence[HourPlan]) -> dict[str, float]:
    found = {}
    for name in dict.fromkeys(tenant.service_class for tenant in day.tenants):
        offered = np.sum([tenant.rates for tenant in day.tenants if tenant.service_class == name], axis=0)
        found[name] = float(np.average([hour.goodput[name] for hour in hours], weights=offered)) if offered.any() else 1.0
    return found


@dataclass(frozen=True, slots=True)
class DaySizing:
    """static, autoscaled: the cheapest of each; None where nothing meets the objectives. others: further autoscaled ones."""

    day: Day
    sizing: Sizing
    static: DayPlan | None
    autoscaled: DayPlan | None
    others: tuple[DayPlan, ...]


def size_day(
    day: Day,
    sizing: Sizing,
    base: ClusterConfig,
    trials: Trials,
    terms: Terms,
) -> DaySizing:
    """Plan the day with the deployments that carry its highest hour. Raises ConfigError, SimulationError."""
    if sizing.answer is None:
        return DaySizing(day, sizing, None, None, ())
    rates, plans, loads_of = day.rates, list[DayPlan](), dict[Shape, CarriedLoads]()
    most = sizing.answer.capacity

    def plan(shape: Shape, counts: Sequence[int]) -> DayPlan:
        start_s = cold_start_s(shape.config(base, 1), day.policy)
        return plan_day(day, shape, loads_of[shape], counts, terms.hourly(shape, 1), start_s)

    for priced in (sizing.answer, *sizing.runners_up):
        peak = priced.capacity
        wanted = [min(rate * (1 + day.policy.headroom), max(rates)) for rate in rates]
        loads_of[peak.shape] = loads = CarriedLoads(
            judged_loads(peak, wanted, base, trials), _answered(peak.shape, base, trials)
        )
        counts = [loads.needed(rate) for rate in wanted]
        plans.append(plan(peak.shape, counts))
    by_cost = terms.goal == "cost"
    plans.sort(key=lambda one: (one.usd if by_cost and one.usd is not None else one.gpu_hours, one.gpu_hours))
    enough = {one.capacity.shape: one.capacity.instances for one in (sizing.answer, *sizing.runners_up)}
    best = _simulated(day, plans[0], enough[plans[0].shape], base, trials, plan)
    static = plan(most.shape, [most.instances] * len(rates))
    return DaySizing(day, sizing, static, best, tuple(plans[1:]))


def _simulated(
    day: Day,
    plan: DayPlan,
    most: int,
    base: ClusterConfig,
    trials: Trials,
    again: Callable[[Shape, Sequence[int]], DayPlan],
) -> DayPlan:
    """Simulate each hour of the plan, with up to `most` instances where it misses the objectives."""
    known: dict[tuple[float, int], tuple[int, Trial | None]] = {}
    for hour in plan.hours:
        key = hour.rate, hour.instances
        if not hour.rate or key in known:
            continue
        count, search = hour.instances, CapacitySearch(plan.shape, base, trials, hour.rate)
        trials.begin(f"{plan.shape.named(count)} at {rounded(hour.rate, 3)} req/s")
        trial = search.judge(count)
        while not trial.met and count < most:
            count += 1
            trial = search.judge(count)
        known[key] = count, trial
    found = [known.get((hour.rate, hour.instances), (hour.instances, None)) for hour in plan.hours]
    plan = again(plan.shape, [count for count, _ in found])
    hours = []
    for hour, (_, its) in zip(plan.hours, found, strict=True):
        missed = its is not None and not its.met
        hours.append(replace(hour, trial=its, goodput=dict.fromkeys(hour.goodput, 0.0) if missed else hour.goodput))
    return replace(plan, hours=tuple(hours), goodput=_mean_goodput(day, hours))


_SMALLEST_SHARE = 0.9999  # shown as 99.99 %, and not as all


@dataclass(frozen=True, slots=True)
class DayReport:
    """Static and autoscaled deployments over a day."""

    question: Question
    found: DaySizing

    @property
    def answered(self) -> bool:
        return self.found.static is not None

    @property
    def headline(self) -> str:
        """The cheapest plans in a sentence."""
        static, autoscaled = self.found.static, self.found.autoscaled
        if static is None or autoscaled is None:
            return "No deployment meets the objectives in the highest hour."
        counts = [hour.instances for hour in autoscaled.hours]
        span = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
        costs = (autoscaled.usd or 0.0, static.usd or 0.0)
        saved = f", {1 - costs[0] / costs[1]:.0%} less" if costs[1] and costs[0] <= costs[1] else ""
        return (
            f"Static: {static.shape.named(static.hours[0].instances)}, {rounded(static.gpu_hours)} GPU-hours{_usd(static)}. "
            f"Autoscaled: {span} x {autoscaled.shape.name}, {rounded(autoscaled.gpu_hours)} GPU-hours"
            f"{_usd(autoscaled)}{saved}."
        )

    def plan_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows of all plans."""
        rows = []
        for plan in self._plans():
            counts = [hour.instances for hour in plan.hours]
            fewest, most, at = min(counts), max(counts), plan.worst_hour
            rows.append(
                [
                    f"{'static' if plan is self.found.static else 'autoscaled'} {plan.shape.name}",
                    f"{fewest}-{most}" if fewest < most else str(most),
                    rounded(plan.gpu_hours),
                    usd(plan.usd),
                    *(_share(share) for share in plan.goodput.values()),
                    f"{at}: {_share(plan.hours[at].worst)}",
                ]
            )
        classes = list(self.found.static.goodput) if self.found.static is not None else []
        names = ["goodput"] if len(classes) == 1 else [f"{name} goodput" for name in classes]
        return ["deployment", "instances", "GPU-hours", "USD", *names, "worst hour"], rows

    def _plans(self) -> list[DayPlan]:
        found = [self.found.static, self.found.autoscaled, *self.found.others]
        return [plan for plan in found if plan is not None]

    def hour_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows of the hours of the autoscaled plan."""
        plan, rows = self.found.autoscaled, []
        for at, hour in enumerate(() if plan is None else plan.hours):
            load = "-" if hour.trial is None else f"{hour.trial.load:.0%}"
            rows.append([str(at), rounded(hour.rate), str(hour.instances), load, _share(hour.worst)])
        return ["hour", "req/s", "instances", "of the tightest limit", "goodput"], rows

    def lines(self) -> Iterator[str]:
        """Yield how the day was planned."""
        found, policy, plan = self.found, self.found.day.policy, self.found.autoscaled
        if plan is None or found.static is None:
            return
        when = "when the load is there" if policy.policy == "reactive" else "before the hour that needs them"
        yield (
            f"Autoscaling: {policy.policy}, instances start {when}, for {policy.headroom:.0%} more than the rate; "
            f"cold start {plan.cold_start_s:,.0f} s: {policy.start_s:g} s, and the weights from a disk of "
            f"{policy.disk_gb_per_s:g} GB/s."
        )
        if found.day.spot is not None:
            yield (
                f"Spot: {found.day.spot.price:.0%} of the on-demand price; expected interruptions a day: "
                f"{rounded(found.static.interruptions, 3)} static, {rounded(plan.interruptions, 3)} autoscaled."
            )
        answer = found.sizing.answer
        if answer is not None:
            yield f"Highest hour of the static deployment: {least_confident(margins_of_answer(answer.capacity))}."
        first = ", in which lower numbers of priority go first" if found.day.prioritised else ""
        judged = [hour.trial for hour in plan.hours if hour.trial is not None and hour.trial.verdicts]
        if judged:
            confidence = least_confident(margin for trial in judged for margin in margins_of(trial))
            yield f"Least certain hour of the autoscaled one: {confidence}."
        yield (
            "Goodput: share of requests in times in which the objectives hold; a shortage is a fluid estimate"
            f"{first}. Each hour is steady, and the day comes again."
        )

    def json(self) -> dict[str, Any]:
        found = self.found
        return {
            "model": self.question.base.model,
            "day": found.day.source,
            "slo": [objective.text for objective in self.question.objectives],
            "goal": found.sizing.goal,
            "static": None if found.static is None else _plan_json(found.static),
            "autoscaled": None if found.autoscaled is None else _plan_json(found.autoscaled),
            "others": [_plan_json(plan) for plan in found.others],
            "hours": self._hours_json(),
            "missed": list(missed_lines(found.sizing)) if found.static is None else [],
            **self.question.end_json(),
        }

    def _hours_json(self) -> list[dict[str, Any]]:
        static, plan = self.found.static, self.found.autoscaled
        if static is None or plan is None:
            return []
        return [
            {
                "hour": at,
                "rate": hour.rate,
                "static_instances": fixed.instances,
                "instances": hour.instances,
                "goodput": dict(hour.goodput),
                "objectives": {} if hour.trial is None else {one.objective.text: one.value for one in hour.trial.verdicts},
            }
            for at, (hour, fixed) in enumerate(zip(plan.hours, static.hours, strict=True))
        ]

    def blocks(self) -> Iterator[Block]:
        found = self.found
        yield f"{self.question.base.model}, {found.day.source}: {self.question.traffic.source.text}"
        yield from self.question.head_lines("instances of each hour")
        yield ""
        yield bold(self.headline, bad=not self.answered)
        if not self.answered:
            yield from missed_lines(found.sizing)
        else:
            for columns, rows in (self.plan_rows(), self.hour_rows()):
                yield plain_table(*columns, rows=rows)
                yield ""
            yield from self.lines()
        yield f"Prices: {self.question.price_source}"
        yield from self.question.end_lines()


def _usd(plan: DayPlan) -> str:
    return "" if plan.usd is None else f", {plan.usd:,.2f} USD"


def _share(share: float) -> str:
    return f"{share:.2%}" if share < _SMALLEST_SHARE or share == 1 else f"{_SMALLEST_SHARE:.2%}"


def _plan_json(plan: DayPlan) -> Mapping[str, Any]:
    worst = plan.worst_hour
    return {
        **shape_json(plan.shape),
        "instances": [hour.instances for hour in plan.hours],
        "gpu_hours": plan.gpu_hours,
        "usd": plan.usd,
        "goodput": dict(plan.goodput),
        "worst_hour": {"hour": worst, "goodput": dict(plan.hours[worst].goodput)},
        "cold_start_s": plan.cold_start_s,
        "interruptions": plan.interruptions,
    }
