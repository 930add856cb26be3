"""The report of `llmirage size --day` as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.size.day import DayPlan, DaySizing
from llmirage_client.size.error_margin import least_confident, margins_of, margins_of_answer
from llmirage_client.size.report import Question, missed_lines, shape_json, usd
from llmirage_shared.plural import rounded

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
            **self.question.end_json(found.sizing.refused, found.effort),
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
                table = plain_table(*columns)
                for row in rows:
                    table.add_row(*row)
                yield table
                yield ""
            yield from self.lines()
        yield f"Prices: {self.question.price_source}"
        yield from self.question.end_lines(found.effort)


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
